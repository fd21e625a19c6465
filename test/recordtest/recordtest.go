// Package recordtest makes records of services, and updates with them, for the tests of dataplanes.
package recordtest

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// Families are both families, in the order of the dataplane's tables.
var Families = []state.Family{state.IPv4, state.IPv6}

// Node returns a node with addresses and ranges of both families.
func Node() *state.Node {
	return &state.Node{
		Name:         "node",
		Addresses:    []netip.Addr{Addr("192.0.2.1"), Addr("2001:db8::1")},
		PodCIDRs:     []netip.Prefix{Prefix("10.244.1.0/24"), Prefix("fd00:10:244:1::/64")},
		ServiceCIDRs: []netip.Prefix{Prefix("10.96.0.0/16"), Prefix("fd00:10:96::/112")},
	}
}

// Addr parses an address.
func Addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// Prefix parses a range of addresses.
func Prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// Prefixes parses ranges of addresses, also several that spaces separate in one text.
func Prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for t := range strings.FieldsSeq(strings.Join(texts, " ")) {
		list = append(list, Prefix(t))
	}
	return list
}

// PodCIDRs returns a range of each family that has the addresses of [Endpoints].
func PodCIDRs(families ...state.Family) []netip.Prefix {
	var list []netip.Prefix
	for _, f := range families {
		list = append(list, map[state.Family]netip.Prefix{
			state.IPv4: Prefix("10.244.0.0/16"), state.IPv6: Prefix("fd00:10:244::/48"),
		}[f])
	}
	return list
}

// NodeAddr is an address of the node in a topology of package test/topology.
func NodeAddr(f state.Family) netip.Addr {
	if f == state.IPv6 {
		return Addr("2001:db8:0:1::1")
	}
	return Addr("192.0.2.1")
}

// Endpoints returns endpoints n to n+count-1 of a family.
func Endpoints(f state.Family, n, count int) []state.Endpoint {
	base := netip.AddrFrom4([4]byte{10, 244, 0, 0})
	if f == state.IPv6 {
		base = Addr("fd00:10:244::")
	}
	list := make([]state.Endpoint, 0, count)
	for i := n; i < n+count; i++ {
		b := base.AsSlice()
		b[len(b)-2], b[len(b)-1] = byte(i>>8), byte(i)
		a, _ := netip.AddrFromSlice(b)
		list = append(list, state.Endpoint{Addr: netip.AddrPortFrom(a, 8080)})
	}
	return list
}

// Rounds returns updates, each with its number. The first update has every service. Each later one has about half of them, chosen at
// random. next returns the new record for an index of services, which keeps the newest records.
func Rounds(rounds int, rng *rand.Rand, services []*state.Service, next func(i int) *state.Service) iter.Seq2[int, *state.Update] {
	return func(yield func(int, *state.Update) bool) {
		for round := range rounds {
			u := Delta()
			u.Full = round == 0
			for i := range services {
				if round > 0 && rng.IntN(2) == 0 {
					continue
				}
				services[i] = next(i)
				u.Changed = append(u.Changed, services[i])
			}
			if !yield(round, u) {
				return
			}
		}
	}
}

// Forward returns a route to endpoints. It rejects if there are none.
func Forward(eps []state.Endpoint) state.Route {
	if len(eps) == 0 {
		return state.Route{Verdict: state.Reject}
	}
	return state.Route{Verdict: state.Forward, Endpoints: eps}
}

// ClusterIPPort is a port with a ClusterIP that is made of n.
func ClusterIPPort(f state.Family, proto state.Protocol, n int, eps []state.Endpoint) state.Port {
	ip := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
	if f == state.IPv6 {
		b := Addr("fd00:10:96::").As16()
		b[14], b[15] = byte(n>>8), byte(n)
		ip = netip.AddrFrom16(b)
	}
	r := Forward(eps)
	return state.Port{
		Name: fmt.Sprintf("p%d", n), Protocol: proto, Family: f,
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: ip, Port: 80}},
		Internal:  state.Traffic{Inside: r, Outside: r, Masquerade: state.MasqueradeUnlessPod},
	}
}

// Service is a service in namespace test.
func Service(name string, ports ...state.Port) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "test", Name: name}, Ports: ports}
	slices.SortFunc(s.Ports, func(a, b state.Port) int { return a.Compare(&b) })
	return s
}

// DualStack is a service with n endpoints in both families, and clients that stick for some time, if it is not 0.
func DualStack(name string, n, endpoints int, sticky time.Duration) *state.Service {
	var ports []state.Port
	for _, f := range Families {
		p := ClusterIPPort(f, state.TCP, n, Endpoints(f, n, endpoints))
		p.Affinity = sticky
		ports = append(ports, p)
	}
	return Service(name, ports...)
}

// EveryKind is a service with frontends of all kinds whose outside clients are treated differently.
func EveryKind(name string, n, endpoints int, sticky time.Duration) *state.Service {
	s := DualStack(name, n, endpoints, sticky)
	for i := range s.Ports {
		p := &s.Ports[i]
		lb, ext := netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}), netip.AddrFrom4([4]byte{198, 51, 100, byte(n)})
		sources := Prefixes("0.0.0.0/0", "192.0.2.0/24", "192.0.2.7/32")
		if p.Family == state.IPv6 {
			lb, ext = Addr(fmt.Sprintf("2001:db8:113::%x", n)), Addr(fmt.Sprintf("2001:db8:51::%x", n))
			sources = Prefixes("::/0", "2001:db8::/32", "2001:db8::7/128")
		}
		p.Frontends = append(p.Frontends,
			state.Frontend{Kind: state.ExternalIP, Addr: ext, Port: 80},
			state.Frontend{Kind: state.LoadBalancer, Addr: lb, Port: 80, Restricted: true, Sources: sources[1:]},
			state.Frontend{Kind: state.LoadBalancer, Addr: lb, Port: 81, Restricted: true, Sources: sources},
			state.Frontend{Kind: state.NodePort, Port: uint16(30000 + n)},
		)
		local := Forward(p.Internal.Inside.Endpoints[:min(1, endpoints)])
		if endpoints == 0 {
			local.Verdict = state.Drop
		}
		p.External = state.Traffic{Inside: p.Internal.Inside, Outside: local, Masquerade: state.MasqueradeNode}
	}
	return s
}

// Pinged makes all addresses of a service that nobody else has yet answer echo requests, and returns the service.
func Pinged(s *state.Service) *state.Service {
	for i := range s.Ports {
		for j := range s.Ports[i].Frontends {
			f := &s.Ports[i].Frontends[j]
			f.Ping = f.Kind != state.NodePort
		}
	}
	return s
}

// Restricted is a service that has a load balancer with these sources for each of its ports, and affinity.
func Restricted(name string, sources ...[]netip.Prefix) *state.Service {
	var ports []state.Port
	for i, list := range sources {
		p := ClusterIPPort(state.IPv4, state.TCP, i, Endpoints(state.IPv4, 1, 2))
		p.Affinity = time.Hour
		p.External = p.Internal
		p.Frontends = append(p.Frontends, state.Frontend{
			Kind: state.LoadBalancer, Addr: Addr("203.0.113.1"), Port: uint16(i + 1), Restricted: true, Sources: list,
		})
		ports = append(ports, p)
	}
	return Service(name, ports...)
}

// Question is a new connection to a frontend of a record, and the route that it is to take.
type Question struct {
	backend.Query
	Service state.ServiceName
	Route   *state.Route
}

// Questions asks about each frontend of records, from the node and from outside.
func Questions(services ...*state.Service) (list []Question) {
	source := map[state.Family]netip.Addr{state.IPv4: Addr("192.0.2.7"), state.IPv6: Addr("2001:db8::7")}
	for _, s := range services {
		for p, f := range s.Frontends() {
			dst := f.Addr
			if f.Kind == state.NodePort {
				dst = NodeAddr(p.Family)
			}
			traffic := p.Traffic(f.Kind)
			q := backend.Query{Frontend: p.Key(f), Dst: dst, Source: source[p.Family], Node: true}
			list = append(list, Question{q, s.Name, &traffic.Inside})
			q.Node, q.Outside = false, true
			list = append(list, Question{q, s.Name, &traffic.Outside})
		}
	}
	return list
}

// Check returns how what a dataplane holds for a connection differs from the record, empty if it does not.
func (q *Question) Check(held backend.Held) string {
	var endpoints []netip.AddrPort
	for _, e := range q.Route.Endpoints {
		endpoints = append(endpoints, e.Addr)
	}
	if held.Verdict == q.Route.Verdict && slices.Equal(held.Endpoints, endpoints) && len(held.Objects) > 0 && len(held.Differences) == 0 {
		return ""
	}
	return fmt.Sprintf("%v %v, outside %v: %+v, want %v", q.Service, q.Frontend, q.Outside, held, q.Route)
}

// Full is an update with all services of a state.
func Full(services ...*state.Service) *state.Update {
	services = slices.Clone(services)
	slices.SortFunc(services, func(a, b *state.Service) int { return a.Name.Compare(b.Name) })
	return &state.Update{Full: true, Node: Node(), Changed: services}
}

// Delta is an update with services that have changed.
func Delta(changed ...*state.Service) *state.Update {
	u := Full(changed...)
	u.Full = false
	return u
}

// CheckCounts compares what a dataplane has counted for frontends with what it must have counted.
func CheckCounts(t testing.TB, when string, counter interface {
	Counts([]state.FrontendKey) ([]backend.Counts, error)
}, want map[state.FrontendKey]backend.Counts) {
	t.Helper()
	keys := slices.Collect(maps.Keys(want))
	got, err := counter.Counts(keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		if got[i] != want[key] {
			t.Errorf("%s: %v has counted %+v, want %+v", when, key, got[i], want[key])
		}
	}
}

// Addrs parses addresses, also several that spaces separate in one text.
func Addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for t := range strings.FieldsSeq(strings.Join(texts, " ")) {
		list = append(list, Addr(t))
	}
	return list
}

// To is a route that forwards to endpoints, which are separated by spaces or texts of their own.
func To(endpoints ...string) state.Route {
	r := state.Route{Verdict: state.Forward}
	for e := range strings.FieldsSeq(strings.Join(endpoints, " ")) {
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.MustParseAddrPort(e)})
	}
	return r
}
