package brain_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// servicePorts are n ports p0, p1, ... with the numbers from 1, one protocol after the other.
func servicePorts(n int) []model.ServicePort {
	ports := make([]model.ServicePort, n)
	protocols := []state.Protocol{state.TCP, state.UDP, state.SCTP}
	for i := range ports {
		ports[i] = model.ServicePort{Name: fmt.Sprint("p", i), Protocol: protocols[i/65535], Port: uint16(1 + i%65535)}
	}
	return ports
}

// slicesOf are slices with so many endpoints in all, 1000 in each, with a port for each of the service's.
func slicesOf(family state.Family, ports []model.ServicePort, endpoints int) []*model.EndpointSlice {
	var out []*model.EndpointSlice
	for first := 0; first < endpoints; first += 1000 {
		s := &model.EndpointSlice{Namespace: "ns", Name: fmt.Sprint("slice", first), Service: "svc", Family: family}
		for _, p := range ports {
			s.Ports = append(s.Ports, model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
		}
		for i := first; i < min(first+1000, endpoints); i++ {
			s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: numbered(family, i), Ready: true, Serving: true, NodeName: "other"})
		}
		out = append(out, s)
	}
	return out
}

func numbered(family state.Family, i int) netip.Addr {
	last := [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}
	if family == state.IPv4 {
		return netip.AddrFrom4(last)
	}
	a := [16]byte{0: 0xfd}
	copy(a[12:], last[:])
	return netip.AddrFrom16(a)
}

func numberedAddrs(from, n int) []netip.Addr {
	out := make([]netip.Addr, n)
	for i := range out {
		out[i] = numbered(state.IPv4, from+i)
	}
	return out
}

// entriesOf counts the entries that a dataplane programs for a record: the maximum over all kinds of clients.
func entriesOf(rec *state.Service) (n int64) {
	if rec == nil {
		return 0
	}
	for _, p := range rec.Ports {
		n += 5*int64(len(p.Frontends)) + 5
		for _, f := range p.Frontends {
			n += int64(len(f.Sources))
		}
		endpoints := 0
		for _, r := range []state.Route{p.Internal.Inside, p.Internal.Outside, p.External.Inside, p.External.Outside} {
			endpoints = max(endpoints, len(r.Endpoints))
		}
		n += int64(len(p.Frontends)) * int64(endpoints)
	}
	return n
}

// verdicts counts the ports of a record by what happens to connections from inside.
func verdicts(rec *state.Service) map[state.Verdict]int {
	n := map[state.Verdict]int{}
	for _, p := range rec.Ports {
		n[p.Internal.Inside.Verdict]++
	}
	return n
}

// TestRecordsAreBounded computes services of all sizes. Services within the limits come out whole. For larger ones, the
// record and the cost of making it are bounded.
func TestRecordsAreBounded(t *testing.T) {
	many := func(ports, endpoints int) func() (*model.Service, []*model.EndpointSlice) {
		return func() (*model.Service, []*model.EndpointSlice) {
			svc := service()
			svc.Ports = servicePorts(ports)
			return svc, slicesOf(state.IPv4, svc.Ports, endpoints)
		}
	}
	for _, c := range []struct {
		name                       string
		make                       func() (*model.Service, []*model.EndpointSlice)
		forward, refused, unrouted int
		entries                    int64  // of the whole service, if it is too large
		port                       string // the first that is
	}{
		{name: "hundreds of ports, thousands of endpoints", make: many(300, 5000), forward: 300},
		{name: "one port, a slice at the limit, and many of them", make: many(1, 250_000), forward: 1},
		{name: "one port, one slice far beyond the limit", make: func() (*model.Service, []*model.EndpointSlice) {
			s := slicesOf(state.IPv4, servicePorts(1), 100_000)
			for _, other := range s[1:] {
				s[0].Endpoints = append(s[0].Endpoints, other.Endpoints...)
			}
			svc := service()
			svc.Ports = servicePorts(1)
			return svc, s[:1]
		}, forward: 1},
		// 10,000 ports and frontends take 100,000, which leaves room for the endpoints of 1,500 ports.
		{name: "thousands of ports and endpoints", make: many(10_000, 1000), forward: 1500, refused: 8500, entries: 10_100_000, port: "p1500"},
		{name: "the same twenty times", make: many(10_000, 20_000), forward: 75, refused: 9925, entries: 200_100_000, port: "p75"},
		{name: "all numbers and protocols, in both families", make: func() (*model.Service, []*model.EndpointSlice) {
			svc := service()
			svc.ClusterIPs = addrs("10.96.0.1 fd96::1")
			svc.Ports = servicePorts(3 * 65535)
			return svc, append(slicesOf(state.IPv4, svc.Ports[:1], 1), slicesOf(state.IPv6, svc.Ports[:1], 1)...)
		}, refused: 2, unrouted: 2*3*65535 - 1_600_000/10, entries: 2*3*65535*10 + 2, port: "p80000"},
		{name: "one port of a slice many times", make: func() (*model.Service, []*model.EndpointSlice) {
			svc := service()
			svc.Ports = servicePorts(2)
			s := slicesOf(state.IPv4, svc.Ports, 1000)
			for i := range 20_000 {
				s[0].Ports = append(s[0].Ports, model.EndpointPort{Name: "p0", Protocol: state.TCP, Port: uint16(10_000 + i)})
			}
			return svc, s
		}, forward: 1, refused: 1, entries: 20_002_020, port: "p0"},
		{name: "as many addresses as ports", make: func() (*model.Service, []*model.EndpointSlice) {
			svc := service()
			svc.ExternalIPs = numberedAddrs(0, 10_000)
			svc.Ports = servicePorts(10_000)
			return svc, slicesOf(state.IPv4, svc.Ports[:1], 1)
		}, forward: 1, unrouted: 10_000 - 31, entries: 10_000*(5+5*10_000+5) + 10_001, port: "p31"},
		{name: "as many addresses as endpoints", make: func() (*model.Service, []*model.EndpointSlice) {
			svc := service()
			svc.ExternalIPs = numberedAddrs(0, 1000)
			svc.Ports = servicePorts(2)
			return svc, append(slicesOf(state.IPv4, svc.Ports[:1], 1580), slicesOf(state.IPv4, svc.Ports[1:], 10)...)
		}, forward: 1, refused: 1, entries: 2*(5+5*1000+5) + 1001*1590, port: "p1"},
		{name: "source ranges", make: func() (*model.Service, []*model.EndpointSlice) {
			svc := service()
			svc.Type = model.TypeLoadBalancer
			svc.LoadBalancerIPs = numberedAddrs(0, 10_000)
			for _, a := range numberedAddrs(1<<20, 10_000) {
				svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(a, 32))
			}
			svc.SourceRanges = append(svc.SourceRanges, prefixes("172.16.0.0/24")...) // of the node
			return svc, slicesOf(state.IPv4, svc.Ports, 1)
		}, unrouted: 1, entries: 0, port: "http"},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc, from := c.make()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			rec := brain.Compute(config(), thisNode(), svc, from)
			size := brain.SizeOf(config(), svc, from)
			runtime.ReadMemStats(&after)
			if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 512 {
				t.Errorf("took %d MiB", n)
			}
			if rec == nil {
				rec = &state.Service{}
			}
			if n := entriesOf(rec); n > size.Entries || size.Entries > brain.MaxEntries {
				t.Errorf("%d entries, which counted as %d", n, size.Entries)
			}
			got := verdicts(rec)
			if got[state.Forward] != c.forward || size.Refused != c.refused || size.Unrouted != c.unrouted {
				t.Errorf("%v, %+v; want %d to forward, %d refused, %d not routed", got, size, c.forward, c.refused, c.unrouted)
			}
			if size.Port.Name != c.port || c.entries != 0 && size.Wanted != c.entries {
				t.Errorf("%+v, want the first port %q and %d entries", size, c.port, c.entries)
			}
			if got[state.Reject] < c.refused {
				t.Errorf("%v, want %d to reject", got, c.refused)
			}
		})
	}
}

// TestManyPortsAreAsGoodAsFew: a port among many has the same record as alone. If several ports want one name or one
// number, the first gets it.
func TestManyPortsAreAsGoodAsFew(t *testing.T) {
	svc := service()
	svc.Type = model.TypeLoadBalancer
	svc.ClusterIPs = addrs("10.96.0.1 fd96::1")
	svc.ExternalIPs = addrs("192.0.2.9 192.0.2.1 192.0.2.9 fd01::1")
	svc.LoadBalancerIPs = addrs("192.0.2.5 192.0.2.1")
	svc.ExternalLocal, svc.HealthCheckNodePort = true, 32000
	svc.Ports = servicePorts(20)
	var from []*model.EndpointSlice
	for _, family := range []state.Family{state.IPv4, state.IPv6} {
		from = append(from, slicesOf(family, svc.Ports[:15], 3)...)
		from = append(from, slicesOf(family, svc.Ports[5:], 5)...)
	}
	from[1].Endpoints[4].NodeName = "node1"
	from[0].Ports[3].Port = 0
	from[0].Ports = append(from[0].Ports, model.EndpointPort{Name: "p2", Protocol: state.TCP, Port: 9999})
	from = append(from, nil, &model.EndpointSlice{Headless: true, Family: state.IPv4, Ports: from[0].Ports, Endpoints: from[0].Endpoints})
	for i := range svc.Ports {
		svc.Ports[i].NodePort = uint16(30000 + i)
	}
	whole := compute(t, config(), thisNode(), svc, from...)
	var parts []state.Port
	for i := range svc.Ports {
		alone := *svc
		alone.Ports = svc.Ports[i : i+1]
		parts = append(parts, compute(t, config(), thisNode(), &alone, from...).Ports...)
	}
	slices.SortFunc(parts, func(a, b state.Port) int { return a.Compare(&b) })
	if !whole.Equal(&state.Service{Name: whole.Name, Ports: parts, HealthCheck: state.HealthCheck{Port: 32000, LocalIPv4: 1}}) {
		t.Errorf("got\n%+v\nwant the ports\n%+v", whole, parts)
	}

	twice := *svc
	twice.Ports = slices.Concat(svc.Ports, []model.ServicePort{
		{Name: "p0", Protocol: state.TCP, Port: 776},
		{Name: "zero", Protocol: state.TCP, Port: 1},
		{Name: "p7", Protocol: state.TCP, Port: 777},                    // a name twice
		{Name: "number", Protocol: state.TCP, Port: 8},                  // a number twice
		{Name: "node", Protocol: state.TCP, Port: 8, NodePort: 30008},   // all taken
		{Name: "x", Protocol: state.TCP, Port: 8, NodePort: 30100},      // only a node port left
		{Name: "nothing", Protocol: 99, Port: 9}, {Protocol: state.TCP}, // neither protocol nor number
	})
	got := compute(t, config(), thisNode(), &twice, from...)
	got.Ports = slices.DeleteFunc(got.Ports, func(p state.Port) bool {
		return p.Name == "x" && len(p.Frontends) == 1 && p.Frontends[0].Port == 30100
	})
	if !got.Equal(whole) {
		t.Errorf("got\n%v\nwant\n%v", showFrontends(got), showFrontends(whole))
	}
}

// TestMaxFrontends: ports get their frontends in the order of the spec, up to the service's limit. The endpoints of the
// other ports are routed.
func TestMaxFrontends(t *testing.T) {
	svc := service()
	svc.ExternalIPs = numberedAddrs(0, 9) // and the cluster IP
	svc.Ports = servicePorts(5)
	from := slicesOf(state.IPv4, svc.Ports, 3)
	for _, c := range []struct {
		most              int64
		routed, unrouted  int
		first             string
		wanted, frontends int64
	}{
		{0, 5, 0, "", 5*(5+10*5) + 5*10*3, 50},
		{50, 5, 0, "", 5*(5+10*5) + 5*10*3, 50},
		{49, 4, 1, "p4", 5*(5+10*5) + 4*10*3, 50},
		{10, 1, 4, "p1", 5*(5+10*5) + 10*3, 50},
		{9, 0, 5, "p0", 5 * (5 + 10*5), 50},
	} {
		cfg := config()
		cfg.MaxFrontends = c.most
		size := brain.SizeOf(cfg, svc, from)
		if size.Unrouted != c.unrouted || size.Refused != 0 || size.Port.Name != c.first || size.Wanted != c.wanted || size.Frontends != c.frontends {
			t.Errorf("at most %d: %+v; want %+v", c.most, size, c)
		}
		routed := 0
		if rec := brain.Compute(cfg, thisNode(), svc, from); rec != nil {
			routed = verdicts(rec)[state.Forward]
		}
		if routed != c.routed {
			t.Errorf("at most %d: %d ports are routed, want %d", c.most, routed, c.routed)
		}
	}
}
