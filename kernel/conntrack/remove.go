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
		if _, isPending := c.pending[exact]; state.FamilyOf(addr) != f.Family || isPending && exact != f {
			continue // flows to it belong to that frontend
		}
		dst := Filter{Family: f.Family, Protocol: f.Protocol, Dst: addr, DstPort: f.Port}
		from := s.gone
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
		n, err := c.removeBy(ctx, judge, f, filter)
		if deleted += n; err != nil {
			return deleted, true, err
		}
	}
	return deleted, true, judge(func() error {
		c.forget(f, noted)
		return nil
	})
}

// removeBy deletes the flows to f that a filter admits, if they are still wrong. A walk may take long, and the
// endpoint may have come back during the previous walk.
func (c *Cleaner) removeBy(ctx context.Context, judge Judge, f state.FrontendKey, filter Filter) (deleted int, err error) {
	wrong := false
	r := &removal{of: f, done: make(chan struct{})}
	if err := judge(func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		now, _ := c.filters(f, c.pending[f])
		if wrong = slices.Contains(now, filter); wrong {
			c.removal.Store(r)
		}
		return nil
	}); err != nil || !wrong {
		return 0, err
	}
	defer close(r.done)
	defer c.removal.Store(nil)
	return c.table.DeleteAll(filter)
}

// removal is when flows to a frontend are deleted by a filter.
type removal struct {
	of   state.FrontendKey
	done chan struct{}
}

// Removing returns a channel that is closed at the end of a deletion by a filter of flows to a UDP frontend of s. It returns nil without
// such a deletion. A commit that gives the frontend an endpoint again should wait for the channel. Until then, the deletion may hit flows
// to that endpoint that begin after the commit. The next deletion goes by the newer notes. Any goroutine may call Removing, but not within
// a judge.
func (c *Cleaner) Removing(s *state.Service) <-chan struct{} {
	r := c.removal.Load()
	if r == nil {
		return nil
	}
	for p, f := range s.Frontends() {
		if p.Key(f) == r.of {
			return r.done
		}
	}
	return nil
}
