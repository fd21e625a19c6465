package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

const (
	// relayChanges is how many single changes are measured in each situation.
	relayChanges = 20
	// relaySlow is which part of the nodes becomes slow.
	relaySlow = 10
	// relayReplicas is how many relays stand behind one name.
	relayReplicas = 3
)

// RelayOptions specifies what to measure, and how to run the processes that it takes.
type RelayOptions struct {
	Options
	// Nodes is how many nodes there are. Default: 5,000.
	Nodes int
	// Relay returns the command that is a relay with flags of 'switchyard serve --nodes', and [AnswerRelay] with its input and output.
	// Required.
	Relay func(ctx context.Context, args ...string) *exec.Cmd
	// Fleet returns the command that runs [FleetNodes]. Required.
	Fleet func(ctx context.Context) *exec.Cmd
}

// Relay measures relays that serve many nodes over TLS, each a process of its own that has the objects from this one. The nodes are
// one more process on this machine, which takes its share of the processors; their own work with what they receive is left out.
//
// Three relays behind one name: how long until all nodes are served, and until all are again after one was killed. One relay that
// comes back in place of all: how long, and with how much memory, until it serves all nodes. That relay: the memory that each node
// costs, and how long, with how much work and how many bytes, one changed endpoint takes until all nodes have it. The same for the
// others while a tenth of the nodes is slow. After each, all nodes must have the state that follows from the objects.
func Relay(ctx context.Context, r *Reporter, o RelayOptions) error {
	o.Options = o.withDefaults(10_000)
	if o.Nodes == 0 {
		o.Nodes = 5000
	}
	if err := allowFiles(1024 + 2*o.Nodes); err != nil { // of a relay, with room for those that have not shown who they are
		return fmt.Errorf("%d nodes: %w, or measure fewer nodes", o.Nodes, err)
	}
	for _, services := range o.Services {
		if err := measureRelay(ctx, r, services, o); err != nil {
			return err
		}
	}
	return nil
}

// relayBench is one run.
type relayBench struct {
	RelayOptions
	r        *Reporter
	services int
	*relayCluster
	dir    string
	ports  []int
	fleet  *fleet
	relays []*relayProcess // that run
}

func measureRelay(ctx context.Context, r *Reporter, services int, o RelayOptions) error {
	b, err := newRelayBench(ctx, r, services, o.Nodes, o)
	if err != nil {
		return err
	}
	defer b.close()
	alone, err := b.three(ctx)
	if err != nil {
		return err
	}
	relay, err := b.restart(ctx)
	if err != nil {
		return err
	}
	if err := b.one(ctx, relay, alone); err != nil {
		return err
	}
	return b.slow(ctx)
}

// newRelayBench makes a cluster of nodes, o.Nodes of which follow relays.
func newRelayBench(ctx context.Context, r *Reporter, services, nodes int, o RelayOptions) (b *relayBench, err error) {
	done := r.Step("relay: %d services with %d endpoints, %d nodes", services, o.Endpoints, nodes)
	defer done()
	b = &relayBench{RelayOptions: o, r: r, services: services}
	if b.relayCluster, err = newRelayCluster(ctx, services, o.Endpoints, nodes); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "switchyard-bench-"); err != nil {
		return nil, err
	}
	if b.ports, err = freePorts(relayReplicas); err != nil {
		return nil, err
	}
	b.fleet, err = startFleet(o.Fleet(ctx), fleetStart{b.dir, o.Nodes, services})
	return b, err
}

func (b *relayBench) close() {
	if b.fleet != nil {
		b.fleet.kill()
	}
	b.killRelays()
	_ = os.RemoveAll(b.dir) // a temporary directory
	b.relayCluster.close()
}

func (b *relayBench) report(name string, value float64, unit string) {
	b.r.Report(Result{"relay/" + name, b.services, b.RelayOptions.Endpoints, value, unit})
}

// failures reports how many attempts to follow a relay have failed.
func (b *relayBench) failures(name string, before, after fleetStats) {
	n := after.Failures - before.Failures
	b.report(name, float64(n), "attempts")
	if n > 0 {
		b.r.Note("relay: the last failed attempt: %s", after.LastFailure)
	}
}

// start starts a relay at a port.
func (b *relayBench) start(ctx context.Context, port int) (*relayProcess, error) {
	p, err := startRelay(ctx, relayOptions{Relay: b.Relay, Directory: b.dir, Above: b.api.target, Port: port})
	if err == nil {
		b.relays = append(b.relays, p)
	}
	return p, err
}

func (b *relayBench) killRelays() {
	for _, p := range b.relays {
		p.kill()
	}
	b.relays = nil
}

// one measures one relay that serves all nodes, and took so much memory while it served none.
func (b *relayBench) one(ctx context.Context, p *relayProcess, alone uint64) error {
	defer b.r.Step("relay: %d changes for %d nodes", relayChanges, b.RelayOptions.Nodes)()
	before, err := b.fleet.settle(ctx)
	if err != nil {
		return err
	}
	idle, err := p.stats(true)
	if err != nil {
		return err
	}
	nodes := float64(b.RelayOptions.Nodes)
	b.report("memory-without-nodes", MiB(alone), "MiB")
	b.report("memory-per-node", (float64(idle.Resident)-float64(alone))/1024/nodes, "KiB")
	c, err := b.change(relayChanges)
	if err != nil {
		return err
	}
	now, err := p.stats(false)
	if err != nil {
		return err
	}
	b.report("change-to-all-p50", Milliseconds(Percentile(c.toAll, 50)), "ms")
	b.report("change-to-all-max", Milliseconds(Percentile(c.toAll, 100)), "ms")
	b.report("change-to-node-p50", Milliseconds(Percentile(c.toNode, 50)), "ms")
	b.report("change-to-node-p99", Milliseconds(Percentile(c.toNode, 99)), "ms")
	b.report("cpu-per-change", Milliseconds(now.CPU-idle.CPU)/relayChanges, "ms")
	b.report("allocated-per-change", float64(now.Allocated-idle.Allocated)/1024/relayChanges, "KiB")
	after, err := b.fleet.settle(ctx)
	if err != nil {
		return err
	}
	b.report("bytes-per-change", float64(after.Bytes-before.Bytes)/relayChanges, "B")
	slice := usualSliceSize()
	b.report("api-server-bytes-per-change", float64(slice), "B")
	b.report("api-server-bytes-per-change-without-relay", float64(slice)*nodes, "B")
	return nil
}

// changed is how long changes took, until the last of the nodes had each, and until each had.
type changed struct{ toAll, toNode []time.Duration }

// change makes changes, one after the other.
func (b *relayBench) change(n int) (c changed, err error) {
	for range n {
		took, err := b.fleet.await(b.next())
		if err != nil {
			return c, err
		}
		c.toAll = append(c.toAll, Percentile(took, 100))
		c.toNode = append(c.toNode, took...)
	}
	return c, nil
}

// slow makes a tenth of the nodes slow: they reconnect, ask for their state, and read none of it or little by little.
// Then they are fast again, and catch up.
func (b *relayBench) slow(ctx context.Context) error {
	slow := b.RelayOptions.Nodes / relaySlow
	defer b.r.Step("relay: %d slow nodes", slow)()
	b.report("slow/nodes", float64(slow), "nodes")
	for _, phase := range []struct {
		name string
		slow int
	}{{"before", 0}, {"meanwhile", slow}} {
		if err := b.makeSlow(ctx, phase.slow); err != nil {
			return err
		}
		c, err := b.change(relayChanges)
		if err != nil {
			return err
		}
		b.report("slow/others-p50-"+phase.name, Milliseconds(Percentile(c.toNode, 50)), "ms")
		b.report("slow/others-p99-"+phase.name, Milliseconds(Percentile(c.toNode, 99)), "ms")
	}
	if err := b.makeSlow(ctx, 0); err != nil {
		return err
	}
	if _, err := b.change(1); err != nil {
		return err
	}
	return b.check(ctx, b.fleet, b.RelayOptions.Nodes)
}

// makeSlow makes so many nodes slow, and waits until the others have nothing to catch up.
func (b *relayBench) makeSlow(ctx context.Context, n int) error {
	if _, err := b.fleet.order(fleetOrder{Slow: &n}); err != nil {
		return err
	}
	if _, err := b.change(1); err != nil {
		return err
	}
	_, err := b.fleet.settle(ctx)
	return err
}

// restart kills all relays, starts one again, and has all nodes follow it. All nodes must get the changes of that
// time.
func (b *relayBench) restart(ctx context.Context) (p *relayProcess, err error) {
	defer b.r.Step("relay: restart with %d nodes", b.RelayOptions.Nodes)()
	before, err := b.fleet.stats()
	if err != nil {
		return nil, err
	}
	if _, err := b.fleet.order(fleetOrder{Follow: []string{addressOf(b.ports[0])}}); err != nil {
		return nil, err
	}
	what, change := b.next()
	took, err := b.fleet.await(what, func() error {
		b.killRelays()
		if err := change(); err != nil {
			return err
		}
		p, err = b.start(ctx, b.ports[0])
		return err
	})
	if err != nil {
		return nil, err
	}
	after, err := b.fleet.settle(ctx)
	if err != nil {
		return nil, err
	}
	s, err := p.stats(false)
	if err != nil {
		return nil, err
	}
	b.report("restart/served-p50", Percentile(took, 50).Seconds(), "s")
	b.report("restart/served-all", Percentile(took, 100).Seconds(), "s")
	b.report("restart/peak-memory", MiB(s.Peak), "MiB")
	b.report("restart/cpu", s.CPU.Seconds(), "s")
	b.report("restart/bytes", float64(after.Bytes-before.Bytes), "B")
	b.failures("restart/failed-attempts", before, after)
	return p, b.check(ctx, b.fleet, b.RelayOptions.Nodes)
}

// three has all nodes follow three relays behind one name, and kills one of them. It returns the memory of a relay without nodes.
func (b *relayBench) three(ctx context.Context) (alone uint64, err error) {
	var addresses []string
	for _, port := range b.ports {
		p, err := b.start(ctx, port)
		if err == nil {
			err = p.ready(ctx, port)
		}
		if err != nil {
			return 0, err
		}
		addresses = append(addresses, p.address)
	}
	s, err := b.relays[0].stats(true)
	if err != nil {
		return 0, err
	}
	done := b.r.Step("relay: connect %d nodes to %d relays", b.RelayOptions.Nodes, relayReplicas)
	took, err := b.fleet.await(awaited{}, func() error {
		_, err := b.fleet.order(fleetOrder{Follow: addresses})
		return err
	})
	done()
	if err != nil {
		return 0, err
	}
	b.report("nodes", float64(len(took)), "nodes")
	b.report("three/connect-all", Percentile(took, 100).Seconds(), "s")
	return s.Resident, b.loseOne(ctx)
}

// loseOne kills the first relay of several.
func (b *relayBench) loseOne(ctx context.Context) error {
	before, err := b.fleet.settle(ctx)
	if err != nil {
		return err
	}
	b.failures("three/connect-failed-attempts", fleetStats{}, before)
	c, err := b.change(relayChanges)
	if err != nil {
		return err
	}
	lost := b.relays[0]
	b.report("three/change-to-all-p50", Milliseconds(Percentile(c.toAll, 50)), "ms")
	b.report("three/nodes-of-the-killed", float64(before.Connected[lost.address]), "nodes")
	defer b.r.Step("relay: one of %d relays lost", relayReplicas)()
	what, change := b.next()
	took, err := b.fleet.await(what, func() error {
		lost.kill()
		return change()
	})
	if err != nil {
		return err
	}
	b.relays = b.relays[1:]
	b.report("three/follow-again-p50", Percentile(took, 50).Seconds(), "s")
	b.report("three/follow-again-all", Percentile(took, 100).Seconds(), "s")
	var peak uint64
	for _, p := range b.relays {
		s, err := p.stats(false)
		if err != nil {
			return err
		}
		peak = max(peak, s.Peak)
	}
	b.report("three/peak-memory", MiB(peak), "MiB")
	if err := b.check(ctx, b.fleet, b.RelayOptions.Nodes); err != nil {
		return err
	}
	b.report("three/nodes-that-missed-a-revision", 0, "nodes")
	return nil
}

// usualSliceSize is how many bytes of protobuf the API server sends to each watch of an EndpointSlice with 5 endpoints when it
// changes, without the frame of the event.
func usualSliceSize() int {
	c := newChurnCluster(1)
	c.flap(1, 0)
	return c.slices[1].Size()
}

// MiB is bytes in the unit "MiB" of results.
func MiB(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
