//go:build linux

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// ejectionLab has a service with endpoints in pods, and counts probes.
type ejectionLab struct {
	t       *testing.T
	lab     *topology.Lab
	ns      *netns.NS // the node's
	conn    *nft.Conn // of the test
	options Options
	backend *Backend
	mu      sync.Mutex
	probes  map[ProbeResult]int
	ejected int
	added   int
}

func newEjectionLab(t *testing.T, open func(testing.TB, place, Options) *Backend, pods ...string) *ejectionLab {
	l := &ejectionLab{t: t, lab: netnstest.Lab(t, topology.Options{}), probes: map[ProbeResult]int{}}
	for _, name := range append(pods, "visitor") {
		if _, err := l.lab.AddPod(topology.PodOptions{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range pods {
		if err := l.lab.Pod(name).Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, removalPort), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.lab.Node().Do(func() (err error) { l.ns, err = netns.Current(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.ns.Close() })
	l.conn = dial(t, l.ns)
	l.options = Options{
		OnProbe:     func(r ProbeResult) { l.do(func() { l.probes[r]++ }) },
		OnEjections: func(added, now int) { l.do(func() { l.added, l.ejected = l.added+added, now }) },
	}
	l.options.LocalDetector.ClusterCIDRs = slices.Concat(l.lab.Options().NodePodCIDRs, l.lab.Options().OtherPodCIDRs)
	l.backend = open(t, l.ns, l.options)
	return l
}

func (l *ejectionLab) do(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
}

// web is the service, with a cluster IP of the family.
func (l *ejectionLab) web(f state.Family, pods ...string) *state.Service {
	var eps []state.Endpoint
	for _, name := range pods {
		eps = append(eps, state.Endpoint{Addr: netip.AddrPortFrom(addrIn(l.lab.Pod(name), f), removalPort), Local: true})
	}
	slices.SortFunc(eps, state.Endpoint.Compare)
	p := clusterIPPort(f, state.TCP, 1, eps)
	p.Ejection = true
	return serviceOf("web", p)
}

func (l *ejectionLab) show(whole bool, services ...*state.Service) {
	l.t.Helper()
	u := delta(services...)
	u.Full, u.Node = whole, &state.Node{Name: "node", ServiceCIDRs: l.lab.Options().ServiceCIDRs, Addresses: l.lab.Node().Addrs}
	apply(l.t, l.backend, u)
}

// until does what Run does, until something is so.
func (l *ejectionLab) until(what string, is func() bool) {
	l.t.Helper()
	l.untilWithin(time.Minute, what, is)
}

func (l *ejectionLab) untilWithin(patience time.Duration, what string, is func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); !is(); {
		select {
		case <-l.backend.Disturbed():
			verify(l.t, l.backend)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

// dst is the cluster IP of web.
func (l *ejectionLab) dst(f state.Family) netip.AddrPort {
	fe := clusterIPPort(f, state.TCP, 1, nil).Frontends[0]
	return netip.AddrPortFrom(fe.Addr, fe.Port)
}

func (l *ejectionLab) suspects(f state.Family) int {
	l.t.Helper()
	elems, err := l.conn.Elems(suspectTable(f), ruleset.SuspectSet())
	if err != nil {
		l.t.Fatal(err)
	}
	return len(elems)
}

func suspectTable(f state.Family) nft.Table {
	return ruleset.SuspectTables()[slices.Index(families, f)]
}

// reach connects until all of these have answered, and no other does.
func (l *ejectionLab) reach(f state.Family, pods ...string) {
	l.t.Helper()
	seen := map[string]bool{}
	for range 60 {
		a := l.lab.Pod("visitor").Probe(l.t.Context(), state.TCP, l.dst(f), topology.ProbeOptions{Timeout: time.Minute})
		if a.Outcome != topology.Answered {
			l.t.Fatalf("%v: %v", a.Outcome, a.Err)
		}
		seen[a.Server] = true
	}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, pods) {
		l.t.Fatalf("%v answer, want %v", got, pods)
	}
}

// knock begins connections in the background, which ends with the test.
func (l *ejectionLab) knock(f state.Family, n int) {
	ctx, cancel := context.WithCancel(l.t.Context())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			l.lab.Pod("visitor").Probe(ctx, state.TCP, l.dst(f), topology.ProbeOptions{Timeout: time.Minute})
		})
	}
	l.t.Cleanup(func() { cancel(); wg.Wait() })
}

// TestSuspectTablesExist: the tables of suspects, and the goroutine that reads them, are there only while a port of the family ejects. They are made again
// if another program deletes them, stay for another process, and go if that has no such port.
func TestSuspectTablesExist(t *testing.T) {
	l := newEjectionLab(t, newSharedBackend, "a", "b")
	exist := func(want ...state.Family) {
		t.Helper()
		l.until(fmt.Sprintf("tables of suspects of %v", want), func() bool {
			var got []state.Family
			for _, f := range families {
				exists, err := l.conn.HasTable(suspectTable(f))
				if err != nil {
					t.Fatal(err)
				}
				if exists {
					got = append(got, f)
				}
			}
			return slices.Equal(got, want)
		})
	}
	web := l.web(state.IPv4, "a", "b")
	without := serviceOf("web", web.Ports[0])
	without.Ports[0].Ejection = false
	l.show(true, without)
	exist()
	if l.backend.ejector.Load() != nil {
		t.Error("there is an ejector, and nothing to eject")
	}
	l.show(false, l.web(state.IPv4, "a", "b"))
	exist(state.IPv4)
	l.show(false, l.web(state.IPv4, "a", "b"), func() *state.Service { s := l.web(state.IPv6, "a", "b"); s.Name.Name = "web6"; return s }())
	exist(state.IPv4, state.IPv6)
	commitRaw(t, l.conn, func(b *nft.Batch) { b.DeleteTable(suspectTable(state.IPv4)) })
	exist(state.IPv4, state.IPv6)
	unknown := delta()
	unknown.Removed = []state.ServiceName{{Namespace: "test", Name: "unknown"}} // it is not there
	unknown.Node = l.backend.mirror.Node()
	apply(t, l.backend, unknown)
	exist(state.IPv4, state.IPv6)
	closeBackend(l.backend)
	exist(state.IPv4, state.IPv6)
	l.backend = newBackend(t, l.ns, l.options)
	l.show(true, l.web(state.IPv6, "a", "b"))
	exist(state.IPv6)
	closeBackend(l.backend)
	l.backend = newBackend(t, l.ns, l.options)
	l.show(true, without)
	exist()
	l.show(false, l.web(state.IPv4, "a", "b"))
	exist(state.IPv4)
	l.show(false, without)
	if exist(); l.backend.ejector.Load() != nil {
		t.Error("there is still an ejector")
	}
	l.show(false, l.web(state.IPv4, "a", "b"))
	exist(state.IPv4)
	closeBackend(l.backend)
	netnstest.Do(t, l.ns, func() error { _, err := Remove(false); return err })
	exist()
}

// TestEjectionShows: Inspect names an ejected endpoint, and connections are not reset, although it has left the slots. A change of the record and its return
// are as without an ejection.
func TestEjectionShows(t *testing.T) {
	l := newEjectionLab(t, newBackend, "a", "b")
	const f = state.IPv4
	netnstest.Do(t, l.ns, func() (err error) { l.backend.inspector.finder, err = nft.Dial(); return err })
	web := l.web(f, "a", "b")
	l.show(true, web)
	l.reach(f, "a", "b")
	if err := l.lab.Pod("a").Silence(true); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	l.knock(f, 10)
	l.until("a is ejected", func() bool { return l.backend.mirror.Ejected() != nil })
	l.reach(f, "b")
	held, err := l.backend.Inspect(backend.Query{Frontend: web.Ports[0].Key(&web.Ports[0].Frontends[0]), Dst: l.dst(f).Addr()})
	a := netip.AddrPortFrom(addrIn(l.lab.Pod("a"), f), removalPort)
	if err != nil || len(held.Silent) != 1 || held.Silent[0].Endpoint != a || held.Silent[0].Probes < 1 || held.Silent[0].Since.Before(began) ||
		slices.Contains(held.Endpoints, a) {
		t.Errorf("%+v, %v", held, err)
	}
	alone, err := l.backend.InspectEndpoints(backend.Query{Frontend: web.Ports[0].Key(&web.Ports[0].Frontends[0]), Dst: l.dst(f).Addr()})
	if err != nil || len(alone.Silent) != 1 || alone.Silent[0].Endpoint != a || alone.Objects != nil {
		t.Errorf("without the rest: %+v, %v", alone, err)
	}
	if got := l.backend.mirror.Record(web.Name); got != web {
		t.Errorf("the mirror has record %v, want that of the state", got)
	}
	if err := l.lab.Pod("a").Silence(false); err != nil {
		t.Fatal(err)
	}
	l.until("a returns", func() bool { return l.backend.mirror.Ejected() == nil })
	l.reach(f, "a", "b")
	l.do(func() {
		if l.ejected != 0 || l.added != 1 || l.probes[ProbeSilent] == 0 {
			t.Errorf("%d are ejected, %d were, probes %v", l.ejected, l.added, l.probes)
		}
	})
}

// TestMD5EjectsNobody: SYNs with a TCP MD5 option are dropped by a server without a key, as silently as by one that is gone. Its probes have answers.
func TestMD5EjectsNobody(t *testing.T) {
	l := newEjectionLab(t, newBackend, "a", "b")
	const f = state.IPv4
	l.show(true, l.web(f, "a", "b"))
	var sockets []int
	defer func() {
		for _, fd := range sockets {
			unix.Close(fd)
		}
	}()
	if err := l.lab.Pod("visitor").Do(func() error {
		for range 40 {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			sockets = append(sockets, fd)
			key := unix.TCPMD5Sig{Keylen: 6}
			copy(key.Key[:], "secret")
			to := (*unix.RawSockaddrInet4)(unsafe.Pointer(&key.Addr))
			to.Family, to.Addr = unix.AF_INET, l.dst(f).Addr().As4()
			if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &key); err != nil {
				return err
			}
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: l.dst(f).Addr().As4()}); !errors.Is(err, unix.EINPROGRESS) {
				return fmt.Errorf("connect: %w", err)
			}
		}
		return nil
	}); errors.Is(err, syscall.ENOPROTOOPT) {
		t.Skip("this kernel has no TCP MD5 option")
	} else if err != nil {
		t.Fatal(err)
	}
	// Both endpoints are suspected after a second, asked, and suspected again.
	l.until("suspects are asked several times", func() (done bool) {
		l.do(func() { done = l.probes[ProbeAnswered] >= 6 })
		return done
	})
	l.do(func() {
		if l.added > 0 || l.probes[ProbeSilent]+l.probes[ProbeFailed] > 0 {
			t.Errorf("%d were ejected, probes %v", l.added, l.probes)
		}
	})
	l.reach(f, "a", "b")
}

// TestDoubledSYNsEjectNobody: repeated SYNs that are answered leave no suspicion, also if the answer comes later than the repetition.
func TestDoubledSYNsEjectNobody(t *testing.T) {
	l := newEjectionLab(t, newBackend, "a", "b")
	const f = state.IPv4
	l.show(true, l.web(f, "a", "b"))
	l.until("the table of suspects", func() bool { exists, err := l.conn.HasTable(suspectTable(f)); return exists && err == nil })
	from, to := addrIn(l.lab.Pod("visitor"), f), l.dst(f)
	double := func() {
		t.Helper()
		if err := l.lab.Pod("visitor").Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			for i := range 500 {
				packet := synPacket(from, to, uint16(20000+i))
				for range 3 {
					if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
						return os.NewSyscallError("sendto", err)
					}
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	silence := func(silent bool) {
		t.Helper()
		for _, pod := range []string{"a", "b"} {
			if err := l.lab.Pod(pod).Silence(silent); err != nil {
				t.Fatal(err)
			}
		}
	}
	silence(true)
	double()
	if n := l.suspects(f); n != 2 {
		t.Errorf("%d are suspected, want both", n)
	}
	silence(false)
	double()
	l.untilWithin(ruleset.SuspectTimeout*2/3, "nobody is suspected", func() bool { return l.suspects(f) == 0 })
	l.reach(f, "a", "b")
	l.do(func() {
		if l.added > 0 {
			t.Errorf("%d were ejected, probes %v", l.added, l.probes)
		}
	})
}

// synPacket is a SYN over IPv4.
func synPacket(from netip.Addr, to netip.AddrPort, port uint16) []byte {
	src, dst := from.As4(), to.Addr().As4()
	ip := []byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}
	ip = append(append(ip, src[:]...), dst[:]...)
	tcp := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, port), to.Port())
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0)
	var sum uint32
	for _, part := range [][]byte{src[:], dst[:], {0, unix.IPPROTO_TCP, 0, 20}, tcp} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(part[i])<<8 | uint32(part[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	return append(ip, tcp...)
}

// TestFullSuspects: a full set of suspects only means that nothing is added, and it empties, because nothing can follow from most of it. Then a silent
// endpoint is found.
func TestFullSuspects(t *testing.T) {
	l := newEjectionLab(t, newSharedBackend, "a", "b")
	const f = state.IPv4
	l.show(true, l.web(f, "a", "b"))
	l.until("the table of suspects", func() bool { exists, err := l.conn.HasTable(suspectTable(f)); return exists && err == nil })
	commitRaw(t, l.conn, func(b *nft.Batch) {
		for i := range ruleset.MaxSuspects {
			key := endpointBytes(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 80))
			b.AddElem(suspectTable(f), ruleset.SuspectSet(), nft.Elem{Key: key, Timeout: 600_000, Expires: 600_000})
		}
	})
	if err := l.lab.Pod("b").Silence(true); err != nil {
		t.Fatal(err)
	}
	l.knock(f, 10)
	l.until("b is ejected", func() bool { return l.backend.mirror.Ejected() != nil })
	if n := l.suspects(f); n > 10 {
		t.Errorf("%d are still suspected", n)
	}
	l.reach(f, "a")
	l.do(func() {
		if l.added != 1 || l.probes[ProbeSilent] > 10 {
			t.Errorf("%d were ejected, probes %v", l.added, l.probes)
		}
	})
}

// TestProbes: what an endpoint that refuses, one that accepts, and one that is not there look like.
func TestProbes(t *testing.T) {
	l := newEjectionLab(t, newBackend, "a", "b")
	world := l.backend.newWorld()
	if err := l.lab.Pod("b").Silence(true); err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		at := func(pod string, port uint16) netip.AddrPort {
			return netip.AddrPortFrom(addrIn(l.lab.Pod(pod), f), port)
		}
		for endpoint, want := range map[netip.AddrPort]ProbeResult{at("a", removalPort): ProbeAnswered, at("a", 9): ProbeAnswered, at("b", removalPort): ProbeSilent} {
			timeout := time.Minute
			if want == ProbeSilent {
				timeout = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			if got := ProbeResult(world.Probe(ctx, endpoint)); got != want {
				t.Errorf("%v: %v, want %v", endpoint, got, want)
			}
			cancel()
		}
	}
	if err := l.lab.Node().Do(func() error { // no route
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if got := ProbeResult(world.Probe(ctx, netip.MustParseAddrPort("240.0.0.1:80"))); got == ProbeAnswered {
			t.Errorf("an address without a route: %v", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
