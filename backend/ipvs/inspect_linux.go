package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/kernel/ipvs"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// inspector reads single virtual servers back, concurrently with everything else that the dataplane does.
type inspector struct {
	mu     sync.Mutex // guards kernel
	kernel kernelServers
}

var _ backend.Inspector = (*Backend)(nil)

// Inspect implements [backend.Inspector]. A virtual server with an endpoint that takes new connections gets them, the base all others.
func (b *Backend) Inspect(q backend.Query) (backend.Held, error) {
	server := &ipvs.Server{Protocol: uint8(q.Frontend.Protocol), Addr: netip.AddrPortFrom(q.Dst, q.Frontend.Port)}
	b.inspector.mu.Lock()
	dests, err := b.inspector.kernel.Dests(server)
	b.inspector.mu.Unlock()
	if err != nil {
		return backend.Held{}, fmt.Errorf("ipvs: %w", err)
	}
	held := backend.Held{}
	for _, d := range dests {
		if d.Weight > 0 {
			held.Endpoints = append(held.Endpoints, d.Addr)
		}
	}
	if len(held.Endpoints) == 0 {
		base, ok := b.base.(backend.Inspector)
		if !ok {
			return backend.Held{}, errors.New("ipvs: no virtual server serves it, and the dataplane below does not read back single connections")
		}
		return base.Inspect(q)
	}
	slices.SortFunc(held.Endpoints, netip.AddrPort.Compare)
	held.Verdict, held.Objects = state.Forward, []string{"virtual server " + server.String()}
	filter := conntrack.Filter{Family: q.Frontend.Family, Protocol: q.Frontend.Protocol, Dst: q.Dst, DstPort: q.Frontend.Port}
	if err := b.flows.Ends(filter, q.Source, held.Add); err != nil {
		return backend.Held{}, fmt.Errorf("ipvs: %w", err)
	}
	return held, nil
}
