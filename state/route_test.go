package state_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestEvenAndWeights: a route is even if no connection is refused and all weights are the same.
func TestEvenAndWeights(t *testing.T) {
	for name, c := range map[string]struct {
		refused uint32
		weights []uint16
		even    bool
		want    []uint32
	}{
		"no endpoint":                   {0, nil, true, nil},
		"one endpoint":                  {0, []uint16{9}, true, []uint32{9}},
		"no weights":                    {0, []uint16{0, 0, 0}, true, []uint32{1, 1, 1}},
		"equal weights":                 {0, []uint16{7, 7}, true, []uint32{7, 7}},
		"another last weight":           {0, []uint16{7, 7, 8}, false, []uint32{7, 7, 8}},
		"equal weights, some refused":   {80000, []uint16{10, 10}, false, []uint32{10, 10, 80000}},
		"different weights and refused": {1, []uint16{1000, 1}, false, []uint32{1000, 1, 1}},
	} {
		r := &state.Route{Refused: c.refused}
		for i, w := range c.weights {
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
			r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: addr, Weight: w})
		}
		if got := r.Weights(); r.Even() != c.even || !slices.Equal(got, c.want) {
			t.Errorf("%s: even is %t, want %t; the weights are %v, want %v", name, r.Even(), c.even, got, c.want)
		}
	}
}

// TestRoutesOfTraffic: the traffic of a kind of frontends is the port's own, and has two of its routes. Endpoints of all routes and lingering ones serve.
func TestRoutesOfTraffic(t *testing.T) {
	p := &state.Port{}
	for kind, want := range map[state.FrontendKind]*state.Traffic{
		state.ClusterIP: &p.Internal, state.ExternalIP: &p.External, state.LoadBalancer: &p.External, state.NodePort: &p.External,
	} {
		if got := p.Traffic(kind); got != want {
			t.Errorf("%v has another traffic", kind)
		}
	}
	in, ex := p.Traffic(state.ClusterIP), p.Traffic(state.NodePort)
	if got, want := p.Routes(), [...]*state.Route{&in.Inside, &in.Outside, &ex.Inside, &ex.Outside}; got != want {
		t.Errorf("the routes are %v, want %v", got, want)
	}
	at := func(port uint16) []state.Endpoint {
		return []state.Endpoint{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), port)}}
	}
	for i, r := range p.Routes() {
		r.Endpoints = at(uint16(i))
	}
	p.Edge, p.Lingering = &state.Edge{Local: state.Route{Endpoints: at(4)}}, at(5)
	for i, list := range p.Serving() {
		if !slices.Equal(list, at(uint16(i))) {
			t.Errorf("list %d of endpoints that serve has %v", i, list)
		}
	}
}

// TestRouteHas: an endpoint is its address and port, whatever its weight.
func TestRouteHas(t *testing.T) {
	r := &state.Route{}
	for _, a := range []string{"10.0.0.1:80", "10.0.0.1:81", "10.0.0.3:80", "[fd00::1]:80"} {
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.MustParseAddrPort(a), Weight: 7, Local: true})
	}
	for _, e := range r.Endpoints {
		if !r.Has(e.Addr) {
			t.Errorf("%v is missing", e.Addr)
		}
	}
	for _, a := range []string{"10.0.0.1:79", "10.0.0.2:80", "10.0.0.3:81", "[fd00::1]:81"} {
		if r.Has(netip.MustParseAddrPort(a)) {
			t.Errorf("%s is there", a)
		}
	}
	if (&state.Route{}).Has(r.Endpoints[0].Addr) {
		t.Error("an empty route has an endpoint")
	}
}
