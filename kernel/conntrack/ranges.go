package conntrack

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// ranges is what the Cleaner knows of ranges of UDP ports, and of the single ports that win over them. A flow to a range keeps its port, so that an endpoint of a
// range has port 0.
type ranges struct {
	// at has who serves each range, by its address.
	at map[netip.Addr]map[state.FrontendKey]serving
	// singles are all single ports, with their services. A range does not judge their flows.
	singles map[state.FrontendKey]state.ServiceName
	// pending are the pending ranges by where they are. stale is set if they have changed.
	pending map[state.FrontendKey][]state.FrontendKey
	stale   bool
}

func newRanges() ranges {
	return ranges{at: map[netip.Addr]map[state.FrontendKey]serving{}, singles: map[state.FrontendKey]state.ServiceName{}, stale: true}
}

// note takes down which UDP frontends a service had and has.
func (r *ranges) note(before, after map[state.FrontendKey]serving) {
	for f, s := range before {
		if _, stays := after[f]; stays {
			continue
		}
		// Another service may have taken it.
		if r.singles[f] == s.owner {
			delete(r.singles, f)
		}
		if r.at[f.Addr][f].owner == s.owner {
			delete(r.at[f.Addr], f)
		}
		if len(r.at[f.Addr]) == 0 {
			delete(r.at, f.Addr)
		}
	}
	for f, s := range after {
		r.add(f, s)
	}
}

func (r *ranges) add(f state.FrontendKey, s serving) {
	if f.LastPort == 0 {
		r.singles[f] = s.owner
		return
	}
	if r.at[f.Addr] == nil {
		r.at[f.Addr] = map[state.FrontendKey]serving{}
	}
	s.endpoints = slices.Clone(s.endpoints) // without the room of all routes
	r.at[f.Addr][f] = s
}

// single reports whether a single UDP port exists.
func (r *ranges) single(f state.FrontendKey) bool {
	_, exists := r.singles[f]
	return exists
}

// covers reports whether a range has a port, which it serves unless a single port does.
func (r *ranges) covers(to netip.AddrPort) bool {
	for f := range r.at[to.Addr()] {
		if f.Has(to.Port()) {
			return true
		}
	}
	return false
}

// serve reports whether an endpoint of a range answers a UDP flow.
func (r *ranges) serve(flow Flow) bool {
	dst, src := flow.Orig.Dst, flow.Reply.Src
	if src.Port() != dst.Port() {
		return false
	}
	for f, s := range r.at[dst.Addr()] {
		if f.Has(dst.Port()) && s.has(netip.AddrPortFrom(src.Addr(), 0)) {
			return true
		}
	}
	return false
}

// whereOf returns the key under which a range, or a flow, is found.
func whereOf(f state.FrontendKey) state.FrontendKey {
	f.Port, f.LastPort = 0, 0
	return f
}

// wrongInRange is [Cleaner.wrong] for flows to no pending single port.
func (c *Cleaner) wrongInRange(flow Flow) (wrong bool) {
	if c.ranges.stale {
		c.ranges.pending, c.ranges.stale = map[state.FrontendKey][]state.FrontendKey{}, false
		for f := range c.pending {
			if f.LastPort != 0 {
				c.ranges.pending[whereOf(f)] = append(c.ranges.pending[whereOf(f)], f)
			}
		}
	}
	if len(c.ranges.pending) == 0 || flow.Scheduled {
		return false
	}
	dst, src := flow.Orig.Dst, flow.Reply.Src
	to := state.FrontendKey{Family: flow.Family, Protocol: flow.Protocol, Addr: dst.Addr(), Port: dst.Port()}
	if src.Port() != dst.Port() || c.isSingle(to) {
		return false
	}
	from := netip.AddrPortFrom(src.Addr(), 0)
	for _, f := range c.ranges.pending[whereOf(to)] {
		if !f.Has(dst.Port()) {
			continue
		}
		s := c.pending[f]
		switch {
		case flow.Protocol != state.UDP:
			return flow.Unconnected && src == dst
		case s.has(from):
			return false
		case src == dst:
			wrong = wrong || s.untranslated || s.anybody
		default:
			wrong = wrong || s.anybody || slices.Contains(s.left, from)
		}
	}
	return wrong
}

// isSingle reports whether a UDP port at an address is a single port, perhaps a NodePort.
func (c *Cleaner) isSingle(to state.FrontendKey) bool {
	nodePort := to
	nodePort.Addr = netip.Addr{}
	return c.ranges.single(to) || c.ranges.single(nodePort) && c.servesNodePorts(to.Addr)
}
