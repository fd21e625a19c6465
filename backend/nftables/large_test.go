//go:build linux

package nftables

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// readingKernel takes down which sets are dumped.
type readingKernel struct {
	kernel
	dumped map[string]bool
}

func (k *readingKernel) Elems(t nft.Table, set string) ([]nft.Elem, error) {
	k.dumped[set] = true
	return k.kernel.Elems(t, set)
}

// TestLargeSetsAreLookedUp restarts on sets that hold what is expected, and then on one that holds one element more, in a slot of a
// Service that is gone. Only that set is dumped, or rewritten.
func TestLargeSetsAreLookedUp(t *testing.T) {
	for name, limits := range map[string]ruleset.Limits{"dump": {Rewrite: 1 << 30}, "rewrite": {}} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			conn := dial(t, ns)
			if ok, err := conn.Has(nft.ElementCounts); err != nil || !ok {
				t.Skipf("this kernel does not have %s, as Linux %s has: %v", nft.ElementCounts.Name, nft.ElementCounts.Since, err)
			}
			reading := &readingKernel{}
			start := func(services ...*state.Service) int {
				t.Helper()
				reading.dumped = map[string]bool{}
				b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel { reading.kernel = c; return reading })
				defer closeBackend(b)
				b.limits = limits
				return apply(t, b, full(services...)).Written
			}
			// Endpoints that leave a large Service leave holes.
			services := append(someServices(), dualStack("large", 6, 40, 0), dualStack("clients", 7, 20, time.Hour))
			b := newBackend(t, ns, Options{})
			apply(t, b, full(services...))
			services[len(services)-2] = without(dualStack("large", 6, 40, 0), 3, 17)
			apply(t, b, delta(services[len(services)-2]))
			closeBackend(b)
			before := dump(t, conn)

			empty := map[string]bool{} // of sets without elements there is nothing to look up
			for _, f := range families {
				for set, elems := range held(t, conn, f) {
					if len(elems) == 0 {
						empty[set] = true
					}
				}
			}
			if written := start(services...); written != 0 {
				t.Errorf("%d objects written", written)
			}
			maps.DeleteFunc(reading.dumped, func(set string, _ bool) bool { return empty[set] })
			if len(reading.dumped) > 0 {
				t.Errorf("sets that hold what is expected were dumped: %v", slices.Sorted(maps.Keys(reading.dumped)))
			}
			if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
				t.Errorf("changed: %v", diff)
			}

			start(services[1:]...)
			if dumped := reading.dumped["service-slots"]; dumped != (limits.Rewrite > 0) {
				t.Errorf("service-slots was dumped: %v", dumped)
			}
			after := dump(t, conn)
			closeBackend(b)
			if written := start(services[1:]...); written != 0 {
				t.Errorf("%d objects written when one Service is gone", written)
			}
			if len(changesBetween(before, after)) == 0 || len(changesBetween(after, dump(t, conn))) > 0 {
				t.Error("what belonged to the Service that is gone is still there")
			}
		})
	}
}

// TestWrongElementInALargeSet restarts on sets of which one element is not what it should be, deep in what is looked up on several
// sockets for some services at a time. Far-off services have endpoints in common.
func TestWrongElementInALargeSet(t *testing.T) {
	const wrong = 431 // the service that it is about
	var services []*state.Service
	for i := range 800 {
		endpoints := 10 * i
		if i%100 == 0 {
			endpoints = 1
		}
		var ports []state.Port
		for _, f := range families {
			ports = append(ports, clusterIPPort(f, state.TCP, 1+i, endpointsOf(f, endpoints, 5)))
		}
		services = append(services, serviceOf(fmt.Sprintf("service-%03d", i), ports...))
	}
	slot := func(f state.Family, index uint32, port uint16) (string, nft.Elem) {
		p := clusterIPPort(f, state.TCP, 1+wrong, endpointsOf(f, 10*wrong, 5))
		e := p.Internal.Inside.Endpoints[min(int(index), 4)].Addr
		return "service-slots", nft.Elem{
			Key:  binary.NativeEndian.AppendUint32(frontendKeyOf(&p, &p.Frontends[0]), index),
			Data: endpointBytes(netip.AddrPortFrom(e.Addr(), port)),
		}
	}
	hair := func(f state.Family, endpoint int) (string, nft.Elem) {
		return "hairpin", nft.Elem{Key: slices.Repeat(endpointsOf(f, endpoint, 1)[0].Addr.Addr().AsSlice(), 2)}
	}
	cases := map[string]func(f state.Family, add, del func(string, nft.Elem)){
		"nothing":         func(state.Family, func(string, nft.Elem), func(string, nft.Elem)) {},
		"other endpoint":  func(f state.Family, add, del func(string, nft.Elem)) { del(slot(f, 2, 8080)); add(slot(f, 2, 8081)) },
		"missing slot":    func(f state.Family, _, del func(string, nft.Elem)) { del(slot(f, 2, 8080)) },
		"foreign slot":    func(f state.Family, add, _ func(string, nft.Elem)) { add(slot(f, 5, 8080)) },
		"missing address": func(f state.Family, _, del func(string, nft.Elem)) { del(hair(f, 10*wrong)) },
		"shared address":  func(f state.Family, _, del func(string, nft.Elem)) { del(hair(f, 1)) },
		"foreign address": func(f state.Family, add, _ func(string, nft.Elem)) { add(hair(f, 9999)) },
		"other address":   func(f state.Family, add, del func(string, nft.Elem)) { del(hair(f, 1)); add(hair(f, 9999)) },
	}
	ns := netnstest.New(t)
	conn := dial(t, ns)
	b := newBackend(t, ns, Options{})
	apply(t, b, full(services...))
	before := dump(t, conn)
	for name, disturb := range cases {
		for way, limits := range map[string]ruleset.Limits{"dump": {Rewrite: 1 << 30}, "rewrite": {}} {
			for _, f := range families {
				t.Run(fmt.Sprint(name, ", ", way, ", ", f), func(t *testing.T) {
					closeBackend(b) // while it runs, nobody else can change the tables
					commit := func(change func(*nft.Batch, nft.Table, string, nft.Elem)) func(string, nft.Elem) {
						return func(set string, e nft.Elem) {
							var batch nft.Batch
							change(&batch, table(f), set, e)
							if err := conn.Commit(&batch); err != nil {
								t.Fatal(err)
							}
						}
					}
					disturb(f, commit((*nft.Batch).AddElem), commit((*nft.Batch).DeleteElem))
					b = newBackend(t, ns, Options{})
					b.limits = limits
					if written := apply(t, b, full(services...)).Written; (written > 0) != (name != "nothing") {
						t.Errorf("%d objects written", written)
					}
					if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
						t.Errorf("changed: %v", diff)
					}
				})
			}
		}
	}
}

// TestSlotsOfASmallSet restarts on endpoints in slots that are not in their order, whose set is dumped, while others of the service's elements
// are looked up.
func TestSlotsOfASmallSet(t *testing.T) {
	ns := netnstest.New(t)
	b := newBackend(t, ns, Options{})
	var services []*state.Service
	for n := range 30 {
		services = append(services, dualStack(fmt.Sprintf("s%d", n), 10+n, 0, 0))
	}
	apply(t, b, full(append(services, without(dualStack("moved", 50, 4, 0), 0))...))
	moved := without(dualStack("moved", 50, 4, 0), 2)
	apply(t, b, delta(moved)) // endpoint 0 takes the slot of endpoint 2, behind endpoint 1
	closeBackend(b)
	b = newBackend(t, ns, Options{})
	b.limits = ruleset.Limits{Find: 20, Rewrite: 1 << 30}
	if written := apply(t, b, full(append(services, moved)...)).Written; written != 0 {
		t.Errorf("%d objects written", written)
	}
	fewer := without(dualStack("moved", 50, 4, 0), 1, 2)
	apply(t, b, delta(fewer)) // which goes by the slots that endpoints have
	closeBackend(b)
	if written := apply(t, newBackend(t, ns, Options{}), full(append(services, fewer)...)).Written; written != 0 {
		t.Errorf("after a change, another start writes %d objects", written)
	}
}

// TestFilledHoles restarts on slots of a large Service that should be empty, and hold its first endpoint.
func TestFilledHoles(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	large := dualStack("large", 6, 40, 0) // in the 48 slots of its class
	b := newBackend(t, ns, Options{})
	apply(t, b, full(large))
	closeBackend(b)
	before := dump(t, conn)
	commitRaw(t, conn, func(batch *nft.Batch) {
		for _, f := range families {
			p, frontend := portIn(f, large)
			for i := uint32(40); i < 48; i++ {
				batch.AddElem(table(f), "service-slots", nft.Elem{
					Key: binary.NativeEndian.AppendUint32([]byte(frontend), i), Data: endpointBytes(p.Internal.Inside.Endpoints[0].Addr),
				})
			}
		}
	})
	b = newBackend(t, ns, Options{})
	b.limits = ruleset.Limits{Rewrite: 1 << 30}
	apply(t, b, full(large))
	if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
}

// without returns a record without some of its endpoints.
func without(s *state.Service, indexes ...int) *state.Service {
	for i := range s.Ports {
		p := &s.Ports[i]
		for _, r := range p.Routes() {
			var left []state.Endpoint
			for j, e := range r.Endpoints {
				if !slices.Contains(indexes, j) {
					left = append(left, e)
				}
			}
			r.Endpoints = left
		}
	}
	return s
}
