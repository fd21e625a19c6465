package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"

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
		names := store.NewNames()
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
				want[svc.Name] = brain.Names(svc, own)
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
		names := store.NewNames()
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
