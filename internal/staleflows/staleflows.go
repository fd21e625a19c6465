// Package staleflows cuts the flows that lead to the wrong place after services, or the dataplane itself, have changed.
//
// The kernel keeps sending a UDP flow to the endpoint that its first packet was sent to, for as long as its client goes on
// sending. So when an endpoint stops serving, or a frontend gets its first one, the conntrack entries of the flows that
// are answered by somebody else must be deleted; the next packet of each then counts as the first of a new flow. Flows to
// endpoints that still serve are left alone.
//
// TCP and SCTP connections end with their endpoint, so nothing needs to be cut. But a client that begins to connect while the
// dataplane is missing leaves an entry that is not translated, and never will be: for two minutes, whatever it sends again from
// the same port is lost, also after a repair. Such an entry is deleted if nobody has answered as yet, or the client was turned
// away. A connection that has got through to somebody is left alone: it may be older than the service.
package staleflows

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/internal/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// Table is a connection tracking table. A [conntrack.Conn] is one.
type Table interface {
	// Flows lists the flows that the filter admits.
	Flows(conntrack.Filter) ([]conntrack.Flow, error)
	// Delete removes a flow. That it is gone already is not an error.
	Delete(conntrack.Flow) error
}

// Options are the settings of a [Cleaner].
type Options struct {
	// Logger gets a message about what was deleted. Default: discard.
	Logger *slog.Logger
	// NodePortAddr says whether NodePorts are served on addr; Cut calls it. Default: on none.
	NodePortAddr func(addr netip.Addr) bool
	// OnCut is called by Cut for each family whose flows were looked at, with the time that it took to list and to delete them, and
	// the number that was deleted. It must return soon. Default: nobody is told.
	OnCut func(f state.Family, took time.Duration, deleted int)
}

// Cleaner remembers which frontends have changed and deletes their stale flows. Its methods must be called by one goroutine
// at a time.
type Cleaner struct {
	table        Table
	log          *slog.Logger
	nodePortAddr func(netip.Addr) bool
	onCut        func(state.Family, time.Duration, int)
	// pending are the frontends whose flows must be looked at.
	pending map[state.FrontendKey]serving
	noted   int
}

// serving says who may answer a frontend's flows.
type serving struct {
	// owner is the service that had the frontend last.
	owner state.ServiceName
	// endpoints are sorted. There are none if the frontend is gone. Only those of UDP matter.
	endpoints []netip.AddrPort
	// noted counts the notes up to the one that this is from.
	noted int
}

func (s serving) has(addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(s.endpoints, addr, netip.AddrPort.Compare)
	return found
}

// New returns a Cleaner of t that has nothing to do yet.
func New(t Table, o Options) *Cleaner {
	c := &Cleaner{table: t, log: o.Logger, nodePortAddr: o.NodePortAddr, onCut: o.OnCut, pending: map[state.FrontendKey]serving{}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.nodePortAddr == nil {
		c.nodePortAddr = func(netip.Addr) bool { return false }
	}
	if c.onCut == nil {
		c.onCut = func(state.Family, time.Duration, int) {}
	}
	return c
}

// Note takes down what a change from old to new means for UDP flows, the only ones that a change of services makes stale; nil
// stands for a service that does not exist, and old is what the dataplane showed before. It costs O(service). The services of one
// update may be noted in any order, also if a frontend moves from one to another. They are best noted once the update is
// committed. What was noted before a commit that failed must be noted again with what is committed in the end; until then the
// Cleaner takes the new state for real.
func (c *Cleaner) Note(old, new *state.Service) {
	c.noted++
	before, after := frontends(old), frontends(new)
	for f, s := range after {
		was, existed := before[f]
		_, isPending := c.pending[f]
		if isPending || !existed || stale(was, s) {
			s.noted = c.noted
			c.pending[f] = s
		}
	}
	for f, s := range before {
		if _, exists := after[f]; exists {
			continue
		}
		// If another service has taken the frontend, its note came first.
		if p, isPending := c.pending[f]; !isPending || p.owner == s.owner {
			c.pending[f] = serving{owner: s.owner, noted: c.noted}
		}
	}
}

// NoteAll makes the frontends of all services pending, as it is due after a restart. services are all that there are: a
// frontend that is pending already and in none of them is gone.
func (c *Cleaner) NoteAll(services iter.Seq[*state.Service]) {
	c.noted++
	for f, s := range c.pending {
		c.pending[f] = serving{owner: s.owner, noted: c.noted}
	}
	for s := range services {
		c.Note(nil, s)
	}
}

// NoteGap is for when the dataplane was missing, or parts of it, until now. Beside what NoteAll does, it makes the TCP and SCTP
// frontends of all services pending.
func (c *Cleaner) NoteGap(services iter.Seq[*state.Service]) {
	maps.DeleteFunc(c.pending, func(f state.FrontendKey, _ serving) bool { return f.Protocol != state.UDP })
	c.NoteAll(services)
	for s := range services {
		for i := range s.Ports {
			p := &s.Ports[i]
			for _, f := range p.Frontends {
				if p.Protocol != state.UDP {
					c.pending[p.Key(&f)] = serving{owner: s.Name, noted: c.noted}
				}
			}
		}
	}
}

// stale says whether flows that were right before are wrong now.
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
		v := serving{owner: s.Name, endpoints: endpoints(p)}
		for _, f := range p.Frontends {
			found[p.Key(&f)] = v
		}
	}
	return found
}

// endpoints returns all that may answer a flow to p, sorted. A flow stays right as long as its endpoint serves the port,
// whatever route it came by.
func endpoints(p *state.Port) []netip.AddrPort {
	var all []netip.AddrPort
	for _, list := range [][]state.Endpoint{
		p.Internal.Inside.Endpoints, p.Internal.Outside.Endpoints,
		p.External.Inside.Endpoints, p.External.Outside.Endpoints,
		p.Lingering,
	} {
		for _, e := range list {
			all = append(all, e.Addr)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// Found are the flows to pending frontends, as they were listed.
type Found struct {
	flows []conntrack.Flow
	// looked has the notes by which the frontends were pending whose flows are all in flows.
	looked map[state.FrontendKey]int
	// rounds has what was done by family.
	rounds map[state.Family]*round
}

// round is what was done about the flows of one family.
type round struct {
	took    time.Duration
	deleted int
}

func (f *Found) round(family state.Family) *round {
	if f.rounds[family] == nil {
		f.rounds[family] = &round{}
	}
	return f.rounds[family]
}

// Look lists the flows to pending frontends, and deletes nothing. What it found is good also with an error, which says that some
// frontends could not be looked at.
//
// It makes one listing for each family that has anything pending, however many frontends that are, and another one after a gap. The
// kernel walks its whole table for a listing, whatever is asked for, and one CPU does nothing else meanwhile: with 262,144 buckets,
// packets that this CPU should handle wait for 7 to 9 ms (Linux 6.18). A listing for each of a few frontends has less to copy, but
// such pauses in a row add up for a new connection, of which several packets meet one.
func (c *Cleaner) Look(ctx context.Context) (*Found, error) {
	found := &Found{looked: make(map[state.FrontendKey]int, len(c.pending)), rounds: map[state.Family]*round{}}
	filters := map[listing]conntrack.Filter{}
	for f := range c.pending {
		l := listingOf(f)
		if _, several := filters[l]; several {
			filters[l] = l.all()
		} else {
			filters[l] = l.one(f)
		}
	}
	var errs []error
	for l, filter := range filters {
		began := time.Now()
		flows, err := c.list(ctx, filter)
		found.round(l.family).took += time.Since(began)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found.flows = append(found.flows, flows...)
		for f, s := range c.pending {
			if listingOf(f) == l {
				found.looked[f] = s.noted
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return found, fmt.Errorf("list the flows of %d frontends, to be tried again: %w", len(c.pending)-len(found.looked), err)
	}
	return found, nil
}

// Cut deletes the flows in found that are wrong by what has been noted up to now, those to pending frontends that are answered
// by none of their endpoints, and forgets the frontends that were looked at if nothing has been noted about them since. What
// fails stays pending for the next Look. It returns how many flows were deleted, also with an error.
//
// It is for after a commit: while the dataplane shows the old state, a flow that is cut comes back as it was. And no commit may be
// under way that has not been noted yet: a flow that begins right after it would be judged by what was before.
func (c *Cleaner) Cut(ctx context.Context, found *Found) (deleted int, err error) {
	before := len(c.pending)
	deleted, err = c.cut(ctx, found)
	for family, r := range found.rounds {
		c.onCut(family, r.took, r.deleted)
	}
	if err == nil {
		for f, noted := range found.looked {
			if c.pending[f].noted == noted {
				delete(c.pending, f)
			}
		}
	}
	if deleted > 0 {
		c.log.Info("deleted stale flows", "flows", deleted, "frontends", before-len(c.pending))
	}
	if err != nil {
		return deleted, fmt.Errorf("clean the flows of %d frontends, to be tried again: %w", len(c.pending), err)
	}
	return deleted, nil
}

// listing is what is listed at once: the UDP flows of a family, or what has not become a connection of any other protocol.
type listing struct {
	family state.Family
	udp    bool
}

func listingOf(f state.FrontendKey) listing { return listing{f.Family, f.Protocol == state.UDP} }

// all returns the filter for the listing of several frontends.
func (l listing) all() conntrack.Filter {
	if l.udp {
		return conntrack.Filter{Family: l.family, Protocol: state.UDP}
	}
	return conntrack.Filter{Family: l.family, Unconnected: true}
}

// one returns the filter for a listing of f alone.
func (l listing) one(f state.FrontendKey) conntrack.Filter {
	filter := l.all()
	filter.Protocol, filter.Dst, filter.DstPort = f.Protocol, f.Addr, f.Port
	return filter
}

func (c *Cleaner) list(ctx context.Context, f conntrack.Filter) ([]conntrack.Flow, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.table.Flows(f)
}

// cut deletes those of the flows found that are wrong. It goes on after a failure, and returns the first.
func (c *Cleaner) cut(ctx context.Context, found *Found) (deleted int, first error) {
	for _, flow := range found.flows {
		if !c.wrong(flow) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return deleted, err
		}
		r, began := found.round(flow.Family), time.Now()
		err := c.table.Delete(flow)
		r.took += time.Since(began)
		switch {
		case err == nil:
			deleted++
			r.deleted++
		case first == nil:
			first = err
		}
	}
	return deleted, first
}

// wrong says whether a flow goes to a pending frontend and the wrong one answers it, or nobody. Where an address and port is a
// frontend and also on a NodePort, it is the frontend's.
func (c *Cleaner) wrong(flow conntrack.Flow) bool {
	dst := flow.Orig.Dst
	s, isPending := c.pending[state.FrontendKey{Family: flow.Family, Protocol: flow.Protocol, Addr: dst.Addr(), Port: dst.Port()}]
	if !isPending {
		s, isPending = c.pending[state.FrontendKey{Family: flow.Family, Protocol: flow.Protocol, Port: dst.Port()}]
		isPending = isPending && c.nodePortAddr(dst.Addr())
	}
	if flow.Protocol != state.UDP {
		return isPending && flow.Unconnected && flow.Reply.Src == dst
	}
	return isPending && !s.has(flow.Reply.Src)
}
