package ipvs

import (
	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// countAbove has the base count connections to what IPVS serves of these Services, nil of those that go, or of all. The base is ahead of IPVS, so that
// it sees the first packet of every connection.
func (b *Backend) countAbove(divisions map[state.ServiceName]*plan.Division, all bool) {
	base, ok := b.base.(backend.CounterBelow)
	if !ok {
		return
	}
	whole := make(map[state.ServiceName]*state.Service, len(divisions))
	for name, d := range divisions {
		whole[name] = nil
		if d != nil && len(d.Servers) > 0 {
			whole[name] = d.Record
		}
	}
	base.CountAbove(whole, all)
}
