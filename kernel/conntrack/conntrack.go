// Package conntrack lists entries of the kernel's connection tracking table. After Services have changed, it finds stale entries and
// deletes them, on request or in the background.
//
// [Open] connects to the table of a network namespace over ctnetlink. [Conn.Flows] lists flows, [Conn.Find] looks one up, and [Conn.Delete]
// and [Conn.DeleteAll] delete. They need CAP_NET_ADMIN. The kernel keeps the translation of a connection in its entry. Once the entry is
// deleted, the dataplane's rules see the next packet of a UDP flow as the first of a new flow. A [Cleaner] decides for a dataplane which
// entries have to go, and a [Cutter] deletes them in the background.
//
// The table may hold hundreds of thousands of flows, and anyone who can send packets can fill it. So a listing is never held in memory.
// Each method documents its cost, and docs/adr/0016-delete-flows-by-filter.md has the figures. The package exists on all platforms. Outside
// Linux, [Open] returns an error that wraps errors.ErrUnsupported.
//
// # Stale flows
//
// The kernel keeps sending a UDP flow to the endpoint of its first packet, for as long as its client goes on sending. So when an endpoint
// stops serving, or a frontend gets its first endpoint, entries of flows that another host answers must be deleted. The next packet of each
// then counts as the first of a new flow. Flows to endpoints that still serve are left alone.
//
// TCP and SCTP connections end with their endpoint, so nothing needs to be deleted. But a client that connects while the dataplane is
// missing leaves an entry without translation. For two minutes, all its packets from the same port are lost, also after a repair. Such an
// entry is deleted if it has no answer yet, or if the client was turned away. A connection that an endpoint has answered is left alone,
// because it may be older than the service.
//
// # How a dataplane uses it
//
// [Cleaner.Note] and its siblings record changes, and [Cleaner.Clean] looks at the kernel's table. Failed deletions stay pending, so a
// dataplane calls Clean again after a pause if Clean returns an error.
//
//   - after each commit, Note for each service, with its state in the dataplane before and after;
//   - after the first commit of a process, NoteAll, because earlier changes are not known;
//   - after rules were missing, because another program flushed them, NoteGap;
//   - after each change of the addresses that serve node ports, SetNodePortAddrs, and of the nodes that hand flows over, SetPeerAddrs.
//
// A dataplane that can afford to wait calls Clean in its Apply. A look takes from 10 ms in an empty table to a second
// in a full one. A dataplane that must not wait has a [Cutter], which calls Clean in a separate goroutine. The Cutter pauses for at least
// 250 ms between two looks, and in the long run leaves three quarters of its processor to other work.
//
// # What it costs
//
// Anyone can fill the kernel's table with flows, even by spoofed packets. So the package never holds or judges more than a few flows at
// once, and commits never wait for more. Where the kernel can, it deletes wrong flows by a filter: docs/adr/0016-delete-flows-by-filter.md.
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
	// Unconnected admits only flows with Flow.Unconnected, and Unanswered those with Flow.Unanswered.
	Unconnected, Unanswered bool
	// Translated admits only flows that a rule has translated to another destination.
	Translated bool
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
	// Ended reports for TCP and SCTP whether both sides have closed the connection, or one has broken it off. The kernel keeps its entry for a while.
	Ended bool
	// Unanswered reports whether a rule has translated the destination, and no answer has come.
	Unanswered bool
	// Scheduled reports whether IPVS has chosen who answers, and translates the flow by a table of its own instead of a rule.
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
		(!f.Unconnected || flow.Unconnected) &&
		(!f.Translated || flow.Reply.Src != flow.Orig.Dst && !flow.Scheduled) &&
		(!f.Unanswered || flow.Unanswered)
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
