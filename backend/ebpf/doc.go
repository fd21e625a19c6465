// Package ebpf translates the TCP connections of a node's processes at their sockets, when they connect, above another dataplane that does
// everything: a [Backend] is a pair of socket hooks and that dataplane.
//
// The hooks take what they can do exactly as netfilter would, and all else falls through, because they do not find it. Frontends, and the
// clients that may use them, are always a part of what the other dataplane has; when endpoints change, the hooks follow once that has
// applied the change. Losing hooks at any time, with the process that has attached them or on a kernel that refuses them, costs speed and no
// connection. README.md follows a connection.
package ebpf
