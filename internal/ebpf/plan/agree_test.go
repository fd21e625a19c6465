package plan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

// table is what hooks look up, filled from the plans of all records.
type table struct {
	exact     map[netip.AddrPort]plan.Route
	nodePorts map[state.Family]map[uint16]plan.Route
	// serving are the addresses that serve NodePorts.
	serving map[netip.Addr]bool
}

// find does what hooks do with the destination of a connection.
func (t *table) find(dst netip.AddrPort) (plan.Route, bool) {
	if r, ok := t.exact[dst]; ok {
		return r, true
	}
	if !t.serving[dst.Addr()] {
		return plan.Route{}, false
	}
	r, ok := t.nodePorts[state.FamilyOf(dst.Addr())][dst.Port()]
	return r, ok
}

// TestHooksAgreeWithOracle plays random histories of a cluster. A hook must translate a connection exactly as the
// rules of Kubernetes have it: forwarded to the same endpoints, without affinity, and with the client's own address
// if it is a pod.
func TestHooksAgreeWithOracle(t *testing.T) {
	histories := uint64(1500)
	if testing.Short() {
		histories = 200
	}
	translated := map[probe.Client]int{}
	asked, nodePorts := 0, 0
	for seed := range histories {
		rng := rand.New(rand.NewPCG(seed, 7))
		opts := randcluster.Options{
			NodeName: "node-a", DetectLocal: rng.IntN(3) > 0, MasqueradeAll: rng.IntN(4) == 0, NodeExternalIPs: rng.IntN(2) == 0,
			Protocols: []state.Protocol{state.TCP, state.TCP, state.UDP}, Annotations: seed%2 == 1,
			// External IPs and load balancers may have the ports of other Services' NodePorts.
			Ports: []uint16{80, 443, 30080, 30081},
		}
		h := randcluster.New(seed, opts)
		st := store.New(store.Options{Brain: brain.Config{
			NodeName: opts.NodeName, MasqueradeAll: opts.MasqueradeAll, NodeExternalIPs: opts.NodeExternalIPs,
			LocalDetector: state.LocalDetector{NodeCIDR: opts.DetectLocal},
		}})
		sink := st.Source("history")
		for range 1 + rng.IntN(8) {
			sink.Update(h.Step())
		}
		sink.Complete()
		w := h.World()
		settings := plan.Settings{Local: map[netip.Addr]bool{}}
		serving := map[netip.Addr]bool{}
		for _, p := range h.Packets() {
			if d := p.Dst.Addr(); w.NodePortAddrs(d) {
				serving[d] = true
				// An address that is not on any interface may serve NodePorts (Primary).
				if rng.IntN(2) == 0 {
					settings.Local[d] = true
				}
			}
		}
		if opts.DetectLocal { // as the oracle takes it: pods are seen in both families
			settings.Detector = state.LocalDetector{ClusterCIDRs: []netip.Prefix{prefix("0.0.0.0/0"), prefix("::/0")}}
		}
		settings.NodePorts = slices.SortedFunc(maps.Keys(serving), netip.Addr.Compare)
		hooks := fill(t, st, &settings)
		for _, p := range h.Packets() {
			if p.Protocol != state.TCP {
				continue
			}
			client := plan.Pods
			switch {
			case p.From == probe.FromNode:
				client = plan.Node
			case p.From == probe.FromPod && opts.DetectLocal, p.From == probe.FromOutside && !opts.DetectLocal:
				// Who detects no pods takes them for clients from outside.
			default:
				continue
			}
			asked++
			r, found := hooks.find(p.Dst)
			if !found || r.Clients&client == 0 {
				continue
			}
			translated[p.From]++
			if _, exact := hooks.exact[p.Dst]; !exact {
				nodePorts++
			}
			if err := sameAs(w, p, &r); err != nil {
				t.Fatalf("seed %d: %v: %v", seed, p, err)
			}
		}
		st.Close()
	}
	t.Logf("%d questions, translated: %v, %d of them by NodePorts", asked, translated, nodePorts)
	for _, from := range []probe.Client{probe.FromPod, probe.FromNode, probe.FromOutside} {
		if translated[from] < 100 {
			t.Errorf("%d connections of clients of the kind %v are translated: the histories do not test what they should", translated[from], from)
		}
	}
}

func fill(t *testing.T, st *store.Store, settings *plan.Settings) *table {
	t.Helper()
	hooks := &table{map[netip.AddrPort]plan.Route{}, map[state.Family]map[uint16]plan.Route{state.IPv4: {}, state.IPv6: {}}, map[netip.Addr]bool{}}
	for _, addr := range settings.NodePorts {
		hooks.serving[addr] = true
	}
	for record := range st.Snapshot().Services() {
		for _, addr := range plan.Owned(nil, record, settings) {
			delete(hooks.serving, addr)
		}
		for _, r := range plan.Append(nil, record, settings) {
			for _, f := range r.All() {
				_, twice := hooks.nodePorts[r.Port.Family][f.Port]
				if f.Addr.IsValid() {
					dst := netip.AddrPortFrom(f.Addr, f.Port)
					_, twice = hooks.exact[dst]
					hooks.exact[dst] = r
				} else {
					hooks.nodePorts[r.Port.Family][f.Port] = r
				}
				if twice {
					t.Fatalf("two plans have the frontend %v", f)
				}
			}
		}
	}
	return hooks
}

// sameAs compares a route with what must happen to a connection.
func sameAs(w *oracle.World, p probe.Packet, r *plan.Route) error {
	want := w.Ask(p)
	if want.Outcome != probe.Forward || want.Affinity != "" || want.Balance != state.Random {
		return fmt.Errorf("a hook forwards it to %v, and it must be %+v", r.Endpoints(), want)
	}
	type endpoint struct {
		at     netip.AddrPort
		weight uint16
	}
	var got, endpoints []endpoint
	for _, c := range want.Choices {
		endpoints = append(endpoints, endpoint{c.Endpoint, c.Weight})
		// A hook cannot know that a pod reaches itself.
		if c.Masquerade && p.From != probe.FromNode && c.Endpoint.Addr() != p.Src {
			return fmt.Errorf("a hook keeps the client's address, and it must be masqueraded: %+v", want)
		}
	}
	for _, e := range r.Endpoints() {
		got = append(got, endpoint{e.Addr, e.Weight})
	}
	if !slices.Equal(got, endpoints) {
		return fmt.Errorf("a hook forwards to %v, and must to %v", got, endpoints)
	}
	return nil
}
