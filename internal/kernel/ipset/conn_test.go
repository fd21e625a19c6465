//go:build linux

package ipset_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

func open(t testing.TB) *ipset.Conn {
	t.Helper()
	ns := netnstest.New(t)
	var c *ipset.Conn
	if err := ns.Do(func() (err error) { c, err = ipset.Open(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	return c
}

func elements(set ipset.Set, n int) []ipset.Element {
	var list []ipset.Element
	addr := netip.MustParseAddr("10.0.0.1")
	if set.Family == state.IPv6 {
		addr = netip.MustParseAddr("fd00::1")
	}
	for i := range n {
		e := ipset.Addr(addr)
		switch set.Type {
		case ipset.Net:
			e.Prefix, _ = addr.Prefix(addr.BitLen() - i%4)
		case ipset.NetPort:
			e.Prefix, _ = addr.Prefix(1)
			e.Protocol, e.Port = state.UDP, uint16(i+1)
		case ipset.IPPort:
			e.Protocol, e.Port = state.SCTP, uint16(i+1)
		case ipset.IPPortIP:
			e.Protocol, e.Port, e.Second = state.TCP, 80, addr
		case ipset.IPPortNet:
			e.Prefix, _ = addr.Prefix(addr.BitLen() - i%4)
			e.Protocol, e.Port, e.Second = 1, 8<<8, addr // echo requests
			if addr.Is6() {
				e.Protocol, e.Port = 58, 128<<8
			}
		}
		list = append(list, e)
		for range 8 {
			addr = addr.Next()
		}
	}
	return list
}

// TestEveryTypeInBothFamilies writes and reads more elements than a message has, twice, and deletes some that are not there.
func TestEveryTypeInBothFamilies(t *testing.T) {
	c := open(t)
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		for _, kind := range []ipset.Type{ipset.IP, ipset.Net, ipset.IPPort, ipset.NetPort, ipset.IPPortIP, ipset.IPPortNet} {
			set := ipset.Set{Name: "T-" + string(kind) + f.String(), Type: kind, Family: f, MaxElements: 5000}
			if err := c.Create(set); err != nil {
				t.Fatal(err)
			}
			if err := c.Create(set); err != nil {
				t.Errorf("the same set again: %v", err)
			}
			all := elements(set, 1201)
			for range 2 {
				if err := c.Add(set, all); err != nil {
					t.Fatalf("%s %v: %v", kind, f, err)
				}
			}
			for range 2 {
				if err := c.Delete(set, all[:200]); err != nil {
					t.Fatalf("%s %v: %v", kind, f, err)
				}
			}
			got, err := c.Read(set)
			if err != nil {
				t.Fatal(err)
			}
			order := func(a, b ipset.Element) int { return strings.Compare(a.String(), b.String()) }
			want := slices.SortedFunc(slices.Values(all[200:]), order)
			slices.SortFunc(got, order)
			if !slices.Equal(got, want) {
				t.Errorf("%s %v: read %d elements, want %d; the first are %v and %v", kind, f, len(got), len(want), got[:min(1, len(got))], want[0])
			}
		}
	}
	sets, err := c.Sets("T-hash:net")
	if err != nil || len(sets) != 4 {
		t.Errorf("sets = %v, %v", sets, err)
	}
	for _, s := range sets {
		if s.MaxElements != 5000 || s.Timeout != 0 {
			t.Errorf("read %+v", s)
		}
		for range 2 {
			if err := c.Destroy(s.Name); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestFullSet(t *testing.T) {
	c := open(t)
	set := ipset.Set{Name: "T-few", Type: ipset.IP, Family: state.IPv4, MaxElements: 10, Timeout: 600}
	if err := c.Create(set); err != nil {
		t.Fatal(err)
	}
	if err := c.Add(set, elements(set, 200)); !errors.Is(err, ipset.ErrFull) {
		t.Errorf("adding 200 elements to a set for 10: %v", err)
	}
	sets, err := c.Sets("T-")
	if err != nil || len(sets) != 1 || sets[0] != set {
		t.Errorf("sets = %+v, %v", sets, err)
	}
}

// TestCounters: an element counts from the moment in which it is added, whatever its predecessor counted, and goes on
// when other elements come.
func TestCounters(t *testing.T) {
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		for _, kind := range []ipset.Type{ipset.IPPort, ipset.NetPort} {
			c := open(t)
			set := ipset.Set{Name: "T-counts", Type: kind, Family: f, MaxElements: 5000, Counters: true}
			if counted, err := c.Counts(set); err != nil || len(counted) > 0 {
				t.Errorf("a set that is not there: %v, %v", counted, err)
			}
			if err := c.Create(set); err != nil {
				t.Fatal(err)
			}
			if sets, err := c.Sets("T-"); err != nil || len(sets) != 1 || sets[0] != set {
				t.Errorf("sets = %+v, %v", sets, err)
			}
			all := elements(set, 1201)
			for range 2 {
				if err := c.Add(set, all); err != nil {
					t.Fatal(err)
				}
				counted, err := c.Counts(set)
				if err != nil || len(counted) != len(all) {
					t.Fatalf("%d elements, %v, want %d", len(counted), err, len(all))
				}
				for _, e := range counted {
					if e.Packets != 0 || !slices.Contains(all, e.Element) {
						t.Errorf("%v has counted %d", e.Element, e.Packets)
					}
				}
				if err := c.Delete(set, all); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// BenchmarkAdd makes a set and adds 10,000 elements, where the kernel knows how many there will be, and where it does not.
func BenchmarkAdd(b *testing.B) {
	for _, size := range []uint32{0, 10_000} {
		b.Run(fmt.Sprintf("made for %d", size), func(b *testing.B) {
			c := open(b)
			set := ipset.Set{Name: "T-many", Type: ipset.IPPort, Family: state.IPv4, MaxElements: 20_000, Size: size}
			all := elements(set, 10_000)
			for b.Loop() {
				if err := errors.Join(c.Create(set), c.Add(set, all), c.Destroy(set.Name)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
