//go:build linux

package nftables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
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

func detectPods(families ...state.Family) state.LocalDetector {
	return state.LocalDetector{ClusterCIDRs: recordtest.PodCIDRs(families...)}
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
	for _, o := range []Options{{}, {LocalDetector: detectPods(families...)}, {LocalDetector: state.LocalDetector{NodeCIDR: true}}} {
		ns := netnstest.New(t)
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
	ns := netnstest.New(t)
	c := dial(t, ns)
	o := Options{LocalDetector: detectPods(families...)}
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
	ns := netnstest.New(t)
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
		{"cluster CIDRs added", Options{}, Options{LocalDetector: detectPods(families...)}, 0},
		{"cluster CIDRs removed", Options{LocalDetector: detectPods(families...)}, Options{}, 0},
		{"one cluster CIDR less", Options{LocalDetector: detectPods(families...)}, Options{LocalDetector: detectPods(state.IPv4)}, 0},
		{"another cluster CIDR", Options{LocalDetector: detectPods(families...)},
			Options{LocalDetector: state.LocalDetector{ClusterCIDRs: []netip.Prefix{prefix("10.0.0.0/8"), prefix("fd00::/8")}}}, 80},
		{"another way to tell pods", Options{LocalDetector: detectPods(families...)},
			Options{LocalDetector: state.LocalDetector{BridgeInterface: "cni0"}}, 80},
		{"masquerade bit", Options{}, Options{MasqueradeBit: &bit}, 60},
		{"node port addresses", Options{}, Options{NodePortAddresses: state.NodePortAddresses{Primary: true}}, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netnstest.New(t)
			addDevice(t, ns, "192.0.2.7/24", "2001:db8::7/64")
			b := newBackend(t, ns, c.before)
			apply(t, b, full(someServices()...))
			closeBackend(b)
			b, done := watchSlots(t, ns, c.after)
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

// watchSlots opens a dataplane and reads the number of slots after each of its commits, until done is called. It must stay the same.
func watchSlots(t *testing.T, ns *netns.NS, o Options) (b *Backend, done func()) {
	t.Helper()
	c := dial(t, ns)
	count := func() int {
		t.Helper()
		elems, err := c.Elems(table(state.IPv4), "service-slots")
		if err != nil {
			t.Errorf("slots: %v", err)
		}
		return len(elems)
	}
	want := count()
	if want == 0 {
		t.Fatal("there are no slots")
	}
	watching, commits := true, 0
	b = openBackend(t, ns, o, func(c *nft.Conn) kernel {
		return &watchfulKernel{c, func() {
			if !watching {
				return
			}
			commits++
			if n := count(); n != want {
				t.Errorf("%d slots after %d commits, want %d", n, commits, want)
			}
		}}
	})
	return b, func() {
		if watching = false; commits == 0 {
			t.Error("nothing was committed")
		}
	}
}

// holdings are the elements of an IPv4 or IPv6 table in the kernel: data by set and key.
type holdings map[string]map[string][]byte

func held(t testing.TB, c *nft.Conn, f state.Family) holdings {
	t.Helper()
	h := holdings{}
	for set, elems := range dumpTable(t, c, f) {
		h[set] = map[string][]byte{}
		for _, e := range elems {
			h[set][string(e.Key)] = e.Data
		}
	}
	return h
}

// portIn returns a service's first port in a family, and the key of its first frontend, which has an address.
func portIn(f state.Family, s *state.Service) (p *state.Port, frontend string) {
	for i := range s.Ports {
		if p = &s.Ports[i]; p.Family == f {
			return p, string(frontendKeyOf(p, &p.Frontends[0]))
		}
	}
	panic("no such family")
}

// remembered is how rules would remember a client of a service with one of its endpoints.
func remembered(h holdings, f state.Family, s *state.Service, client byte, ep netip.AddrPort) nft.Elem {
	_, frontend := portIn(f, s)
	number := h["service-sticky"][frontend]
	data := h["endpoint-numbers"][string(number)+string(endpointBytes(ep))]
	if number == nil || data == nil {
		panic(fmt.Sprintf("%v is no endpoint of a port with affinity", ep))
	}
	key := append(slices.Clone(number), slices.Repeat([]byte{client}, ep.Addr().BitLen()/8)...)
	return nft.Elem{Key: key, Data: data, Timeout: 3_600_000, Expires: 1_800_000}
}

// rememberNine injects nine clients of a service's ClusterIP, three for each of its endpoints.
func rememberNine(t *testing.T, c *nft.Conn, s *state.Service) {
	t.Helper()
	for _, f := range families {
		h := held(t, c, f)
		p, _ := portIn(f, s)
		commitRaw(t, c, func(b *nft.Batch) {
			for client := range byte(9) {
				b.AddElem(table(f), affinitySet, remembered(h, f, s, client+1, p.Internal.Inside.Endpoints[client%3].Addr))
			}
		})
	}
}

// recalled counts the remembered clients that would come to an endpoint again, as the rules find it.
func recalled(t *testing.T, c *nft.Conn, f state.Family, s *state.Service) (clients int) {
	t.Helper()
	h := held(t, c, f)
	_, frontend := portIn(f, s)
	number := h["service-sticky"][frontend]
	for k, data := range h[affinitySet] {
		index := numberedSlots | binary.NativeEndian.Uint32(data)
		slot := binary.NativeEndian.AppendUint32([]byte(frontend), index)
		if _, ok := h["service-slots"][string(slot)]; ok && strings.HasPrefix(k, string(number)) {
			clients++
		}
	}
	return clients
}

func commitRaw(t *testing.T, c *nft.Conn, fill func(*nft.Batch)) {
	t.Helper()
	var b nft.Batch
	fill(&b)
	if err := c.Commit(&b); err != nil {
		t.Fatal(err)
	}
}

// TestAffinitySurvives restarts with remembered clients, some of an endpoint that has gone. They stay also if all else in the table has
// to be replaced. If they have to go themselves, that is logged once.
func TestAffinitySurvives(t *testing.T) {
	foreignSet := nft.Set{Name: "of-another-version", Key: []nft.Type{nft.TypePort}}
	foreignMap := nft.Set{Name: "of-another-version", Key: []nft.Type{nft.TypePort}, Dynamic: true, MaxSize: 5}
	for name, c := range map[string]struct {
		disturb  func(*nft.Batch, nft.Table)
		after    Options
		recalled int
	}{
		"the same table": {func(*nft.Batch, nft.Table) {}, Options{}, 6},
		"other options":  {func(*nft.Batch, nft.Table) {}, Options{LocalDetector: detectPods(families...)}, 6},
		"another size":   {func(*nft.Batch, nft.Table) {}, Options{MaxAffinityClients: 1000}, 0},
		"another set":    {func(b *nft.Batch, tb nft.Table) { b.AddSet(tb, &foreignSet) }, Options{}, 6},
		"another map":    {func(b *nft.Batch, tb nft.Table) { b.AddSet(tb, &foreignMap) }, Options{}, 6},
		"another chain": {func(b *nft.Batch, tb nft.Table) { b.AddChain(tb, &nft.Chain{Name: "of-another-version"}) },
			Options{}, 6},
		"a set that has changed": {func(b *nft.Batch, tb nft.Table) {
			// Too many slots: a set of ours by its name, but not as we make it.
			b.AddSet(tb, &nft.Set{Name: "node-port-outside-endpoints-9", Key: []nft.Type{nft.TypeMark}})
		}, Options{}, 6},
		"rules that refer to each other and to a set": {func(b *nft.Batch, tb nft.Table) {
			b.AddSet(tb, &foreignSet)
			for _, name := range []string{"a-foreign-chain", "z-foreign-chain"} {
				b.AddChain(tb, &nft.Chain{Name: name})
			}
			b.AddRule(tb, "a-foreign-chain", []nft.Expr{nft.Jump("z-foreign-chain")})
			b.AddRule(tb, "a-foreign-chain", []nft.Expr{nft.Jump("services")})
		}, Options{}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			conn := dial(t, ns)
			sticky := dualStack("sticky", 3, 3, time.Hour)
			b := newBackend(t, ns, Options{})
			apply(t, b, full(sticky))
			closeBackend(b)
			rememberNine(t, conn, sticky)
			commitRaw(t, conn, func(b *nft.Batch) {
				for _, f := range families {
					c.disturb(b, table(f))
				}
			})
			var log bytes.Buffer
			c.after.Logger = slog.New(slog.NewTextHandler(&log, nil))
			b = newBackend(t, ns, c.after)
			if r := apply(t, b, full(dualStack("sticky", 3, 2, time.Hour))); r.Written == 0 { // endpoint 2 is gone
				t.Error("nothing written")
			}
			closeBackend(b)
			want := map[bool]int{true: 1}[c.recalled == 0]
			if n := strings.Count(log.String(), "clients with affinity may get other endpoints"); n != want {
				t.Errorf("logged %d times, want %d:\n%s", n, want, log.String())
			}
			for _, f := range families {
				if n := recalled(t, conn, f, sticky); n != c.recalled {
					t.Errorf("%v: %d clients come to their endpoint, want %d of 9", f, n, c.recalled)
				}
			}
			if c.recalled == 0 {
				return
			}
			for _, f := range families { // and nothing touched them
				clients, err := conn.Elems(table(f), affinitySet)
				if err != nil || len(clients) != 9 {
					t.Fatalf("%v: %d clients are remembered, %v", f, len(clients), err)
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
	ns := netnstest.New(t)
	c := dial(t, ns)
	b := newBackend(t, ns, Options{})
	sticky := dualStack("sticky", 3, 3, time.Hour)
	apply(t, b, full(sticky))
	rememberNine(t, b.kernel.(*nft.Conn), sticky)
	for step, s := range []*state.Service{
		dualStack("sticky", 3, 3, time.Minute), dualStack("sticky", 3, 2, time.Hour), dualStack("sticky", 3, 40, time.Hour),
		dualStack("sticky", 3, 1, time.Hour), dualStack("sticky", 3, 1, 0), nil, sticky,
	} {
		u := delta()
		if s == nil {
			u.Removed = []state.ServiceName{sticky.Name}
		} else {
			u = delta(s)
		}
		apply(t, b, u)
		for _, f := range families {
			if n, want := recalled(t, c, f, sticky), []int{9, 6, 9, 3, 0, 0, 9}[step]; n != want {
				t.Errorf("step %d, %v: %d clients come to their endpoint, want %d", step, f, n, want)
			}
		}
	}
}
