// Package ebpf translates the TCP connections of a node's processes at their sockets, when they connect. It runs above another
// dataplane that serves everything: a [Backend] is a pair of socket hooks and that dataplane.
//
// The hooks take the connections that they can translate exactly as netfilter would. All other connections fall through, because the
// hooks do not find them. The hooks always have a part of what the other dataplane has. So a loss of the hooks costs speed and no
// connection, at any time, with their process or on a kernel that refuses them. README.md follows a connection.
package ebpf
