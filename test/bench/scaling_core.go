//go:build linux

package bench

import (
	"context"
	"fmt"
	"maps"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// dimension makes a cluster with n of something.
type dimension struct {
	name         string
	sizes, quick []int
	of           func(n int) scaledCluster
	// own is set if it is the one service that changes are about that has more and more. A record is computed, compared and sent as
	// a whole, so that a change may cost as much as its service is large.
	own bool
}

// The things that a cluster, or one service, may have many of.
var (
	manyServices = dimension{"services", []int{1000, 10_000, 100_000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{services: n, endpoints: 5}
	}, false}
	manyEndpoints = dimension{"endpoints per service", []int{10, 100, 1000, 10_000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{endpoints: n}
	}, true}
	manySlices = dimension{"slices", []int{10, 100, 1000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{endpoints: n, perSlice: 1}
	}, true}
	manyPorts = dimension{"ports", []int{10, 100, 1000, 10_000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{ports: n, endpoints: 5}
	}, true}
	manyRanges = dimension{"ranges", []int{100, 1000, 10_000, 100_000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{ranges: n, endpoints: 5}
	}, true}
	manyNodeAddrs = dimension{"node addresses", []int{10, 100, 1000}, []int{1, 10}, func(n int) scaledCluster {
		return scaledCluster{nodeAddrs: n, ranges: 100, nodePort: true, endpoints: 5}
	}, false}
	manyNodes = dimension{"nodes", []int{1000, 10_000, 100_000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{nodes: n, endpoints: 5}
	}, false}
	manyOptOuts = dimension{"namespaces that opt out", []int{100, 1000, 10_000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{services: 100, endpoints: 5, optedOut: n}
	}, false}
	manyRivals = dimension{"services with one external IP", []int{100, 1000, 10_000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{claimants: n}
	}, false}
)

// scaling returns the scaling of a part with a dimension.
func (d dimension) scaling(part string, setup func(context.Context, scaledCluster) (*scaled, error)) scaling {
	return scaling{part: part, dimension: d, setup: setup}
}

// because adds the reason why operations may be steep.
func (s scaling) because(why explanation, ops ...string) scaling {
	s.explained = maps.Clone(s.explained)
	if s.explained == nil {
		s.explained = map[string]explanation{}
	}
	for _, op := range ops {
		s.explained[op] = why
	}
	return s
}

// sorted explains why an operation on all endpoints, ports or ranges of a service may grow a little faster than their number. The number
// of comparisons grows by 1.1 to 1.6 times more from size to size.
var sorted = explanation{"it sorts them: n log n", 1.25}

// cached explains why an operation on every object may take more time for each of many: the hash tables no longer fit
// into the caches. 200,000 objects were spread over ten or a hundred tables. They took 0.7 of the time of one store, and
// 0.6 of the time of one store of clusters. They took 0.4 of the time of a relay's feed, which does nearly nothing else.
var cached = explanation{"tables of so many names do not fit into the processor's caches; spread over small tables, as many take 0.4 to 0.7 of the time", 1.6}

// connected explains why followers and clients may cost more when they are many. The allocations of each for a change are the same with 10 and
// with 3,000. So is its time in the kernel, with a garbage collector or without. Its time in the program triples from 10 to 1,000, and stays up to 3,000.
var connected = explanation{"what the program and the kernel hold for so many connections does not fit into the processor's caches", 1.45}

// coreScalings are the scalings of brain and store.
func coreScalings() (all []scaling) {
	for _, d := range []dimension{manyEndpoints, manySlices, manyPorts, manyRanges, manyNodeAddrs} {
		all = append(all, d.scaling("brain", scaledBrain).because(sorted, "compute"))
	}
	for _, d := range []dimension{manyServices, manyOptOuts, manyRivals} {
		all = append(all, d.scaling("store", scaledStore).because(cached, "load"))
	}
	all = append(all, manyNodeAddrs.scaling("store", scaledStore).because(
		explanation{"it looks each of the node's addresses up in the source ranges", maxSlope}, "changed endpoint"))
	for _, d := range []dimension{manyEndpoints, manySlices, manyPorts, manyRanges} {
		all = append(all, d.scaling("store", scaledStore).because(sorted, "load", "changed endpoint"))
	}
	return append(all, manyServices.scaling("cluster", scaledClusterStore).because(cached, "load"),
		manyNodes.scaling("cluster", scaledClusterStore).because(cached, "load"))
}

func scaledBrain(_ context.Context, c scaledCluster) (*scaled, error) {
	c = c.filled()
	node, svc := c.node(), c.service(0, 0)
	var slices []*model.EndpointSlice
	for first := 0; first < c.endpoints; first += c.perSlice {
		slices = append(slices, c.slice(0, first, 0))
	}
	cfg := &brain.Config{NodeName: NodeName}
	return &scaled{[]scaledOp{{name: "compute", run: func() error {
		if brain.Compute(cfg, node, svc, slices) == nil {
			return fmt.Errorf("no record of service %v", svc.Name)
		}
		return nil
	}}}, func() error { return nil }}, nil
}

// loaded is a store with a cluster in it, and a consumer that has its latest state.
type loaded struct {
	sink  model.Sink
	feed  state.Feed
	close func()
	at    state.Revision
}

// load fills a new store.
func (l *loaded) load(ctx context.Context, objects []model.Object) error {
	l.sink.Update(objects, nil)
	l.sink.Complete()
	u, err := l.feed.Next(ctx, 0)
	if err == nil {
		l.at = u.Revision
	}
	return err
}

// change delivers objects and waits for the resulting state.
func (l *loaded) change(ctx context.Context, set []model.Object, deleted ...model.Ref) error {
	l.sink.Update(set, deleted)
	u, err := l.feed.Next(ctx, l.at)
	if err != nil {
		return err
	}
	if u.Full {
		return fmt.Errorf("revision %d is not a change of %d", u.Revision, l.at)
	}
	l.at = u.Revision
	return nil
}

func newLoadedStore() *loaded {
	s := store.New(store.Options{Brain: brain.Config{NodeName: NodeName}})
	return &loaded{sink: s.Source("bench"), feed: s, close: s.Close}
}

func newLoadedCluster() *loaded {
	c := store.NewCluster(store.ClusterOptions{})
	return &loaded{sink: c.Source("bench"), feed: c.Node(NodeName), close: c.Close}
}

func scaledStore(ctx context.Context, c scaledCluster) (*scaled, error) {
	return scaledStoreOf(ctx, c, newLoadedStore)
}

func scaledClusterStore(ctx context.Context, c scaledCluster) (*scaled, error) {
	return scaledStoreOf(ctx, c, newLoadedCluster)
}

func scaledStoreOf(ctx context.Context, c scaledCluster, open func() *loaded) (*scaled, error) {
	objects := c.objects()
	l := open()
	version := 0
	ops := []scaledOp{{
		name:  "load",
		reset: func() error { l.close(); l = open(); return nil },
		run:   func() error { return l.load(ctx, objects) },
	}, {
		name: "changed endpoint", single: true,
		run: func() error { version++; return l.change(ctx, []model.Object{c.slice(0, 0, version)}) },
	}}
	if c.optedOut > 0 {
		out := true // as it is loaded
		ops = append(ops, scaledOp{name: "changed label", single: true, run: func() error {
			out = !out
			return l.change(ctx, []model.Object{c.namespace(0, out)})
		}})
	}
	if c.claimants > 0 {
		ops = append(ops, scaledOp{name: "owner leaves and returns", single: true, run: func() error {
			if err := l.change(ctx, nil, c.claimant(0).Ref()); err != nil {
				return err
			}
			return l.change(ctx, []model.Object{c.claimant(0)})
		}})
	}
	return &scaled{ops, func() error { l.close(); return nil }}, nil
}
