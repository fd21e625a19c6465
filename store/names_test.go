package store_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// TestNamesHistories lets services and slices come, change and go at random. Consumers that follow at their own pace have what the
// brain says about the objects that there are.
func TestNamesHistories(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 7))
		names := store.NewNames(store.NamesOptions{})
		sink := names.Source()
		services, slices := map[string]*model.Service{}, map[string]*model.EndpointSlice{}
		followers := make([]namesFollower, 3)
		for step := range 200 {
			name := fmt.Sprint("s", rng.IntN(4))
			switch rng.IntN(5) {
			case 0:
				delete(services, name)
				sink.Update(nil, []model.Ref{{Kind: model.KindService, Namespace: "ns", Name: name}})
			case 1:
				s := &model.Service{Name: state.ServiceName{Namespace: "ns", Name: name}, Headless: rng.IntN(4) > 0}
				if !s.Headless {
					s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(rng.IntN(3))})}
				}
				services[name] = s
				sink.Update([]model.Object{s}, nil)
			case 2:
				slice := fmt.Sprint("e", rng.IntN(6))
				delete(slices, slice)
				sink.Update(nil, []model.Ref{{Kind: model.KindEndpointSlice, Namespace: "ns", Name: slice}})
			default:
				s := &model.EndpointSlice{Namespace: "ns", Name: fmt.Sprint("e", rng.IntN(6)), Service: name, Family: state.IPv4}
				for n := range rng.IntN(3) {
					s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), Ready: rng.IntN(3) > 0})
				}
				slices[s.Name] = s
				sink.Update([]model.Object{s}, nil)
			}
			if step == 20 {
				sink.Complete()
			}
			if step < 20 {
				continue
			}
			want := map[state.ServiceName]*state.Names{}
			for _, svc := range services {
				var own []*model.EndpointSlice
				for _, s := range slices {
					if s.Service == svc.Name.Name {
						own = append(own, s)
					}
				}
				want[svc.Name] = brain.Names(svc, own, brain.MaxNames)
			}
			for i := range followers {
				if f := &followers[i]; step == 199 || rng.IntN(1+4*i) == 0 {
					f.follow(t, names)
					f.expect(t, want, fmt.Sprintf("seed %d, step %d, follower %d", seed, step, i))
				}
			}
		}
		names.Close()
		if _, err := names.Next(t.Context(), 0); err != store.ErrClosed {
			t.Fatalf("closed: %v", err)
		}
	}
}

// namesFollower is what a consumer has.
type namesFollower struct {
	revision state.Revision
	known    map[state.ServiceName]*state.Names
}

// follow takes what there is, if anything is new.
func (f *namesFollower) follow(t *testing.T, names *store.Names) {
	t.Helper()
	ended, end := context.WithCancel(t.Context())
	end()
	u, err := names.Next(ended, f.revision)
	if err != nil {
		return // nothing is new
	}
	if u.Full != (f.revision == 0) {
		t.Fatalf("after %d there is a full update: %v", f.revision, u.Full)
	}
	if u.Full {
		f.known = map[state.ServiceName]*state.Names{}
	}
	for _, n := range u.Changed {
		f.known[n.Name] = n
	}
	for _, name := range u.Removed {
		delete(f.known, name)
	}
	f.revision = u.Revision
}

func (f *namesFollower) expect(t *testing.T, want map[state.ServiceName]*state.Names, when string) {
	t.Helper()
	if len(f.known) != len(want) {
		t.Fatalf("%s: %d services have names, want %d", when, len(f.known), len(want))
	}
	for name, w := range want {
		if got := f.known[name]; got == nil || !got.Equal(w) {
			t.Fatalf("%s: %v: got %+v, want %+v", when, name, got, w)
		}
	}
}

// TestNamesWaitForSources publishes nothing before all sources are complete, and no revision for what changes no name.
func TestNamesWaitForSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := store.NewNames(store.NamesOptions{})
		defer names.Close()
		one, two := names.Source(), names.Source()
		var got []state.Revision
		go func() {
			var after state.Revision
			for {
				u, err := names.Next(t.Context(), after)
				if err != nil {
					return
				}
				after = u.Revision
				got = append(got, after)
			}
		}()
		svc := &model.Service{Name: state.ServiceName{Namespace: "ns", Name: "a"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
		one.Update([]model.Object{svc}, nil)
		one.Complete()
		one.Complete()
		synctest.Wait()
		if len(got) > 0 {
			t.Fatalf("revisions %v before the second source is complete", got)
		}
		two.Complete()
		synctest.Wait()
		// Endpoints of a service with a cluster IP have no names.
		two.Update([]model.Object{&model.EndpointSlice{
			Namespace: "ns", Name: "a-1", Service: "a", Family: state.IPv4, Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.1.0.1"), Ready: true}},
		}}, nil)
		synctest.Wait()
		if len(got) != 1 {
			t.Errorf("revisions %v, want one", got)
		}
	})
}

// headless returns a headless service of an age, and a slice with endpoints for it.
func headless(namespace, name string, age time.Duration, endpoints int) []model.Object {
	svc := &model.Service{Name: state.ServiceName{Namespace: namespace, Name: name}, Headless: true, Created: time.Unix(1e9, 0).Add(-age)}
	slice := &model.EndpointSlice{Namespace: namespace, Name: name, Service: name, Family: state.IPv4}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Ready: true})
	}
	return []model.Object{svc, slice}
}

// TestNamesOfATenantWithoutBounds lets a tenant fill all the room that there is for names. The others keep theirs, and what is left out is
// reported.
func TestNamesOfATenantWithoutBounds(t *testing.T) {
	var logged strings.Builder
	names := store.NewNames(store.NamesOptions{
		Limits: store.NamesLimits{PerService: 60, Budgets: store.Budgets{PerNamespace: 200, PerNode: 300}},
		Logger: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	defer names.Close()
	sink := names.Source()
	sink.Update(headless("shop", "db", time.Hour, 40), nil)
	sink.Complete()
	f := &namesFollower{}
	expect := func(when string, limited map[store.Reason]int, want map[string]int) {
		t.Helper()
		f.follow(t, names)
		got := map[string]int{}
		for name, n := range f.known {
			got[name.String()] = 0
			if len(n.Endpoints) > 0 {
				got[name.String()] = len(n.Endpoints[0].Endpoints)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: the services have endpoints with names %v, want %v", when, got, want)
		}
		counts := names.Limited()
		maps.DeleteFunc(counts, func(_ store.Reason, n int) bool { return n == 0 })
		if !maps.Equal(counts, limited) {
			t.Errorf("%s: limited are %v, want %v", when, counts, limited)
		}
	}
	expectProblem := func(want string) {
		t.Helper()
		if got := fmt.Sprint(names.Problems()); !strings.Contains(got, want) {
			t.Errorf("problems are %s, want %q", got, want)
		}
	}
	expect("alone", map[store.Reason]int{}, map[string]int{"shop/db": 40})

	// A service has six entries, and one for each endpoint.
	sink.Update(headless("evil", "huge", time.Minute, 1000), nil)
	expect("a huge service", map[store.Reason]int{store.TooManyNames: 1}, map[string]int{"shop/db": 40, "evil/huge": 54})
	expectProblem("service evil/huge: spec: the names of the service have 1006 entries, and 60 have room: the last endpoints and ports have no names; split")

	for i := range 10 {
		sink.Update(headless("evil", fmt.Sprint("x", i), time.Second*time.Duration(30-i), 50), nil)
	}
	expect("many services", map[store.Reason]int{store.TooManyNames: 1, store.NamespaceNamesFull: 8},
		map[string]int{"shop/db": 40, "evil/huge": 54, "evil/x0": 50, "evil/x1": 50, "evil/x2": 22})
	expectProblem("service evil/x2: metadata.namespace: the names of the namespace may have 200 entries; older services leave room for 28 of the 56 of this one; ")

	sink.Update(headless("worse", "y", time.Minute, 50), nil)
	sink.Update(headless("worse", "z", time.Second, 40), nil)
	expect("two such namespaces", map[store.Reason]int{store.TooManyNames: 1, store.NamesFull: 9},
		map[string]int{"shop/db": 40, "evil/huge": 54, "evil/x0": 50, "evil/x1": 28, "worse/y": 50, "worse/z": 40})
	expectProblem("the names of the namespace may have 150 entries; ")

	names.Reconfigure(store.NamesLimits{})
	if got := fmt.Sprint(names.Problems()); got != "[]" {
		t.Errorf("with room for all, problems are %s", got)
	}
	f.follow(t, names)
	if n := len(f.known[state.ServiceName{Namespace: "evil", Name: "huge"}].Endpoints[0].Endpoints); n != 1000 || len(f.known) != 14 {
		t.Errorf("with room for all, %d services have names, and the huge one has %d endpoints", len(f.known), n)
	}
	for _, want := range []string{
		`level=WARN msg="service is not fully served" service=evil/huge reason=TooManyNames field=spec `,
		`level=WARN msg="namespace exceeds its limit; some of its services are not fully served" namespace=evil reason=NamespaceNamesFull services=`,
		`level=INFO msg="namespace is within its limit again" namespace=evil reason=NamesFull`,
	} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("there is no line %s in the log:\n%s", want, logged.String())
		}
	}
}
