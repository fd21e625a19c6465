// Package ipvs serves frontends with the kernel's IP virtual server and its schedulers, above another dataplane that serves the rest. A
// [Backend] is IPVS and that dataplane.
//
// A virtual server treats all clients alike. So IPVS serves cluster IPs, external IPs and load balancer addresses that have endpoints and
// whose records treat all clients alike. The other dataplane gets records with all other frontends, including NodePorts. It translates the
// destination of a packet before IPVS sees the packet. So a frontend moves from one to the other while connections go on. README.md follows
// a packet and a change.
//
// This package owns the device "switchyard-ipvs", which holds the addresses of virtual servers. It also owns the virtual servers at these
// addresses, and the tables "switchyard-ipvs" of nf_tables. It never touches virtual servers at other addresses.
package ipvs
