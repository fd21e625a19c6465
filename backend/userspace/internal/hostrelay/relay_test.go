package hostrelay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/state"
)

// fakeInterface keeps a list of addresses, which this machine does not get.
type fakeInterface struct{ addrs []netip.Addr }

func (f *fakeInterface) Added() ([]netip.Addr, error) { return slices.Clone(f.addrs), nil }
func (f *fakeInterface) Add(a netip.Addr) error       { f.addrs = append(f.addrs, a); return nil }
func (f *fakeInterface) Remove(a netip.Addr) error {
	f.addrs = slices.DeleteFunc(f.addrs, func(b netip.Addr) bool { return a == b })
	return nil
}

// node is a node with a relay, whose Services have addresses that lead to this machine.
type node struct {
	t    *testing.T
	card *fakeInterface
	log  bytes.Buffer
	*Relay
	record   *state.Node
	revision state.Revision
}

func newNode(t *testing.T, change func(*Options), card ...netip.Addr) *node {
	t.Helper()
	n := &node{t: t, card: &fakeInterface{card}, record: &state.Node{
		LocalDetector: &state.LocalDetector{}, NodePorts: &state.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	}}
	o := Options{
		Logger: slog.New(slog.NewTextHandler(&n.log, nil)), Policy: balance.Random, DialTimeout: time.Minute, UDPIdleTimeout: time.Minute, DialAttempts: 3,
		MaxConnections: 100, MaxUDPFlows: 100, MaxAffinityClients: 100, Interface: n.card,
		HostAddrs: func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.1")} },
	}
	if change != nil {
		change(&o)
	}
	var err error
	if n.Relay, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// apply shows the relay a whole state.
func (n *node) apply(services ...*state.Service) backend.Result {
	n.t.Helper()
	n.revision++
	result, err := n.Apply(n.t.Context(), &state.Update{Revision: n.revision, Full: true, Node: n.record, Changed: services})
	if err != nil {
		n.t.Fatal(err)
	}
	return result
}

// service is a Service at an address, or at a node port if that has none, which leads to endpoints.
func service(p state.Protocol, at netip.AddrPort, endpoints ...netip.AddrPort) *state.Service {
	r := state.Route{Verdict: state.Reject}
	for _, e := range endpoints {
		r.Verdict, r.Endpoints = state.Forward, append(r.Endpoints, state.Endpoint{Addr: e})
	}
	slices.SortFunc(r.Endpoints, func(a, b state.Endpoint) int { return a.Addr.Compare(b.Addr) })
	f := state.Frontend{Kind: state.ClusterIP, Addr: at.Addr(), Port: at.Port()}
	if !at.Addr().IsValid() {
		f.Kind = state.NodePort
	}
	traffic := state.Traffic{Inside: r, Outside: r}
	return &state.Service{
		Name:  state.ServiceName{Namespace: "ns", Name: "web"},
		Ports: []state.Port{{Name: "p", Protocol: p, Family: state.IPv4, Frontends: []state.Frontend{f}, Internal: traffic, External: traffic}},
	}
}

// listenUDP returns a socket of UDP. It skips the test in wine, which lacks a setting that Go gives each of them (SIO_UDP_NETRESET).
func listenUDP(t *testing.T) *net.UDPConn {
	t.Helper()
	const notSupported = syscall.Errno(10045) // WSAEOPNOTSUPP, which no other system has
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if errors.Is(err, notSupported) {
		t.Skipf("no UDP here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// free returns an address and port where nobody listens.
func free(t *testing.T, p state.Protocol) netip.AddrPort {
	t.Helper()
	if p == state.UDP {
		c := listenUDP(t)
		defer c.Close()
		return c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// serve starts an endpoint: it answers with its name and what it was sent, over TCP once the client has nothing more to say.
func serve(t *testing.T, p state.Protocol, name string) netip.AddrPort {
	t.Helper()
	if p == state.UDP {
		c := listenUDP(t)
		t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 1500)
			for {
				n, from, err := c.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				_, _ = c.WriteToUDPAddrPort(append([]byte(name+" "), b[:n]...), from)
			}
		}()
		return c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				said, _ := io.ReadAll(c)
				fmt.Fprintf(c, "%s %s", name, said)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

var networks = map[state.Protocol]string{state.TCP: "tcp", state.UDP: "udp"}

func dial(t *testing.T, p state.Protocol, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial(networks[p], to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// ask connects, says something, and returns the answer.
func ask(t *testing.T, p state.Protocol, to netip.AddrPort) (string, error) {
	t.Helper()
	c, err := net.Dial(networks[p], to.String())
	if err != nil {
		return "", err // a relay may reset a connection before the client knows that it is there
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, "hello"); err != nil {
		return "", err
	}
	if p == state.UDP {
		b := make([]byte, 1500)
		n, err := c.Read(b)
		return string(b[:n]), err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// TestConnections: TCP and UDP reach the endpoint, at an address and at a node port.
func TestConnections(t *testing.T) {
	for _, p := range []state.Protocol{state.TCP, state.UDP} {
		t.Run(networks[p], func(t *testing.T) {
			n, a := newNode(t, nil), serve(t, p, "a")
			at := free(t, p)
			for _, frontend := range []netip.AddrPort{at, netip.AddrPortFrom(netip.Addr{}, at.Port())} {
				if r := n.apply(service(p, frontend, a)); len(r.Failed) > 0 {
					t.Fatal(r.Failed)
				}
				if got, err := ask(t, p, at); got != "a hello" || err != nil {
					t.Errorf("at %v: got %q, %v", frontend, got, err)
				}
			}
		})
	}
}

// TestRefused: a connection reaches another endpoint after one that refuses it; a Service without endpoints resets, and one that is gone is not listened for.
func TestRefused(t *testing.T) {
	n, a, at := newNode(t, nil), serve(t, state.TCP, "a"), free(t, state.TCP)
	n.apply(service(state.TCP, at, a, free(t, state.TCP)))
	for range 8 {
		if got, err := ask(t, state.TCP, at); got != "a hello" || err != nil {
			t.Errorf("beside an endpoint that refuses: got %q, %v", got, err)
		}
	}
	n.apply(service(state.TCP, at))
	if got, err := ask(t, state.TCP, at); got != "" || err == nil {
		t.Errorf("without endpoints: got %q, %v", got, err)
	}
	n.apply()
	if _, err := net.Dial("tcp", at.String()); err == nil {
		t.Error("a Service that is gone is listened for")
	}
}

// TestFlowMoves: flows of UDP whose endpoint goes reach another one at once.
func TestFlowMoves(t *testing.T) {
	n, at := newNode(t, nil), free(t, state.UDP)
	a, b := serve(t, state.UDP, "a"), serve(t, state.UDP, "b")
	n.apply(service(state.UDP, at, a))
	c := dial(t, state.UDP, at)
	answer := func() string {
		t.Helper()
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1500)
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	if got := answer(); got != "a hello" {
		t.Errorf("got %q", got)
	}
	n.apply(service(state.UDP, at, b))
	if got := answer(); got != "b hello" {
		t.Errorf("after its endpoint has gone, a client gets %q", got)
	}
}

// TestConnectionStays: connections of TCP whose endpoint goes go on, unless they are to be reset.
func TestConnectionStays(t *testing.T) {
	for _, resets := range []bool{false, true} {
		n, at := newNode(t, func(o *Options) { o.ResetRemoved = resets }), free(t, state.TCP)
		n.apply(service(state.TCP, at, serve(t, state.TCP, "a")))
		c := dial(t, state.TCP, at)
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		for n.Carried() == 0 {
			time.Sleep(time.Millisecond)
		}
		for noted := 0; noted == 0; time.Sleep(time.Millisecond) {
			n.mu.Lock()
			noted = len(n.conns)
			n.mu.Unlock()
		}
		n.apply(service(state.TCP, at, serve(t, state.TCP, "b")))
		_ = c.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(c)
		if goesOn := string(got) == "a hello" && err == nil; goesOn == resets {
			t.Errorf("resets %v: the connection ends with %q, %v", resets, got, err)
		}
	}
}

// TestDrainDeadline: a connection whose endpoint goes ends after the deadline of its port, also if the service is deleted.
func TestDrainDeadline(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		n, at := newNode(t, nil), free(t, state.TCP)
		draining := func(endpoint netip.AddrPort) *state.Service {
			s := service(state.TCP, at, endpoint)
			s.Ports[0].DrainSeconds = 1
			return s
		}
		first := draining(serve(t, state.TCP, "a"))
		n.apply(first)
		c := dial(t, state.TCP, at)
		for noted := 0; noted == 0; time.Sleep(time.Millisecond) {
			n.mu.Lock()
			noted = len(n.conns)
			n.mu.Unlock()
		}
		if deleted {
			if _, err := n.Apply(t.Context(), &state.Update{Removed: []state.ServiceName{first.Name}, Node: n.record}); err != nil {
				t.Fatal(err)
			}
		} else {
			n.apply(draining(serve(t, state.TCP, "b")))
		}
		if got, err := io.ReadAll(c); err == nil {
			t.Errorf("deleted %v: the connection ends with %q, without a reset", deleted, got)
		}
	}
}

// TestSources: only clients in the ranges get through.
func TestSources(t *testing.T) {
	n, at := newNode(t, nil), free(t, state.TCP)
	for source, want := range map[string]bool{"127.0.0.0/8": true, "192.0.2.0/24": false} {
		s := service(state.TCP, at, serve(t, state.TCP, "a"))
		f := &s.Ports[0].Frontends[0]
		f.Restricted, f.Sources = true, []netip.Prefix{netip.MustParsePrefix(source)}
		n.apply(s)
		if got, err := ask(t, state.TCP, at); (err == nil && got == "a hello") != want {
			t.Errorf("from %s: got %q, %v", source, got, err)
		}
	}
}

// TestListen: only the frontends that are named are served, each where it says; what comes before the first state waits for it.
func TestListen(t *testing.T) {
	at, frontend := free(t, state.TCP), netip.MustParseAddrPort("10.96.0.10:80")
	n := newNode(t, func(o *Options) {
		o.Listen = []Listen{{state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: frontend.Addr(), Port: frontend.Port()}, at}}
	})
	c := dial(t, state.TCP, at)
	n.apply(service(state.TCP, frontend, serve(t, state.TCP, "a")))
	_ = c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "a " || err != nil {
		t.Errorf("a connection from before the first state: %q, %v", got, err)
	}
	if len(n.card.addrs) > 0 {
		t.Errorf("addresses are added: %v", n.card.addrs)
	}
	n.Release()
	if c, err := net.Dial("tcp", at.String()); err == nil {
		c.Close()
		t.Error("a relay that is released takes connections")
	}
}

// TestAddresses: an address that this machine lacks is added to the interface. It is removed if it cannot be used, or is no longer
// needed. The addresses that an earlier process has added are removed likewise. A Service whose address and port cannot be listened at
// is named, with the reason.
func TestAddresses(t *testing.T) {
	stale := netip.MustParseAddr("192.0.2.9")
	n := newNode(t, nil, stale)
	r := n.apply(service(state.TCP, netip.MustParseAddrPort("192.0.2.1:80"), serve(t, state.TCP, "a")))
	if err := r.Failed[state.ServiceName{Namespace: "ns", Name: "web"}]; err == nil || !strings.Contains(err.Error(), "192.0.2.1:80") {
		t.Errorf("failed: %v", r.Failed)
	}
	if len(n.card.addrs) > 0 {
		t.Errorf("the interface has %v", n.card.addrs)
	}
	// As if the relay could listen there.
	n.mu.Lock()
	held := netip.MustParseAddr("192.0.2.2")
	if err := errors.Join(n.hold(held), n.hold(held)); err != nil {
		t.Error(err)
	}
	n.release(held)
	n.mu.Unlock()
	if !slices.Equal(n.card.addrs, []netip.Addr{held}) {
		t.Errorf("the interface has %v, and not what is needed still", n.card.addrs)
	}
	n.card.addrs = nil
	if r, err := n.Verify(t.Context()); err != nil || r.Repaired != 1 || !slices.Equal(n.card.addrs, []netip.Addr{held}) {
		t.Errorf("after it was removed, a verification has %+v, %v, and the interface %v", r, err, n.card.addrs)
	}
	n.mu.Lock()
	n.release(held)
	n.mu.Unlock()
	if len(n.card.addrs) > 0 {
		t.Errorf("the interface has %v, which nothing needs", n.card.addrs)
	}
}

// TestSCTP: a Service with a port that cannot be relayed is named, and its other ports are served.
func TestSCTP(t *testing.T) {
	n, at := newNode(t, nil), free(t, state.TCP)
	s := service(state.TCP, at, serve(t, state.TCP, "a"))
	sctp := s.Ports[0]
	sctp.Name, sctp.Protocol = "s", state.SCTP
	s.Ports = append(s.Ports, sctp)
	n.apply(s)
	if got, err := ask(t, state.TCP, at); got != "a hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if p := n.Problems(); len(p) != 1 || !strings.Contains(p[0].Error(), "ns/web") {
		t.Errorf("problems: %v", p)
	}
	n.apply()
	if p := n.Problems(); len(p) > 0 {
		t.Errorf("problems: %v", p)
	}
}

// TestConnectionLimit: connections beyond the limit wait for one to end.
func TestConnectionLimit(t *testing.T) {
	n, at := newNode(t, func(o *Options) { o.MaxConnections = 1 }), free(t, state.TCP)
	n.apply(service(state.TCP, at, serve(t, state.TCP, "a")))
	first := dial(t, state.TCP, at)
	for n.Carried() == 0 {
		time.Sleep(time.Millisecond)
	}
	second := make(chan string)
	go func() { got, _ := ask(t, state.TCP, at); second <- got }()
	first.Close()
	if got := <-second; got != "a hello" {
		t.Errorf("the second gets %q", got)
	}
}

// TestFlowLimit: flows beyond the limit end one that is idle.
func TestFlowLimit(t *testing.T) {
	n, at := newNode(t, func(o *Options) { o.MaxUDPFlows = 2 }), free(t, state.UDP)
	n.apply(service(state.UDP, at, serve(t, state.UDP, "a")))
	for range 5 {
		if got, err := ask(t, state.UDP, at); got != "a hello" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if carried := n.Carried(); carried != 2 {
		t.Errorf("%d flows are carried, want 2", carried)
	}
}

// TestEndpointLeadsBack: where the relay itself listens, it connects to nobody, and the Service is reported until that changes.
func TestEndpointLeadsBack(t *testing.T) {
	for _, listens := range []bool{false, true} {
		at := free(t, state.TCP)
		frontend := at
		n := newNode(t, func(o *Options) {
			if listens {
				frontend = netip.MustParseAddrPort("10.96.0.1:80")
				o.Listen = []Listen{{Frontend: state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: frontend.Addr(), Port: frontend.Port()}, At: at}}
			}
		})
		n.apply(service(state.TCP, frontend, at))
		c, err := net.Dial("tcp4", at.String())
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("with Listen %v, the client sees %v", listens, err)
		}
		if carried := n.Carried(); carried > 2 {
			t.Errorf("with Listen %v, the relay carries %d connections", listens, carried)
		}
		if problems := fmt.Sprint(n.Problems()); !strings.Contains(problems, "ns/web") {
			t.Errorf("with Listen %v, it reports %v", listens, problems)
		}
		n.apply(service(state.TCP, frontend))
		if problems := n.Problems(); len(problems) > 0 {
			t.Errorf("with Listen %v, it still reports %v", listens, problems)
		}
	}
}
