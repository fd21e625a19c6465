// Package nft speaks to the kernel's nf_tables over netlink: atomic batches of tables, chains, rules, sets and elements, and
// dumps to read them back.
//
// The project needs more than github.com/google/nftables: the dataplane commits a skeleton and tens of thousands of
// elements in one transaction, and single elements within microseconds. docs/adr/0005-netlink.md has the measurement.
// Everything but the socket is pure and compiles on every platform. Formats follow the kernel's
// include/uapi/linux/netfilter/nf_tables.h and net/netfilter/nf_tables_api.c.
package nft
