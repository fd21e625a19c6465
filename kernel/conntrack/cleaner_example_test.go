package conntrack_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// dataplane deletes stale flows in its Apply, after the commit.
type dataplane struct {
	shown map[state.ServiceName]*state.Service
	flows *conntrack.Cleaner
}

func newDataplane(t conntrack.Table) *dataplane {
	return &dataplane{shown: map[state.ServiceName]*state.Service{}, flows: conntrack.NewCleaner(t, conntrack.CleanerOptions{})}
}

func (d *dataplane) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	// ... commit the rules of u ...
	for _, s := range u.Changed {
		d.flows.Note(d.shown[s.Name], s)
		d.shown[s.Name] = s
	}
	for _, name := range u.Removed {
		d.flows.Note(d.shown[name], nil)
		delete(d.shown, name)
	}
	// The rules are programmed. Flows that could not be deleted stay pending for the next Clean, which a dataplane
	// calls again after a pause.
	_, _ = d.flows.Clean(ctx, nil)
	return backend.Result{Written: len(u.Changed) + len(u.Removed)}, nil
}

// A client keeps asking a DNS server from one port while the server is replaced. Its flow is deleted, so that its
// next packet is routed again.
func ExampleCleaner() {
	dns := netip.MustParseAddrPort("10.96.0.10:53")
	service := func(endpoint string) *state.Update {
		return &state.Update{Changed: []*state.Service{{
			Name: state.ServiceName{Namespace: "kube-system", Name: "dns"},
			Ports: []state.Port{{
				Protocol: state.UDP, Family: state.IPv4,
				Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: dns.Addr(), Port: dns.Port()}},
				Internal: state.Traffic{Inside: state.Route{
					Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.MustParseAddrPort(endpoint)}},
				}},
			}},
		}}}
	}

	kernel := &table{} // a program has conntrack.Open() here
	d := newDataplane(kernel)
	d.Apply(context.Background(), service("10.244.1.5:53"))
	kernel.flows = []conntrack.Flow{{
		Family: state.IPv4, Protocol: state.UDP,
		Orig:  conntrack.Tuple{Src: netip.MustParseAddrPort("10.244.1.9:40000"), Dst: dns},
		Reply: conntrack.Tuple{Src: netip.MustParseAddrPort("10.244.1.5:53"), Dst: netip.MustParseAddrPort("10.244.1.9:40000")},
	}}
	d.Apply(context.Background(), service("10.244.1.5:53"))
	fmt.Println(kernel.flows)
	d.Apply(context.Background(), service("10.244.1.6:53"))
	fmt.Println(kernel.flows)
	// Output:
	// [UDP 10.244.1.9:40000 -> 10.96.0.10:53, answered 10.244.1.5:53 -> 10.244.1.9:40000]
	// []
}

// table is a connection tracking table in memory.
type table struct{ flows []conntrack.Flow }

func (t *table) Flows(f conntrack.Filter, each func([]conntrack.Flow) error) error {
	var found []conntrack.Flow
	for _, flow := range t.flows {
		if f.Match(flow) {
			found = append(found, flow)
		}
	}
	return each(found)
}

func (t *table) Delete(flows ...conntrack.Flow) (int, error) {
	before := len(t.flows)
	t.flows = slices.DeleteFunc(t.flows, func(f conntrack.Flow) bool { return slices.Contains(flows, f) })
	return before - len(t.flows), nil
}

func (t *table) DeleteAll(f conntrack.Filter) (int, error) {
	before := len(t.flows)
	t.flows = slices.DeleteFunc(t.flows, f.Match)
	return before - len(t.flows), nil
}
