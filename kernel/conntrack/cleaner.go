package conntrack

import (
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Table is a connection tracking table. A [Conn] is one.
type Table interface {
	// Flows calls each with the flows that the filter admits, with a few at a time.
	Flows(f Filter, each func([]Flow) error) error
	// Delete removes flows, and returns how many were there. That one is gone already is not an error, and one that cannot be removed does not keep
	// the others.
	Delete(...Flow) (int, error)
	// DeleteAll removes the flows that the filter admits, and returns about how many they were. The error wraps
	// errors.ErrUnsupported if the table cannot do it.
	DeleteAll(Filter) (int, error)
}

// CleanerOptions are the settings of a [Cleaner].
type CleanerOptions struct {
	// Logger gets a message about deleted flows. Default: discard.
	Logger *slog.Logger
	// Clean calls OnClean for each family whose flows it has looked at. The arguments are the time that listing and
	// deleting took, and the number of deleted flows, partly estimated. It must return soon. Default: no callback.
	OnClean func(f state.Family, took time.Duration, deleted int)
	// Elsewhere reports whether another dataplane serves a frontend that no noted service has: its flows are left to
	// that dataplane. It is called by the goroutine that calls Clean. Default: none is.
	Elsewhere func(state.FrontendKey) bool
	// Scheduled reports whether IPVS has a virtual server for a frontend, even one that takes no new flows. Flows that IPVS has scheduled are
	// left to IPVS. The kernel ends them when their real server is deleted. It finds them by the client and the frontend alone. So if the
	// Cleaner had deleted them before, the kernel would end the flows that replaced them. Scheduled is called as Elsewhere is. Default: IPVS
	// has no virtual server.
	Scheduled func(state.FrontendKey) bool
}

// Cleaner remembers which frontends have changed and deletes their stale flows. All its methods but Removing must be called by
// one goroutine at a time.
type Cleaner struct {
	table   Table
	log     *slog.Logger
	onClean func(state.Family, time.Duration, int)
	// elsewhere and scheduled are the fields of the Options.
	elsewhere, scheduled func(state.FrontendKey) bool
	// nodePorts and peers are sorted.
	nodePorts, peers []netip.Addr
	// pending are the frontends whose flows must be looked at.
	pending map[state.FrontendKey]suspect
	noted   int
	ranges  ranges
	// othersNext is set if CleanPart has to look at others than UDP frontends first.
	othersNext bool
	// unfiltered is set once the table cannot delete by a filter.
	unfiltered bool
	removal    atomic.Pointer[removal]
}

// serving describes who may answer a frontend's flows.
type serving struct {
	// owner is the service that had the frontend last.
	owner state.ServiceName
	// endpoints are sorted. Only UDP endpoints matter.
	endpoints []netip.AddrPort
	// gone is set if no service has the frontend. There are no endpoints then, but a range may have its port.
	gone bool
	// handedOver is set if other nodes hand flows to the port over to this one.
	handedOver bool
}

func (s serving) has(addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(s.endpoints, addr, netip.AddrPort.Compare)
	return found
}

// suspect is a pending frontend: which endpoints may answer its flows, and which others may be answering some.
type suspect struct {
	serving
	// left are endpoints that have left since its flows were looked at, maxLeft at most.
	left []netip.AddrPort
	// untranslated: flows may have begun while it had no endpoints.
	untranslated bool
	// anybody is set if any endpoint may be answering the flows, because the previous state of the frontend is not known.
	anybody bool
	// noted counts the notes up to the one that this is from.
	noted int
}

// maxLeft is how many endpoints that have left are remembered by name.
const maxLeft = maxWalks

// leave records the endpoints that have left, unless they still serve.
func (s *suspect) leave(endpoints []netip.AddrPort) {
	for _, e := range endpoints {
		if s.anybody || s.has(e) || slices.Contains(s.left, e) {
			continue
		}
		if len(s.left) == maxLeft {
			s.left, s.anybody = nil, true
			return
		}
		s.left = append(s.left, e)
	}
}

// NewCleaner returns a Cleaner of t that has nothing to do yet.
func NewCleaner(t Table, o CleanerOptions) *Cleaner {
	c := &Cleaner{
		table: t, log: o.Logger, onClean: o.OnClean, elsewhere: o.Elsewhere, scheduled: o.Scheduled, pending: map[state.FrontendKey]suspect{}, ranges: newRanges(),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.onClean == nil {
		c.onClean = func(state.Family, time.Duration, int) {}
	}
	if c.elsewhere == nil {
		c.elsewhere = func(state.FrontendKey) bool { return false }
	}
	if c.scheduled == nil {
		c.scheduled = func(state.FrontendKey) bool { return false }
	}
	return c
}

// SetNodePortAddrs specifies which addresses serve NodePorts. They are sorted; the Cleaner keeps them and does not change them.
func (c *Cleaner) SetNodePortAddrs(addrs []netip.Addr) { c.nodePorts = addrs }

// SetPeerAddrs specifies the addresses of other nodes that hand flows over to this one, as [state.Edge] says. These flows may be to a node port at such
// an address. The addresses are sorted; the Cleaner keeps them and does not change them.
func (c *Cleaner) SetPeerAddrs(addrs []netip.Addr) { c.peers = addrs }

// Note records the effect of a change from old to new on UDP flows, the only flows that a change of services makes stale. nil stands for a
// service that does not exist. old is the state that the dataplane showed before. Note costs O(service). The services of one update may be
// noted in any order, also if a frontend moves from one to another. Note them after the update is committed. Changes noted before a failed
// commit must be noted again with the state that is finally committed. Until then the Cleaner assumes that the new state is programmed.
func (c *Cleaner) Note(old, new *state.Service) {
	c.noted++
	before, after := frontends(old), frontends(new)
	c.ranges.note(before, after)
	for f, s := range after {
		was, existed := before[f]
		_, isPending := c.pending[f]
		if isPending || !existed || stale(was, s) {
			c.suspect(f, s, was, existed)
		}
	}
	for f, s := range before {
		if _, exists := after[f]; exists {
			continue
		}
		// If another service has taken the frontend, its note came first.
		now := serving{owner: s.owner, gone: true}
		if p, isPending := c.pending[f]; isPending && p.owner != s.owner {
			now = p.serving
		}
		c.suspect(f, now, s, true)
	}
}

// suspect makes a frontend pending, with the endpoints that serve it now and did before, if it existed.
func (c *Cleaner) suspect(f state.FrontendKey, now, was serving, existed bool) {
	p := c.pending[f]
	s := suspect{
		// A range has no flows before it exists: they would be flows of single ports within it.
		serving: now, noted: c.noted, anybody: p.anybody || !existed && f.LastPort == 0, untranslated: p.untranslated || len(was.endpoints) == 0,
	}
	s.handedOver = s.handedOver || was.handedOver || p.handedOver
	s.leave(p.left)
	s.leave(was.endpoints)
	c.pending[f] = s
	c.ranges.stale = c.ranges.stale || f.LastPort != 0
}

// NoteAll makes the frontends of all services pending, which is necessary after a restart. services are all services:
// a pending frontend that is in none of them is gone.
func (c *Cleaner) NoteAll(services iter.Seq[*state.Service]) {
	c.noted++
	for f, s := range c.pending {
		c.pending[f] = suspect{serving: serving{owner: s.owner, handedOver: s.handedOver, gone: true}, anybody: true, noted: c.noted}
	}
	for service := range services {
		for f, s := range frontends(service) {
			c.pending[f] = suspect{serving: s, anybody: true, noted: c.noted}
		}
	}
	c.ranges = newRanges()
	for f, s := range c.pending {
		if !s.gone {
			c.ranges.add(f, s.serving)
		}
	}
}

// NoteGap is for when the dataplane, or a part of it, was missing until now. In addition to NoteAll's work, it makes
// the TCP and SCTP frontends of all services pending.
func (c *Cleaner) NoteGap(services iter.Seq[*state.Service]) {
	maps.DeleteFunc(c.pending, func(f state.FrontendKey, _ suspect) bool { return f.Protocol != state.UDP })
	c.NoteAll(services)
	for s := range services {
		for p, f := range s.Frontends() {
			if p.Protocol != state.UDP {
				c.pending[p.Key(f)] = suspect{serving: serving{owner: s.Name}, anybody: true, noted: c.noted}
				c.ranges.stale = c.ranges.stale || f.LastPort != 0
			}
		}
	}
}

// stale reports whether flows that were right before are wrong now.
func stale(before, after serving) bool {
	if len(before.endpoints) == 0 && len(after.endpoints) > 0 {
		return true
	}
	return slices.ContainsFunc(before.endpoints, func(e netip.AddrPort) bool { return !after.has(e) })
}

// frontends returns the UDP frontends of a service.
func frontends(s *state.Service) map[state.FrontendKey]serving {
	if s == nil {
		return nil
	}
	var found map[state.FrontendKey]serving
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Protocol != state.UDP {
			continue
		}
		if found == nil {
			found = map[state.FrontendKey]serving{}
		}
		v := serving{owner: s.Name, endpoints: endpoints(p), handedOver: p.Edge != nil}
		for _, f := range p.Frontends {
			found[p.Key(&f)] = v
		}
	}
	return found
}

// endpoints returns all endpoints that may answer a flow to p, sorted. A flow stays valid as long as its endpoint serves the port by any
// route.
func endpoints(p *state.Port) []netip.AddrPort {
	var all []netip.AddrPort
	for _, list := range p.Serving() {
		for _, e := range list {
			all = append(all, e.Addr)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}
