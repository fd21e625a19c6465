package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// wide is a service with so many TCP ports, and a slice for it with so many endpoints.
func wide(name string, ports, endpoints int) (*model.Service, *model.EndpointSlice) {
	svc := &model.Service{Name: state.ServiceName{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	slice := &model.EndpointSlice{Namespace: "ns", Name: name, Service: name, Family: state.IPv4}
	for i := range ports {
		port := fmt.Sprintf("p%05d", i)
		svc.Ports = append(svc.Ports, model.ServicePort{Name: port, Protocol: state.TCP, Port: uint16(1 + i)})
		slice.Ports = append(slice.Ports, model.EndpointPort{Name: port, Protocol: state.TCP, Port: uint16(1 + i)})
	}
	for i := range endpoints {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Ready: true, Serving: true, NodeName: "node"})
	}
	return svc, slice
}

// TestTooLargeService: what a service has too much of is refused and reported once, the rest of it works, and so do other services.
func TestTooLargeService(t *testing.T) {
	var logged bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logged, nil))
	st := New(Options{Brain: brain.Config{NodeName: "node"}, Logger: logger})
	cluster := NewCluster(ClusterOptions{Logger: logger})
	for name, run := range map[string]struct {
		sink model.Sink
		feed state.Feed
	}{
		"store":   {st.Source("test"), st},
		"cluster": {cluster.Source("test"), cluster.Node("node")},
	} {
		t.Run(name, func(t *testing.T) {
			logged.Reset()
			run.sink.Complete()
			large, slice := wide("large", 2000, 1000)
			other, otherSlice := wide("other", 1, 1)
			other.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.2")}
			run.sink.Update([]model.Object{large, slice, other, otherSlice}, nil)
			check := func(refused int) {
				t.Helper()
				u, err := run.feed.Next(t.Context(), 0)
				if err != nil || len(u.Changed) != 2 || len(u.Changed[0].Ports) != 2000 || len(u.Changed[1].Ports) != 1 {
					t.Fatalf("%v, %v", u, err)
				}
				for i, p := range slices.Concat(u.Changed[1].Ports, u.Changed[0].Ports) {
					want := state.Forward
					if i > 2000-refused {
						want = state.Reject
					}
					if got := p.Internal.Inside.Verdict; got != want {
						t.Fatalf("port %d: %v, want %v", i, got, want)
					}
				}
			}
			check(420) // 2,000 ports and frontends take 20,000, which leaves room for the endpoints of 1,580 ports
			const want = `level=WARN msg="service is not fully served" service=ns/large reason=ServiceTooLarge field=spec.ports ` +
				`problem="the service has 2020000 entries, and 1600000 may be routed: connections to 420 ports are refused, ` +
				`and 0 ports are not routed, the first of them p01580 1581/TCP" remedy="split the service`
			if n := strings.Count(logged.String(), "\n"); n != 1 || !strings.Contains(logged.String(), want) {
				t.Errorf("%d lines of log, want one with\n%s\ngot\n%.2000s", n, want, &logged)
			}

			again := *slice
			again.Endpoints = slice.Endpoints[:999]
			run.sink.Update([]model.Object{&again}, nil)
			if n := strings.Count(logged.String(), "\n"); n != 1 {
				t.Errorf("reported again: %.2000s", &logged)
			}
			again.Endpoints = slice.Endpoints[:500]
			small := again
			run.sink.Update([]model.Object{&small}, nil)
			check(0)
			if !strings.Contains(logged.String(), `msg="service is fully served again" service=ns/large`) {
				t.Errorf("not reported that it is small: %.2000s", &logged)
			}
		})
	}
}

// TestManyConflicts: a service may lose all frontends that there can be, and not fill the log.
func TestManyConflicts(t *testing.T) {
	var logged bytes.Buffer
	st := New(Options{Brain: brain.Config{NodeName: "node"}, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	sink := st.Source("test")
	sink.Complete()
	a, sliceA := wide("a", 65535, 1)
	b, sliceB := wide("b", 65535, 1)
	sink.Update([]model.Object{a, b, sliceA, sliceB}, nil)
	if n := strings.Count(logged.String(), "\n"); n != 1 || !strings.Contains(logged.String(), "10.96.0.1:1/TCP belongs to another service, and so do 65534 more") {
		t.Errorf("%d lines: %.5000s", n, &logged)
	}
	sliceB2 := *sliceB
	sliceB2.Endpoints = nil
	sink.Update([]model.Object{&sliceB2}, nil)
	if n := strings.Count(logged.String(), "\n"); n != 1 {
		t.Errorf("%d lines: %.5000s", n, &logged)
	}
}

// TestManyZones: hints for more zones than a cluster has do not make a change cost a computation for each.
func TestManyZones(t *testing.T) {
	svc, slice := wide("svc", 1, 1000)
	answerWith := func(zones, notReady int) *answer {
		s := *slice
		s.Endpoints = slices.Clone(slice.Endpoints)
		for i := range s.Endpoints {
			s.Endpoints[i].ZoneHints = []string{fmt.Sprint("zone", i%zones)}
			s.Endpoints[i].Ready = i != notReady
		}
		from := []*model.EndpointSlice{&s}
		cfg := &brain.Config{}
		return &answer{brain: cfg, object: svc, slices: from, facts: brain.FactsOf(cfg, svc, from),
			common: brain.Viewpoint{}.Compute(cfg, svc, from)}
	}
	if s := compare(answerWith(3, 5), answerWith(3, -1), nil, maxCompared); s == nil || s.concerns("x", "zone1") || !s.concerns("x", "zone2") {
		t.Errorf("3 zones: %+v", s)
	}
	previous, next := answerWith(900, 5), answerWith(900, -1)
	if s := compare(previous, next, nil, maxCompared); s != nil || len(previous.variants)+len(next.variants) > 0 {
		t.Errorf("900 zones: %+v; computed %d and %d records", s, len(previous.variants), len(next.variants))
	}
}
