// Package ebpf translates the TCP connections of a node's processes at their sockets, when they connect, above another dataplane that does
// everything: a [Backend] is a pair of socket hooks and that dataplane.
//
// The hooks take what they can do exactly as netfilter would, and all else falls through, because they do not find it. What they have is
// always a part of what the other dataplane has, so that losing them at any time, with the process that has attached them or on a kernel
// that refuses them, costs speed and no connection. README.md follows a connection.
package ebpf
