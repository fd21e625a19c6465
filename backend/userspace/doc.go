// Package userspace relays the connections of a node's services in this process, above another dataplane that brings them here: a [Backend] is a
// relay and that dataplane, its base.
//
// The base gets each record with the relay's own address instead of endpoints, so that it decides who may connect, and refuses and
// drops as always. The relay asks the kernel where a connection was addressed to, chooses an endpoint by the record, connects to it,
// and copies both ways:
// by splice for TCP, by batches for UDP. So it can take another endpoint when one does not answer, before the client notices, and prefer those
// with few connections. README.md follows a connection.
//
// On other systems than Linux there is no base: the relay listens at the addresses of frontends.
package userspace
