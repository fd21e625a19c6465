package conntrack

import (
	"context"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// filters returns what admits the wrong flows to f, maxWalks filters at most. ok is false if filters cannot express that.
func (c *Cleaner) filters(f state.FrontendKey, s suspect) (filters []Filter, ok bool) {
	isNodePort := !f.Addr.IsValid()
	if f.LastPort != 0 || s.anybody && len(s.endpoints) > 0 || c.scheduled(f) || isNodePort && s.handedOver {
		return nil, false
	}
	if len(s.endpoints) == 0 && c.elsewhere(f) {
		return nil, true
	}
	addrs := []netip.Addr{f.Addr}
	if isNodePort {
		addrs = c.nodePorts
	}
	for _, addr := range addrs {
		exact := state.FrontendKey{Family: f.Family, Protocol: f.Protocol, Addr: addr, Port: f.Port}
		_, isPending := c.pending[exact]
		if state.FamilyOf(addr) != f.Family || exact != f && (isPending || c.ranges.single(exact)) {
			continue // flows to it belong to that frontend
		}
		if s.gone && c.ranges.covers(netip.AddrPortFrom(addr, f.Port)) {
			return nil, false // some flows to it are the range's
		}
		dst := Filter{Family: f.Family, Protocol: f.Protocol, Dst: addr, DstPort: f.Port}
		from := s.left
		if s.untranslated {
			from = append(from[:len(from):len(from)], netip.AddrPortFrom(addr, f.Port))
		}
		if len(s.endpoints) == 0 {
			filters = append(filters, dst)
			from = nil
		}
		for _, e := range from {
			if e.Addr().Is4() && !s.has(e) {
				dst.From = e
				filters = append(filters, dst)
			}
		}
		if len(filters) > maxWalks {
			return nil, false
		}
	}
	return filters, true
}

// remove deletes the wrong flows to f by filters. ok is false, and nothing was done, if the changes noted since
// divide are too many for filters.
func (c *Cleaner) remove(ctx context.Context, judge Judge, f state.FrontendKey) (deleted int, ok bool, err error) {
	var filters []Filter
	var noted int
	if err := judge(func() error {
		filters, ok = c.filters(f, c.pending[f])
		noted = c.pending[f].noted
		return nil
	}); err != nil || !ok {
		return 0, ok, err
	}
	for _, filter := range filters {
		n, ok, err := c.removeBy(ctx, judge, f, filter)
		if deleted += n; err != nil || !ok {
			return deleted, ok, err
		}
	}
	return deleted, true, judge(func() error {
		c.forget(f, noted)
		return nil
	})
}

// removeBy deletes the flows to f that a filter admits, if they are still wrong. A walk may take long, and the
// endpoint may have come back during the previous walk. ok is as for remove.
func (c *Cleaner) removeBy(ctx context.Context, judge Judge, f state.FrontendKey, filter Filter) (deleted int, ok bool, err error) {
	wrong := false
	at := state.FrontendKey{Family: filter.Family, Protocol: filter.Protocol, Addr: filter.Dst, Port: filter.DstPort}
	r := &removal{of: f, at: at, done: make(chan struct{})}
	if err := judge(func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		var now []Filter
		now, ok = c.filters(f, c.pending[f])
		if wrong = slices.Contains(now, filter); wrong {
			r.covered = c.ranges.covers(netip.AddrPortFrom(filter.Dst, filter.DstPort))
			c.removal.Store(r)
		}
		return nil
	}); err != nil || !wrong {
		return 0, ok, err
	}
	defer close(r.done)
	defer c.removal.Store(nil)
	deleted, err = c.table.DeleteAll(filter)
	return deleted, true, err
}

// removal is when flows to a frontend are deleted by a filter.
type removal struct {
	of state.FrontendKey
	// at is where these flows go: of, or an address that serves this NodePort.
	at state.FrontendKey
	// covered is set if a range has the port as soon as of is gone.
	covered bool
	done    chan struct{}
}

// Removing returns a channel while a filter deletes flows that the change of a service from old to new makes right. The channel is closed at the end of the
// deletion. Otherwise Removing returns nil. A commit that gives a UDP frontend an endpoint again, or leaves its port to a range, should wait for the channel.
// Until then, the deletion may hit flows that begin after the commit. The next deletion goes by the newer notes. Any goroutine may call Removing, but not
// within a judge.
func (c *Cleaner) Removing(old, new *state.Service) <-chan struct{} {
	r := c.removal.Load()
	if r != nil && (r.concerns(new) || r.covered && r.concerns(old)) {
		return r.done
	}
	return nil
}

// concerns reports whether a service has the frontend of the removal, or another one that serves its port at the address.
func (r *removal) concerns(s *state.Service) bool {
	for p, f := range s.Frontends() {
		if k := p.Key(f); k == r.of || whereOf(k) == whereOf(r.at) && k.Has(r.at.Port) {
			return true
		}
	}
	return false
}
