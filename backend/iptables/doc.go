// Package iptables programs the services of a node with iptables and IP sets. It is for nodes whose kernel has no nf_tables, and for
// clusters whose other parts insist on iptables.
//
// A packet that concerns no Service costs two lookups in sets. A packet to a Service passes a tree of chains, with at most 16 rules
// each, to the chain of its Service port. A change writes only the chains that it changes. Package rules, which is pure, works out what
// to change. [Backend] carries it out through iptables-restore, and IP sets through netlink. README.md follows one packet and one
// change.
//
// All chains and sets have names that begin with SWY-. Nothing else is touched, but for the jumps to these chains from the built-in
// chains.
package iptables
