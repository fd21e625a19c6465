//go:build linux

package nftables

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// removal is a lab whose endpoints come and go: a pod on the node, one on the other node, and a process on the node itself.
type removal struct {
	t       *testing.T
	lab     *topology.Lab
	ns      *netns.NS // the node's
	conn    *nft.Conn // of the test
	options Options
	backend *Backend
	// counted is what OnResets reported, by service, and gone what OnGone did.
	counted map[string]uint64
	gone    []netip.AddrPort
}

// removalPort is where all endpoints serve. On the node, port 80 is taken by nobody either.
const removalPort = 8080

func newRemoval(t *testing.T) *removal {
	l := netnstest.Lab(t, topology.Options{})
	r := &removal{t: t, lab: l, counted: map[string]uint64{}}
	for _, p := range []topology.PodOptions{{Name: "near"}, {Name: "stays"}, {Name: "client"}, {Name: "far", OtherNode: true}} {
		if _, err := l.AddPod(p); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range []*topology.Host{l.Pod("near"), l.Pod("stays"), l.Pod("far"), l.Node()} {
		if err := h.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, removalPort), h.Name); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Node().Do(func() (err error) { r.ns, err = netns.Current(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.ns.Close() })
	r.conn = dial(t, r.ns)
	r.options = Options{
		ResetRemoved: true,
		OnResets:     func(s state.ServiceName, n uint64) { r.counted[s.Name] += n },
		OnGone:       func(gone []netip.AddrPort) { r.gone = append(r.gone, gone...) },
	}
	r.options.LocalDetector.ClusterCIDRs = slices.Concat(l.Options().NodePodCIDRs, l.Options().OtherPodCIDRs)
	return r
}

// host returns a pod, or the node.
func (r *removal) host(name string) *topology.Host {
	return cmp.Or(r.lab.Pod(name), r.lab.Node())
}

func addrIn(h *topology.Host, f state.Family) netip.Addr {
	return h.Addrs[slices.IndexFunc(h.Addrs, func(a netip.Addr) bool { return state.FamilyOf(a) == f })]
}

func (r *removal) endpoint(name string, f state.Family) state.Endpoint {
	h := r.host(name)
	return state.Endpoint{Addr: netip.AddrPortFrom(addrIn(h, f), removalPort), Local: name != "far"}
}

func (r *removal) endpoints(f state.Family, names ...string) (list []state.Endpoint) {
	for _, name := range names {
		list = append(list, r.endpoint(name, f))
	}
	slices.SortFunc(list, state.Endpoint.Compare)
	return list
}

// web is a service with all kinds of frontends, whose connections from outside are masqueraded.
func (r *removal) web(endpoints ...string) *state.Service {
	var ports []state.Port
	for _, f := range families {
		p := clusterIPPort(f, state.TCP, 1, r.endpoints(f, endpoints...))
		p.Frontends = churnFrontends(f)
		p.Frontends = slices.Insert(p.Frontends, 2, state.Frontend{Kind: state.LoadBalancer, Addr: gapLoadBalancer[f], Port: 80})
		p.External = p.Internal
		p.External.Masquerade = state.MasqueradeAlways
		ports = append(ports, p)
	}
	return serviceOf("web", ports...)
}

// other is a service with a cluster IP of its own.
func (r *removal) other(name string, n int, endpoints ...string) *state.Service {
	var ports []state.Port
	for _, f := range families {
		ports = append(ports, clusterIPPort(f, state.TCP, n, r.endpoints(f, endpoints...)))
	}
	return serviceOf(name, ports...)
}

// start opens a dataplane that shows services.
func (r *removal) start(services ...*state.Service) int {
	r.t.Helper()
	r.backend = newBackend(r.t, r.ns, r.options)
	return r.show(true, services...)
}

func (r *removal) show(whole bool, services ...*state.Service) int {
	r.t.Helper()
	u := delta(services...)
	u.Full, u.Node = whole, &state.Node{Name: "node", ServiceCIDRs: r.lab.Options().ServiceCIDRs, Addresses: r.lab.Node().Addrs}
	return apply(r.t, r.backend, u).Written
}

// session is an open connection.
type session struct {
	way
	server string
	conn   net.Conn
	lines  *bufio.Reader
}

// open connects, until the server is one of those named, and has its answer.
func (r *removal) open(from *topology.Host, dst netip.AddrPort, servers ...string) *session {
	r.t.Helper()
	for range 100 {
		c, err := from.Dial(r.t.Context(), state.TCP, dst, netip.AddrPort{})
		if err != nil {
			r.t.Fatalf("%s to %v: %v", from.Name, dst, err)
		}
		s := &session{way{from: from, dst: dst}, "", c, bufio.NewReader(c)}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		a, err := topology.ReadAnswer(s.lines)
		if err != nil {
			r.t.Fatalf("%s to %v: %v", from.Name, dst, err)
		}
		if slices.Contains(servers, a.Server) {
			r.t.Cleanup(func() { c.Close() })
			s.server = a.Server
			return s
		}
		c.Close()
	}
	r.t.Fatalf("%s to %v: no connection to %v", from.Name, dst, servers)
	return nil
}

// openAll opens connections of all clients to all frontends of web, one to each server.
func (r *removal) openAll(servers ...string) (all []*session) {
	r.t.Helper()
	for _, f := range families {
		dsts := []netip.AddrPort{netip.AddrPortFrom(gapLoadBalancer[f], 80)}
		for _, fe := range churnFrontends(f) {
			a := fe.Addr
			if fe.Kind == state.NodePort {
				a = addrIn(r.lab.Node(), f)
			}
			dsts = append(dsts, netip.AddrPortFrom(a, fe.Port))
		}
		for _, from := range []*topology.Host{r.lab.Pod("client"), r.lab.Client(), r.lab.Node()} {
			for _, dst := range dsts {
				for _, name := range servers {
					all = append(all, r.open(from, dst, r.host(name).Name))
				}
			}
		}
	}
	return all
}

// direct opens connections to a server's own address.
func (r *removal) direct(name string) (all []*session) {
	r.t.Helper()
	for _, f := range families {
		for _, from := range []*topology.Host{r.lab.Pod("client"), r.lab.Client(), r.lab.Node()} {
			all = append(all, r.open(from, r.endpoint(name, f).Addr, r.host(name).Name))
		}
	}
	return all
}

// ask sends a line and waits for the answer.
func (s *session) ask() error {
	_ = s.conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := s.conn.Write([]byte("again\n")); err != nil {
		return err
	}
	_, err := topology.ReadAnswer(s.lines)
	return err
}

// expectAll lets all of the connections send once, and wants what happens to be the same for all: a reset, or an answer.
func expectAll(t *testing.T, when string, want error, sessions []*session) {
	t.Helper()
	errs := make([]error, len(sessions))
	var done sync.WaitGroup
	for i, s := range sessions {
		done.Go(func() { errs[i] = s.ask() })
	}
	done.Wait()
	wrong := 0
	for i, s := range sessions {
		if !errors.Is(errs[i], want) || want == nil && errs[i] != nil {
			if wrong++; wrong <= 5 {
				t.Errorf("%s: connection of %s to %v, which %s serves: %v, want %v", when, s.from.Name, s.dst, s.server, errs[i], want)
			}
		}
	}
	if wrong > 5 || len(sessions) == 0 {
		t.Errorf("%s: %d of %d connections are wrong", when, wrong, len(sessions))
	}
}

// tables returns how many elements the sets of endpoints have, -1 if there is no table, by family.
func (r *removal) tables() (n [2]int) {
	r.t.Helper()
	for i, tb := range ruleset.ResetTables() {
		exists, err := r.conn.HasTable(tb)
		if err != nil {
			r.t.Fatal(err)
		}
		if n[i] = -1; exists {
			elems, err := r.conn.Elems(tb, ruleset.SetGone)
			if err != nil {
				r.t.Fatal(err)
			}
			n[i] = len(elems)
		}
	}
	return n
}

func (r *removal) expectTables(when string, each int) {
	r.t.Helper()
	if n := r.tables(); n != [2]int{each, each} {
		r.t.Errorf("%s: the tables have %v endpoints, want %d each (-1: no table)", when, n, each)
	}
}

// TestConnectionsToRemovedEndpoints removes an endpoint on the node, one elsewhere, and one of the node's own addresses. On their next
// packet, all connections to it are reset that came through the service, and nobody else's.
func TestConnectionsToRemovedEndpoints(t *testing.T) {
	for _, name := range []string{"near", "far", "node"} {
		t.Run(name, func(t *testing.T) {
			r := newRemoval(t)
			r.start(r.web(name, "stays"), r.other("other", 2, name))
			r.expectTables("at the start", -1)
			toRemoved, toOther := r.openAll(name), r.openAll("stays")
			direct := r.direct(name)
			expectAll(t, "before", nil, slices.Concat(toRemoved, toOther, direct))

			r.show(false, r.web("stays"))
			r.expectTables("another service still has the endpoint", -1)
			expectAll(t, "another service still has the endpoint", nil, slices.Concat(toRemoved, toOther, direct))
			if len(r.gone) > 0 {
				t.Errorf("%v are reported to be gone", r.gone)
			}

			terminating := r.other("other", 2, "stays")
			for i := range terminating.Ports {
				terminating.Ports[i].Lingering = r.endpoints(terminating.Ports[i].Family, name)
			}
			r.show(false, terminating)
			r.expectTables("the endpoint terminates and serves", -1)
			expectAll(t, "the endpoint terminates and serves", nil, toRemoved)

			r.show(false, r.other("other", 2, "stays"))
			r.expectTables("the endpoint is gone", 1)
			netnstest.NFT(t, r.ns, "list", "ruleset")
			expectAll(t, "the endpoint is gone", syscall.ECONNRESET, toRemoved)
			expectAll(t, "the endpoint is gone, others", nil, slices.Concat(toOther, direct))
			if want := []netip.AddrPort{r.endpoint(name, state.IPv4).Addr, r.endpoint(name, state.IPv6).Addr}; !slices.Equal(r.gone, want) {
				t.Errorf("%v are reported to be gone, want %v", r.gone, want)
			}
			if verify(t, r.backend); r.counted["other"] < uint64(len(toRemoved)) || len(r.counted) != 1 {
				t.Errorf("%v packets were answered with a reset, want %d, by the service that had the endpoint last", r.counted, len(toRemoved))
			}

			r.show(false, r.web(name))
			r.expectTables("the endpoint is back", -1)
			expectAll(t, "the endpoint is back", nil, slices.Concat(r.openAll(name), toOther, direct))
			if r := verify(t, r.backend); r.Written != 0 {
				t.Errorf("Verify: %+v", r)
			}
		})
	}
}

// TestOtherEndAfterAReset: an endpoint that is alive, and has still left the service, learns that its client has no connection.
func TestOtherEndAfterAReset(t *testing.T) {
	r := newRemoval(t)
	pod := r.lab.Pod("near")
	const port = removalPort + 1
	accepted := make(chan net.Conn, 1)
	if err := pod.Do(func() error {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err == nil {
			t.Cleanup(func() { l.Close() })
			go func() {
				if c, err := l.Accept(); err == nil {
					accepted <- c
				}
			}()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ep := state.Endpoint{Addr: netip.AddrPortFrom(addrIn(pod, state.IPv4), port), Local: true}
	r.start(serviceOf("web", clusterIPPort(state.IPv4, state.TCP, 1, []state.Endpoint{ep})))
	client, err := r.lab.Pod("client").Dial(t.Context(), state.TCP, netip.MustParseAddrPort("10.96.0.1:80"), netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server := <-accepted
	defer server.Close()
	r.show(false, serviceOf("web", clusterIPPort(state.IPv4, state.TCP, 1, nil)))
	_, _ = client.Write([]byte("x"))
	_ = client.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("client: %v, want a reset", err)
	}
	_ = server.SetDeadline(time.Now().Add(time.Minute))
	_, _ = server.Write([]byte("x")) // to which the client's host answers
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("endpoint: %v, want a reset", err)
	}
}

// TestSamePortAfterAReset: a client that connects again from the port of a connection that was reset is refused as long as connection tracking
// has the old one, and gets another endpoint then.
func TestSamePortAfterAReset(t *testing.T) {
	r := newRemoval(t)
	r.start(r.web("near"))
	var entries *conntrack.Conn
	netnstest.Do(t, r.ns, func() (err error) { entries, err = conntrack.Open(); return err })
	t.Cleanup(func() { entries.Close() })
	for i, from := range []*topology.Host{r.lab.Pod("client"), r.lab.Client(), r.lab.Node()} {
		dst, port := netip.AddrPortFrom(gapLoadBalancer[state.IPv4], 80), uint16(23000+i)
		r.show(false, r.web("near"))
		c, err := from.Dial(t.Context(), state.TCP, dst, netip.AddrPortFrom(netip.Addr{}, port))
		if err != nil {
			t.Fatal(err)
		}
		s := &session{way{from: from, dst: dst}, "near", c, bufio.NewReader(c)}
		if _, err := topology.ReadAnswer(s.lines); err != nil {
			t.Fatal(err)
		}
		r.show(false, r.web("stays"))
		expectAll(t, "removed", syscall.ECONNRESET, []*session{s})
		c.Close()
		again := func() topology.Answer {
			return from.Probe(t.Context(), state.TCP, dst, topology.ProbeOptions{Timeout: time.Minute, SourcePort: port})
		}
		if a := again(); a.Outcome != topology.Refused {
			t.Errorf("%s connects again from port %d: %+v, want it to be refused", from.Name, port, a)
		}
		if err := entries.Flows(conntrack.Filter{Family: state.IPv4, Protocol: state.TCP}, func(flows []conntrack.Flow) error {
			_, err := entries.Delete(slices.DeleteFunc(flows, func(f conntrack.Flow) bool { return f.Orig.Src.Port() != port })...)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if a := again(); a.Outcome != topology.Answered || a.Server != "stays" {
			t.Errorf("%s connects from port %d when the connection is forgotten: %+v", from.Name, port, a)
		}
	}
}

// TestRepliesAreNotReset: a client may have the address and port of an endpoint that is gone, and gets its answers all the same.
func TestRepliesAreNotReset(t *testing.T) {
	r := newRemoval(t)
	const port = removalPort + 1
	was := state.Endpoint{Addr: netip.AddrPortFrom(addrIn(r.lab.Pod("near"), state.IPv4), port), Local: true}
	last := func(endpoints ...state.Endpoint) *state.Service {
		return serviceOf("other", clusterIPPort(state.IPv4, state.TCP, 2, endpoints))
	}
	r.start(r.web("stays"), last(was))
	r.show(false, last())
	answer := r.lab.Pod("near").Probe(t.Context(), state.TCP, netip.MustParseAddrPort("10.96.0.1:80"), topology.ProbeOptions{Timeout: time.Minute, SourcePort: port})
	if answer.Outcome != topology.Answered {
		t.Errorf("a connection from %v: %+v", was.Addr, answer)
	}
}

// TestRestartBetweenRemovalAndPacket: what is to be reset stays so over a restart, or not, as the options of the next process say.
func TestRestartBetweenRemovalAndPacket(t *testing.T) {
	for _, c := range []struct {
		name string
		// next changes what the next process has.
		next   func(r *removal, endpoints []string) []string
		want   error
		tables int
	}{
		{"the same", func(_ *removal, e []string) []string { return e }, syscall.ECONNRESET, 1},
		{"the endpoint is back", func(_ *removal, e []string) []string { return append(e, "near") }, nil, -1},
		{"switched off", func(r *removal, e []string) []string { r.options.ResetRemoved = false; return e }, nil, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRemoval(t)
			r.start(r.web("near", "stays"))
			removed, others := r.openAll("near"), r.openAll("stays")
			r.show(false, r.web("stays"))
			before := r.remaining()
			if written := verify(t, r.backend).Written; written != 0 {
				t.Errorf("Verify writes %d objects", written)
			}
			closeBackend(r.backend)
			endpoints := c.next(r, []string{"stays"})
			written := r.start(r.web(endpoints...))
			if c.want != nil && written != 0 {
				t.Errorf("the restart writes %d objects", written)
			}
			r.expectTables("after the restart", c.tables)
			if c.want != nil {
				if after := r.remaining(); after > before || before-after > time.Minute {
					t.Errorf("the time-out was %v and is %v", before, after)
				}
			}
			expectAll(t, "after the restart", c.want, removed)
			expectAll(t, "after the restart, others", nil, others)
			if verify(t, r.backend); c.want != nil && r.counted["web"] < uint64(len(removed)) {
				t.Errorf("%v packets were answered with a reset, want %d", r.counted, len(removed))
			}
		})
	}
}

// remaining returns what is left of the time of the IPv4 endpoint that is reset.
func (r *removal) remaining() time.Duration {
	r.t.Helper()
	elems, err := r.conn.Elems(ruleset.ResetTables()[0], ruleset.SetGone)
	if err != nil || len(elems) != 1 {
		r.t.Fatalf("%d elements, %v", len(elems), err)
	}
	return time.Duration(elems[0].Expires) * time.Millisecond
}

// TestResetsAreSwitchedLive switches resets on and off while the dataplane runs.
func TestResetsAreSwitchedLive(t *testing.T) {
	r := newRemoval(t)
	r.options.ResetRemoved = false
	r.start(r.web("near", "far", "stays"))
	first, second := r.openAll("near"), r.openAll("far")
	r.show(false, r.web("far", "stays"))
	expectAll(t, "while it is off", nil, first)
	reconfigure := func(on bool, endpoints ...string) {
		t.Helper()
		r.options.ResetRemoved = on
		if err := r.backend.Reconfigure(r.options); err != nil {
			t.Fatal(err)
		}
		r.show(true, r.web(endpoints...))
	}
	reconfigure(true, "far", "stays")
	r.show(false, r.web("stays"))
	r.expectTables("on", 1)
	expectAll(t, "on, an endpoint that left before", nil, first)
	expectAll(t, "on", syscall.ECONNRESET, second[:len(second)/2])
	reconfigure(false, "stays")
	r.expectTables("off again", -1)
	expectAll(t, "off again", nil, second[len(second)/2:])
}

// TestManyConnectionsToARemovedEndpoint prints how long it takes from the removal of an endpoint until all of its connections are reset.
func TestManyConnectionsToARemovedEndpoint(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes ten seconds")
	}
	const many, others = 10_000, 1_000
	r := newRemoval(t)
	near := r.lab.Pod("near")
	// The connections wait to be accepted, so that the test does not need a file for their other ends.
	if err := near.SetSysctls(netns.Sysctl{Path: "net/core/somaxconn", Value: "20000"}); err != nil {
		t.Fatal(err)
	}
	const crowdPort = removalPort + 1
	if err := near.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		return errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: crowdPort}), unix.Listen(fd, 20_000))
	}); err != nil {
		t.Fatal(err)
	}
	crowded := state.Endpoint{Addr: netip.AddrPortFrom(addrIn(near, state.IPv4), crowdPort), Local: true}
	crowd := func(endpoints ...state.Endpoint) *state.Service {
		return serviceOf("crowd", clusterIPPort(state.IPv4, state.TCP, 3, endpoints))
	}
	r.start(r.web("near", "stays"), crowd(crowded))
	client := r.lab.Pod("client")
	dst := netip.MustParseAddrPort("10.96.0.3:80")
	conns := make([]net.Conn, many)
	for i := range conns {
		c, err := client.Dial(t.Context(), state.TCP, dst, netip.AddrPort{})
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer c.Close()
		conns[i] = c
	}
	var untouched []*session
	for i := range others {
		untouched = append(untouched, r.open(client, netip.AddrPortFrom(churnFrontends(state.IPv4)[i%2].Addr, 80), "near", "stays"))
	}
	began := time.Now()
	r.show(false, crowd())
	applied := time.Since(began)
	wrong := 0
	for i, c := range conns {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			if wrong++; wrong < 5 {
				t.Errorf("connection %d: %v, want a reset", i, err)
			}
		}
	}
	took := time.Since(began)
	expectAll(t, "others", nil, untouched)
	verify(t, r.backend)
	t.Logf("%d of %d connections were reset by their next packet; the update took %v, and the packets %v each; %v resets counted", many-wrong, many,
		applied, (took-applied)/many, r.counted)
	if r.counted["crowd"] != many {
		t.Errorf("%v resets are counted", r.counted)
	}
}

// refusingResets is a kernel that takes no commits of resets for a while.
type refusingResets struct {
	kernel
	r       *removal
	refuses bool
}

func (k *refusingResets) Commit(b *nft.Batch) error {
	if k.refuses && b == &k.r.backend.resets.batch {
		return errors.New("refused")
	}
	return k.kernel.Commit(b)
}

// TestResetsWithdrawnOnTime: an endpoint is no longer reset when connections can be translated to it, even if the commits of resets fail.
func TestResetsWithdrawnOnTime(t *testing.T) {
	r := newRemoval(t)
	k := &refusingResets{r: r}
	r.backend = openBackend(t, r.ns, r.options, func(c *nft.Conn) kernel { k.kernel = c; return k })
	r.show(true, r.web("near", "stays"))
	removed := r.openAll("near")
	k.refuses = true
	r.show(false, r.web("stays"))
	r.expectTables("commits of resets fail", -1)
	k.refuses = false
	r.backend.guard.raise(foreignChange)
	if v := verify(t, r.backend); v.Written == 0 || v.Repaired != 0 {
		t.Errorf("Verify: %+v, want it to write what was owing, as nobody's doing", v)
	}
	r.expectTables("a Verify made them good", 1)
	expectAll(t, "a Verify made them good", syscall.ECONNRESET, removed)

	k.refuses = true
	u := delta(r.web("near", "stays"))
	u.Node = r.backend.mirror.Node()
	if _, err := r.backend.Apply(t.Context(), u); err == nil || !strings.Contains(err.Error(), ruleset.ResetsName) {
		t.Errorf("an update that lets an endpoint serve again, which must not be reset: %v, want an error with the table", err)
	}
	expectAll(t, "the endpoint could not be served", nil, []*session{r.open(r.lab.Pod("client"), netip.MustParseAddrPort("10.96.0.1:80"), "stays")})
	k.refuses = false
	apply(t, r.backend, u)
	r.expectTables("again", -1)
	expectAll(t, "again", nil, r.openAll("near"))
}

// narrowResets is a kernel that has no room for batches of resets of more than so many objects.
type narrowResets struct {
	kernel
	room    int
	backend *Backend
}

func (k *narrowResets) Commit(b *nft.Batch) error {
	if k.backend != nil && k.backend.resets != nil && b == &k.backend.resets.batch && b.Len() > k.room {
		return fmt.Errorf("injected: %w", nft.ErrNoRoom)
	}
	return k.kernel.Commit(b)
}

// TestNoRoomForResets: where the kernel has no room for resets, they are given up, and endpoints serve all the same.
func TestNoRoomForResets(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	k := &narrowResets{room: 30}
	b := openBackend(t, ns, Options{ResetRemoved: true}, func(c *nft.Conn) kernel { k.kernel = c; return k })
	k.backend = b
	step := func(endpoints, want int) {
		t.Helper()
		apply(t, b, delta(dualStack("a", 1, endpoints, 0)))
		if n := len(resetDump(t, conn)); n != want {
			t.Errorf("%d endpoints: %d are reset, want %d", endpoints, n, want)
		}
		if r := verify(t, b); r.Written != 0 {
			t.Errorf("%d endpoints: Verify: %+v", endpoints, r)
		}
	}
	apply(t, b, full(dualStack("a", 1, 40, 0)))
	step(38, 4)
	step(35, 10)
	step(15, 0) // which takes 40 elements
	step(14, 2)
	k.room = 100
	step(4, 22)
	k.room = 30
	step(15, 0) // which takes 44 deletions, and additions before them
	step(14, 2)
}

// TestResetTablesAreRepaired changes the tables of resets behind the dataplane's back.
func TestResetTablesAreRepaired(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	b := newSharedBackend(t, ns, Options{ResetRemoved: true})
	apply(t, b, full(someServices()...))
	apply(t, b, delta(dualStack("crowd", 5, 30, 0)))
	before := resetDump(t, conn)
	if len(before) != 20 {
		t.Fatalf("%d endpoints are reset, want 10 of each family", len(before))
	}
	undisturbed(t, b)
	for _, command := range []string{
		"delete table ip switchyard-resets", "flush set ip6 switchyard-resets gone", "flush ruleset", "flush chain ip switchyard-resets forward",
		"add element ip switchyard-resets gone { 10.1.2.3 . 80 timeout 1h }", "add chain ip switchyard-resets more",
		"delete element ip switchyard-resets gone { 10.244.0.40 . 8080 }",
	} {
		netnstest.NFT(t, ns, command)
		b.guard.spent(0) // else the next comparison waits
		disturbed(t, b)
		if r := verify(t, b); r.Repaired == 0 || r.Repaired != r.Written {
			t.Errorf("%s: %+v", command, r)
		}
		if diff := changesBetween(before, resetDump(t, conn)); len(diff) > 0 {
			t.Errorf("%s: not as before: %v", command, diff)
		}
		if r := verify(t, b); r.Written != 0 {
			t.Errorf("%s: another Verify: %+v", command, r)
		}
	}
	closeBackend(b)
	netnstest.Do(t, ns, func() error { _, err := Cleanup(t.Context()); return err })
	if text := netnstest.NFT(t, ns, "list", "ruleset"); strings.Contains(text, "switchyard") {
		t.Errorf("after Cleanup:\n%s", text)
	}
}

func resetDump(t testing.TB, c *nft.Conn) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, tb := range ruleset.ResetTables() {
		elems, err := c.Elems(tb, ruleset.SetGone)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range elems {
			all[fmt.Sprintf("%v %x", tb, e.Key)] = e.Comment
		}
	}
	return all
}

// TestOwnedResetTables: where the kernel keeps others from our tables, it also keeps them from the tables of resets. The next process
// has all of these tables.
func TestOwnedResetTables(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	needsOwnedTables(t, conn)
	b := newBackend(t, ns, Options{ResetRemoved: true})
	apply(t, b, full(someServices()...))
	apply(t, b, delta(dualStack("crowd", 5, 30, 0)))
	before := resetDump(t, conn)
	var batch nft.Batch
	batch.DeleteTable(ruleset.ResetTables()[0])
	if err := conn.Commit(&batch); !errors.Is(err, syscall.EPERM) {
		t.Errorf("deleting the table: %v, want %v", err, syscall.EPERM)
	}
	services := someServices()
	services[4] = dualStack("crowd", 5, 30, 0)
	for _, open := range []func(testing.TB, place, Options) *Backend{newBackend, newSharedBackend, newBackend} {
		closeBackend(b)
		b = open(t, ns, Options{ResetRemoved: true})
		apply(t, b, full(services...))
		if diff := changesBetween(before, resetDump(t, conn)); len(diff) > 0 {
			t.Errorf("changed by a restart: %v", diff)
		}
		info, err := conn.Table(ruleset.ResetTables()[0])
		if err != nil || info.Flags != b.flags {
			t.Errorf("the table has the flags %d, %v; want %d", info.Flags, err, b.flags)
		}
	}
}

// TestResetsTimeOut: what has timed out is forgotten, and the tables go with the last of it.
func TestResetsTimeOut(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	b := newBackend(t, ns, Options{ResetRemoved: true})
	apply(t, b, full(dualStack("a", 1, 5, 0)))
	apply(t, b, delta(dualStack("a", 1, 4, 0)))
	later := time.Now().Add(ruleset.GoneTimeout / 2)
	b.resets.now = func() time.Time { return later }
	apply(t, b, delta(dualStack("a", 1, 3, 0)))
	for i, want := range []int{4, 4, 2, 0} {
		if i == 2 {
			// The first ones time out in the kernel, too, which Verify must not take for somebody's doing.
			commitRaw(t, b.kernel.(*nft.Conn), func(batch *nft.Batch) {
				for _, f := range families {
					key := appendKey(endpointsOf(f, 5, 1)[0].Addr)
					batch.DeleteElem(resetTable(f), ruleset.SetGone, nft.Elem{Key: key})
				}
			})
		}
		later = later.Add([]time.Duration{0, time.Minute, ruleset.GoneTimeout / 2, ruleset.GoneTimeout / 2}[i])
		if r := verify(t, b); r.Repaired != 0 {
			t.Errorf("%d: Verify: %+v", i, r)
		}
		if n := len(resetDump(t, conn)); n != want {
			t.Errorf("%d: %d endpoints are reset, want %d", i, n, want)
		}
	}
	if text := netnstest.NFT(t, ns, "list", "tables"); strings.Contains(text, ruleset.ResetsName) {
		t.Errorf("a table is left:\n%s", text)
	}
}

func appendKey(a netip.AddrPort) []byte {
	return append(append(a.Addr().AsSlice(), byte(a.Port()>>8), byte(a.Port())), 0, 0)
}

// TestResetHistory applies and withdraws at random, with faults, and compares what the kernel holds with what is gone.
func TestResetHistory(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	k := &faulty{rng: rand.New(rand.NewPCG(3, 1))}
	o := Options{ResetRemoved: true}
	b := openBackend(t, ns, o, func(c *nft.Conn) kernel { k.kernel = c; return k })
	names := []string{"a", "b", "c"}
	counts, was := map[string]int{}, map[int]bool{}
	gone := map[int]bool{}
	for step := range 150 {
		u := delta()
		if step == 0 || k.rng.IntN(20) == 0 {
			u = full()
		}
		for i, name := range names {
			if u.Full || k.rng.IntN(2) == 0 {
				counts[name] = k.rng.IntN(8)
				u.Changed = append(u.Changed, dualStackAt(name, i+1, 1+2*i, counts[name]))
			}
		}
		k.rate = 0.1
		for {
			if k.rng.IntN(25) == 0 {
				closeBackend(b)
				k.rate = 0
				b = openBackend(t, ns, o, func(c *nft.Conn) kernel { k.kernel = c; return k })
				u = full()
				for i, name := range names {
					u.Changed = append(u.Changed, dualStackAt(name, i+1, 1+2*i, counts[name]))
				}
				gone, was = nil, nil // what left at this very moment is not known
			}
			if _, err := b.Apply(t.Context(), u); err == nil {
				break
			}
		}
		k.rate = 0
		verify(t, b)
		now := map[int]bool{}
		for i, name := range names {
			for n := range counts[name] {
				now[1+2*i+n] = true
			}
		}
		if gone == nil {
			gone = map[int]bool{}
			for key := range resetDump(t, conn) {
				for n := range 20 {
					if strings.HasSuffix(key, fmt.Sprintf("%x", appendKey(endpointsOf(state.IPv4, n, 1)[0].Addr))) && strings.HasPrefix(key, "ip ") {
						gone[n] = true
					}
				}
			}
		}
		maps.Copy(gone, was)
		maps.DeleteFunc(gone, func(n int, _ bool) bool { return now[n] })
		want := map[string]string{}
		for n := range gone {
			for i, f := range families {
				want[fmt.Sprintf("%v %x", ruleset.ResetTables()[i], appendKey(endpointsOf(f, n, 1)[0].Addr))] = ""
			}
		}
		if diff := changesBetween(want, keysOnly(resetDump(t, conn))); len(diff) > 0 {
			t.Fatalf("step %d: %v", step, diff)
		}
		was = now
	}
	if k.failures == 0 || k.lost == 0 {
		t.Errorf("%d failures, %d of them with a commit", k.failures, k.lost)
	}
}

// dualStackAt is dualStack with other endpoints than those that follow from n.
func dualStackAt(name string, n, first, count int) *state.Service {
	var ports []state.Port
	for _, f := range families {
		ports = append(ports, clusterIPPort(f, state.TCP, n, endpointsOf(f, first, count)))
	}
	return serviceOf(name, ports...)
}
