package plan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/internal/edge/plan"
	"github.com/switchyard-net/switchyard/state"
)

func listOf(w plan.Word) (list []plan.Number) {
	for i := range plan.Owners {
		if n, ok := w.Owner(i); ok {
			list = append(list, n)
		}
	}
	return list
}

// TestWord compares the history of a slot with a list.
func TestWord(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		first := plan.Number(rng.IntN(6)) * 13000
		w, want := plan.Owned(first), []plan.Number{first}
		for range 30 {
			n := plan.Number(rng.IntN(6)) * 13000 // some have the highest bit
			left := slices.DeleteFunc(slices.Clone(want), func(o plan.Number) bool { return o == n })
			if rng.IntN(5) == 0 {
				w, want = w.Without(n), left
			} else {
				w, want = w.Moved(n), slices.Concat([]plan.Number{n}, left)
			}
			want = want[:min(len(want), plan.Owners)]
			if got := listOf(w); !slices.Equal(got, want) {
				t.Fatalf("owners %v, want %v", got, want)
			}
		}
	}
}

// TestHistoriesKeepConnections: connections live through random changes of endpoints. Those lose their owner that a slot has forgotten.
func TestHistoriesKeepConnections(t *testing.T) {
	const size, nodes, runs = 1021, 10, 10
	rng := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct {
		changes int
		most    [plan.Owners]float64 // percent, by how many earlier owners count
	}{{1, [4]float64{8, 0, 0, 0}}, {5, [4]float64{18, 2.5, 0.6, 0.3}}, {10, [4]float64{25, 4.5, 1, 0.4}}, {50, [4]float64{35, 9, 2.5, 1}}} {
		var lost [plan.Owners]int
		total := 0
		for range runs {
			endpoints := make([]uint32, nodes)
			for i := range endpoints {
				endpoints[i] = 1 + rng.Uint32N(5)
			}
			numbers := map[uint32]plan.Number{}
			for i := range endpoints {
				numbers[state.PeerID(fmt.Sprintf("node-%03d", i))] = plan.Number(i)
			}
			words := make([]plan.Word, size)
			for slot, id := range owners(size, sharesOf(endpoints...)) {
				words[slot] = plan.Owned(numbers[id])
			}
			first, emptied := slices.Clone(words), map[plan.Number]bool{}
			for range c.changes {
				if i := rng.IntN(nodes); rng.IntN(2) == 0 {
					endpoints[i]++
				} else if endpoints[i] > 1 {
					endpoints[i]--
				} else if endpoints[i] == 1 && !slices.Equal(sharesOf(endpoints...), sharesOf3) {
					endpoints[i] = 0
					emptied[plan.Number(i)] = true
				}
				for slot, id := range owners(size, sharesOf(endpoints...)) {
					words[slot] = words[slot].Moved(numbers[id])
				}
			}
			for slot, w := range words {
				owner, _ := first[slot].Owner(0)
				if emptied[owner] {
					continue // its connections end with its endpoints
				}
				total++
				at := slices.Index(listOf(w), owner)
				for kept := range lost {
					if at < 0 || at > kept {
						lost[kept]++
					}
				}
			}
		}
		for kept, n := range lost {
			if got := float64(n) / float64(total) * 100; got > c.most[kept] {
				t.Errorf("%d changes: with %d earlier owners %.2f%% of connections lose their owner, want at most %.2f%%", c.changes, kept, got, c.most[kept])
			}
		}
	}
}

// TestRanges: there is room for as many tables as fit, none is used twice, and the one that was given back first is used again first.
func TestRanges(t *testing.T) {
	r := plan.NewRanges(10*251+250, 251)
	if r.Most() != 10 {
		t.Fatalf("room for %d tables", r.Most())
	}
	var used []uint32
	for range 10 {
		table, ok := r.Take()
		if !ok || slices.Contains(used, table) || table >= 10 {
			t.Fatalf("table %d: %v, in use are %v", table, ok, used)
		}
		used = append(used, table)
	}
	if table, ok := r.Take(); ok {
		t.Fatalf("table %d is beyond the room", table)
	}
	r.Give(7)
	r.Give(3)
	for _, want := range []uint32{7, 3} {
		if table, ok := r.Take(); !ok || table != want {
			t.Errorf("table %d: %v, want %d", table, ok, want)
		}
	}
}

func TestKeys(t *testing.T) {
	for _, c := range []struct {
		key  state.FrontendKey
		want string
	}{
		{state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: netip.MustParseAddr("203.0.113.10"), Port: 80}, "cb00710a00500600"},
		{state.FrontendKey{Family: state.IPv4, Protocol: state.UDP, Port: 30080}, "0000000075801100"},
		{state.FrontendKey{Family: state.IPv6, Protocol: state.UDP, Addr: netip.MustParseAddr("2001:db8::1"), Port: 443}, "20010db800000000000000000000000101bb1100"},
		{state.FrontendKey{Family: state.IPv6, Protocol: state.TCP, Port: 30080}, "0000000000000000000000000000000075800600"},
	} {
		if got := fmt.Sprintf("%x", plan.Key(c.key)); got != c.want {
			t.Errorf("%v: %s, want %s", c.key, got, c.want)
		}
	}
}

// TestFrontends: the edge serves the frontends that the record has it take, and NodePorts are behind all addresses.
func TestFrontends(t *testing.T) {
	cluster, external := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("203.0.113.10")
	s := &state.Service{Ports: []state.Port{{Protocol: state.TCP, Family: state.IPv4, Edge: &state.Edge{}, Frontends: []state.Frontend{
		{Kind: state.ClusterIP, Addr: cluster, Port: 80}, {Kind: state.LoadBalancer, Addr: external, Port: 80}, {Kind: state.NodePort, Port: 30080},
	}}, {Protocol: state.SCTP, Family: state.IPv4, Frontends: []state.Frontend{{Kind: state.LoadBalancer, Addr: cluster, Port: 80}}}}}
	for except, want := range map[state.FrontendKinds][]string{
		0:                                 {"203.0.113.10:80/TCP", "IPv4 node port 30080/TCP"},
		state.KindsOf(state.NodePort):     {"203.0.113.10:80/TCP"},
		state.KindsOf(state.LoadBalancer): {"IPv4 node port 30080/TCP"},
	} {
		s.Ports[0].Edge.Except = except
		var got []string
		for key := range plan.Frontends(&s.Ports[0]) {
			got = append(got, key.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("frontends %q without %v, want %q", got, except, want)
		}
	}
	if got := slices.Collect(plan.Addresses(s)); !slices.Equal(got, []netip.Addr{external}) {
		t.Errorf("addresses %v", got)
	}
	if got := slices.Collect(plan.Addresses(nil)); len(got) != 0 {
		t.Errorf("nothing has the addresses %v", got)
	}
}

// TestSlotIsSpread: connections of one client by its ports, and of many clients, are spread over all slots.
func TestSlotIsSpread(t *testing.T) {
	to := netip.MustParseAddrPort("203.0.113.10:80")
	byPort, byClient := make([]int, 251), make([]int, 251)
	for i := range 50200 {
		client := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
		byPort[plan.Slot(state.TCP, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(1024+i)), to, 251)]++
		byClient[plan.Slot(state.TCP, netip.AddrPortFrom(client, 40000), to, 251)]++
	}
	for i := range byPort {
		if byPort[i] < 130 || byPort[i] > 270 || byClient[i] < 130 || byClient[i] > 270 {
			t.Errorf("slot %d has %d connections of a client, and of %d clients; 200 are fair", i, byPort[i], byClient[i])
		}
	}
}
