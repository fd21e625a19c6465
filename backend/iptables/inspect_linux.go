package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
)

// inspector reads the tables back, concurrently with everything else that the dataplane does.
type inspector struct {
	mu   sync.Mutex // guards sets, and keeps many questions from reading all tables at once
	sets sets       // nil once it is closed
}

// ask calls fn with the sets.
func (i *inspector) ask(fn func(sets) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.sets == nil {
		return errors.New("the dataplane is closed")
	}
	return fn(i.sets)
}

func (i *inspector) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.sets != nil {
		i.sets.Close()
		i.sets = nil
	}
}

var _ backend.Inspector = (*Backend)(nil)

// Inspect implements [backend.Inspector]. It reads all chains and sets of the family, as a verification does, and costs as much.
func (b *Backend) Inspect(q backend.Query) (backend.Held, error) {
	var held *rules.Held
	err := b.inspector.ask(func(sets sets) (err error) {
		held, err = readBack(context.Background(), q.Frontend.Family, b.tool, sets, []rules.Table{rules.NAT, rules.Filter})
		return err
	})
	if err != nil {
		return backend.Held{}, fmt.Errorf("iptables: %w", err)
	}
	traced := held.Trace(q.Frontend.Family, &rules.Packet{
		Protocol: q.Frontend.Protocol, Dst: netip.AddrPortFrom(q.Dst, q.Frontend.Port), Src: q.Source,
		FromNode: q.Node, FromPod: !q.Node && !q.Outside, ToNode: !q.Frontend.Addr.IsValid(),
	})
	out := backend.Held{Verdict: traced.Verdict, Endpoints: traced.Endpoints, Objects: traced.Objects}
	filter := conntrack.Filter{Family: q.Frontend.Family, Protocol: q.Frontend.Protocol, Dst: q.Dst, DstPort: q.Frontend.Port}
	if err := b.flows.Ends(filter, q.Source, out.Add); err != nil {
		return backend.Held{}, fmt.Errorf("iptables: %w", err)
	}
	return out, nil
}
