package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// wanted is a range that a service of a history asks for at an address.
type wantedRange struct {
	owner       *model.Service
	kind        int // 0 is the best
	addr        netip.Addr
	protocol    state.Protocol
	first, last int
}

// rangesByRule decides who gets what in the dumbest way: in order, and each is compared with all that were granted.
func rangesByRule(services []*model.Service) (granted []string) {
	var all, have []wantedRange
	for _, s := range services {
		for item := range strings.SplitSeq(s.Annotation(model.PortRangesAnnotation), ",") {
			w := wantedRange{owner: s}
			var protocol, name string
			if _, err := fmt.Sscanf(strings.NewReplacer("=", " ", "-", " ", "/", " ").Replace(item), "%s %d %d %s", &name, &w.first, &w.last, &protocol); err != nil {
				continue
			}
			w.protocol = map[string]state.Protocol{"TCP": state.TCP, "UDP": state.UDP}[protocol]
			for kind, addrs := range [][]netip.Addr{s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs} {
				for _, w.addr = range addrs {
					w.kind = kind
					seen := slices.ContainsFunc(all, func(o wantedRange) bool {
						return o.owner == s && o.addr == w.addr && o.protocol == w.protocol && o.first == w.first
					})
					if !seen {
						all = append(all, w)
					}
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b wantedRange) int {
		switch {
		case a.kind != b.kind:
			return a.kind - b.kind
		case !a.owner.Created.Equal(b.owner.Created):
			return a.owner.Created.Compare(b.owner.Created)
		}
		return a.owner.Name.Compare(b.owner.Name)
	})
	for _, w := range all {
		taken := slices.ContainsFunc(have, func(o wantedRange) bool {
			for port := w.first; port <= w.last; port++ {
				if o.addr == w.addr && o.protocol == w.protocol && o.first <= port && port <= o.last {
					return true
				}
			}
			return false
		})
		if !taken {
			have = append(have, w)
			granted = append(granted, fmt.Sprintf("%v %v:%d-%d/%v", w.owner.Name, w.addr, w.first, w.last, w.protocol))
		}
	}
	slices.Sort(granted)
	return granted
}

// rangesIn returns the ranges of a snapshot as rangesByRule does.
func rangesIn(s *Snapshot) (ranges []string) {
	for r := range s.Services() {
		for p, f := range r.Frontends() {
			if f.LastPort != 0 {
				ranges = append(ranges, fmt.Sprintf("%v %v", r.Name, p.Key(f)))
			}
		}
	}
	slices.Sort(ranges)
	return ranges
}

// TestRangesOfHistories plays random histories of services with ranges that overlap. After each step, the ranges are those that a dumb oracle
// names, and the services that lack some have a problem.
func TestRangesOfHistories(t *testing.T) {
	lost := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 4))
		s := New(Options{Brain: brain.Config{NodeName: "n"}})
		sink := s.Source("test")
		sink.Complete()
		services := map[string]*model.Service{}
		for step := range 60 {
			var set []model.Object
			var deleted []model.Ref
			for range 1 + rng.IntN(3) {
				o := serviceWithRanges(rng)
				if rng.IntN(4) == 0 {
					deleted = append(deleted, o.Ref())
				} else if !slices.ContainsFunc(set, func(other model.Object) bool { return other.Ref() == o.Ref() }) {
					set = append(set, o)
				}
			}
			sink.Update(set, deleted)
			for _, ref := range deleted {
				delete(services, ref.Name)
			}
			for _, o := range set {
				services[o.Ref().Name] = o.(*model.Service)
			}
			got, want := rangesIn(s.Snapshot()), rangesByRule(slices.Collect(maps.Values(services)))
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d step %d: the ranges are\n%s\nwant\n%s", seed, step, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			lost += s.Limited()[RangeConflict]
		}
		s.Close()
	}
	if lost == 0 {
		t.Error("no range was lost")
	}
}

func serviceWithRanges(rng *rand.Rand) *model.Service {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	name := pick("a", "b", "c", "d", "e")
	s := &model.Service{
		Name: state.ServiceName{Namespace: "default", Name: name}, Type: model.TypeLoadBalancer,
		Created:         time.Unix(int64(1000+rng.IntN(3)), 0),
		ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0." + map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}[name])},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr(pick("192.0.2.8", "192.0.2.9"))},
		ExternalIPs:     []netip.Addr{netip.MustParseAddr(pick("192.0.2.8", "192.0.2.9", "10.96.0.1"))},
		Ports:           []model.ServicePort{{Protocol: state.TCP, Port: uint16(1 + rng.IntN(20))}},
	}
	first, second := 1+rng.IntN(20), 30+rng.IntN(20)
	value := fmt.Sprintf("x=%d-%d/%s", first, first+1+rng.IntN(8), pick("TCP", "UDP"))
	if rng.IntN(2) == 0 {
		value += fmt.Sprintf(",y=%d-%d/%s", second, second+1+rng.IntN(20), pick("TCP", "UDP"))
	}
	s.Annotations = []model.Annotation{{Name: model.PortRangesAnnotation, Value: value}}
	return s
}

// TestRangesOfANode: a node has so many ranges, which the oldest services get. A range of another service that goes makes room.
func TestRangesOfANode(t *testing.T) {
	s := New(Options{Brain: brain.Config{NodeName: "n"}})
	defer s.Close()
	sink := s.Source("test")
	service := func(n, created int) *model.Service {
		var items []string
		for i := range brain.MaxRanges {
			items = append(items, fmt.Sprintf("r%d=%d-%d/UDP", i, 1000+10*i, 1005+10*i))
		}
		return &model.Service{
			Name: state.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%03d", n)}, Created: time.Unix(int64(created), 0),
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(n)})}, Ports: []model.ServicePort{{Protocol: state.UDP, Port: 53}},
			Annotations: []model.Annotation{{Name: model.PortRangesAnnotation, Value: strings.Join(items, ",")}},
		}
	}
	const services = maxRanges / brain.MaxRanges
	sink.Update([]model.Object{service(200, 100)}, nil)
	for n := range services {
		sink.Update([]model.Object{service(n, 50)}, nil)
	}
	sink.Complete()
	if got := rangesIn(s.Snapshot()); len(got) != maxRanges || slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, "s200") }) {
		t.Errorf("%d ranges, want %d, none of the youngest service", len(got), maxRanges)
	}
	problems := s.Problems()
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "at most 4096 ranges of ports") {
		t.Errorf("the problems are %v", problems)
	}
	sink.Update(nil, []model.Ref{service(0, 50).Ref()})
	if got := rangesIn(s.Snapshot()); len(got) != maxRanges || len(s.Problems()) != 0 {
		t.Errorf("with room, %d ranges and problems %v", len(got), s.Problems())
	}
}

// TestRangesOfNodeAddresses: an address of a node, or of an API server, gets no range, by any field. The rest of the service is served, and has its
// ranges once the node is gone.
func TestRangesOfNodeAddresses(t *testing.T) {
	s := New(Options{Brain: brain.Config{NodeName: "n", NodeExternalIPs: true}})
	defer s.Close()
	sink := s.Source("test")
	sink.Update([]model.Object{
		&model.Node{Name: "n", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.8")}},
		&model.Service{
			Name: state.ServiceName{Namespace: "default", Name: "s"}, Type: model.TypeLoadBalancer, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
			ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.8"), netip.MustParseAddr("192.0.2.10")},
			ExternalIPs:     []netip.Addr{netip.MustParseAddr("192.0.2.9")},
			Annotations:     []model.Annotation{{Name: model.PortRangesAnnotation, Value: "all=*/TCP"}},
		},
	}, nil)
	sink.Complete()
	s.SetOwn(Own{Interfaces: []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.10")}})
	has := func(want ...string) {
		t.Helper()
		for i, addr := range want {
			want[i] = "default/s " + addr + ":1-65535/TCP"
		}
		if got := rangesIn(s.Snapshot()); !slices.Equal(got, want) {
			t.Errorf("the ranges are %q, want %q", got, want)
		}
	}
	has("10.96.0.1", "192.0.2.10") // a load balancer's agent may have put it there
	for r := range s.Snapshot().Services() {
		if n := len(r.Ports[0].Frontends); r.Ports[0].Name != "" || n != 4 {
			t.Errorf("port 80 has %d frontends, want 4", n)
		}
	}
	if p := s.Problems(); len(p) != 1 || !strings.Contains(p[0].Error(), "192.0.2.8 gets no range of ports, because it is the address of a node (1 more addresses get none)") {
		t.Errorf("the problems are %v", p)
	}
	sink.Update(nil, []model.Ref{(&model.Node{Name: "n"}).Ref()})
	has("10.96.0.1", "192.0.2.10", "192.0.2.8")
	s.SetOwn(Own{})
	has("10.96.0.1", "192.0.2.10", "192.0.2.8", "192.0.2.9")
	if p := s.Problems(); len(p) != 0 {
		t.Errorf("the problems are %v", p)
	}
}
