package userspace

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

var _ backend.Inspector = (*Backend)(nil)

// Inspect implements [backend.Inspector]. The base says whether a connection goes on, and the relay's table where to if the base leads it to the relay.
func (b *Backend) Inspect(q backend.Query) (backend.Held, error) {
	base := *b.inspector.Load()
	if base == nil {
		return backend.Held{}, errors.New("userspace: the dataplane below does not read back single connections")
	}
	held, err := base.Inspect(q)
	if err != nil {
		return backend.Held{}, err
	}
	kind := plan.Kind{Family: q.Frontend.Family, Protocol: q.Frontend.Protocol}
	if _, led := b.listeners[kind]; !led || held.Verdict != state.Forward || !b.overlay.leads.Load() {
		return held, nil
	}
	class := plan.Inside
	if q.Outside {
		class = plan.Outside
	}
	relayed := b.relay.inspect(&q, kind, class, held.Objects)
	relayed.Deadlines = held.Deadlines // the base keeps them as well
	return relayed, nil
}

// inspect returns the outcome of a connection that comes to the listener of a class, and the connections that are carried already.
func (r *relay) inspect(q *backend.Query, kind plan.Kind, class plan.Class, objects []string) backend.Held {
	held := backend.Held{Objects: append(objects, "the table of the relay")}
	p, has, frontend := r.lookup(kind, netip.AddrPortFrom(q.Dst, q.Frontend.Port))
	if p == nil {
		return held
	}
	route, _ := p.Route(has, class)
	held.Verdict = route.Verdict
	for _, e := range route.Endpoints {
		held.Endpoints = append(held.Endpoints, e.Addr)
	}
	slices.SortFunc(held.Endpoints, netip.AddrPort.Compare)
	add := func(client netip.AddrPort, c *choice) {
		if c.frontend == frontend && c.endpoint.IsValid() && (!q.Source.IsValid() || client.Addr() == q.Source) {
			held.Add(client, c.endpoint)
		}
	}
	r.mu.Lock()
	conns, flows := slices.Collect(maps.Keys(r.conns[p.ID.Service])), slices.Collect(maps.Keys(r.flows[p.ID.Service]))
	r.mu.Unlock()
	for _, c := range conns {
		add(c.client, &c.choice)
	}
	for _, f := range flows {
		add(f.client, &f.choice)
	}
	return held
}
