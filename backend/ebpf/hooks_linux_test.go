package ebpf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// base is a dataplane in memory that calls a function before and after its work.
type base struct {
	*backendtest.Backend
	before, after func(u *state.Update) // nil for Verify
}

func (b *base) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	b.before(u)
	defer b.after(u)
	return b.Backend.Apply(ctx, u)
}

func (b *base) Verify(ctx context.Context) (backend.Result, error) {
	b.before(nil)
	defer b.after(nil)
	return b.Backend.Verify(ctx)
}

// fixture is a pair in a network namespace and a cgroup of its own.
type fixture struct {
	*Backend
	t      *testing.T
	base   *base
	ns     *netns.NS
	nl     *netlink.Handle
	cgroup string
	log    *bytes.Buffer
}

// newFixture makes a pair whose base does not fail. Nobody connects through its hooks.
func newFixture(t *testing.T, set ...func(*Options)) *fixture {
	t.Helper()
	netnstest.Need(t)
	f := &fixture{t: t, base: &base{Backend: backendtest.New(1)}, cgroup: newCgroup(t), log: &bytes.Buffer{}}
	f.base.SetFailureRate(0)
	f.base.before, f.base.after = func(*state.Update) {}, func(*state.Update) {}
	var err error
	if f.ns, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	o := Options{Logger: slog.New(slog.NewTextHandler(f.log, nil)), CgroupPath: f.cgroup, LocalDetector: byCIDR}
	for _, s := range set {
		s(&o)
	}
	f.do(func() (err error) {
		if f.nl, err = netlink.NewHandle(); err != nil {
			return err
		}
		f.Backend, err = New(f.base, o)
		return err
	})
	t.Cleanup(func() {
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		f.leave()
	})
	return f
}

// leave lets go of the network namespace.
func (f *fixture) leave() {
	if f.ns == nil {
		return
	}
	f.nl.Close()
	f.ns.Close()
	f.ns = nil
}

// newCgroup makes a cgroup that nobody is in. It skips the test where that is not possible, or programs cannot be loaded.
func newCgroup(t *testing.T) string {
	t.Helper()
	if n, err := NewNamespaces(); errors.Is(err, unix.EPERM) {
		t.Skip(err)
	} else if err == nil {
		n.Close()
	}
	var dir string
	for line := range strings.Lines(mountinfo(t)) {
		if mount, fs, _ := strings.Cut(line, " - "); strings.HasPrefix(fs, "cgroup2 ") {
			dir = strings.Fields(mount)[4]
		}
	}
	dir, err := os.MkdirTemp(dir, "switchyard-test-")
	if err != nil {
		t.Skipf("cgroups cannot be made: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	return dir
}

func mountinfo(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (f *fixture) do(fn func() error) {
	f.t.Helper()
	if err := f.ns.Do(fn); err != nil {
		f.t.Fatal(err)
	}
}

// setAddr gives the node an address, or takes it away, and waits until that is known.
func (f *fixture) setAddr(addr netip.Addr, has bool) {
	f.t.Helper()
	lo, err := f.nl.LinkByName("lo")
	if err == nil {
		err = f.nl.LinkSetUp(lo)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	a := &netlink.Addr{IPNet: netlink.NewIPNet(addr.AsSlice())}
	if addr.Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if has {
		err = f.nl.AddrReplace(lo, a)
	} else {
		err = f.nl.AddrDel(lo, a)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	await.Until(f.t, "the address is known", func() bool { return slices.Contains(f.addrs.Addrs(), addr) == has })
}

// apply applies an update that the base must take.
func (f *fixture) apply(u *state.Update) backend.Result {
	f.t.Helper()
	r, err := f.Apply(context.Background(), u)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) verify() backend.Result {
	f.t.Helper()
	r, err := f.Verify(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// wants checks the state of the hooks, and how many frontends they have.
func (f *fixture) wants(s State, frontends int) {
	f.t.Helper()
	if got := f.Status(); got.State != s || got.Frontends != frontends || (got.Reason == nil) != (s == On) {
		f.t.Errorf("hooks are %v with %d frontends (%v), want %v with %d", got.State, got.Frontends, got.Reason, s, frontends)
	}
	if s != Off && len(f.content()) != frontends {
		f.t.Errorf("maps have %v, want %d frontends", f.content(), frontends)
	}
}

// key is a frontend in the maps.
type key struct {
	family state.Family
	plan.Frontend
}

// content is what programs find in the maps: clients and endpoints by frontend. It is nil if the hooks are off.
type content map[key]string

func describe(c plan.Clients, endpoints []netip.AddrPort) string {
	return fmt.Sprintf("%d %v", c, endpoints)
}

// content reads the maps.
func (f *fixture) content() content {
	f.t.Helper()
	if f.hooks == nil {
		return nil
	}
	c := content{}
	for _, family := range []state.Family{state.IPv4, state.IPv6} {
		size := 4
		if family == state.IPv6 {
			size = 16
		}
		var k []byte
		var value, word uint64
		entries := f.hooks.programs.Maps[fmt.Sprintf("frontends%d", family)].Iterate()
		for entries.Next(&k, &value) {
			frontend := plan.Frontend{Port: binary.BigEndian.Uint16(k[size:])}
			if addr, _ := netip.AddrFromSlice(k[:size]); !addr.IsUnspecified() {
				frontend.Addr = addr
			}
			f.check(f.hooks.programs.Maps["routes"].Lookup(uint32(value), &word))
			var endpoints []netip.AddrPort
			for i := range uint32(word>>32) & 0xffff {
				slot, err := f.hooks.programs.Maps[fmt.Sprintf("slots%d", family)].LookupBytes(uint32(word) + i)
				f.check(err)
				addr, _ := netip.AddrFromSlice(slot[:size])
				endpoints = append(endpoints, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(slot[size:])))
			}
			c[key{family, frontend}] = describe(plan.Clients(word>>56), endpoints)
		}
		f.check(entries.Err())
	}
	return c
}

// nodePortAddrs reads the addresses at which NodePorts are served, and whether only for the node.
func (f *fixture) nodePortAddrs() map[netip.Addr]bool {
	f.t.Helper()
	if f.hooks == nil {
		return nil
	}
	all := map[netip.Addr]bool{}
	for _, name := range []string{"node_ports4", "node_ports6"} {
		var k []byte
		var value uint32
		entries := f.hooks.programs.Maps[name].Iterate()
		for entries.Next(&k, &value) {
			addr, _ := netip.AddrFromSlice(k)
			all[addr] = value == 1
		}
		f.check(entries.Err())
	}
	return all
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// planned is the content that records lead to.
func planned(settings *plan.Settings, records ...*state.Service) content {
	c := content{}
	for _, s := range records {
		for _, r := range plan.Append(nil, s, settings) {
			var endpoints []netip.AddrPort
			for _, e := range r.Endpoints() {
				endpoints = append(endpoints, e.Addr)
			}
			for _, frontend := range r.All() {
				c[key{r.Port.Family, frontend}] = describe(r.Clients, endpoints)
			}
		}
	}
	return c
}

var byCIDR = state.LocalDetector{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}}

// forward is a route to numbered endpoints.
func forward(f state.Family, endpoints ...int) state.Route {
	r := state.Route{Verdict: state.Forward}
	if len(endpoints) == 0 {
		r.Verdict = state.Reject
	}
	for _, n := range endpoints {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)})
		if f == state.IPv6 {
			addr = netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 2, 0x44, 14: byte(n >> 8), 15: byte(n)})
		}
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(addr, 8080)})
	}
	return r
}

func clusterIP(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}) }

func nameOf(n int) state.ServiceName {
	return state.ServiceName{Namespace: "test", Name: fmt.Sprintf("s%05d", n)}
}

// record is a service that has a cluster IP that is made of n, and numbered endpoints.
func record(n int, endpoints ...int) *state.Service {
	to := forward(state.IPv4, endpoints...)
	return &state.Service{Name: nameOf(n), Ports: []state.Port{{
		Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: to, Outside: to},
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: clusterIP(n), Port: 80}},
	}}}
}

// external adds frontends for clients from outside to a service.
func external(s *state.Service, frontends ...state.Frontend) *state.Service {
	p := &s.Ports[0]
	p.Frontends = append(p.Frontends, frontends...)
	slices.SortFunc(p.Frontends, state.Frontend.Compare)
	p.External = p.Internal
	return s
}

func nodePort(n uint16) state.Frontend { return state.Frontend{Kind: state.NodePort, Port: n} }

func loadBalancer(addr netip.Addr, port uint16) state.Frontend {
	return state.Frontend{Kind: state.LoadBalancer, Addr: addr, Port: port}
}

func full(services ...*state.Service) *state.Update {
	return &state.Update{Full: true, Node: &state.Node{Name: "node"}, Changed: services}
}

func delta(changed ...*state.Service) *state.Update {
	u := full(changed...)
	u.Full = false
	return u
}

func removed(numbers ...int) *state.Update {
	u := delta()
	for _, n := range numbers {
		u.Removed = append(u.Removed, nameOf(n))
	}
	return u
}
