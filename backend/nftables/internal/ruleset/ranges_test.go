//go:build linux

package ruleset

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestBlocks: the blocks of a range have its ports, each once, and are few.
func TestBlocks(t *testing.T) {
	show := func(first, last uint16) string {
		var blocks []string
		for port, length := range blocksOf(first, last) {
			blocks = append(blocks, fmt.Sprintf("%d/%d", port, length))
		}
		return strings.Join(blocks, " ")
	}
	for _, c := range []struct {
		first, last uint16
		want        string
	}{
		{1, 65535, "0/0"},
		{20000, 20999, "20000/11 20032/10 20096/9 20224/8 20480/7 20992/13"},
		{10000, 19999, "10000/12 10016/11 10048/10 10112/9 10240/5 12288/4 16384/5 18432/6 19456/7 19968/11"},
		{80, 81, "80/15"},
		{81, 82, "81/16 82/16"},
		{65534, 65535, "65534/15"},
	} {
		if got := show(c.first, c.last); got != c.want {
			t.Errorf("%d-%d: %s, want %s", c.first, c.last, got, c.want)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2_000 {
		first := uint16(2 + rng.IntN(65_533))
		last := first + uint16(rng.IntN(65_536-int(first)))
		next, blocks := int(first), 0
		for port, length := range blocksOf(first, last) {
			size := 1 << (portBits - length)
			if int(port) != next || next%size != 0 {
				t.Fatalf("%d-%d: block %d/%d, want one at %d: %s", first, last, port, length, next, show(first, last))
			}
			next += size
			blocks++
		}
		if next != int(last)+1 || blocks > 30 {
			t.Fatalf("%d-%d: %d blocks end before %d: %s", first, last, blocks, next, show(first, last))
		}
	}
}

// TestShapeOfRanges: a table with ranges has the sets from which the shape of a restart follows, and none without.
func TestShapeOfRanges(t *testing.T) {
	for _, f := range families {
		var names []string
		s := withRanges()
		for _, id := range setIDs(f, s) {
			names = append(names, id.name())
		}
		if got := shapeOf(f, names); got.blocks != s.blocks || got.class != s.class || got.share != s.share || got.hash != s.hash || !slices.Equal(got.timeouts, s.timeouts) {
			t.Errorf("%v: the shape is %+v, and was %+v", f, got, *s)
		}
		for _, id := range setIDs(f, &shape{}) {
			if strings.Contains(id.name(), "range") {
				t.Errorf("%v: there is a set %s without ranges", f, id.name())
			}
		}
	}
}

// TestRangeKeepsItsNumber: a range that grows keeps its number, so that nothing but blocks changes. Other frontends have elements of their own.
func TestRangeKeepsItsNumber(t *testing.T) {
	service := func(last uint16) *state.Service {
		p := state.Port{Name: "range", Protocol: state.UDP, Family: state.IPv4}
		p.Internal.Inside = forward(endpointsOf(state.IPv4, 0, 5))
		p.Internal.Outside = p.Internal.Inside
		for i := range p.Internal.Inside.Endpoints {
			e := &p.Internal.Inside.Endpoints[i]
			e.Addr = netip.AddrPortFrom(e.Addr.Addr(), 0)
		}
		for _, a := range []string{"10.96.0.1", "10.96.0.2"} {
			p.Frontends = append(p.Frontends, state.Frontend{Kind: state.ClusterIP, Addr: addr(a), Port: 10000, LastPort: last})
		}
		return serviceOf("range", p)
	}
	m := elementsOnly(NewMirror(), testSettings(), delta(service(19_967)), nil).Commit()
	p := elementsOnly(m, testSettings(), delta(service(19_999)), nil)
	changes := 0
	for _, s := range p.order {
		if s.set.kind != blocks {
			t.Errorf("set %s changes", s.set.name())
		}
		changes += s.add.n + s.del.n
	}
	if changes != 2 { // 19968/11 at each address
		t.Errorf("%d elements change", changes)
	}
}
