package node

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync/atomic"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/state"
)

// entry is the edge in front of the nftables dataplane, which hands connections over to other nodes. A kernel or a device may refuse it: then nftables
// serves all connections, and that is no fault. The goroutine of the dataplane calls its methods, except for problem.
type entry struct {
	log *slog.Logger
	// announce tells other nodes the port at which this node takes packets, 0 if it takes none. It does not wait. It may be nil.
	announce func(port uint16)
	settings edge.Settings
	edge     *edge.Edge // nil if there is none
	// shown is edge for other goroutines.
	shown atomic.Pointer[edge.Edge]
	// leaving is set while connections end that were handed over before the edge was turned off.
	leaving bool
	// peers are the nodes of the latest update before that: records have none while the edge is off.
	peers []state.Peer
	lacks atomic.Pointer[error]
}

func newEntry(o DataplaneOptions) *entry { return &entry{log: o.Logger, announce: o.announce} }

// edgeSettings returns the settings of the edge.
func edgeSettings(c *config.Config, log *slog.Logger) edge.Settings {
	return edge.Settings{
		Interfaces: c.Edge.Interfaces, Port: uint16(c.Edge.Port), Mark: c.Edge.Mark(), MTU: int(c.Edge.MTU), TableSize: int(c.Edge.TableSize), MaxSlots: int(c.Edge.MaxSlots),
		XDP: c.Edge.Mode == config.EdgeXDP, Drain: c.Edge.Drain.Duration, NodePortAddresses: c.NodePorts(), Logger: log,
	}
}

// mark returns the bit by which nftables knows packets of the edge with a configuration. The bit stays while connections end that were handed over.
func (e *entry) mark(c *config.Config) uint32 {
	if c.Edge.Enabled() || e.edge == nil {
		return c.Edge.Mark()
	}
	return e.settings.Mark
}

// reconfigure makes the edge go on with another configuration. The next update must be full. An edge with other settings starts again, and connections go on.
func (e *entry) reconfigure(c *config.Config) {
	if !c.Edge.Enabled() {
		if e.edge != nil {
			e.leaving = true
			e.tell(0)
		}
		return
	}
	settings := edgeSettings(c, e.log)
	e.leaving = false
	if e.edge != nil && reflect.DeepEqual(settings, e.settings) {
		return
	}
	e.close()
	opened, err := edge.Open(settings)
	if err != nil {
		e.note(err)
		e.tell(0)
		return
	}
	e.edge, e.settings = opened, settings
	e.shown.Store(opened)
}

// apply makes the edge show an update that nftables shows, except for services that have failed.
func (e *entry) apply(u *state.Update, failed map[state.ServiceName]error) {
	if e.edge == nil {
		return
	}
	if e.leaving {
		update, node := *u, *u.Node
		node.Peers, update.Node = e.peers, &node
		u = &update
	}
	e.peers = u.Node.Peers
	e.settle(e.edge.Apply(u, failed))
}

// verify attaches programs again that others have detached. It returns how many devices lacked them.
func (e *entry) verify() (repaired int) {
	if e.edge == nil {
		return 0
	}
	repaired, err := e.edge.Verify()
	e.settle(err)
	return repaired
}

// settle tells other nodes whether this one takes packets. It ends an edge that is turned off, once no connection needs it.
func (e *entry) settle(err error) {
	e.note(err)
	switch {
	case e.leaving && e.edge.Status().Draining == 0:
		e.close()
	case e.leaving || err != nil:
		e.tell(0)
	default:
		e.tell(e.settings.Port)
	}
}

func (e *entry) tell(port uint16) {
	if e.announce != nil {
		e.announce(port)
	}
}

// note keeps why the edge does not do all that it can, and logs it once.
func (e *entry) note(err error) {
	if was := e.lacks.Load(); err != nil && (was == nil || (*was).Error() != err.Error()) {
		e.log.Warn("the edge does not do all that it can; nftables serves these connections", "error", err)
	}
	if err == nil {
		e.lacks.Store(nil)
		return
	}
	e.lacks.Store(&err)
}

// problems returns why the edge does not do all that it can. Any goroutine may call it.
func (e *entry) problems() []error {
	if err := e.lacks.Load(); err != nil {
		return []error{*err}
	}
	return nil
}

// measured returns how the edge is doing, for the metrics, nil if there is none. Any goroutine may call it.
func (e *entry) measured() *metrics.Edge {
	shown := e.shown.Load()
	if shown == nil {
		return nil
	}
	status := shown.Status()
	m := &metrics.Edge{Ports: status.Ports, Left: len(status.Left), Draining: status.Draining, Packets: map[string]uint64{}}
	stats, err := shown.Stats()
	if err != nil {
		return m // it has just been closed
	}
	for action, packets := range stats {
		m.Packets[programs.Action(action).String()] = packets
	}
	return m
}

// edge returns how the edge in front of nftables is doing, nil if there is none.
func (n *Node) edge() *metrics.Edge {
	if s, ok := n.dataplane.(*switchable); ok {
		if base := s.nftables(); base != nil {
			return base.entry.measured()
		}
	}
	return nil
}

// close detaches the programs.
func (e *entry) close() {
	if e.edge == nil {
		return
	}
	e.shown.Store(nil)
	e.note(e.edge.Close())
	e.edge, e.leaving = nil, false
}

// Apply implements [backend.Backend]. nftables shows an update before the edge sends packets by it.
func (d *nftablesDataplane) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	result, err := d.Backend.Apply(ctx, u)
	if err == nil {
		d.entry.apply(u, result.Failed)
	}
	return result, err
}

// Verify implements [backend.Backend].
func (d *nftablesDataplane) Verify(ctx context.Context) (backend.Result, error) {
	result, err := d.Backend.Verify(ctx)
	result.Repaired += d.entry.verify()
	return result, err
}

// Problems implements [backend.Reporter].
func (d *nftablesDataplane) Problems() []error {
	return append(d.Backend.Problems(), d.entry.problems()...)
}

// Close implements [Dataplane].
func (d *nftablesDataplane) Close() error {
	d.entry.close()
	return errors.Join(d.Backend.Close())
}
