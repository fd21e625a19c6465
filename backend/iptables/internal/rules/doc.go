// Package rules works out the content of a node's iptables tables and IP sets, and the changes that lead to it. It neither reads nor writes
// them.
//
// [Tables] are the tables of one family. They have the desired content, which follows from the records of the Services, and the known
// content of the kernel. [Tables.Set] and [Tables.Configure] change the desired content. [Tables.Read] takes the output of iptables-save
// and the kernel's sets. [Tables.Plan] returns the difference.
package rules
