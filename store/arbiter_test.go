package store

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/state"
)

func frontend(kind state.FrontendKind, addr string, port uint16) state.Frontend {
	f := state.Frontend{Kind: kind, Port: port}
	if kind != state.NodePort {
		f.Addr = netip.MustParseAddr(addr)
	}
	return f
}

func forward(addrs ...string) state.Traffic {
	r := state.Route{Verdict: state.Forward}
	for _, a := range addrs {
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	return state.Traffic{Inside: r, Outside: r, Masquerade: state.MasqueradeAlways}
}

func endpoints(addrs ...string) []state.Endpoint { return forward(addrs...).Inside.Endpoints }

func udpPort(frontends ...state.Frontend) state.Port {
	return state.Port{
		Protocol: state.UDP, Family: state.IPv4, Frontends: frontends,
		Internal: forward("10.0.0.1:53", "10.0.0.2:53"), External: forward("10.0.0.2:53", "10.0.0.3:53"),
		Lingering: endpoints("10.0.0.4:53"),
	}
}

// TestWithout checks that the rest of a record keeps the invariants of package state.
func TestWithout(t *testing.T) {
	cluster := frontend(state.ClusterIP, "10.96.0.1", 53)
	external := frontend(state.ExternalIP, "192.0.2.1", 53)
	balancer := frontend(state.LoadBalancer, "192.0.2.2", 53)
	nodePort := frontend(state.NodePort, "", 30053)
	all := udpPort(cluster, external, balancer, nodePort)

	noCluster := udpPort(external, balancer, nodePort)
	noCluster.Internal = state.Traffic{}
	noCluster.Lingering = endpoints("10.0.0.1:53", "10.0.0.4:53")

	onlyCluster := udpPort(cluster)
	onlyCluster.External = state.Traffic{}
	onlyCluster.Lingering = endpoints("10.0.0.3:53", "10.0.0.4:53")

	tcp := udpPort(cluster, external)
	tcp.Protocol, tcp.Lingering = state.TCP, nil
	tcpOnlyCluster := tcp
	tcpOnlyCluster.Frontends, tcpOnlyCluster.External = []state.Frontend{cluster}, state.Traffic{}

	tests := map[string]struct {
		port state.Port
		lost []state.Frontend
		want []state.Port
	}{
		"one of several external":     {all, []state.Frontend{external}, []state.Port{udpPort(cluster, balancer, nodePort)}},
		"the cluster IP":              {all, []state.Frontend{cluster}, []state.Port{noCluster}},
		"all external":                {all, []state.Frontend{external, balancer, nodePort}, []state.Port{onlyCluster}},
		"everything":                  {all, []state.Frontend{cluster, external, balancer, nodePort}, nil},
		"TCP endpoints do not linger": {tcp, []state.Frontend{external}, []state.Port{tcpOnlyCluster}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			record := &state.Service{
				Name: parseName("default/dns"), Ports: []state.Port{test.port}, HealthCheck: state.HealthCheck{Port: 30000},
			}
			before := *record
			before.Ports = []state.Port{test.port}
			var lost []loss
			for _, f := range test.lost {
				lost = append(lost, loss{claim: test.port.Key(&f)})
			}
			got := without(record, lost)
			want := &state.Service{Name: record.Name, Ports: test.want, HealthCheck: record.HealthCheck}
			if !got.Equal(want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
			if !record.Equal(&before) {
				t.Error("the service's own record was modified")
			}
		})
	}
}

func TestClaimsDoNotCollide(t *testing.T) {
	ports := []struct {
		family   state.Family
		protocol state.Protocol
		frontend state.Frontend
	}{
		{state.IPv4, state.TCP, frontend(state.NodePort, "", 80)},
		{state.IPv6, state.TCP, frontend(state.NodePort, "", 80)},
		{state.IPv4, state.UDP, frontend(state.NodePort, "", 80)},
		{state.IPv4, state.TCP, frontend(state.ClusterIP, "0.0.0.0", 80)},
		{state.IPv4, state.TCP, frontend(state.ClusterIP, "10.0.0.1", 80)},
		{state.IPv4, state.TCP, frontend(state.ClusterIP, "10.0.0.1", 81)},
		{state.IPv4, state.SCTP, frontend(state.ClusterIP, "10.0.0.1", 80)},
		{state.IPv6, state.TCP, frontend(state.ClusterIP, "fd00::1", 80)},
	}
	seen := make(map[state.FrontendKey]bool)
	for _, p := range ports {
		port := state.Port{Family: p.family, Protocol: p.protocol}
		c := port.Key(&p.frontend)
		if seen[c] {
			t.Errorf("%v is the claim of two different frontends", c)
		}
		seen[c] = true
	}
}

// TestArbiterAgainstRecount plays random claims and compares with an arbiter that looks at all claims each time. It also
// checks that every service whose award changed was named, and that nothing is kept once all claims are gone.
func TestArbiterAgainstRecount(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a := newArbiter()
		services := make([]*service, 5)
		records := make(map[*service]*state.Service)
		awards := make(map[*service]*state.Service)
		for i := range services {
			services[i] = &service{name: state.ServiceName{Name: string(rune('a' + i))}, born: bornUnknown}
		}
		births := []int64{1000, 2000, bornUnknown}
		for range 60 {
			svc := services[rng.IntN(len(services))]
			record := randomRecord(rng, svc.name)
			var moved []*service
			if rng.IntN(4) == 0 { // deleted and created again
				moved = a.replace(svc, records[svc], nil)
				records[svc], svc.born = nil, births[rng.IntN(len(births))]
			}
			moved = append(moved, a.replace(svc, records[svc], record)...)
			for _, other := range append(moved, svc) {
				awards[other] = nil // may change
			}
			records[svc] = record
			for _, s := range services {
				got, _ := a.award(s, records[s])
				if want := recount(records, s); !sameRecord(got, want) {
					t.Fatalf("seed %d: %v was awarded %v", seed, s.name, cmp.Diff(want, got, cmp.Comparer(addrEqual)))
				}
				if known := awards[s]; known != nil && !sameRecord(known, got) {
					t.Fatalf("seed %d: the award of %v changed unnoticed", seed, s.name)
				}
				awards[s] = got
			}
		}
		for _, svc := range services {
			a.replace(svc, records[svc], nil)
		}
		if len(a.sole)+len(a.contested) > 0 {
			t.Fatalf("seed %d: claims of nobody are left: %v %v", seed, a.sole, a.contested)
		}
	}
}

func addrEqual(a, b netip.Addr) bool { return a == b }

// recount removes from the record of svc whatever any other service has a better claim to.
func recount(records map[*service]*state.Service, svc *service) *state.Service {
	record := records[svc]
	if record == nil {
		return nil
	}
	// claimed returns the kinds as which a service claims a frontend.
	claimed := func(s *service, c state.FrontendKey) (kinds []state.FrontendKind) {
		eachClaim(records[s], func(key state.FrontendKey, kind state.FrontendKind) {
			if key == c {
				kinds = append(kinds, kind)
			}
		})
		return kinds
	}
	beats := func(a, b *service, c state.FrontendKey) bool {
		as, bs := claimed(a, c), claimed(b, c)
		if len(as) == 0 {
			return false
		}
		for _, kind := range []state.FrontendKind{state.ClusterIP, state.LoadBalancer} {
			if has := slices.Contains(as, kind); has != slices.Contains(bs, kind) {
				return has
			} else if has {
				return a.born < b.born || a.born == b.born && a.name.Name < b.name.Name
			}
		}
		other := func(k state.FrontendKind) bool { return k != HealthCheckPort }
		if has := slices.ContainsFunc(as, other); has != slices.ContainsFunc(bs, other) {
			return has
		}
		return a.born < b.born || a.born == b.born && a.name.Name < b.name.Name
	}
	var lost []loss
	eachClaim(record, func(c state.FrontendKey, kind state.FrontendKind) {
		for other := range records {
			if beats(other, svc, c) || kind == HealthCheckPort && len(claimed(svc, c)) > 1 {
				lost = append(lost, loss{claim: c, kind: kind, holder: other})
			}
		}
	})
	if lost == nil {
		return record
	}
	return without(record, lost)
}

// randomRecord claims a few of a few frontends, sometimes one of them twice.
func randomRecord(rng *rand.Rand, name state.ServiceName) *state.Service {
	if rng.IntN(4) == 0 {
		return nil
	}
	record := &state.Service{Name: name}
	for range rng.IntN(3) {
		p := state.Port{Protocol: state.TCP, Family: state.IPv4, Internal: forward("10.0.0.1:80"), External: forward("10.0.0.2:80")}
		for range 1 + rng.IntN(3) {
			kind := state.FrontendKind(1 + rng.IntN(4))
			addr := []string{"192.0.2.1", "192.0.2.2"}[rng.IntN(2)]
			p.Frontends = append(p.Frontends, frontend(kind, addr, uint16(80+rng.IntN(2))))
		}
		record.Ports = append(record.Ports, p)
	}
	record.HealthCheck.Port = []uint16{0, 80, 81}[rng.IntN(3)]
	return record
}
