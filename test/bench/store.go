package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// storeChanges is how many single changes are measured.
const storeChanges = 20_000

// Store measures how long a store takes to publish a whole cluster. It also measures how long one changed endpoint
// takes through model, brain and store: from the source's Update until the waiting consumer has the delta.
func Store(ctx context.Context, r *Reporter, o Options) error {
	o = o.withDefaults(45_000)
	for _, services := range o.Services {
		done := r.Step("store: %d services with %d endpoints", services, o.Endpoints)
		err := measureStore(ctx, r, services, o.Endpoints)
		done()
		if err != nil {
			return err
		}
	}
	return nil
}

func measureStore(ctx context.Context, r *Reporter, services, endpoints int) error {
	objects := Cluster(services, endpoints)
	changing := slicesIn(objects)
	if len(changing) == 0 {
		return fmt.Errorf("a cluster with %d services of %d endpoints has no endpoint to change; ask for at least one of each", services, endpoints)
	}
	s := store.New(store.Options{Brain: brain.Config{NodeName: NodeName}})
	defer s.Close()
	sink := s.Source("bench")

	start := time.Now()
	sink.Update(objects, nil)
	sink.Complete()
	first, err := s.Next(ctx, 0)
	if err != nil {
		return err
	}
	r.Report(Result{"store/load", services, endpoints, time.Since(start).Seconds(), "s"})

	arrivals := consume(ctx, s, first.Revision)
	rng := rand.New(rand.NewPCG(1, 1))
	took := make([]time.Duration, 0, storeChanges)
	for n := range storeChanges {
		i := rng.IntN(len(changing))
		changing[i] = withoutFirst(changing[i], n, services*endpoints)
		change := []model.Object{changing[i]}
		for range 10 {
			runtime.Gosched() // lets the consumer wait again
		}
		start := time.Now()
		sink.Update(change, nil)
		a := <-arrivals
		if a.err != nil {
			return a.err
		}
		took = append(took, a.at.Sub(start))
	}
	r.Report(Result{"store/endpoint-change-p50", services, endpoints, Microseconds(Percentile(took, 50)), "us"})
	r.Report(Result{"store/endpoint-change-p99", services, endpoints, Microseconds(Percentile(took, 99)), "us"})
	return nil
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

func slicesIn(objects []model.Object) (found []*model.EndpointSlice) {
	for _, obj := range objects {
		if s, ok := obj.(*model.EndpointSlice); ok {
			found = append(found, s)
		}
	}
	return found
}

// withoutFirst returns a slice whose first endpoint has been replaced by the n-th new one in a cluster of so many.
func withoutFirst(s *model.EndpointSlice, n, endpoints int) *model.EndpointSlice {
	changed := *s
	changed.Endpoints = slices.Clone(s.Endpoints)
	changed.Endpoints[0].Addr = nth(rangesOf(s.Family).pods, 1+endpoints+n)
	return &changed
}
