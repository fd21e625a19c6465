package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// inspector reads single frontends back, concurrently with everything else that the dataplane does.
type inspector struct {
	mu     sync.Mutex // guards finder
	finder elemFinder // nil once closed
}

// ask calls fn with the finder. A closed finder is not used, because its descriptor may belong to another file of the process by then.
func (i *inspector) ask(fn func(elemFinder) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.finder == nil {
		return errors.New("this dataplane is closed: ask again when another one has taken its place")
	}
	return fn(i.finder)
}

// close waits until no question is being answered.
func (i *inspector) close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.finder == nil {
		return nil
	}
	f := i.finder
	i.finder = nil
	return f.Close()
}

var (
	_ backend.Inspector         = (*Backend)(nil)
	_ backend.EndpointInspector = (*Backend)(nil)
)

// InspectEndpoints implements [backend.EndpointInspector].
func (b *Backend) InspectEndpoints(q backend.Query) (backend.Held, error) {
	held := backend.Held{Silent: b.silent(q.Frontend)}
	if q.Frontend.Protocol != state.TCP || len(q.Endpoints) == 0 {
		return held, nil
	}
	err := b.inspector.ask(func(f elemFinder) (err error) {
		held.Deadlines, err = ruleset.Deadlines(netip.AddrPortFrom(q.Dst, q.Frontend.Port), q.Endpoints, time.Now(), f.FindElems)
		return err
	})
	if err != nil {
		return backend.Held{}, fmt.Errorf("nftables: %w", err)
	}
	return held, nil
}

// Inspect implements [backend.Inspector].
func (b *Backend) Inspect(q backend.Query) (backend.Held, error) {
	out, err := b.InspectEndpoints(q)
	if err != nil {
		return out, err
	}
	var held ruleset.Held
	err = b.inspector.ask(func(f elemFinder) (err error) {
		held, err = ruleset.Inspect(q.Frontend, ruleset.Client{Outside: q.Outside, Edge: q.Edge, Addr: q.Source}, f.Find)
		return err
	})
	if err != nil {
		return backend.Held{}, fmt.Errorf("nftables: %w", err)
	}
	out.Verdict, out.Endpoints, out.Objects = held.Verdict, held.Endpoints, held.Objects
	if d := held.Draw; held.Verdict == state.Forward {
		out.Draw = backend.Draw{Even: d.Slots == 0, Slots: d.Slots, Shares: d.Shares, Hashed: d.Hashed}
		if d.Known && !q.Node { // which address of the node a connection gets is not known here
			out.Draw.Known, out.Draw.Slot, out.Draw.Endpoint = true, d.Slot, d.Endpoint
		}
	}
	filter := conntrack.Filter{Family: q.Frontend.Family, Protocol: q.Frontend.Protocol, Dst: q.Dst, DstPort: q.Frontend.Port}
	if err := b.flows.Ends(filter, q.Source, out.Add); err != nil {
		return backend.Held{}, fmt.Errorf("nftables: %w", err)
	}
	return out, nil
}
