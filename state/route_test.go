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
