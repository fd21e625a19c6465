package consistent

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

func route(endpoints ...int) *state.Route {
	r := &state.Route{Verdict: state.Forward}
	for _, n := range endpoints {
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}), 8080)})
	}
	return r
}

func count(from, n int) (list []int) {
	for i := range n {
		list = append(list, from+i)
	}
	return list
}

// endpointsIn returns the endpoints in the slots of a table.
func endpointsIn(r *state.Route) (list []netip.AddrPort) {
	for _, i := range Table(r) {
		if i == Refused {
			list = append(list, netip.AddrPort{})
		} else {
			list = append(list, r.Endpoints[i].Addr)
		}
	}
	return list
}

// TestShares: endpoints have shares of the slots by their weights, and each has one.
func TestShares(t *testing.T) {
	for _, n := range []int{2, 3, 4, 10, 11, 40, 500, Most} {
		r := route(count(1, n)...)
		table := Table(r)
		has := make([]int, n)
		for _, i := range table {
			has[i]++
		}
		fair := float64(len(table)) / float64(n)
		if most, least := slices.Max(has), slices.Min(has); float64(most) > fair*65/64+1 || float64(least) < fair*0.85-1 || least == 0 || len(table) != SizeFor(n) {
			t.Errorf("%d endpoints have %d to %d of %d slots", n, least, most, len(table))
		}
	}
	r := route(1, 2, 3, 4)
	r.Refused = 300
	for i, w := range []uint16{500, 150, 49, 1} {
		r.Endpoints[i].Weight = w
	}
	has := map[int16]int{}
	for _, i := range Table(r) {
		has[i]++
	}
	for i, want := range map[int16]float64{0: .5, 1: .15, 2: .049, 3: .001, Refused: .3} {
		if got := float64(has[i]) / 1021; math.Abs(got-want) > 0.01 {
			t.Errorf("endpoint %d has %.4f of the slots, want %.4f", i, got, want)
		}
	}
}

// TestTableIsAddressesAlone: a table follows from addresses, ports and weights. This one must not change from version to version, because nodes of
// different versions make the same choice.
func TestTableIsAddressesAlone(t *testing.T) {
	a, b := route(1, 2, 3), route(1, 2, 3)
	for i := range b.Endpoints {
		b.Endpoints[i].Local, b.Endpoints[i].Weight = i == 1, 7
	}
	if !slices.Equal(Table(a), Table(b)) {
		t.Error("the same endpoints have other slots")
	}
	if got, want := Table(a)[:24], []int16{0, 1, 0, 2, 2, 0, 0, 2, 2, 0, 0, 1, 1, 1, 0, 2, 0, 1, 0, 2, 2, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("the table begins with %v, want %v", got, want)
	}
}

// TestFewMove: when one of ten endpoints leaves or comes, at most 3% of the others' slots change.
func TestFewMove(t *testing.T) {
	sum, n := 0.0, 0
	for set := range 40 {
		all := count(1+10*set, 10)
		before := endpointsIn(route(all...))
		for gone := range all {
			leaving := route(all...).Endpoints[gone].Addr
			after := endpointsIn(route(slices.Delete(slices.Clone(all), gone, gone+1)...))
			moved, others := 0, 0
			for i := range before {
				if before[i] == leaving {
					continue
				}
				if others++; before[i] != after[i] {
					moved++
				}
			}
			share := float64(moved) / float64(others)
			if sum, n = sum+share, n+1; share > 0.03 {
				t.Errorf("endpoint %d of %d leaves: %.1f%% of the others' slots change", gone, all, 100*share)
			}
		}
	}
	t.Logf("%.2f%% of the others' slots change", 100*sum/float64(n))
}

func BenchmarkTable(b *testing.B) {
	r := route(count(1, 40)...)
	for b.Loop() {
		Table(r)
	}
}

// TestSlot: the slots of little-endian nodes do not change. That they are the kernel's is tested with real packets in backend/nftables.
func TestSlot(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the expected slots are those of little-endian nodes")
	}
	for client, want := range map[string][2]int{
		"10.244.0.1:40000": {394, 907}, "192.0.2.77:1024": {983, 195}, "[fd00::1]:40000": {217, 857}, "[2001:db8::1:2:3]:5": {150, 943},
	} {
		from := netip.MustParseAddrPort(client)
		if got := [2]int{Slot(state.HashClient, from, 1021), Slot(state.HashConnection, from, 1021)}; got != want {
			t.Errorf("%s has the slots %v, want %v", client, got, want)
		}
	}
}
