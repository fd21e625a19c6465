package userspace_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// lab is a topology with a pod, in which a server may be on each port, and a pair on the node.
type lab struct {
	t *testing.T
	*topology.Lab
	pod, visitor *topology.Host
	pair         *pair
	revision     state.Revision
	options      userspace.Options
}

const (
	frontend = "10.96.0.10:80"
	answers  = 8080 // an echo server of TCP and UDP is there
	refuses  = 8081 // nothing is there
)

func newLab(t *testing.T, o userspace.Options) *lab {
	t.Helper()
	l := &lab{Lab: netnstest.Lab(t, topology.Options{}), t: t, options: o}
	var err error
	if l.pod, err = l.AddPod(topology.PodOptions{Name: "pod"}); err != nil {
		t.Fatal(err)
	}
	if l.visitor, err = l.AddPod(topology.PodOptions{Name: "visitor"}); err != nil {
		t.Fatal(err)
	}
	for _, proto := range []state.Protocol{state.TCP, state.UDP} {
		if err := l.pod.Serve(proto, netip.AddrPortFrom(netip.Addr{}, answers), "pod"); err != nil {
			t.Fatal(err)
		}
	}
	l.start()
	t.Cleanup(l.kill)
	return l
}

func (l *lab) start() {
	l.t.Helper()
	err := l.Node().Do(func() (err error) {
		l.pair, err = newPair(l.t.Context(), nftables.Options{}, l.options)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

// kill ends the pair as the end of a process does that has no time for anything.
func (l *lab) kill() {
	if l.pair != nil {
		_ = errors.Join(l.pair.Backend.Close(), l.pair.base.Close())
		l.pair = nil
	}
}

// at returns an endpoint of the pod.
func (l *lab) at(port uint16) state.Endpoint {
	return state.Endpoint{Addr: netip.AddrPortFrom(l.pod.Addrs[0], port), Local: true}
}

// nobody returns an endpoint that does not answer.
func (l *lab) nobody() state.Endpoint {
	return state.Endpoint{Addr: netip.AddrPortFrom(l.pod.Addrs[0].Next().Next().Next().Next().Next(), answers)}
}

// apply gives the Service these endpoints.
func (l *lab) apply(change func(*state.Port), endpoints ...state.Endpoint) backend.Result {
	l.t.Helper()
	s := service(change, endpoints...)
	l.revision++
	u := &state.Update{Revision: l.revision, Full: true, Node: l.node(), Changed: []*state.Service{s}}
	result, err := l.pair.Apply(l.t.Context(), u)
	if err != nil || len(result.Failed) > 0 {
		l.t.Fatal(result.Failed, err)
	}
	return result
}

func (l *lab) node() *state.Node {
	return &state.Node{
		Name: "node", Addresses: l.Node().Addrs, PodCIDRs: l.Options().NodePodCIDRs, ServiceCIDRs: l.Options().ServiceCIDRs,
		LocalDetector: &state.LocalDetector{}, NodePorts: &state.NodePortAddresses{Primary: true},
	}
}

// service returns a Service with the same endpoints for TCP and UDP.
func service(change func(*state.Port), endpoints ...state.Endpoint) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: "web"}}
	slices.SortFunc(endpoints, state.Endpoint.Compare)
	route := state.Route{Verdict: state.Forward, Endpoints: endpoints}
	if len(endpoints) == 0 {
		route.Verdict = state.Reject
	}
	for _, proto := range []state.Protocol{state.TCP, state.UDP} {
		at := netip.MustParseAddrPort(frontend)
		p := state.Port{
			Name: "web", Protocol: proto, Family: state.IPv4,
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: at.Addr(), Port: at.Port()}},
			Internal:  state.Traffic{Inside: route, Outside: route},
		}
		if change != nil {
			change(&p)
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

func (l *lab) dial(to string) *net.TCPConn {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), await.Patience)
	defer cancel()
	c, err := l.visitor.Dial(ctx, state.TCP, netip.MustParseAddrPort(to), netip.AddrPort{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * await.Patience))
	return c.(*net.TCPConn)
}

// talk returns a function that says something on a connection and reads the answer.
func (l *lab) talk(c io.ReadWriter) func() {
	lines := bufio.NewReader(c)
	return func() {
		l.t.Helper()
		if _, err := io.WriteString(c, "hello\n"); err != nil {
			l.t.Error(err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			l.t.Error(err)
		}
	}
}

func (l *lab) probe(proto state.Protocol, timeout time.Duration) topology.Answer {
	return l.visitor.Probe(l.t.Context(), proto, netip.MustParseAddrPort(frontend), topology.ProbeOptions{Timeout: timeout})
}

func (l *lab) mustAnswer(proto state.Protocol) {
	l.t.Helper()
	if a := l.probe(proto, await.Patience); a.Outcome != topology.Answered {
		l.t.Errorf("%v is %v (%v)", proto, a.Outcome, a.Err)
	}
}

// server accepts one connection on a port of the pod after the other, and serves them.
func (l *lab) server(port uint16, serve func(*net.TCPConn)) {
	l.t.Helper()
	var listener net.Listener
	err := l.pod.Do(func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(l.pod.Addrs[0], port).String())
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(c.(*net.TCPConn))
		}
	}()
}

// Of three endpoints, one refuses and one is not there. No client notices.
func TestRetry(t *testing.T) {
	t.Parallel()
	for _, policy := range []userspace.Policy{userspace.Random, userspace.LeastConnections, userspace.PowerOfTwoChoices} {
		// An endpoint that is there has accepted before that, also on a busy machine. The one that is not costs it each time.
		l := newLab(t, userspace.Options{DialTimeout: 2 * time.Second, Policy: policy})
		l.apply(nil, l.at(answers), l.at(refuses), l.nobody())
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() { l.mustAnswer(state.TCP) })
		}
		all.Wait()
	}
}

// An endpoint that fails is left alone, and gets connections again when it has come back.
func TestEjection(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{Ejection: userspace.Ejection{Failures: 2, Time: time.Second}})
	l.apply(nil, l.at(answers), l.at(refuses))
	for range 30 {
		l.mustAnswer(state.TCP)
	}
	var served atomic.Int32
	l.server(refuses, func(c *net.TCPConn) {
		served.Add(1)
		_, _ = io.WriteString(c, "late 10.0.0.1:1\n")
		c.Close()
	})
	await.Until(t, "the endpoint gets a connection again", func() bool { l.probe(state.TCP, await.Patience); return served.Load() > 0 })
}

// What one end says is all that the other hears: data after the other direction has ended, an end, or a reset.
func TestRelayPreservesEnds(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	began, resets := make(chan bool, 1), make(chan error, 1)
	l.server(9001, func(c *net.TCPConn) { // answers when the client has said all
		data, _ := io.ReadAll(c)
		time.Sleep(20 * time.Millisecond)
		_, _ = c.Write(data)
		c.Close()
	})
	l.server(9002, func(c *net.TCPConn) { // resets
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
		c.Close()
	})
	l.server(9003, func(c *net.TCPConn) {
		_, err := c.Read(make([]byte, 1))
		began <- true
		if err == nil {
			_, err = io.Copy(io.Discard, c)
		}
		resets <- err
		c.Close()
	})

	l.apply(nil, l.at(9001))
	c := l.dial(frontend)
	long := strings.Repeat("all that I have to say. ", 100_000) // more than buffers hold
	go func() {
		_, _ = io.WriteString(c, long)
		_ = c.CloseWrite()
	}()
	if got, err := io.ReadAll(c); err != nil || string(got) != long {
		t.Errorf("%d bytes came back of %d: %v", len(got), len(long), err)
	}

	l.apply(nil, l.at(9002))
	c = l.dial(frontend)
	_, _ = c.Write([]byte("x"))
	if _, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the client sees %v where the server has reset", err)
	}

	l.apply(nil, l.at(9003))
	c = l.dial(frontend)
	_, _ = c.Write([]byte("x"))
	<-began // before, there may be no connection to the server
	_ = c.SetLinger(0)
	c.Close()
	if err := await.Receive(t, "the server sees the client's reset", resets); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the server sees %v where the client has reset", err)
	}
}

func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{ProxyProtocol: true})
	heads := make(chan []byte, 1)
	l.server(9001, func(c *net.TCPConn) {
		head := make([]byte, 28)
		_, _ = io.ReadFull(c, head)
		heads <- head
		_, _ = io.Copy(c, c)
		c.Close()
	})
	l.apply(nil, l.at(9001))
	c := l.dial(frontend)
	_, _ = io.WriteString(c, "hello\n")
	if line, err := bufio.NewReader(c).ReadString('\n'); line != "hello\n" {
		t.Fatal(line, err)
	}
	client := c.LocalAddr().(*net.TCPAddr).AddrPort()
	want := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), client.Addr().AsSlice()...)
	want = append(want, 10, 96, 0, 10, byte(client.Port()>>8), byte(client.Port()), 0, 80)
	if got := <-heads; string(got) != string(want) {
		t.Errorf("the server has read %q, want %q", got, want)
	}
}

// Who connects to the relay itself, past the base's rules, gets nothing, also where NodePorts have the relay's ports.
func TestRelayItselfIsClosed(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(func(p *state.Port) {
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.NodePort, Port: 61871}, state.Frontend{Kind: state.NodePort, Port: 61872})
		p.External = p.Internal
	}, l.at(answers))
	for _, port := range []uint16{61871, 61872} {
		to := netip.AddrPortFrom(userspace.DefaultAddresses()[0], port)
		for _, host := range []*topology.Host{l.visitor, l.Node()} {
			for _, proto := range []state.Protocol{state.TCP, state.UDP} {
				if a := host.Probe(t.Context(), proto, to, topology.ProbeOptions{Timeout: time.Second}); a.Outcome == topology.Answered {
					t.Errorf("%s over %v is answered by %s", host.Name, proto, a.Server)
				}
			}
		}
	}
	l.mustAnswer(state.TCP)
	l.mustAnswer(state.UDP)
}

// Without room for one more connection, that one ends which was used least recently, of the client with the most.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{MaxConnections: 3})
	l.apply(nil, l.at(answers))
	open := func() (*net.TCPConn, *bufio.Reader) {
		c := l.dial(frontend)
		lines := bufio.NewReader(c)
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return c, lines
	}
	var conns [3]*net.TCPConn
	var lines [3]*bufio.Reader
	for i := range conns {
		conns[i], lines[i] = open()
	}
	if problems := l.pair.Problems(); len(problems) > 0 {
		t.Error(problems)
	}
	_, _ = io.WriteString(conns[0], "hello\n")
	if _, err := lines[0].ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	open()
	if _, err := lines[1].ReadByte(); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection that was used least recently has %v, want a reset", err)
	}
	for _, i := range []int{0, 2} {
		_, _ = io.WriteString(conns[i], "hello\n")
		if _, err := lines[i].ReadString('\n'); err != nil {
			t.Errorf("connection %d has %v", i, err)
		}
	}
	problems := l.pair.Problems()
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "service default/web had the most (4), and of its clients "+l.visitor.Addrs[0].String()+"/32") {
		t.Errorf("problems: %v", problems)
	}
}

// Who fills the relay with idle connections and flows to a Service of their own keeps nobody else out, nor ends what others have.
func TestOthersHaveRoom(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{MaxConnections: 30, MaxUDPFlows: 30})
	l.revision++
	own := service(func(p *state.Port) { p.Frontends[0].Addr = netip.MustParseAddr("10.96.0.66") }, l.at(answers))
	own.Name = state.ServiceName{Namespace: "evil", Name: "own"}
	u := &state.Update{Revision: l.revision, Full: true, Node: l.node(), Changed: []*state.Service{service(nil, l.at(answers)), own}}
	if _, err := l.pair.Apply(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	talk := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(await.Patience))
		_, err := io.WriteString(c, "hello\n")
		if err == nil {
			_, err = c.Read(make([]byte, 100))
		}
		return err
	}
	connect := func(proto state.Protocol, to string) net.Conn {
		c, err := l.visitor.Dial(t.Context(), proto, netip.MustParseAddrPort(to), netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var had []net.Conn
	for _, proto := range []state.Protocol{state.TCP, state.UDP} {
		for range 5 {
			c := connect(proto, frontend)
			if err := talk(c); err != nil {
				t.Fatal(err)
			}
			had = append(had, c)
		}
		for range 100 { // which stay, as far as they may
			if c := connect(proto, "10.96.0.66:80"); proto == state.UDP {
				_, _ = io.WriteString(c, "hello\n")
			}
		}
	}
	for range 5 {
		l.mustAnswer(state.TCP)
		l.mustAnswer(state.UDP)
	}
	for _, c := range had {
		if err := talk(c); err != nil {
			t.Errorf("a connection from before, over %s: %v", c.LocalAddr().Network(), err)
		}
	}
	if n := l.pair.Carried(); n > 60 {
		t.Errorf("%d connections and flows are open, want 60 at most", n)
	}
	problems := l.pair.Problems()
	if len(problems) != 2 || !strings.Contains(problems[0].Error(), "evil/own") || !strings.Contains(problems[1].Error(), "evil/own") {
		t.Errorf("problems: %v", problems)
	}
}

// A connection that waits has a socket at each end, and no goroutine. It is not parallel, so that it counts its own.
func TestIdleConnections(t *testing.T) {
	l := newLab(t, userspace.Options{})
	held := make(chan *net.TCPConn, 60)
	l.server(9001, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		held <- c
	})
	l.apply(nil, l.at(9001))
	connect := func(n int) int {
		for range n {
			if _, err := l.dial(frontend).Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		return runtime.NumGoroutine()
	}
	before := connect(10)
	connect(cap(held) - 10)
	await.Until(t, fmt.Sprintf("%d more connections take at most 25 goroutines", cap(held)-10), func() bool { // some may be about to end
		return runtime.NumGoroutine() <= before+25
	}, func() any { return runtime.NumGoroutine() - before })
}

// A relay that is closed resets connections that have no endpoint yet, and waits for none.
func TestCloseWhileDialing(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{DialTimeout: time.Hour})
	l.apply(nil, l.nobody())
	c := l.dial(frontend)
	await.Until(t, "the connection is carried", func() bool { return l.pair.Carried() > 0 })
	l.kill()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the client sees %v", err)
	}
}

// Flows of UDP end when they are idle, and those beyond the limit before.
func TestUDPFlowsEnd(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{MaxUDPFlows: 4, UDPIdleTimeout: 3 * time.Second})
	l.apply(nil, l.at(answers))
	for range 20 {
		l.mustAnswer(state.UDP)
	}
	if n := l.pair.Carried(); n > 4 {
		t.Errorf("%d flows are open, want 4 at most", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	if err := l.pair.Drain(ctx); err != nil {
		t.Error(err)
	}
	l.mustAnswer(state.UDP)
}

// A change by somebody else to the relay's address is repaired, and Cleanup removes it.
func TestAddress(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	programmed := func() (held bool) {
		t.Helper()
		if err := l.Node().Do(func() (err error) { held, err = userspace.Programmed(); return err }); err != nil {
			t.Fatal(err)
		}
		return held
	}
	if !programmed() {
		t.Error("nothing is programmed")
	}
	err := l.Node().Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(userspace.DefaultAddresses()[0].String() + "/32")
		if err != nil {
			return err
		}
		return netlink.AddrDel(lo, addr)
	})
	if err != nil {
		t.Fatal(err)
	}
	if a := l.probe(state.TCP, 2*time.Second); a.Outcome == topology.Answered {
		t.Error("the relay answers without its address")
	}
	result, err := l.pair.Verify(t.Context())
	if err != nil || result.Repaired != 1 {
		t.Errorf("repaired %d: %v", result.Repaired, err)
	}
	l.mustAnswer(state.TCP)
	if result, err := l.pair.Verify(t.Context()); err != nil || result.Repaired != 0 {
		t.Errorf("repaired %d that were right: %v", result.Repaired, err)
	}
	l.kill()
	for _, want := range []bool{true, false} {
		var removed bool
		err := l.Node().Do(func() (err error) { removed, err = userspace.Cleanup(t.Context()); return err })
		if err != nil || removed != want {
			t.Errorf("removed: %v, %v, want %v", removed, err, want)
		}
	}
	if programmed() {
		t.Error("something is left")
	}
}

// Without a process that is killed, the base serves. The next one serves again, also flows of UDP that have begun before, and writes nothing into the base.
func TestKilled(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	l.mustAnswer(state.TCP)
	flow, err := l.visitor.Dial(t.Context(), state.UDP, netip.MustParseAddrPort(frontend), netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	talk := func() error {
		_ = flow.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(flow, "hello\n")
		_, err := flow.Read(make([]byte, 100))
		return err
	}
	if err := talk(); err != nil {
		t.Fatal(err)
	}
	l.kill()
	l.mustAnswer(state.TCP)
	l.mustAnswer(state.UDP)
	l.start()
	if result := l.apply(nil, l.at(answers)); result.Written != 0 {
		t.Errorf("the next process has written %d objects, want none", result.Written)
	}
	l.mustAnswer(state.TCP)
	for tries := 0; ; tries++ {
		if err := talk(); err == nil {
			break
		} else if tries == 5 {
			t.Fatal(err)
		}
	}
}

// A relay without connections stays for a moment after its release: the base may have sent it some that have not arrived yet.
func TestReleasedRelayStaysForAMoment(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	if err := l.pair.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	released := time.Now()
	if err := l.pair.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(released); took < 200*time.Millisecond {
		t.Errorf("it is gone after %v", took)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.pair.Drain(ended); err != nil {
		t.Errorf("nothing is left, and yet: %v", err)
	}
}

// A handover that fails half-way costs no connection.
func TestHandoverFails(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	c := l.dial(frontend)
	talk := l.talk(c)
	talk()
	if err := l.pair.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.mustAnswer(state.TCP) // by the base alone
	drained := make(chan error)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	go func() { drained <- l.pair.Drain(ctx) }()
	for range 3 {
		err := l.Node().Do(func() error {
			heir, err := userspace.MeetPredecessor()
			if err != nil || heir == nil {
				return errors.Join(err, errors.New("no process hands over"))
			}
			_, err = heir.Read(make([]byte, 10))
			return errors.Join(err, heir.Close())
		})
		if err != nil {
			t.Fatal(err)
		}
		talk()
	}
	c.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// A next process takes over all that is open, in the middle of a transfer, and the clients with affinity. The earlier one then has
// nothing left.
func TestHandover(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	began, release := make(chan bool, 1), make(chan bool)
	l.server(9001, func(c *net.TCPConn) { // reads one byte, and nothing more before it may
		first := make([]byte, 1)
		_, _ = io.ReadFull(c, first)
		began <- true
		<-release
		_, _ = io.Copy(c, io.MultiReader(bytes.NewReader(first), c))
		c.Close()
	})
	sticky := func(p *state.Port) { p.Affinity = time.Hour }
	l.apply(sticky, l.at(9001))
	c := l.dial(frontend)
	long := strings.Repeat("all that I have to say. ", 200_000) // more than buffers hold
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c, long)
		written <- errors.Join(err, c.CloseWrite())
	}()
	<-began // the relay has chosen the endpoint
	flow, err := l.visitor.Dial(t.Context(), state.UDP, netip.MustParseAddrPort(frontend), netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	l.apply(sticky, l.at(answers))
	talk := func() string {
		t.Helper()
		_ = flow.SetDeadline(time.Now().Add(await.Patience))
		_, _ = io.WriteString(flow, "hello\n")
		answer := make([]byte, 100)
		n, err := flow.Read(answer)
		if err != nil {
			t.Error(err)
		}
		return string(answer[:n])
	}
	before := talk()
	time.Sleep(50 * time.Millisecond) // for the transfer to get stuck, mostly

	old := l.pair
	if err := errors.Join(old.Release(t.Context()), old.base.Close()); err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- old.Drain(t.Context()) }()
	l.start()
	if err := await.Receive(t, "the earlier process has no connections left", drained); err != nil {
		t.Error(err)
	}
	old.Backend.Close()
	if after := talk(); after != before { // the same client of the same server
		t.Errorf("a flow is answered %q, and was %q", after, before)
	}
	close(release)
	if got, err := io.ReadAll(c); err != nil || string(got) != long {
		t.Errorf("%d bytes came back of %d: %v", len(got), len(long), err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	l.apply(sticky, l.at(answers))
	l.mustAnswer(state.TCP)
	if n := l.pair.Remembered(); n != 2 {
		t.Errorf("%d clients are remembered, want the one of TCP and the one of UDP", n)
	}
}

// A connection that has no endpoint yet stays with the process that has accepted it, and goes on there.
func TestHandoverWhileDialing(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{DialTimeout: 3 * time.Second})
	l.apply(nil, l.nobody(), l.at(answers))
	var waits *net.TCPConn
	for tries := 0; waits == nil; tries++ {
		if tries == 100 {
			t.Fatal("no connection waits for the endpoint that does not answer")
		}
		c := l.dial(frontend)
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			waits = c
		} else {
			c.Close()
		}
	}
	old := l.pair
	if err := errors.Join(old.Release(t.Context()), old.base.Close()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan error, 1)
	go func() { drained <- old.Drain(ctx) }()
	l.start()
	_ = waits.SetReadDeadline(time.Now().Add(await.Patience))
	if _, err := bufio.NewReader(waits).ReadString('\n'); err != nil {
		t.Errorf("a connection that had no endpoint when the others were handed over: %v", err)
	}
	waits.Close()
	if err := await.Receive(t, "the earlier process has no connections left", drained); err != nil {
		t.Error(err)
	}
	cancel()
	old.Backend.Close()
}

// With ResetRemoved, a connection to an endpoint that is gone ends, and one to an endpoint that lingers goes on.
func TestResetRemoved(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{ResetRemoved: true})
	l.apply(nil, l.at(answers))
	c := l.dial(frontend)
	lines := bufio.NewReader(c)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	l.apply(func(p *state.Port) { p.Lingering = []state.Endpoint{l.at(answers)} })
	_, _ = io.WriteString(c, "hello\n")
	if _, err := lines.ReadString('\n'); err != nil {
		t.Errorf("a connection to a lingering endpoint: %v", err)
	}
	l.apply(nil)
	if _, err := lines.ReadString('\n'); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection to an endpoint that is gone: %v", err)
	}
}

// TestDrainDeadline: a connection whose endpoint takes no more of them ends after the deadline of the port, and one to an endpoint that is back
// goes on.
func TestDrainDeadline(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	draining := func(seconds uint32) func(*state.Port) {
		return func(p *state.Port) { p.DrainSeconds, p.Lingering = seconds, []state.Endpoint{l.at(answers)} }
	}
	deadline := func(p *state.Port) { p.DrainSeconds = 1 }
	l.apply(deadline, l.at(answers))
	c := l.dial(frontend)
	lines := bufio.NewReader(c)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	l.apply(draining(3600))
	l.apply(deadline, l.at(answers))
	l.apply(draining(0)) // it has no deadline again
	_, _ = io.WriteString(c, "hello\n")
	if _, err := lines.ReadString('\n'); err != nil {
		t.Errorf("a connection without a deadline: %v", err)
	}
	l.apply(draining(1))
	if _, err := lines.ReadString('\n'); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection whose deadline has passed: %v", err)
	}
}

// failing is a base that fails as a whole, or refuses each service once.
type failing struct {
	backend.Backend
	err     error
	refuses bool
}

func (f *failing) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	if !f.refuses {
		return backend.Result{}, f.err
	}
	refused := map[state.ServiceName]error{}
	for _, s := range u.Changed {
		refused[s.Name] = f.err
	}
	f.refuses, f.err = false, nil
	return backend.Result{}, &backend.RefusedError{Services: refused}
}

func (f *failing) Disturbed() <-chan struct{} { return nil }

// Without rights and rules, the relay serves frontends on addresses of the host. What its base does not take over, it does not either.
func TestListen(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	at := netip.MustParseAddrPort("127.0.0.1:18080")
	base := &failing{}
	var b *userspace.Backend
	var server net.Listener
	err := ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		if server, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
			return err
		}
		b, err = userspace.New(base, userspace.Options{Listen: []userspace.Listen{
			{Protocol: state.TCP, Frontend: netip.MustParseAddrPort(frontend), At: at},
		}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "served")
			c.Close()
		}
	}()
	get := func() string {
		var data []byte
		_ = ns.Do(func() error {
			c, err := net.Dial("tcp4", at.String())
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(await.Patience))
			data, err = io.ReadAll(c)
			return err
		})
		return string(data)
	}
	endpoint := state.Endpoint{Addr: netip.MustParseAddrPort(server.Addr().String())}
	reconciler := backend.NewReconciler(b)
	apply := func(change func(*state.Port), endpoints ...state.Endpoint) error {
		_, err := reconciler.Apply(t.Context(), &state.Update{Full: true, Node: &state.Node{}, Changed: []*state.Service{service(change, endpoints...)}})
		return err
	}
	if err := apply(nil, endpoint); err != nil || get() != "served" {
		t.Errorf("not served: %v", err)
	}
	if err := apply(func(p *state.Port) { p.Frontends[0].Restricted = true }, endpoint); err != nil || get() != "" {
		t.Errorf("served to a client that is in no source range: %v", err)
	}
	if err := apply(nil, endpoint); err != nil || get() != "served" {
		t.Errorf("not served again: %v", err)
	}
	base.err = errors.New("no")
	if err := apply(nil); err == nil || get() != "served" {
		t.Errorf("after an update that failed, the relay shows it: %v", err)
	}
	base.refuses = true
	if err := apply(nil); err != nil || base.refuses || get() != "served" {
		t.Errorf("the relay shows a service that the base has refused: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]userspace.Options{
		"DialAttempts is -1":        {DialAttempts: -1},
		"protocol SCTP":             {Listen: []userspace.Listen{{Protocol: state.SCTP}}},
		"both need an address":      {Listen: []userspace.Listen{{Protocol: state.TCP, At: netip.MustParseAddrPort("127.0.0.1:80")}}},
		"Options.Listen must name":  {},
		`Policy is "Best", must be`: {Policy: "Best"},
	} {
		if _, err := userspace.New(nil, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
