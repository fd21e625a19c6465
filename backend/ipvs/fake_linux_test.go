package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/internal/kernel/ipvs"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

var errInjected = errors.New("injected")

// fakeIPVS is the kernel's IPVS in memory, with its rules for what is there and what is not.
type fakeIPVS struct {
	servers    map[ipvs.Server]*fakeServer // by what identifies them
	schedulers []string
	timeouts   ipvs.Timeouts
	// fail, if set, decides whether a change fails.
	fail func() bool
	// weakened is called after a server has lost its last endpoint that takes connections.
	weakened func(plan.Key)
	changes  int
	asked    int
}

type fakeServer struct {
	as    ipvs.Server
	dests map[netip.AddrPort]*ipvs.Dest
}

func newFakeIPVS() *fakeIPVS {
	return &fakeIPVS{
		servers: map[ipvs.Server]*fakeServer{}, schedulers: []string{"rr", "lc", "wlc"}, weakened: func(plan.Key) {},
		timeouts: ipvs.Timeouts{TCP: 900e9, TCPFin: 120e9, UDP: 300e9},
	}
}

func identity(s *ipvs.Server) ipvs.Server {
	if s.Mark != 0 {
		return ipvs.Server{Mark: s.Mark}
	}
	return ipvs.Server{Protocol: s.Protocol, Addr: s.Addr}
}

// live reports whether a server takes new connections.
func (s *fakeServer) live() bool {
	for _, d := range s.dests {
		if d.Weight > 0 {
			return true
		}
	}
	return false
}

func (f *fakeIPVS) at(k plan.Key) *fakeServer { return f.servers[*name(k)] }

func (f *fakeIPVS) change(fn func() error) error {
	if f.fail != nil && f.fail() {
		return errInjected
	}
	if err := fn(); err != nil {
		return err
	}
	f.changes++
	return nil
}

// changeDest changes a server's endpoints.
func (f *fakeIPVS) changeDest(s *ipvs.Server, fn func(*fakeServer) error) error {
	return f.change(func() error {
		in := f.servers[identity(s)]
		if in == nil {
			return unix.ESRCH
		}
		was := in.live()
		err := fn(in)
		if was && !in.live() {
			f.weakened(keyOf(&in.as))
		}
		return err
	})
}

func (f *fakeIPVS) Servers() (list []ipvs.Server, err error) {
	f.asked++
	for _, s := range f.servers {
		list = append(list, s.as)
	}
	return list, nil
}

func (f *fakeIPVS) Dests(s *ipvs.Server) (list []ipvs.Dest, err error) {
	f.asked++
	if in := f.servers[identity(s)]; in != nil {
		for _, d := range in.dests {
			list = append(list, *d)
		}
	}
	return list, nil
}

func (f *fakeIPVS) hasScheduler(s string) error {
	if slices.Contains(f.schedulers, s) {
		return nil
	}
	return unix.ENOENT
}

func (f *fakeIPVS) AddServer(s *ipvs.Server) error {
	return f.change(func() error {
		if f.servers[identity(s)] != nil {
			return unix.EEXIST
		}
		if err := f.hasScheduler(s.Scheduler); err != nil {
			return err
		}
		f.servers[identity(s)] = &fakeServer{*s, map[netip.AddrPort]*ipvs.Dest{}}
		return nil
	})
}

func (f *fakeIPVS) SetServer(s *ipvs.Server) error {
	return f.change(func() error {
		in := f.servers[identity(s)]
		if in == nil {
			return unix.ESRCH
		}
		in.as = *s
		return f.hasScheduler(s.Scheduler)
	})
}

func (f *fakeIPVS) DeleteServer(s *ipvs.Server) error {
	return f.change(func() error {
		in := f.servers[identity(s)]
		delete(f.servers, identity(s))
		if in != nil && in.live() {
			f.weakened(keyOf(s))
		}
		return nil
	})
}

func (f *fakeIPVS) AddDests(s *ipvs.Server, list []ipvs.Dest) (refused map[int]error) {
	refused = map[int]error{}
	for i, d := range list {
		if err := f.changeDest(s, func(in *fakeServer) error {
			if in.dests[d.Addr] != nil {
				return unix.EEXIST
			}
			in.dests[d.Addr] = new(d)
			return nil
		}); err != nil {
			refused[i] = err
		}
	}
	return refused
}

func (f *fakeIPVS) SetDest(s *ipvs.Server, d *ipvs.Dest) error {
	return f.changeDest(s, func(in *fakeServer) error {
		if in.dests[d.Addr] == nil {
			return unix.ENOENT
		}
		in.dests[d.Addr].Weight = d.Weight
		return nil
	})
}

func (f *fakeIPVS) DeleteDest(s *ipvs.Server, d *ipvs.Dest) error {
	return f.changeDest(s, func(in *fakeServer) error {
		delete(in.dests, d.Addr)
		return nil
	})
}

func (f *fakeIPVS) Timeouts() (ipvs.Timeouts, error) { return f.timeouts, nil }

func (f *fakeIPVS) SetTimeouts(t ipvs.Timeouts) error {
	if t.TCP > 0 {
		f.timeouts.TCP = t.TCP
	}
	if t.TCPFin > 0 {
		f.timeouts.TCPFin = t.TCPFin
	}
	if t.UDP > 0 {
		f.timeouts.UDP = t.UDP
	}
	return nil
}

func (f *fakeIPVS) Close() error { return nil }

// fakeLinks is one device in memory.
type fakeLinks struct {
	link  *netlink.Dummy // nil if there is none
	addrs map[netip.Addr]bool
	fail  func() bool
	late  bool
}

func (f *fakeLinks) LinkByName(string) (netlink.Link, error) {
	if f.link == nil {
		return nil, netlink.LinkNotFoundError{}
	}
	found := *f.link
	return &found, nil
}

func (f *fakeLinks) LinkAdd(l netlink.Link) error {
	f.link, f.addrs = l.(*netlink.Dummy), map[netip.Addr]bool{}
	return nil
}

func (f *fakeLinks) LinkDel(netlink.Link) error {
	f.link, f.addrs = nil, nil
	return nil
}

func (f *fakeLinks) LinkSetUp(netlink.Link) error {
	f.link.Flags |= net.FlagUp
	return nil
}

func (f *fakeLinks) LinkSetAlias(_ netlink.Link, alias string) error {
	f.link.Alias = alias
	return nil
}

func (f *fakeLinks) AddrList(netlink.Link, int) (list []netlink.Addr, err error) {
	for a := range f.addrs {
		list = append(list, netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice()}})
	}
	return list, nil
}

func (f *fakeLinks) AddrReplace(_ netlink.Link, a *netlink.Addr) error {
	if f.fail != nil && f.fail() {
		return errInjected
	}
	addr, _ := netip.AddrFromSlice(a.IP)
	f.addrs[addr] = true
	return nil
}

func (f *fakeLinks) AddrDel(_ netlink.Link, a *netlink.Addr) error {
	addr, _ := netip.AddrFromSlice(a.IP)
	if !f.addrs[addr] {
		return unix.EADDRNOTAVAIL
	}
	delete(f.addrs, addr)
	return nil
}

func (f *fakeLinks) RouteGet(to net.IP) ([]netlink.Route, error) {
	if addr, _ := netip.AddrFromSlice(to); !f.addrs[addr] {
		return nil, unix.ENETUNREACH
	}
	// As the kernel does, in the background.
	if f.late = !f.late; f.late {
		return []netlink.Route{{Type: unix.RTN_UNICAST}}, nil
	}
	return []netlink.Route{{Type: unix.RTN_LOCAL}}, nil
}

// fakeFile is a sysctl.
type fakeFile struct{ value string }

func (f *fakeFile) ReadAt(b []byte, _ int64) (int, error)  { return copy(b, f.value+"\n"), nil }
func (f *fakeFile) WriteAt(b []byte, _ int64) (int, error) { f.value = string(b); return len(b), nil }
func (f *fakeFile) Close() error                           { return nil }

// fakeBase is a dataplane in memory.
type fakeBase struct {
	shown     map[state.ServiceName]*state.Service
	disturbed chan struct{}
	// fail, if set, decides whether a call fails, and refuses are the services that the base refuses once.
	fail    func() bool
	refuses map[state.ServiceName]bool
	// applying is called before an update is carried out.
	applying func(*state.Update)
	// whole are the records that are to be counted, and counted the frontends that are.
	whole   map[state.ServiceName]*state.Service
	counted map[state.ServiceName]map[plan.Key]bool
}

var reconcilers backendtest.Reconcilers

func newFakeBase() *fakeBase {
	return &fakeBase{shown: map[state.ServiceName]*state.Service{}, counted: map[state.ServiceName]map[plan.Key]bool{}, disturbed: make(chan struct{}, 1), applying: func(*state.Update) {}}
}

// serves reports whether the base has a frontend.
func (b *fakeBase) serves(k plan.Key) bool {
	for _, s := range b.shown {
		if plan.Serving(s, k) != nil || hasFrontend(s, k) {
			return true
		}
	}
	return false
}

func hasFrontend(s *state.Service, k plan.Key) bool {
	for i := range s.Ports {
		for _, f := range s.Ports[i].Frontends {
			if (plan.Key{Protocol: s.Ports[i].Protocol, Addr: netip.AddrPortFrom(f.Addr, f.Port)}) == k {
				return true
			}
		}
	}
	return false
}

func (b *fakeBase) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	if b.fail != nil && b.fail() {
		return backend.Result{}, errInjected
	}
	b.applying(u)
	refused := map[state.ServiceName]error{}
	for _, s := range u.Changed {
		if b.refuses[s.Name] {
			refused[s.Name] = errInjected
		}
	}
	if len(refused) > 0 {
		clear(b.refuses)
		return backend.Result{}, &backend.RefusedError{Services: refused}
	}
	next := map[state.ServiceName]*state.Service{}
	if !u.Full {
		maps.Copy(next, b.shown)
	}
	for _, name := range u.Removed {
		delete(next, name)
	}
	for _, s := range u.Changed {
		next[s.Name] = s
		b.count(s)
	}
	b.shown = next
	maps.DeleteFunc(b.counted, func(name state.ServiceName, _ map[plan.Key]bool) bool { return next[name] == nil })
	return backend.Result{}, nil
}

// count has the frontends of a record counted, and those above it.
func (b *fakeBase) count(s *state.Service) {
	keys := map[plan.Key]bool{}
	eachFrontend(s, func(k plan.Key) { keys[k] = true })
	if whole := b.whole[s.Name]; whole != nil {
		eachFrontend(whole, func(k plan.Key) { keys[k] = true })
	}
	b.counted[s.Name] = keys
}

func (b *fakeBase) CountAbove(whole map[state.ServiceName]*state.Service, full bool) {
	if full {
		b.whole = map[state.ServiceName]*state.Service{}
	}
	maps.Copy(b.whole, whole)
}

func (b *fakeBase) Counts([]state.FrontendKey) ([]backend.Counts, error) { return nil, nil }

func (b *fakeBase) Verify(context.Context) (backend.Result, error) { return backend.Result{}, nil }
func (b *fakeBase) Features() state.Features                       { return state.AllFeatures }
func (b *fakeBase) Disturbed() <-chan struct{}                     { return b.disturbed }

// node is a backend with a kernel of its own in memory, but for nf_tables, in a network namespace.
type node struct {
	*Backend
	t     *testing.T
	ns    *netns.NS
	ipvs  *fakeIPVS
	links *fakeLinks
	files map[string]*fakeFile
	base  *fakeBase
	// below is what the backend stands above: base, if nothing else is said.
	below backend.Backend
	o     Options
	rev   state.Revision
}

func newNode(t *testing.T, o Options) *node {
	t.Helper()
	ns := netnstest.New(t)
	n := &node{t: t, ns: ns, ipvs: newFakeIPVS(), links: &fakeLinks{}, base: newFakeBase(), o: o, files: map[string]*fakeFile{}}
	for _, name := range []string{sysctlConntrack, sysctlExpire, sysctlIgnore, sysctlAnnounce} {
		n.files[name] = &fakeFile{"0"}
	}
	n.below = n.base
	n.open()
	t.Cleanup(func() { n.must(n.Backend.Close()) })
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// open makes a backend, as a new process does.
func (n *node) open() {
	n.t.Helper()
	o := n.o
	n.must(o.complete())
	n.Backend = newBackend(n.below, o)
	n.must(n.ns.Do(func() error {
		return n.Backend.openAbove(n.ipvs, n.links, func() (*sysctls, error) {
			s := &sysctls{map[string]sysctlFile{}}
			for name, f := range n.files {
				s.files[name] = f
			}
			return s, nil
		})
	}))
	n.start()
}

// restart replaces the backend, as an upgrade does.
func (n *node) restart() {
	n.t.Helper()
	n.must(n.Backend.Close())
	n.base.shown = map[state.ServiceName]*state.Service{}
	n.open()
}

var testNode = &state.Node{Name: "node", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}}

// full applies all services.
func (n *node) full(services ...*state.Service) backend.Result {
	n.t.Helper()
	n.rev++
	r, err := reconcilers.Of(n.Backend).Apply(n.t.Context(), &state.Update{Revision: n.rev, Full: true, Node: testNode, Changed: services})
	n.must(err)
	return r
}

// update applies changed services.
func (n *node) update(services ...*state.Service) backend.Result {
	n.t.Helper()
	n.rev++
	r, err := reconcilers.Of(n.Backend).Apply(n.t.Context(), &state.Update{Revision: n.rev, Node: testNode, Changed: services})
	n.must(err)
	return r
}

// shown is what a server is: its scheduler and endpoints with their weights.
func (n *node) shown(server string) string {
	s := n.ipvs.at(key(server))
	if s == nil {
		return ""
	}
	var words []string
	for _, d := range s.dests {
		words = append(words, fmt.Sprintf("%v=%d", d.Addr, d.Weight))
	}
	return s.as.Scheduler + " " + strings.Join(sorted(words), " ")
}

func logger(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func deleteTables() error {
	conn, err := nft.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	var b nft.Batch
	for _, t := range plan.Tables() {
		b.DeleteTable(t)
	}
	return conn.Commit(&b)
}
