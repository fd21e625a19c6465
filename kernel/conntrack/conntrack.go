// Package conntrack lists and deletes entries of the kernel's connection tracking table, over ctnetlink: one by one, or all that
// a filter admits.
//
// [Open] connects to the table of a network namespace, [Conn.Flows] lists, [Conn.Find] looks one up, [Conn.Delete] and [Conn.DeleteAll]
// delete. They need CAP_NET_ADMIN. The kernel keeps the translation of a connection in its entry: once the entry is deleted, the next
// packet of a UDP flow meets the rules of the dataplane as the first of a new flow. Package kernel/staleflows decides for a dataplane
// which entries have to go.
//
// The table may hold hundreds of thousands of flows, and anyone who can send packets can fill it. So a listing is never held in
// memory, and what it costs is documented with each method; docs/adr/0016-delete-flows-by-filter.md has the figures. The package
// exists on all platforms; outside Linux [Open] returns an error that wraps errors.ErrUnsupported.
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
	// Unconnected admits only flows with Flow.Unconnected.
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
	// Unconnected reports for TCP and SCTP whether the client has had no answer yet, or was turned away before there was a connection.
	// It is false for everything else, also for a connection that has been answered but not confirmed.
	Unconnected bool
	// Scheduled reports whether the flow is translated, but not by a rule: IPVS has chosen who answers, and translates it by a table of its own.
	Scheduled bool
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

// Ends calls each with the client and the answering end of flows that f admits: of one client if its address is valid. It costs what [Conn.Flows]
// costs.
func (c *Conn) Ends(f Filter, client netip.Addr, each func(client, server netip.AddrPort)) error {
	return c.Flows(f, func(flows []Flow) error {
		for _, flow := range flows {
			if !client.IsValid() || flow.Orig.Src.Addr() == client {
				each(flow.Orig.Src, flow.Reply.Src)
			}
		}
		return nil
	})
}
