package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

const (
	// costNodes is how many nodes the costs of one are measured with, costRelays how many relays follow another one.
	costNodes, costRelays = 150, 2
	// costChanges is how many changes are measured in each situation, and costPause the time between two of them.
	costChanges, costPause = 60, 20 * time.Millisecond
)

// internetCosts are what a relay's parts cost in a cluster of a size. All are measured.
type internetCosts struct {
	treeCosts
	// Bytes: what the API server sends to begin and for a change, and what a relay sends a relay and a node.
	APIServe, APIChange, RelayServeBytes, RelayChangeBytes, NodeServeBytes, NodeChangeBytes float64
	// APIServeNode is what the API server sends a node to begin, without a relay.
	APIServeNode float64
	// Memory is what a relay takes without followers, and RelayMemory and NodeMemory what each one adds. Peak is how many times as
	// much a relay takes at most, while all nodes come at once, as when it serves them.
	Memory, RelayMemory, NodeMemory, Peak float64
	// Predicted and Measured are how long a change took until the last node of a small tree had it, by the model and in processes.
	Predicted, Measured float64
}

// costFields are the results that have them.
func (c *internetCosts) fields() []costField {
	return []costField{
		{"hop", "s", &c.Hop}, {"relay-start-cpu", "s", &c.Start}, {"relay-change-cpu", "s", &c.Change},
		{"serve-relay-cpu", "s", &c.RelayServe}, {"change-relay-cpu", "s", &c.RelayChange},
		{"serve-node-cpu", "s", &c.NodeServe}, {"change-node-cpu", "s", &c.NodeChange},
		{"api-server-list", "B", &c.APIServe}, {"api-server-list-of-a-node", "B", &c.APIServeNode}, {"api-server-change", "B", &c.APIChange},
		{"serve-relay", "B", &c.RelayServeBytes}, {"change-relay", "B", &c.RelayChangeBytes},
		{"serve-node", "B", &c.NodeServeBytes}, {"change-node", "B", &c.NodeChangeBytes},
		{"relay-memory", "B", &c.Memory}, {"relay-memory-per-relay", "B", &c.RelayMemory},
		{"relay-memory-per-node", "B", &c.NodeMemory}, {"relay-memory-peak", "times", &c.Peak},
		{"small-tree-predicted", "s", &c.Predicted}, {"small-tree-measured", "s", &c.Measured},
	}
}

type costField struct {
	name, unit string
	value      *float64
}

const costPrefix = "internet/cost/"

// readCosts reads the costs that an earlier run has reported for a size.
func readCosts(file string, services, endpoints int) (c internetCosts, err error) {
	f, err := os.Open(file)
	if err != nil {
		return c, err
	}
	defer f.Close()
	missing := make(map[string]*float64)
	for _, field := range c.fields() {
		missing[costPrefix+field.name] = field.value
	}
	lines := json.NewDecoder(bufio.NewReader(f))
	for {
		var r Result
		if err := lines.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			return c, fmt.Errorf("%s: %w: it must have the results of 'bench internet'", file, err)
		}
		if value := missing[r.Name]; value != nil && r.Services == services && r.Endpoints == endpoints {
			*value = r.Value
			delete(missing, r.Name)
		}
	}
	for name := range missing {
		return c, fmt.Errorf("%s has no %s for %d services with %d endpoints; measure them with 'bench internet'", file, name, services, endpoints)
	}
	return c, nil
}

// measureCosts measures what a relay's parts cost in a cluster of nodes, few of which are there. A tree of one relay
// with two below it, one of which has the nodes, grows step by step. The increase in each step is the cost of the
// added part.
func measureCosts(ctx context.Context, r *Reporter, services, nodes int, o RelayOptions) (c internetCosts, err error) {
	o.Nodes = costNodes
	b, err := newRelayBench(ctx, r, services, nodes, o)
	if err != nil {
		return c, err
	}
	defer b.close()
	m := &costMeter{relayBench: b, c: &c}
	defer r.Step("internet: costs with %d services, %d nodes", services, nodes)()
	for _, step := range []func(context.Context) error{m.root, m.below, m.nodes} {
		if err := step(ctx); err != nil {
			return c, err
		}
	}
	c.APIServe, c.APIServeNode, c.APIChange = float64(listSize(services, nodes)), float64(listSize(services, 1)), float64(usualSliceSize())
	m.compare(costRelays + 1)
	return c, b.check(ctx, b.fleet, o.Nodes)
}

// costMeter measures costs, step by step.
type costMeter struct {
	*relayBench
	c       *internetCosts
	atRoot  float64 // seconds of the first relay for a change, without followers
	arrived []time.Duration
	toAll   []time.Duration
}

// add starts one more relay, below the first one if there is one.
func (m *costMeter) add(ctx context.Context) (*relayProcess, relayStats, error) {
	o := relayOptions{Relay: m.Relay, Directory: m.dir, Above: m.api.target, Port: m.ports[len(m.relays)]}
	if len(m.relays) > 0 {
		o.Above, o.AboveTLS = "tcp://"+m.relays[0].address, true
	}
	p, err := startRelay(ctx, o)
	if err != nil {
		return nil, relayStats{}, err
	}
	m.relays = append(m.relays, p)
	if err := p.ready(ctx, o.Port); err != nil {
		return nil, relayStats{}, err
	}
	s, err := m.rest(ctx, p, true)
	return p, s, err
}

// rest waits until a relay computes nothing.
func (m *costMeter) rest(ctx context.Context, p *relayProcess, free bool) (relayStats, error) {
	for last := time.Duration(0); ; {
		s, err := p.stats(false)
		if err != nil {
			return s, err
		}
		if s.CPU-last < costPause/4 {
			if free {
				cpu := s.CPU
				s, err = p.stats(true)
				s.CPU = cpu // without the collection of garbage that was asked for
			}
			return s, err
		}
		last = s.CPU
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(10 * costPause):
		}
	}
}

// changes makes changes that nobody waits for, and returns what one costs a relay, in seconds.
func (m *costMeter) changes(ctx context.Context, p *relayProcess) (cpu, bytes float64, err error) {
	before, err := m.rest(ctx, p, false)
	if err != nil {
		return 0, 0, err
	}
	sent := m.out.bytes()
	for range costChanges {
		_, change := m.next()
		if err := change(); err != nil {
			return 0, 0, err
		}
		time.Sleep(costPause)
	}
	after, err := m.rest(ctx, p, false)
	return (after.CPU - before.CPU).Seconds() / costChanges, float64(m.out.bytes()-sent) / costChanges, err
}

// root measures the first relay alone.
func (m *costMeter) root(ctx context.Context) error {
	p, s, err := m.add(ctx)
	if err != nil {
		return err
	}
	m.c.Start, m.c.Memory, m.c.RelayServeBytes = s.CPU.Seconds(), float64(s.Resident), float64(m.out.bytes())
	m.c.Change, m.c.RelayChangeBytes, err = m.changes(ctx, p)
	m.atRoot = m.c.Change
	return err
}

// below measures what relays below cost the first one.
func (m *costMeter) below(ctx context.Context) error {
	root := m.relays[0]
	before, err := root.stats(true)
	if err != nil {
		return err
	}
	for range costRelays {
		if _, _, err := m.add(ctx); err != nil {
			return err
		}
	}
	cpu, err := m.rest(ctx, root, false)
	if err != nil {
		return err
	}
	after, err := root.stats(true)
	if err != nil {
		return err
	}
	m.c.RelayServe = (cpu.CPU - before.CPU).Seconds() / costRelays
	m.c.RelayMemory = atLeastNone(float64(after.Resident)-float64(before.Resident)) / costRelays
	with, _, err := m.changes(ctx, root)
	m.c.RelayChange = atLeastNone(with-m.atRoot) / costRelays
	return err
}

// nodes measures what nodes cost a relay.
func (m *costMeter) nodes(ctx context.Context) error {
	leaf := m.relays[costRelays]
	alone, _, err := m.changes(ctx, leaf)
	if err != nil {
		return err
	}
	before, err := leaf.stats(true)
	if err != nil {
		return err
	}
	if _, err := m.fleet.await(awaited{}, func() error {
		_, err := m.fleet.order(fleetOrder{Follow: []string{leaf.address}})
		return err
	}); err != nil {
		return err
	}
	served, err := m.fleet.settle(ctx)
	if err != nil {
		return err
	}
	cpu, err := m.rest(ctx, leaf, false)
	if err != nil {
		return err
	}
	after, err := leaf.stats(true)
	if err != nil {
		return err
	}
	m.c.NodeServe = (cpu.CPU - before.CPU).Seconds() / costNodes
	m.c.NodeServeBytes = float64(served.Bytes) / costNodes
	m.c.NodeMemory = atLeastNone(float64(after.Resident)-float64(before.Resident)) / costNodes
	m.c.Peak = float64(cpu.Peak) / float64(after.Resident)
	return m.changesOfNodes(ctx, leaf, alone)
}

// changesOfNodes measures changes one after the other, which alone cost the relay so much without nodes.
func (m *costMeter) changesOfNodes(ctx context.Context, leaf *relayProcess, alone float64) error {
	before, err := m.rest(ctx, leaf, false)
	if err != nil {
		return err
	}
	served, err := m.fleet.settle(ctx)
	if err != nil {
		return err
	}
	for range costChanges {
		took, err := m.fleet.await(m.next())
		if err != nil {
			return err
		}
		m.toAll = append(m.toAll, Percentile(took, 100))
		m.arrived = append(m.arrived, took[0])
	}
	after, err := m.rest(ctx, leaf, false)
	if err != nil {
		return err
	}
	sent, err := m.fleet.settle(ctx)
	if err != nil {
		return err
	}
	m.c.NodeChange = atLeastNone((after.CPU-before.CPU).Seconds()/costChanges-alone) / costNodes
	m.c.NodeChangeBytes = float64(sent.Bytes-served.Bytes) / costChanges / costNodes
	return nil
}

// compare works out the hop from when the first nodes had changes, and then compares when the last ones had them with the model.
func (m *costMeter) compare(relays int) {
	c := m.c
	c.Measured = Percentile(m.toAll, 50).Seconds()
	first := Percentile(m.arrived, 50).Seconds() - 2*c.Change - c.RelayChange - c.NodeChange
	c.Hop = atLeastNone(first) / float64(relays)
	s := newTreeSim(tree{Levels: []int{1, 1}, Nodes: costNodes, Processors: runtime.NumCPU()}, c.treeCosts, 1)
	revision := s.changeAt(0)
	s.run()
	c.Predicted = s.done[revision]
}

// atLeastNone is a difference of two measurements that cannot be less than 0.
func atLeastNone(v float64) float64 { return max(v, 0) }
