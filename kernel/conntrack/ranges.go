package conntrack

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// ranges is what the Cleaner knows of ranges of ports. A flow to a range keeps its port, so that an endpoint of a range has port 0. A single port within a
// range has flows of its own, which the range does not judge.
type ranges struct {
	// at is how many UDP ranges an address has.
	at map[netip.Addr]int
	// singles are the single UDP ports of these addresses. Those that other services had when an address got its first range are missing until all is
	// noted again.
	singles map[state.FrontendKey]struct{}
	// pending are the pending ranges by where they are. stale is set if they have changed.
	pending map[state.FrontendKey][]state.FrontendKey
	stale   bool
}

// note takes down which UDP frontends a service had and has.
func (r *ranges) note(before, after map[state.FrontendKey]serving) {
	for f := range before {
		if _, stays := after[f]; stays {
			continue
		}
		if f.LastPort == 0 {
			delete(r.singles, f)
		} else if r.at[f.Addr]--; r.at[f.Addr] <= 0 {
			delete(r.at, f.Addr)
		}
	}
	for f := range after {
		if _, was := before[f]; !was && f.LastPort != 0 {
			r.has(f)
		}
	}
	r.noteSingles(after)
}

func (r *ranges) has(f state.FrontendKey) {
	if r.at == nil {
		r.at, r.singles = map[netip.Addr]int{}, map[state.FrontendKey]struct{}{}
	}
	r.at[f.Addr]++
}

func (r *ranges) noteSingles(frontends map[state.FrontendKey]serving) {
	if len(r.at) == 0 {
		return
	}
	for f := range frontends {
		if f.LastPort == 0 && r.at[f.Addr] > 0 {
			r.singles[f] = struct{}{}
		}
	}
}

// noteAll takes down the frontends of all services.
func (r *ranges) noteAll(services iter.Seq[*state.Service]) {
	*r = ranges{stale: true}
	for s := range services {
		for p, f := range s.Frontends() {
			if p.Protocol == state.UDP && f.LastPort != 0 {
				r.has(p.Key(f))
			}
		}
	}
	if len(r.at) == 0 {
		return
	}
	for s := range services {
		r.noteSingles(frontends(s))
	}
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
	if _, single := c.ranges.singles[to]; single || src.Port() != dst.Port() {
		return false
	}
	from := netip.AddrPortFrom(src.Addr(), 0)
	for _, f := range c.ranges.pending[whereOf(to)] {
		s := c.pending[f]
		switch {
		case !f.Has(dst.Port()):
		case flow.Protocol != state.UDP:
			return flow.Unconnected && src == dst
		case s.has(from):
			return false
		case src == dst:
			wrong = wrong || s.untranslated || s.anybody
		default:
			wrong = wrong || s.anybody || slices.Contains(s.gone, from)
		}
	}
	return wrong
}
