// Package conntrack lists and deletes entries of the kernel's connection tracking table, over ctnetlink: one by one, or all that
// a filter admits.
//
// It knows no more than what a dataplane needs to cut flows that lead to the wrong place. A [Conn] works on the network
// namespace in which it was opened. The package exists on all platforms; outside Linux [Open] reports that it is unsupported.
package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// Filter specifies which flows to list or to delete. A field that is zero admits all.
type Filter struct {
	Family   state.Family
	Protocol state.Protocol
	// Dst and DstPort are the destination of the flow's first packet, as its client sent it.
	Dst     netip.Addr
	DstPort uint16
	// From is the source of the answers: the endpoint that a flow is translated to, or its destination if it is not translated.
	From netip.AddrPort
	// Unconnected admits only flows that are so.
	Unconnected bool
}

// Flow is one tracked connection.
type Flow struct {
	Family   state.Family
	Protocol state.Protocol
	// Zone is the conntrack zone of the original direction, 0 by default.
	Zone uint16
	// Orig is the flow as its client sends it, Reply as the answers to it arrive: its source is the answering end. Ports are 0 for
	// protocols without ports.
	Orig, Reply Tuple
	// Unconnected reports for TCP and SCTP whether the client has had no answer as yet, or that it was turned away before there was a
	// connection. All else, also a connection that has been answered but not confirmed, is not.
	Unconnected bool
}

// Tuple is one direction of a flow.
type Tuple struct {
	Src, Dst netip.AddrPort
}

func (t Tuple) String() string { return fmt.Sprintf("%v -> %v", t.Src, t.Dst) }

func (f Flow) String() string {
	return fmt.Sprintf("%v %v, answered %v", f.Protocol, f.Orig, f.Reply)
}

// Match reports whether the filter admits the flow.
func (f Filter) Match(flow Flow) bool {
	return (f.Family == 0 || f.Family == flow.Family) &&
		(f.Protocol == 0 || f.Protocol == flow.Protocol) &&
		(!f.Dst.IsValid() || f.Dst == flow.Orig.Dst.Addr()) &&
		(f.DstPort == 0 || f.DstPort == flow.Orig.Dst.Port()) &&
		(!f.From.IsValid() || f.From == flow.Reply.Src) &&
		(!f.Unconnected || flow.Unconnected)
}
