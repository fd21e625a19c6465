package ebpf

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/switchyard-net/switchyard/internal/ebpf/programs"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/state"
)

// ender ends the node's connections that hooks have translated to endpoints that are gone. To netfilter they look like connections of
// clients that know the endpoint. A connection is known by its socket: others may have the same addresses, in a network namespace of
// their own or later on.
type ender struct {
	log  *slog.Logger
	node *namespace.Namespace
	wake chan struct{}

	mu          sync.Mutex             // guards all below
	connections *ebpf.Map              // the hooks' record of translated connections; nil while the hooks are off
	left        map[netip.AddrPort]int // remaining walks, by endpoint
	running     *programs.Ender        // nil between two runs
}

// A walk may miss a socket that is in the middle of connect(), which takes no longer than a system call. So there is a second one.
const (
	walks     = 2
	walkPause = time.Second
)

func newEnder(log *slog.Logger) (*ender, error) {
	node, err := namespace.Current()
	if err != nil {
		return nil, err
	}
	return &ender{log: log, node: node, wake: make(chan struct{}, 1), left: map[netip.AddrPort]int{}}, nil
}

// use takes the map in which hooks note connections, nil if there is none.
func (e *ender) use(connections *ebpf.Map) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.connections != nil {
		e.connections.Close()
	}
	e.connections = nil
	if connections != nil {
		e.connections, _ = connections.Clone() // fails if there is no file for it; then nothing is ended
	}
}

// add has connections ended to these endpoints, to which no route leads. If there is no room for an endpoint, its connections end by
// themselves.
func (e *ender) add(endpoints []netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range endpoints {
		if len(e.left) < programs.MostGone {
			e.left[a] = walks
		}
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// keep has connections to the endpoints of an update go on, before there are any new ones.
func (e *ender) keep(u *state.Update) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.left) == 0 {
		return
	}
	for _, svc := range u.Changed {
		for i := range svc.Ports {
			for _, list := range svc.Ports[i].Serving() {
				for j := range list {
					e.forget(list[j].Addr)
				}
			}
		}
	}
}

// forget takes an endpoint for one that serves. The caller holds mu.
func (e *ender) forget(endpoint netip.AddrPort) {
	if _, ok := e.left[endpoint]; !ok {
		return
	}
	delete(e.left, endpoint)
	if e.running == nil {
		return
	}
	if err := e.running.Remove(endpoint); err != nil {
		e.log.Warn("a connection may be ended though its endpoint serves again", "endpoint", endpoint, "error", err)
	}
}

func (e *ender) run(ctx context.Context) {
	defer e.node.Close()
	defer e.use(nil)
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		if err := e.end(ctx); err != nil {
			e.log.Warn("connections of the node that were translated at their sockets to endpoints that are gone are not ended", "error", err)
		}
	}
}

// end walks until nothing is left.
func (e *ender) end(ctx context.Context) error {
	e.mu.Lock()
	var connections *ebpf.Map
	if e.connections != nil {
		connections, _ = e.connections.Clone()
	}
	e.mu.Unlock()
	if connections == nil {
		e.stop()
		return nil
	}
	defer connections.Close()
	running, err := programs.NewEnder(connections)
	if err != nil {
		e.stop()
		return err
	}
	defer running.Close()
	defer e.stop() // before it is closed
	for e.begin(running) {
		if err := e.node.Do(running.Walk); err != nil {
			return err
		}
		e.walked()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(walkPause):
		}
	}
	return nil
}

// begin prepares a walk, and reports whether there is anything left to end.
func (e *ender) begin(running *programs.Ender) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = running
	for a := range e.left {
		if err := running.Add(a); err != nil {
			delete(e.left, a)
		}
	}
	return len(e.left) > 0
}

// walked counts a walk.
func (e *ender) walked() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for a := range e.left {
		if e.left[a]--; e.left[a] == 0 {
			e.forget(a)
		}
	}
}

// stop abandons the remaining walks.
func (e *ender) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = nil
	clear(e.left)
}
