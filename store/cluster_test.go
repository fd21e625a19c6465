package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

// watcher follows the feed of one node of a cluster. It is a value, so that a copy resumes from an earlier revision.
type watcher struct {
	node string
	held replica
}

// poll takes the next update if there is one, and reports whether there was, and whether it was needless.
func (w *watcher) poll(t *testing.T, c *Cluster) (u *state.Update, needless bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so that Next does not wait
	u, err := c.Node(w.node).Next(ctx, w.held.revision)
	if errors.Is(err, context.Canceled) {
		return nil, false
	}
	before := w.held
	w.held.services = maps.Clone(before.services)
	w.held.apply(t, given{u, err})
	return u, before.node != nil && before.node.Equal(w.held.node) && maps.EqualFunc(before.services, w.held.services, (*state.Service).Equal)
}

// given is a feed of one update.
type given struct {
	update *state.Update
	err    error
}

func (g given) Next(context.Context, state.Revision) (*state.Update, error) { return g.update, g.err }

// fleet is a cluster and one store for each node, which get the same objects.
type fleet struct {
	cluster *Cluster
	stores  map[string]*Store
	sinks   []model.Sink
	// watchers are as far as they were when they last polled; saved are copies of some of them.
	watchers, saved []watcher

	updates, needless int
}

func newFleet(cfg brain.Config, budgets Budgets, limit int, nodes ...string) *fleet {
	f := &fleet{cluster: NewCluster(ClusterOptions{Brain: cfg, Budgets: budgets}), stores: make(map[string]*Store)}
	f.cluster.feed.log.Max = limit
	f.cluster.objects.edge.pause = 0
	f.sinks = append(f.sinks, f.cluster.Source("test"))
	for _, name := range nodes {
		cfg.NodeName = name
		f.stores[name] = New(Options{Brain: cfg, Budgets: budgets})
		f.stores[name].objects.edge.pause = 0
		f.sinks = append(f.sinks, f.stores[name].Source("test"))
		f.watchers = append(f.watchers, watcher{node: name}, watcher{node: name})
	}
	return f
}

func (f *fleet) close() {
	f.cluster.Close()
	for _, s := range f.stores {
		s.Close()
	}
}

func (f *fleet) update(set []model.Object, deleted []model.Ref) {
	for _, sink := range f.sinks {
		sink.Update(slices.Clone(set), deleted)
	}
}

func (f *fleet) complete() {
	for _, sink := range f.sinks {
		sink.Complete()
	}
}

// check lets some watchers poll, every second one always, and wants them to have what the stores have. Now and then a
// watcher resumes from an earlier revision.
func (f *fleet) check(t *testing.T, rng *rand.Rand) error {
	for i := range f.watchers {
		if i%2 == 1 && rng.IntN(4) > 0 {
			continue
		}
		if err := f.follow(t, &f.watchers[i]); err != nil {
			return err
		}
		if rng.IntN(4) == 0 {
			f.saved = append(f.saved, f.watchers[i])
		}
	}
	if len(f.saved) > 0 {
		resumed := f.saved[rng.IntN(len(f.saved))]
		if err := f.follow(t, &resumed); err != nil {
			return fmt.Errorf("resuming: %w", err)
		}
	}
	return f.shares()
}

func (f *fleet) follow(t *testing.T, w *watcher) error {
	for n := 0; ; n++ {
		u, needless := w.poll(t, f.cluster)
		if u == nil {
			break
		}
		f.updates++
		if needless {
			f.needless++
		}
		if n > 0 {
			return fmt.Errorf("node %s: another update right after the last: %+v", w.node, u)
		}
	}
	if err := sameStates(w.held.services, w.held.node, f.stores[w.node].Snapshot()); err != nil {
		return fmt.Errorf("node %s: %w", w.node, err)
	}
	return nil
}

// shares looks whether nodes with the same viewpoint have the same pointers.
func (f *fleet) shares() error {
	type key struct {
		name state.ServiceName
		view brain.Viewpoint
	}
	records := make(map[key]*state.Service)
	for node := range f.stores {
		now := f.cluster.feed.look(&clusterNode{name: node, object: f.cluster.objects.nodes[node]})
		for a := range now.answers.Values() {
			k := key{a.object.Name, a.view(now.name, now.object)}
			r := a.at(k.view)
			if other := records[k]; other != nil && other != r {
				return fmt.Errorf("from viewpoint %+v there are two records of %v", k.view, k.name)
			}
			records[k] = r
		}
	}
	return nil
}

// TestClusterIsAStoreOfEachNode plays random histories. Each node must get the same state as from a store of that node,
// from any revision that it resumes from, and hardly ever more.
func TestClusterIsAStoreOfEachNode(t *testing.T) {
	runs := uint64(300)
	if testing.Short() {
		runs = 60
	}
	updates, needless := 0, 0
	for seed := range runs {
		rng := rand.New(rand.NewPCG(seed, 4))
		o := randcluster.Options{Annotations: seed%2 == 1, SlowStarts: []string{"1h"}}
		if seed%4 > 1 {
			o.NodeHealth = oracle.NodeHealth{Percent: 67, After: time.Hour, Now: time.Now()}
		}
		o.Edge = seed%3 > 0
		h := randcluster.New(seed, o)
		limit := 1000
		if rng.IntN(3) == 0 {
			limit = 1 + rng.IntN(20)
		}
		cfg, budgets := randomBudgets(rng)
		cfg.LocalDetector = state.LocalDetector{NodeCIDR: true}
		cfg.NodeHealth = brain.NodeHealth{Enabled: seed%4 > 1, NotReadyAfter: time.Hour, IgnoreAbove: 67}
		cfg.Edge = brain.Edge{Enabled: o.Edge, Annotated: seed%5 == 0, Kinds: state.FrontendKinds(seed%4) << 3}
		f := newFleet(cfg, budgets, limit, "node-a", "node-b", "node-c", "ghost")
		crude := rng.IntN(4) == 0
		if crude {
			f.cluster.maxCompared = 0
		}
		completeAt := rng.IntN(3)
		for step := range 20 {
			f.update(h.Step())
			if step == completeAt {
				f.complete()
			}
			if step < completeAt {
				continue
			}
			if err := f.check(t, rng); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
		if !crude {
			updates, needless = updates+f.updates, needless+f.needless
		}
		f.close()
	}
	t.Logf("%d updates, %d of them needless", updates, needless)
	if needless > updates/100 {
		t.Errorf("%d of %d updates were needless", needless, updates)
	}
}

// TestClusterInSmallWorld does the same where services fight for frontends, namespaces opt out, and default/kubernetes loses
// its endpoints.
func TestClusterInSmallWorld(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 5))
		cfg, budgets := randomBudgets(rng)
		cfg.NodeHealth, cfg.Edge = randomNodeHealth(rng), randomEdge(rng)
		f := newFleet(cfg, budgets, 1+rng.IntN(50), "n1", "n2", "n3")
		objects := make(map[model.Ref]model.Object)
		completeAt := rng.IntN(5)
		for step := range 60 {
			f.update(randomUpdate(rng, objects))
			if rng.IntN(10) == 0 {
				f.update([]model.Object{kubernetes(rng)}, nil)
			}
			if step == completeAt {
				f.complete()
			}
			if step < completeAt {
				continue
			}
			if err := f.check(t, rng); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
		f.close()
	}
}

// randomBudgets returns no budgets, or budgets that are small enough to count.
func randomBudgets(rng *rand.Rand) (cfg brain.Config, b Budgets) {
	if rng.IntN(2) == 0 {
		return cfg, b
	}
	cfg.MaxEntries = []int64{0, 10, 20, 50}[rng.IntN(4)]
	return cfg, Budgets{PerNamespace: []int64{0, 20, 60}[rng.IntN(3)], PerNode: []int64{0, 30, 100}[rng.IntN(3)]}
}

// kubernetes is the service of the API server, or its slice, often without a usable endpoint.
func kubernetes(rng *rand.Rand) model.Object {
	if rng.IntN(3) == 0 {
		return &model.Service{Name: apiServerName, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.77")},
			InternalLocal: rng.IntN(2) == 0, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 443}}}
	}
	s := &model.EndpointSlice{Namespace: "default", Name: "kubernetes", Service: "kubernetes", Family: state.IPv4,
		Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 6443}}}
	for range rng.IntN(3) {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(rng.IntN(4))}),
			Ready: rng.IntN(2) == 0, NodeName: []string{"n1", "n2"}[rng.IntN(2)]})
	}
	return s
}

// TestClusterReadersDuringUpdates lets consumers of all nodes run against a source, and wants them to end up with the last state.
func TestClusterReadersDuringUpdates(t *testing.T) {
	nodes := []string{"node-a", "node-b", "node-c", "ghost"}
	f := newFleet(brain.Config{LocalDetector: state.LocalDetector{NodeCIDR: true}}, Budgets{}, 50, nodes...)
	defer f.close()
	f.complete()
	last := state.ServiceName{Namespace: "last", Name: "last"}
	var readers sync.WaitGroup
	for i := range f.watchers {
		w := &f.watchers[i]
		readers.Go(func() {
			for w.held.services[last] == nil && w.held.apply(t, f.cluster.Node(w.node)) {
			}
		})
	}
	h := randcluster.New(1, randcluster.Options{})
	for range 500 {
		f.update(h.Step())
	}
	f.update([]model.Object{&model.Service{Name: last, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.99.0.1")},
		Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}}}, nil)
	readers.Wait()
	for i := range f.watchers {
		if err := f.follow(t, &f.watchers[i]); err != nil {
			t.Error(err)
		}
	}
}
