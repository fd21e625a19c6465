// Package userspace relays the connections of a node's services in this process, above another dataplane that sends them to the relay. A
// [Backend] is a relay and that dataplane, its base.
//
// The base gets each record with the relay's own address instead of endpoints. So the base decides who may connect, and refuses and drops
// as always. The relay asks the kernel for the original destination of a connection, chooses an endpoint by the record, and connects to it.
// It copies both ways, by splice for TCP and in batches for UDP. So it can try another endpoint when one does not answer, before the client
// notices, and prefer endpoints with few connections. README.md follows a connection.
//
// On other systems than Linux, the relay has no base and listens at the addresses of frontends.
package userspace
