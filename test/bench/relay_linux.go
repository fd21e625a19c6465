package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/internal/clusterserver"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

const (
	// relayChanges is how many single changes are measured in each situation.
	relayChanges = 20
	// relaySlow is which part of the nodes becomes slow.
	relaySlow = 10
	// relayReplicas is how many relays stand behind one name.
	relayReplicas = 3
)

// Relay measures relays that serve many nodes over TLS, each a process of its own that has the objects from this one. The nodes are
// in this process, which takes its share of the processors. They do not work with the states that they receive.
//
// Three relays behind one name: it measures how long until all nodes are served, and until all are again after one was killed.
// One relay that comes back in place of all: it measures how long, and with how much memory, until the relay serves all nodes.
// For that relay it measures the memory that each node costs. It also measures the time, work and bytes of one changed endpoint
// until all nodes have it. It measures this for the others while a tenth of the nodes is slow. After each, all nodes must have
// the state that follows from the objects.
func Relay(ctx context.Context, r *Reporter, o Options, nodes int) error {
	setDefault(&nodes, 5000)
	if err := allowFiles(1024 + 2*nodes); err != nil { // of a relay, with room for those that have not shown who they are
		return fmt.Errorf("%d nodes: %w, or measure fewer nodes", nodes, err)
	}
	return r.each(o.withDefaults(10_000), "relay", func(f figures) error {
		b, err := newRelayBench(ctx, f, nodes)
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
	})
}

// relayBench is one run. It hands out its objects, in place of an API server, and knows what state each node must have.
type relayBench struct {
	figures
	*changingCluster
	nodes   int
	sink    model.Sink
	states  *store.Cluster
	feed    *objectlog.Feed
	api     *servedAPI
	dir     string
	ports   []int
	fleet   *fleet
	relays  []*relayProcess // that run
	closers closers
}

func newRelayBench(ctx context.Context, f figures, nodes int) (_ *relayBench, err error) {
	b := &relayBench{figures: f, nodes: nodes, states: store.NewCluster(store.ClusterOptions{}), feed: objectlog.New(objectlog.Options{})}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	b.closers.add(func() error { b.states.Close(); b.feed.Close(); return nil })
	b.changingCluster = newChangingCluster(f.services, f.endpoints)
	b.sink = objectlog.Tee(b.states.Source("bench"), b.feed.Source("bench"))
	b.sink.Update(b.spreadOver(nodes), nil)
	b.sink.Complete()
	if b.api, err = serveAPI(ctx, server.Options{
		Feed:     func(string) (state.Feed, error) { return nil, server.ErrNoNode },
		Register: func(r grpc.ServiceRegistrar) { clusterserver.Register(r, clusterserver.Options{Feed: b.feed}) },
	}, &traffic{}); err != nil {
		return nil, err
	}
	b.closers.add(func() error { b.api.close(); return nil })
	if b.dir, err = os.MkdirTemp("", "switchyard-bench-"); err != nil {
		return nil, err
	}
	b.closers.add(func() error { return os.RemoveAll(b.dir) })
	if b.ports, err = freePorts(relayReplicas); err != nil {
		return nil, err
	}
	b.fleet, err = newFleet(b.dir, nodes, f.services)
	return b, err
}

func (b *relayBench) close() {
	if b.fleet != nil {
		b.fleet.close()
	}
	b.killRelays()
	_ = b.closers.close() // all that may fail is to remove temporary files
}

// nodeNameOf is the name of the n-th of many nodes.
func nodeNameOf(n int) string { return fmt.Sprintf("node-%05d", n) }

// spreadOver returns the objects with so many nodes, and their endpoints spread evenly over them.
func (c *changingCluster) spreadOver(nodes int) []model.Object {
	spread := slices.DeleteFunc(slices.Clone(c.objects), func(o model.Object) bool { return o.Ref().Kind == model.KindNode })
	names := make([]string, nodes)
	for i := range names {
		names[i] = nodeNameOf(i)
		spread = append(spread, &model.Node{Name: names[i], Zone: fmt.Sprintf("zone-%d", i%3)})
	}
	next := 0
	for _, slice := range c.slices {
		for i := range slice.Endpoints {
			slice.Endpoints[i].NodeName = names[next%nodes]
			next++
		}
	}
	return spread
}

// next returns what a node has of the next change, and makes that.
func (b *relayBench) next() (awaited, func() error) {
	i := b.changes % b.services // the services' slices come in their order, of 100 endpoints at most
	perService := len(b.slices) / b.services
	changed := b.change(i * perService)
	addr := changed.Endpoints[0].Addr.AsSlice()
	return awaited{i, append([]byte{byte(len(addr))}, addr...)}, func() error {
		b.sink.Update([]model.Object{changed}, nil)
		return nil
	}
}

// check wants all nodes to have the state that follows from the objects in this process.
func (b *relayBench) check(ctx context.Context) error {
	sums, table, wrong := make(map[*state.Service]uint32), make([]uint32, b.services), 0
	for i, n := range b.fleet.nodes {
		u, err := b.states.Node(nodeNameOf(i)).Next(ctx, 0)
		if err != nil {
			return err
		}
		clear(table)
		for _, record := range u.Changed {
			if _, ok := sums[record]; !ok {
				sums[record] = crc32.Checksum(protoconv.Marshal(protoconv.Service(record)), castagnoli)
			}
			service, err := serviceNumber([]byte(record.Name.Name), b.services)
			if err != nil {
				return err
			}
			table[service] = sums[record]
		}
		if n.digest() != digestOf(table) {
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Errorf("the relays have not done their work: %d of %d nodes have missed some of the %d changes", wrong, b.nodes, b.changes)
	}
	return nil
}

// failed reports how many attempts to follow a relay have failed since there were so many.
func (b *relayBench) failed(name string, before int64) {
	n := b.fleet.failures.Load() - before
	b.report(name, float64(n), "attempts")
	if n > 0 {
		b.Note("relay: the last failed attempt: %s", b.fleet.lastFailure.Load())
	}
}

// change makes changes, one after the other, and returns how long each took until the last of the nodes had it, and until each had.
func (b *relayBench) awaitChanges(ctx context.Context, n int) (toAll, toNode []time.Duration, err error) {
	for range n {
		what, change := b.next()
		took, err := b.fleet.await(ctx, what, change)
		if err != nil {
			return nil, nil, err
		}
		toAll, toNode = append(toAll, Percentile(took, 100)), append(toNode, took...)
	}
	return toAll, toNode, nil
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
	idle, err := b.relays[0].stats(ctx, true)
	if err != nil {
		return 0, err
	}
	done := b.Step("relay: connect %d nodes to %d relays", b.nodes, relayReplicas)
	took, err := b.fleet.await(ctx, awaited{}, func() error { return b.fleet.follow(ctx, addresses...) })
	done()
	if err != nil {
		return 0, err
	}
	b.report("nodes", float64(len(took)), "nodes")
	b.report("three/connect-all", Percentile(took, 100).Seconds(), "s")
	b.fleet.traffic.settle()
	b.failed("three/connect-failed-attempts", 0)
	toAll, _, err := b.awaitChanges(ctx, relayChanges)
	if err != nil {
		return 0, err
	}
	b.report("three/change-to-all-p50", in("ms", Percentile(toAll, 50)), "ms")

	lost := b.relays[0]
	b.report("three/nodes-of-the-killed", float64(b.fleet.connected(lost.address)), "nodes")
	defer b.Step("relay: one of %d relays lost", relayReplicas)()
	what, change := b.next()
	if took, err = b.fleet.await(ctx, what, func() error { lost.kill(); return change() }); err != nil {
		return 0, err
	}
	b.relays = b.relays[1:]
	b.report("three/follow-again-p50", Percentile(took, 50).Seconds(), "s")
	b.report("three/follow-again-all", Percentile(took, 100).Seconds(), "s")
	var peak uint64
	for _, p := range b.relays {
		s, err := p.stats(ctx, false)
		if err != nil {
			return 0, err
		}
		peak = max(peak, s.Peak)
	}
	b.report("three/peak-memory", MiB(peak), "MiB")
	if err := b.check(ctx); err != nil {
		return 0, err
	}
	b.report("three/nodes-that-missed-a-revision", 0, "nodes")
	return idle.Resident, nil
}

// restart kills all relays, starts one again, and has all nodes follow it. All nodes must get the changes of that
// time.
func (b *relayBench) restart(ctx context.Context) (p *relayProcess, err error) {
	defer b.Step("relay: restart with %d nodes", b.nodes)()
	failures, sent := b.fleet.failures.Load(), b.fleet.traffic.bytes()
	if err := b.fleet.follow(ctx, addressOf(b.ports[0])); err != nil {
		return nil, err
	}
	what, change := b.next()
	took, err := b.fleet.await(ctx, what, func() error {
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
	b.report("restart/served-p50", Percentile(took, 50).Seconds(), "s")
	b.report("restart/served-all", Percentile(took, 100).Seconds(), "s")
	sent = b.fleet.traffic.settle() - sent
	s, err := p.stats(ctx, false)
	if err != nil {
		return nil, err
	}
	b.report("restart/peak-memory", MiB(s.Peak), "MiB")
	b.report("restart/cpu", s.CPU.Seconds(), "s")
	b.report("restart/bytes", float64(sent), "B")
	b.failed("restart/failed-attempts", failures)
	return p, b.check(ctx)
}

// one measures one relay that serves all nodes, and took so much memory while it served none.
func (b *relayBench) one(ctx context.Context, p *relayProcess, alone uint64) error {
	defer b.Step("relay: %d changes for %d nodes", relayChanges, b.nodes)()
	sent := b.fleet.traffic.settle()
	idle, err := p.stats(ctx, true)
	if err != nil {
		return err
	}
	b.report("memory-without-nodes", MiB(alone), "MiB")
	b.report("memory-per-node", (float64(idle.Resident)-float64(alone))/1024/float64(b.nodes), "KiB")
	toAll, toNode, err := b.awaitChanges(ctx, relayChanges)
	if err != nil {
		return err
	}
	now, err := p.stats(ctx, false)
	if err != nil {
		return err
	}
	b.report("change-to-all-p50", in("ms", Percentile(toAll, 50)), "ms")
	b.report("change-to-all-max", in("ms", Percentile(toAll, 100)), "ms")
	b.times("change-to-node", toNode, "ms")
	b.report("cpu-per-change", in("ms", now.CPU-idle.CPU)/relayChanges, "ms")
	b.report("allocated-per-change", float64(now.Allocated-idle.Allocated)/1024/relayChanges, "KiB")
	b.report("bytes-per-change", float64(b.fleet.traffic.settle()-sent)/relayChanges, "B")
	return nil
}

// slow makes a tenth of the nodes slow: they reconnect, ask for their state, and read none of it or little by little.
// Then they are fast again, and catch up.
func (b *relayBench) slow(ctx context.Context) error {
	slow := b.nodes / relaySlow
	defer b.Step("relay: %d slow nodes", slow)()
	b.report("slow/nodes", float64(slow), "nodes")
	for _, phase := range []struct {
		name string
		slow int
	}{{"before", 0}, {"meanwhile", slow}, {"", 0}} {
		for i, n := range b.fleet.nodes {
			n.setSlow(i < phase.slow)
		}
		if _, _, err := b.awaitChanges(ctx, 1); err != nil {
			return err
		}
		b.fleet.traffic.settle() // the others have nothing to catch up
		if phase.name == "" {
			break
		}
		_, toNode, err := b.awaitChanges(ctx, relayChanges)
		if err != nil {
			return err
		}
		b.report("slow/others-p50-"+phase.name, in("ms", Percentile(toNode, 50)), "ms")
		b.report("slow/others-p99-"+phase.name, in("ms", Percentile(toNode, 99)), "ms")
	}
	if _, _, err := b.awaitChanges(ctx, 1); err != nil {
		return err
	}
	return b.check(ctx)
}

// RelayOptions are what a relay's process needs of the flags of 'switchyard serve --nodes'.
type RelayOptions struct {
	// Above is where the objects come from, Listen where nodes follow, and Health the address of /healthz.
	Above, Listen, Health string
	// Cert, Key and ClientCA are files.
	Cert, Key, ClientCA string
}

// RunRelay is a relay until ctx ends. Programs that run [Relay] set it, because package node, which it takes, is above this one.
var RunRelay func(ctx context.Context, o RelayOptions) error

// relayWorker is the process of a relay.
type relayWorker struct {
	ended chan error // has why the relay has ended
}

// RelayStats is what a relay's process has used.
type RelayStats struct {
	// Resident is its memory in bytes, and Peak the most that it ever was.
	Resident, Peak uint64
	// Allocated counts all bytes that were ever allocated on the heap.
	Allocated uint64
	CPU       time.Duration
}

// Start starts the relay, which runs as long as the process.
func (w *relayWorker) Start(o RelayOptions, _ *bool) error {
	go func() { w.ended <- cmp.Or(RunRelay(context.Background(), o), errors.New("nobody stopped it")) }()
	return nil
}

// Stats returns what the process has used. With free it first gives back to the system what memory it can, and counts the most
// that it takes from now on.
func (w *relayWorker) Stats(free bool, s *RelayStats) (err error) {
	select {
	case err := <-w.ended:
		return err
	default:
	}
	if free {
		runtime.GC() // what pools hold is free after the second time
		debug.FreeOSMemory()
		if err := forgetPeak(); err != nil {
			return err
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.Allocated, s.CPU = m.TotalAlloc, processCPU()
	s.Resident, s.Peak, err = residentMemory(os.Getpid())
	return err
}

// relayProcess is a relay's process, as the benchmark sees it.
type relayProcess struct {
	*worker
	address string // of its nodes
}

// start starts a relay at a port.
func (b *relayBench) start(ctx context.Context, port int) (*relayProcess, error) {
	w, err := startWorker(ctx, isRelay, nil, nil)
	if err != nil {
		return nil, err
	}
	p := &relayProcess{w, addressOf(port)}
	b.relays = append(b.relays, p)
	file := func(name string) string { return filepath.Join(b.dir, name) }
	var started bool
	return p, w.do(ctx, "Start", RelayOptions{
		Above: b.api.target, Listen: "tcp://" + p.address, Health: addressOf(port + 1), Cert: file("relay.crt"), Key: file("relay.key"), ClientCA: file("ca.crt"),
	}, &started)
}

func (b *relayBench) killRelays() {
	for _, p := range b.relays {
		p.kill()
	}
	b.relays = nil
}

// ready waits until the relay has everything.
func (p *relayProcess) ready(ctx context.Context, port int) error {
	for began := time.Now(); time.Since(began) < awaitTimeout; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get("http://" + addressOf(port+1) + "/healthz")
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		if _, err := p.stats(ctx, false); err != nil {
			return err
		}
	}
	return fmt.Errorf("a relay does not have all objects after %v", awaitTimeout)
}

func (p *relayProcess) stats(ctx context.Context, free bool) (s RelayStats, err error) {
	if err = p.do(ctx, "Stats", free, &s); err != nil {
		err = fmt.Errorf("the relay has ended: %w", err)
	}
	return s, err
}

// addressOf is where a relay serves at a port.
func addressOf(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// freePorts finds n pairs of ports that nobody listens on, outside the range of client connections. A relay that
// restarts must find its port free.
func freePorts(n int) (ports []int, err error) {
	for port := 20_000; len(ports) < n; port += 2 {
		if port > 30_000 {
			return nil, fmt.Errorf("find ports for %d relays: none from 20000 to 30000 is free", n)
		}
		if listenable(port) && listenable(port+1) {
			ports = append(ports, port)
		}
	}
	return ports, nil
}

func listenable(port int) bool {
	l, err := net.Listen("tcp", addressOf(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
