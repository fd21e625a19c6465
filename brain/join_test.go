package brain

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestJoinerJoins: what it keeps in order for the next port makes no difference.
func TestJoinerJoins(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		here := location{node: "n1"}
		var of []*model.EndpointSlice
		for i := range 4 {
			s := &model.EndpointSlice{Name: fmt.Sprint(i), Family: state.IPv4, Weight: []string{"", "0", "5", "x"}[rng.IntN(4)]}
			for range manyEndpoints {
				addr := netip.AddrFrom4([4]byte{10, byte(rng.IntN(2)), byte(rng.IntN(2)), byte(rng.IntN(256))})
				if rng.IntN(20) == 0 {
					addr = netip.MustParseAddr("fd00::1")
				}
				s.Endpoints = append(s.Endpoints, model.Endpoint{
					Addr: addr, Ready: rng.IntN(2) == 0, Serving: rng.IntN(2) == 0, Terminating: rng.IntN(2) == 0, NodeName: fmt.Sprintf("n%d", rng.IntN(3)),
				})
			}
			of = append(of, s)
		}
		var j joiner
		for port := range 6 {
			var parts []part
			for _, s := range of {
				if rng.IntN(8) > 0 {
					parts = append(parts, part{s, uint16(80 + port + rng.IntN(2)*rng.IntN(3)), weightOf(&Config{}, s)})
				}
			}
			got, want := j.join(nil, here, state.IPv4, parts), join(nil, here, state.IPv4, parts)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d port %d: got %v\nwant %v", seed, port, got, want)
			}
		}
	}
}

// TestPortsShareTheOrder: many ports with the same slices have these put in order once.
func TestPortsShareTheOrder(t *testing.T) {
	s := &model.EndpointSlice{Family: state.IPv4}
	for i := range 5_000 {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(i), byte(i >> 8)}), Ready: true})
	}
	var j joiner
	first := j.join(nil, location{}, state.IPv4, []part{{s, 80, 0}})
	j.sorted[0].is ^= ready // as another sort would undo
	second := j.join(nil, location{}, state.IPv4, []part{{s, 81, 0}})
	if len(first) != len(second) || first[0].is == second[0].is {
		t.Error("the second port was put in order again")
	}
}
