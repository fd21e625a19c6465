// Package ipvs has the kernel's IP virtual server serve what it can, with its schedulers, above another dataplane that serves the rest: a
// [Backend] is IPVS and that dataplane.
//
// A virtual server treats all clients alike. So IPVS serves the cluster IPs, external IPs and load balancer addresses whose record does, too,
// and that have endpoints; all else, NodePorts among it, is in the records that the other dataplane gets. That one comes first on the way of a
// packet: it translates the destination before IPVS sees it. So a frontend moves from one to the other while connections go on. README.md
// follows a packet and a change.
//
// What belongs to this package: the device "switchyard-ipvs", which holds the addresses of virtual servers, the virtual servers at those, and
// the tables "switchyard-ipvs" of nf_tables. Virtual servers at other addresses are never touched.
package ipvs
