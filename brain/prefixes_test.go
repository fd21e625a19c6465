package brain

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestSortedPrefixes compares the order of masked prefixes with the standard library's order, on which the records of
// two brains agree.
func TestSortedPrefixes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var four, six []netip.Prefix
		for range rng.IntN(60) {
			a := netip.AddrFrom4([4]byte{byte(rng.IntN(2)) << 7, byte(rng.IntN(3))})
			four = append(four, netip.PrefixFrom(a, rng.IntN(33)).Masked())
			b := netip.AddrFrom16([16]byte{byte(rng.IntN(2)) << 7, byte(rng.IntN(3)), 15: byte(rng.IntN(2))})
			six = append(six, netip.PrefixFrom(b, rng.IntN(129)).Masked())
		}
		for _, p := range [][]netip.Prefix{four, six} {
			want := slices.Clone(p)
			slices.SortFunc(want, netip.Prefix.Compare)
			want = slices.Compact(want)
			if got := sortedPrefixes(p); !slices.Equal(got, want) {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	}
}

// TestAdmitsOneOfMany compares the answer for many addresses of a node with the result of checking each address against
// each range.
func TestAdmitsOneOfMany(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	random := func() netip.Addr {
		b := byte(rng.IntN(4))
		switch rng.IntN(5) {
		case 0:
			return netip.AddrFrom16([16]byte{0xfd, 15: b})
		case 1:
			return netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff, 12: 10, 15: b}) // IPv4 in IPv6
		case 2:
			return netip.AddrFrom16([16]byte{0xfd, 15: b}).WithZone("eth0")
		case 3:
			return netip.Addr{}
		}
		return netip.AddrFrom4([4]byte{10, b << 6, 0, b})
	}
	answers := map[bool]int{}
	for range 2000 {
		node, svc := &model.Node{}, &model.Service{}
		for range rng.IntN(4) {
			node.Addresses = append(node.Addresses, random())
		}
		for range rng.IntN(4) {
			svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(random(), rng.IntN(130)-1))
		}
		for _, family := range []state.Family{state.IPv4, state.IPv6} {
			want := admits(svc, node, family) // they are few
			answers[want]++
			if got := admitsOneOfMany(svc, node, family); got != want {
				t.Fatalf("ranges %v, addresses %v, %v: %v, want %v", svc.SourceRanges, node.Addresses, family, got, want)
			}
		}
	}
	if len(answers) != 2 {
		t.Errorf("answers: %v", answers)
	}
}
