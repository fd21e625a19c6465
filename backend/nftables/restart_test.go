//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/netns"
	"github.com/switchyard-net/switchyard/internal/nft"
	"github.com/switchyard-net/switchyard/state"
)

// someServices is a small cluster with everything in it.
func someServices() []*state.Service {
	list := []*state.Service{
		everyKind("every", 1, 5, 0),
		everyKind("every-sticky", 2, 20, time.Hour),
		dualStack("sticky", 3, 3, time.Hour),
		dualStack("nobody", 4, 0, 0),
		dualStack("crowd", 5, 40, 0),
	}
	for n := 10; n < 30; n++ {
		list = append(list, dualStack(fmt.Sprintf("s%d", n), n, n%7, 0))
	}
	return list
}

func pods(families ...state.Family) backend.LocalDetector {
	var d backend.LocalDetector
	for _, f := range families {
		d.ClusterCIDRs = append(d.ClusterCIDRs, map[state.Family]netip.Prefix{
			state.IPv4: prefix("10.244.0.0/16"), state.IPv6: prefix("fd00:10:244::/48"),
		}[f])
	}
	return d
}

// restarted applies a state with one dataplane, and then another state with a new one that may have other options.
func restarted(t *testing.T, ns *netns.NS, before Options, first *state.Update, after Options, second *state.Update) (backend.Result, *Backend) {
	t.Helper()
	b := newBackend(t, ns, before)
	apply(t, b, first)
	closeBackend(b)
	b = newBackend(t, ns, after)
	return apply(t, b, second), b
}

func TestRestartWithoutADifference(t *testing.T) {
	for _, o := range []Options{{}, {LocalDetector: pods(families...)}, {LocalDetector: backend.LocalDetector{NodeCIDR: true}}} {
		ns := newNS(t)
		r, b := restarted(t, ns, o, full(someServices()...), o, full(someServices()...))
		if r.Written != 0 {
			t.Errorf("%+v: %d objects written", o, r.Written)
		}
		if r := apply(t, b, full(someServices()...)); r.Written != 0 {
			t.Errorf("%+v: the same once more: %d objects written", o, r.Written)
		}
	}
}

func TestRestartWithOneEndpointLess(t *testing.T) {
	ns := newNS(t)
	c := dial(t, ns)
	o := Options{LocalDetector: pods(families...)}
	services := someServices()
	b := newBackend(t, ns, o)
	apply(t, b, full(services...))
	closeBackend(b)
	before := dump(t, c)

	crowd := dualStack("crowd", 5, 40, 0)
	for i := range crowd.Ports {
		p := &crowd.Ports[i]
		eps := slices.Delete(slices.Clone(p.Internal.Inside.Endpoints), 7, 8)
		p.Internal.Inside, p.Internal.Outside = forward(eps), forward(eps)
	}
	services[4] = crowd
	b = newBackend(t, ns, o)
	r := apply(t, b, full(services...))
	changes := changesBetween(before, dump(t, c))
	// A slot and an address in the hairpin set, in both families; the address still is another service's.
	if len(changes) != 2 || r.Written != 2 {
		t.Errorf("%d objects written; changes:\n%s", r.Written, strings.Join(changes, "\n"))
	}
}

func TestRestartRemovesServices(t *testing.T) {
	ns := newNS(t)
	c := dial(t, ns)
	services := someServices()
	empty := newBackend(t, ns, Options{})
	apply(t, empty, full())
	nothing := dump(t, c)
	closeBackend(empty)
	r, b := restarted(t, ns, Options{}, full(services...), Options{}, full(services[1:]...))
	if r.Written == 0 {
		t.Error("nothing was written")
	}
	without := dump(t, c)
	apply(t, b, full())
	if left := changesBetween(nothing, dump(t, c)); len(left) > 0 {
		t.Errorf("left over without any service:\n%s", strings.Join(left, "\n"))
	}
	apply(t, b, full(services[1:]...))
	if diff := changesBetween(keysOnly(without), keysOnly(dump(t, c))); len(diff) > 0 {
		t.Errorf("differs from the services alone:\n%s", strings.Join(diff, "\n"))
	}
}

// keysOnly leaves out which endpoint is in which slot.
func keysOnly(dump map[string]string) map[string]string {
	keys := map[string]string{}
	for k := range dump {
		keys[k] = ""
	}
	return keys
}

// TestRestartWithOtherOptions changes each option in a restart, while a reader makes sure that no service is ever missing.
func TestRestartWithOtherOptions(t *testing.T) {
	bit := 20
	for _, c := range []struct {
		name          string
		before, after Options
		most          int // objects that may be written, 0 for any number
	}{
		{"cluster CIDRs added", Options{}, Options{LocalDetector: pods(families...)}, 0},
		{"cluster CIDRs removed", Options{LocalDetector: pods(families...)}, Options{}, 0},
		{"one cluster CIDR less", Options{LocalDetector: pods(families...)}, Options{LocalDetector: pods(state.IPv4)}, 0},
		{"another cluster CIDR", Options{LocalDetector: pods(families...)},
			Options{LocalDetector: backend.LocalDetector{ClusterCIDRs: []netip.Prefix{prefix("10.0.0.0/8"), prefix("fd00::/8")}}}, 80},
		{"another way to tell pods", Options{LocalDetector: pods(families...)},
			Options{LocalDetector: backend.LocalDetector{BridgeInterface: "cni0"}}, 80},
		{"masquerade bit", Options{}, Options{MasqueradeBit: &bit}, 60},
		{"node port addresses", Options{}, Options{NodePortAddresses: backend.NodePortAddresses{Primary: true}}, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := newNS(t)
			addDevice(t, ns, "192.0.2.7/24", "2001:db8::7/64")
			b := newBackend(t, ns, c.before)
			apply(t, b, full(someServices()...))
			closeBackend(b)
			done := watchSlots(t, dial(t, ns))
			b = newBackend(t, ns, c.after)
			r := apply(t, b, full(someServices()...))
			done()
			if r.Written == 0 || c.most > 0 && r.Written > c.most {
				t.Errorf("%d objects written, want at most %d", r.Written, c.most)
			}
			closeBackend(b)
			if r := apply(t, newBackend(t, ns, c.after), full(someServices()...)); r.Written != 0 {
				t.Errorf("another start with these options writes %d objects", r.Written)
			}
		})
	}
}

// watchSlots reads the number of slots again and again until done is called. It must stay the same.
func watchSlots(t *testing.T, c *nft.Conn) (done func()) {
	t.Helper()
	set := setID{space: service, kind: slots}.name()
	count := func() (int, error) {
		elems, err := c.Elems(table(state.IPv4), set)
		return len(elems), err
	}
	want, err := count()
	if err != nil || want == 0 {
		t.Fatalf("%d slots, %v", want, err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	reads := 0
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			reads++
			if ok, err := c.HasTable(table(state.IPv4)); !ok || err != nil {
				t.Errorf("table: %v, %v", ok, err)
			}
			n, err := count()
			if errors.Is(err, os.ErrNotExist) {
				// While one generation follows the other the kernel may look up the table in one and the set in the other.
				// Packets find sets by address, not by name.
				n, err = count()
			}
			if n != want || err != nil {
				t.Errorf("%d slots, %v, want %d", n, err, want)
			}
		}
	})
	return func() {
		close(stop)
		wg.Wait()
		if reads < 5 {
			t.Errorf("only %d readings", reads)
		}
	}
}

// remembered plants a client of endpoint n of a service's ClusterIP in a family.
func remembered(f state.Family, s *state.Service, client byte, n int) nft.Elem {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Family != f {
			continue
		}
		e, _ := frontendElement(p, &p.Frontends[0])
		size := addrLen(f)
		key := append(slices.Repeat([]byte{client}, size), e.key[:size+8]...)
		var data [maxData]byte
		w := writer{buf: data[:]}
		ep := endpointsOf(f, 3, n+1)[n].Addr
		w.addr(ep.Addr())
		w.port(ep.Port())
		return nft.Elem{Key: key, Data: data[:w.n], Timeout: 3_600_000, Expires: 1_800_000}
	}
	panic("no such family")
}

func plant(t *testing.T, c *nft.Conn, fill func(*nft.Batch)) {
	t.Helper()
	var b nft.Batch
	fill(&b)
	if err := c.Commit(&b); err != nil {
		t.Fatal(err)
	}
}

// TestAffinitySurvives restarts with remembered clients, some of an endpoint that has gone, and with a table that has to be
// replaced as a whole.
func TestAffinitySurvives(t *testing.T) {
	foreignSet := nft.Set{Name: "of-another-version", Key: []nft.Type{nft.TypePort}}
	otherSlots := nft.Set{Name: "of-another-version", Key: []nft.Type{nft.TypePort}, Dynamic: true, MaxSize: 5}
	for name, disturb := range map[string]func(*nft.Batch, nft.Table){
		"the same table": func(*nft.Batch, nft.Table) {},
		"another set":    func(b *nft.Batch, tb nft.Table) { b.AddSet(tb, &foreignSet) },
		"another dynamic set": func(b *nft.Batch, tb nft.Table) {
			b.AddSet(tb, &otherSlots)
		},
		"another chain": func(b *nft.Batch, tb nft.Table) { b.AddChain(tb, &nft.Chain{Name: "of-another-version"}) },
		"a set that has changed": func(b *nft.Batch, tb nft.Table) {
			// Too many slots: a set of ours by its name, but not as we make it.
			s := setID{space: nodePort, view: outside, kind: endpoints, arg: 9}.set(state.IPv4)
			s.Key = []nft.Type{nft.TypeMark}
			b.AddSet(tb, &s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := newNS(t)
			c := dial(t, ns)
			sticky := dualStack("sticky", 3, 3, time.Hour)
			b := newBackend(t, ns, Options{})
			apply(t, b, full(sticky))
			closeBackend(b)
			for _, f := range families {
				plant(t, c, func(b *nft.Batch) {
					disturb(b, table(f))
					for client := range byte(9) {
						b.AddElem(table(f), affinitySet(inside), remembered(f, sticky, client+1, int(client%3)))
					}
				})
			}
			fewer := dualStack("sticky", 3, 2, time.Hour) // endpoint 2 is gone
			r := apply(t, newBackend(t, ns, Options{}), full(fewer))
			if r.Written == 0 {
				t.Error("nothing written")
			}
			for _, f := range families {
				clients, err := c.Elems(table(f), affinitySet(inside))
				if err != nil {
					t.Fatal(err)
				}
				if len(clients) != 6 {
					t.Errorf("%v: %d clients are remembered, want 6 of 9", f, len(clients))
				}
				for _, e := range clients {
					if e.Timeout != 3_600_000 || e.Expires > 1_800_000 || e.Expires < 1_700_000 {
						t.Errorf("%v: a client has %d of %d ms left", f, e.Expires, e.Timeout)
					}
				}
			}
		})
	}
}

// TestAffinityFollowsEndpoints is about a running dataplane.
func TestAffinityFollowsEndpoints(t *testing.T) {
	ns := newNS(t)
	c := dial(t, ns)
	b := newBackend(t, ns, Options{})
	sticky := dualStack("sticky", 3, 3, time.Hour)
	apply(t, b, full(sticky))
	for _, f := range families {
		plant(t, c, func(b *nft.Batch) {
			for client := range byte(9) {
				b.AddElem(table(f), affinitySet(inside), remembered(f, sticky, client+1, int(client%3)))
			}
		})
	}
	for step, s := range []*state.Service{
		dualStack("sticky", 3, 3, time.Minute), dualStack("sticky", 3, 2, time.Hour), dualStack("sticky", 3, 40, time.Hour),
		dualStack("sticky", 3, 1, time.Hour), dualStack("sticky", 3, 1, 0), nil,
	} {
		u := delta()
		if s == nil {
			u.Removed = []state.ServiceName{sticky.Name}
		} else {
			u = delta(s)
		}
		apply(t, b, u)
		for _, f := range families {
			clients, err := c.Elems(table(f), affinitySet(inside))
			if want := []int{9, 6, 6, 3, 0, 0}[step]; err != nil || len(clients) != want {
				t.Errorf("step %d, %v: %d clients are remembered, %v, want %d", step, f, len(clients), err, want)
			}
		}
	}
}
