//go:build linux

package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// BenchmarkBrain computes all services of a cluster from scratch, in one goroutine.
func BenchmarkBrain(b *testing.B) {
	for _, services := range []int{10_000, 45_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			var node *model.Node
			var all []*model.Service
			slices := make(map[state.ServiceName][]*model.EndpointSlice)
			for _, obj := range Cluster(services, 5) {
				switch obj := obj.(type) {
				case *model.Node:
					node = obj
				case *model.Service:
					all = append(all, obj)
				case *model.EndpointSlice:
					slices[obj.ServiceName()] = append(slices[obj.ServiceName()], obj)
				}
			}
			cfg := &brain.Config{NodeName: NodeName}
			records := make([]*state.Service, len(all)) // kept, as the store would
			for b.Loop() {
				for i, svc := range all {
					if records[i] = brain.Compute(cfg, node, svc, slices[svc.Name]); records[i] == nil {
						b.Fatalf("the brain has no record of service %v", svc.Name)
					}
				}
			}
			b.ReportMetric(float64(b.N*services)/b.Elapsed().Seconds(), "services/s")
		})
	}
}

// reportTimes reports percentiles of durations, in microseconds.
func reportTimes(b *testing.B, took []time.Duration) {
	b.ReportMetric(in("us", Percentile(took, 50)), "p50-us")
	b.ReportMetric(in("us", Percentile(took, 99)), "p99-us")
}

// BenchmarkStore takes a cluster of 45,000 services to the first state, and one changed endpoint through model, brain
// and store: from the source's Update until the waiting consumer has the delta.
func BenchmarkStore(b *testing.B) {
	cluster := newChangingCluster(45_000, 5)
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			if _, err := stateOf(b.Context(), brain.Config{}, cluster.objects...); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("endpoint-change", func(b *testing.B) {
		ctx, stop := context.WithCancel(b.Context())
		defer stop()
		s, sink := newStore(brain.Config{}, cluster.objects...)
		defer s.Close()
		first, err := s.Next(ctx, 0)
		if err != nil {
			b.Fatal(err)
		}
		arrivals := consume(ctx, s, first.Revision)
		rng := rand.New(rand.NewPCG(1, 1))
		var took []time.Duration
		for b.Loop() {
			change := []model.Object{cluster.change(rng.IntN(len(cluster.slices)))}
			for range 10 {
				runtime.Gosched() // lets the consumer wait again
			}
			began := time.Now()
			sink.Update(change, nil)
			a := <-arrivals
			if a.err != nil {
				b.Fatal(a.err)
			}
			took = append(took, a.at.Sub(began))
		}
		reportTimes(b, took)
	})
}

// arrival is when a consumer got a delta, or why it gets no more.
type arrival struct {
	at  time.Time
	err error
}

// consume takes all updates of a feed, each of which must be a delta of one service, until it fails.
func consume(ctx context.Context, feed state.Feed, after state.Revision) <-chan arrival {
	arrivals := make(chan arrival, 1)
	go func() {
		for {
			u, err := feed.Next(ctx, after)
			at := time.Now()
			if err == nil && (u.Full || len(u.Changed) != 1) {
				err = fmt.Errorf("update %d has %d services (full: %v), want a delta of one", u.Revision, len(u.Changed), u.Full)
			}
			arrivals <- arrival{at, err}
			if err != nil {
				return
			}
			after = u.Revision
		}
	}()
	return arrivals
}

// BenchmarkAPI measures the node-local API over TCP on loopback with 10,000 services, server and client in this process: whole
// states by Next, as the client library receives them for its handlers, and one changed endpoint from the source's
// Update until the loop over the client's updates has it.
func BenchmarkAPI(b *testing.B) {
	cluster := newChangingCluster(10_000, 5)
	s, sink := newStore(brain.Config{}, cluster.objects...)
	defer s.Close()
	var wire traffic
	api, err := serveStore(b.Context(), s, &wire)
	if err != nil {
		b.Fatal(err)
	}
	defer api.close()
	b.Run("next", func(b *testing.B) {
		epc := &client.EndpointsClient{Target: api.target}
		defer epc.Cancel()
		var took []time.Duration
		for b.Loop() {
			epc.InstanceID, epc.Rev = 0, 0
			began := time.Now()
			if items, canceled := epc.Next(); canceled || len(items) != 10_000 {
				b.Fatalf("received %d services (canceled: %v)", len(items), canceled)
			}
			took = append(took, time.Since(began))
		}
		reportTimes(b, took)
	})
	b.Run("endpoint-change", func(b *testing.B) {
		watch, err := watchAPI(b.Context(), client.Options{Target: api.target})
		if err != nil {
			b.Fatal(err)
		}
		defer watch.close()
		if u := <-watch.updates; u == nil || len(u.Changed) != 10_000 {
			b.Fatal("the first update is not the whole state")
		}
		before := wire.settle()
		rng := rand.New(rand.NewPCG(1, 1))
		var took []time.Duration
		for b.Loop() {
			change := []model.Object{cluster.change(rng.IntN(len(cluster.slices)))}
			time.Sleep(200 * time.Microsecond) // lets the client ask for the next update, and everybody wait again
			began := time.Now()
			sink.Update(change, nil)
			u := <-watch.updates
			took = append(took, watch.at.Sub(began))
			if err := changeOfOne(u); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		b.ReportMetric(float64(wire.settle()-before)/float64(len(took)), "wire-B/op")
		reportTimes(b, took)
	})
}

// TestBenchmarksRun runs each benchmark of this file once, because tests do not run benchmarks.
func TestBenchmarksRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes clusters of 45,000 services")
	}
	out, err := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^$", "-test.bench=^Benchmark(Brain|Store|API|Churn)$", "-test.benchtime=1x").CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range []string{"services/s", "BenchmarkStore/endpoint-change", "BenchmarkAPI/next", "wire-B/op", "50030 all-events"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("there is no %s in\n%s", want, out)
		}
	}
}
