package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// entry is the edge in front of the nftables dataplane, which hands connections over to other nodes. A kernel or a device may refuse it: then nftables
// serves all connections, and that is no fault. The goroutine of the dataplane calls its methods, except for problem.
type entry struct {
	inside *namespace.Namespace
	log    *slog.Logger
	// announce and saw are fields of DataplaneOptions with the same names.
	announce func(port uint16) (can bool)
	saw      func(port uint16)
	settings edge.Settings
	// opening waits for an edge with these settings, nil unless it is being opened. Opening takes long, and the first state comes at the same time.
	opening func() (*edge.Edge, error)
	edge    *edge.Edge // nil if there is none
	// refused is why there is none, nil if there is to be none.
	refused error
	// shown is edge for other goroutines.
	shown atomic.Pointer[edge.Edge]
	// leaving is set while connections end that were handed over before the edge was turned off.
	leaving bool
	// node is the one of the latest update, nil before the first one. While leaving is set, it has the peers of the latest update before that: the state has none while the edge is off.
	node  *state.Node
	lacks atomic.Pointer[error]
}

func newEntry(o DataplaneOptions, inside *namespace.Namespace) *entry {
	return &entry{inside: inside, log: o.Logger, announce: o.announce, saw: o.saw}
}

// edgeSettings returns the settings of the edge.
func edgeSettings(c *config.Config, log *slog.Logger) edge.Settings {
	return edge.Settings{
		Interfaces: c.Edge.Interfaces, Port: uint16(c.Edge.Port), Mark: c.Edge.Mark(), MTU: int(c.Edge.MTU), TableSize: int(c.Edge.TableSize), MaxSlots: int(c.Edge.MaxSlots),
		XDP: c.Edge.Mode == config.EdgeXDP, Drain: c.Edge.Drain.Duration, TrustNetwork: c.Edge.TrustNetwork, NodePortAddresses: c.NodePorts(), Logger: log,
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
		if e.edge == nil && e.refused != nil {
			e.note(nil)
		}
		e.refused = nil
		if e.edge != nil {
			e.leaving = true
			e.announce(0)
		}
		return
	}
	settings := edgeSettings(c, e.log)
	e.leaving = false
	if e.edge != nil && reflect.DeepEqual(settings, e.settings) {
		return
	}
	e.close()
	open := sync.OnceValues(func() (opened *edge.Edge, err error) {
		err = e.inside.Do(func() (err error) {
			opened, err = edge.Open(settings)
			return err
		})
		return opened, err
	})
	go func() { _, _ = open() }()
	e.settings, e.node, e.opening = settings, nil, open
}

// wait waits for an edge that is being opened. The other methods come after it.
func (e *entry) wait() {
	if e.opening == nil {
		return
	}
	opened, err := e.opening()
	e.opening = nil
	if e.refused = err; err != nil {
		e.note(err)
		e.announce(0)
		return
	}
	e.edge = opened
	e.shown.Store(opened)
}

// apply makes the edge show an update that nftables shows, except for services that have failed.
func (e *entry) apply(u *state.Update, failed map[state.ServiceName]error) {
	if e.edge == nil {
		if e.refused != nil {
			e.node = u.Node
			e.settle(e.refused)
		}
		return
	}
	if e.leaving {
		update, node := *u, *u.Node
		if node.Peers = nil; e.node != nil {
			node.Peers = e.node.Peers
		}
		update.Node = &node
		u = &update
	}
	e.node = u.Node
	e.settle(e.edge.Apply(u, failed))
}

// verify attaches programs again that others have detached. It returns how many devices lacked them.
func (e *entry) verify() (repaired int) {
	if e.edge == nil || e.node == nil { // it shows nothing yet
		return 0
	}
	repaired, err := e.edge.Verify()
	e.settle(err)
	return repaired
}

// settle tells other nodes whether this one takes packets. It ends an edge that is turned off, once no connection needs it.
func (e *entry) settle(err error) {
	if e.leaving {
		e.note(err)
		if e.announce(0); e.edge.Status().Draining == 0 {
			e.close()
		}
		return
	}
	if err == nil { // others send packets as soon as they know
		err = e.edge.CheckNetwork()
	}
	port := e.settings.Port
	if err != nil {
		port = 0
	}
	seen := portSeen(e.node)
	if e.announce(port) {
		e.saw(seen)
	} else {
		err = errors.Join(err, unannounced(e.node, seen, port))
	}
	e.note(err)
}

// portSeen returns the port at which other nodes hand packets over to this one, by the state. It is 0 if they do not.
func portSeen(node *state.Node) uint16 {
	for i := range node.Peers {
		if p := &node.Peers[i]; p.Name == node.Name {
			return p.Port
		}
	}
	return 0
}

// unannounced is what is wrong with the port that other nodes see. This process cannot change it, and takes packets at port, 0 if it takes none.
func unannounced(node *state.Node, seen, port uint16) error {
	remedy := fmt.Sprintf("this process cannot annotate Nodes: annotate it with %s=v1,%d", model.EdgeAnnotation, port)
	switch {
	case seen == port:
		return nil
	case port == 0:
		return fmt.Errorf("other nodes hand packets over to this one, which takes none: remove the annotation %s from Node %s", model.EdgeAnnotation, node.Name)
	case len(node.Peers) == 0:
		return errors.New("the state has no Nodes to hand packets over to: set edge.mode at the server of the API, too, or add the Nodes to the manifests")
	case seen == 0:
		return fmt.Errorf("node %s does not tell others that it takes packets, and %s", node.Name, remedy)
	}
	return fmt.Errorf("node %s tells others port %d, and %s", node.Name, seen, remedy)
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
func (e *entry) problems() (problems []error) {
	if err := e.lacks.Load(); err != nil {
		problems = append(problems, *err)
	}
	shown := e.shown.Load()
	if shown == nil {
		return problems
	}
	silent := shown.Silent()
	for i, name := range silent {
		if i == maxListed {
			return append(problems, fmt.Errorf("and %d nodes more do not answer", len(silent)-i))
		}
		problems = append(problems, fmt.Errorf("node %s does not answer, so nftables serves new connections of the ports with endpoints there: "+
			"see whether Switchyard runs there, and whether nodes reach its UDP port of the edge", name))
	}
	return problems
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

// handOver adds to an answer about a Service's port where the edge of this node hands the connection over, or why it does not. Elsewhere, as in a process that
// serves states, the answer stays as the state has it.
func (n *Node) handOver(answer *explain.Answer, service state.ServiceName) {
	key, ok := answer.Key()
	e := n.entry()
	if !ok || e == nil || !answer.HandsOver() {
		return
	}
	shown := e.shown.Load()
	if shown == nil {
		answer.Keep("the edge does not run here, or not yet: /healthz says why if it cannot")
		return
	}
	client := netip.AddrPortFrom(answer.Client.Addr, answer.Client.Port)
	slot, ok := shown.Slot(key.Protocol, client, answer.Frontend.Addr)
	switch {
	case !ok:
		why := shown.Status().Left[edge.PortName{Service: service, Name: answer.Frontend.Port, Protocol: key.Protocol, Family: key.Family}]
		if why == nil {
			why = errors.New("an update is on its way to the edge: ask again")
		}
		answer.Keep(why.Error())
	case !client.IsValid() || client.Port() == 0:
		answer.HandOver(nil)
	default:
		answer.HandOver(&explain.Edge{Slot: slot.Number, Slots: slot.Of, Node: slot.Owner, Earlier: slot.Earlier})
	}
}

// entry returns the edge in front of nftables, nil if there is no nftables.
func (n *Node) entry() *entry {
	if s, ok := n.dataplane.(*switchable); ok {
		if base := s.nftables(); base != nil {
			return base.entry
		}
	}
	return nil
}

// edge returns how the edge is doing, nil if there is none.
func (n *Node) edge() *metrics.Edge {
	if e := n.entry(); e != nil {
		return e.measured()
	}
	return nil
}

// edgeProblems returns why connections are not handed over, or not all that can be.
func (n *Node) edgeProblems() (problems []error) {
	if err := n.withoutEdge(n.config.Load()); err != nil {
		problems = append(problems, err)
	}
	if err := n.announcer.Problem(); err != nil {
		problems = append(problems, fmt.Errorf("other nodes do not know whether this one takes packets: %w", err))
	}
	if e := n.entry(); e != nil {
		problems = append(problems, e.problems()...)
	}
	return problems
}

// withoutEdge is the problem of a configuration with an edge for a dataplane of the caller that has none.
func (n *Node) withoutEdge(c *config.Config) error {
	if n.o.Dataplane == nil || n.dataplane == nil || !c.Edge.Enabled() || backend.FeaturesOf(n.dataplane)&state.EdgeShares != 0 {
		return nil
	}
	return fmt.Errorf("%s is %s, and this dataplane hands no connections over: set it to %s", n.fieldName("edge.mode"), c.Edge.Mode, config.EdgeNone)
}

// warnEdge logs the same.
func (n *Node) warnEdge(c *config.Config) {
	if err := n.withoutEdge(c); err != nil {
		n.log.Warn("the edge is configured, and does nothing", "error", err)
	}
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
	d.entry.wait()
	if err == nil {
		d.entry.apply(u, result.Failed)
	}
	return result, err
}

// Verify implements [backend.Backend].
func (d *nftablesDataplane) Verify(ctx context.Context) (backend.Result, error) {
	result, err := d.Backend.Verify(ctx)
	d.entry.wait()
	result.Repaired += d.entry.verify()
	return result, err
}

// Close implements [Dataplane].
func (d *nftablesDataplane) Close() error {
	d.entry.wait()
	if d.entry.edge != nil {
		d.entry.announce(0) // another mode replaces this one, and takes no packets
	}
	d.entry.close()
	return d.Backend.Close()
}
