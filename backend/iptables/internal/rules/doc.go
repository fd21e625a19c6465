// Package rules works out what the tables of iptables and the IP sets of a node are to hold, and what to change in them. It does
// neither read nor write them.
//
// [Tables] are the tables of one family: the desired content, by the records of the Services, and the content of the kernel, as far as
// is known. [Tables.Set] and [Tables.Configure] change what is desired. [Tables.Read] takes what iptables-save and the kernel's sets
// say. [Tables.Plan] returns the difference.
package rules
