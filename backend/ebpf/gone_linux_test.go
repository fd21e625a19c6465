package ebpf_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// TestConnectionsToEndpointsThatAreGone ends the node's connections that hooks have translated to endpoints which are gone, and no others.
// Connections of pods are left to the base.
func TestConnectionsToEndpointsThatAreGone(t *testing.T) {
	needHooks(t)
	l := netnstest.Lab(t, topology.Options{})
	var endpoints [2][]state.Endpoint // of each pod
	for i, name := range []string{"leaves", "stays"} {
		pod, err := l.AddPod(topology.PodOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if err := pod.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, 8080), name); err != nil {
			t.Fatal(err)
		}
		for _, a := range pod.Addrs {
			endpoints[i] = append(endpoints[i], state.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Local: true})
		}
	}
	client, err := l.AddPod(topology.PodOptions{Name: "client"})
	if err != nil {
		t.Fatal(err)
	}
	namespaces, err := sockethooks.Namespaces(sockethooks.Of(l))
	if err != nil {
		t.Fatal(err)
	}
	defer namespaces.Close()
	frontends := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")}
	service := func(name string, number uint16, pods ...int) *state.Service {
		s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}}
		for i, addr := range frontends {
			to := state.Route{Verdict: state.Forward}
			for _, pod := range pods {
				to.Endpoints = append(to.Endpoints, endpoints[pod][i])
			}
			s.Ports = append(s.Ports, state.Port{
				Protocol: state.TCP, Family: state.FamilyOf(addr), Internal: state.Traffic{Inside: to, Outside: to},
				Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: number}},
			})
		}
		return s
	}

	var b *ebpf.Backend
	err = l.Node().Do(func() (err error) {
		b, err = ebpf.New(reliable(), ebpf.Options{
			Namespaces: namespaces, LocalDetector: state.LocalDetector{ClusterCIDRs: slices.Concat(l.Options().NodePodCIDRs, l.Options().OtherPodCIDRs)},
			EndRemoved: true,
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if s := b.Status(); s.State != ebpf.On {
		t.Fatalf("hooks are %v: %v", s.State, s.Reason)
	}
	show := func(u *state.Update) {
		t.Helper()
		u.Node = &state.Node{Name: "node"}
		if _, err := b.Apply(context.Background(), u); err != nil {
			t.Fatal(err)
		}
	}
	show(&state.Update{Revision: 1, Full: true, Changed: []*state.Service{service("other", 81, 1), service("web", 80, 0)}})

	dial := func(h *topology.Host, to netip.AddrPort) *net.TCPConn {
		t.Helper()
		c, err := h.Dial(t.Context(), state.TCP, to, netip.AddrPort{})
		if err != nil {
			t.Fatalf("%s to %v: %v", h.Name, to, err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := bufio.NewReader(c).ReadString('\n'); err != nil { // its greeting
			t.Fatalf("%s to %v: %v", h.Name, to, err)
		}
		return c.(*net.TCPConn)
	}
	var ended, others []*net.TCPConn
	for i, addr := range frontends {
		ended = append(ended, dial(l.Node(), netip.AddrPortFrom(addr, 80)))
		others = append(others, dial(l.Node(), netip.AddrPortFrom(addr, 81)), dial(l.Node(), endpoints[0][i].Addr), dial(client, endpoints[0][i].Addr))
	}
	translated := b.Status().Translated
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // this base translates nothing
	if c, err := client.Dial(ctx, state.TCP, netip.AddrPortFrom(frontends[0], 80), netip.AddrPort{}); err == nil {
		c.Close()
	}
	cancel()
	if b.Status().Translated != translated {
		t.Error("a connection of a pod is translated, which could not be ended")
	}

	b.Gone([]netip.AddrPort{endpoints[0][0].Addr, endpoints[0][1].Addr})
	show(&state.Update{Revision: 2, Removed: []state.ServiceName{{Namespace: "default", Name: "web"}}})
	for _, c := range ended {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("a connection to an endpoint that is gone ended with %v", err)
		}
	}
	for _, c := range others {
		if err := alive(c); err != nil {
			t.Errorf("%v to %v: %v", c.LocalAddr(), c.RemoteAddr(), err)
		}
	}
	// A new connection is not taken for an old one as soon as the endpoint serves again.
	show(&state.Update{Revision: 3, Changed: []*state.Service{service("web", 80, 0)}})
	back := dial(l.Node(), netip.AddrPortFrom(frontends[0], 80))
	if err := ebpf.AwaitEnder(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := alive(back); err != nil {
		t.Errorf("a connection to an endpoint that serves again: %v", err)
	}
}

// TestSpoofedConnections: a process that has the address of another pod in a network namespace of its own, and connects from it to a Service whose
// endpoint leaves, ends no connection of that pod.
func TestSpoofedConnections(t *testing.T) {
	needHooks(t)
	l, err := topology.New(t.Context(), topology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var pods []*topology.Host
	for _, name := range []string{"server", "victim", "attacker"} {
		pod, err := l.AddPod(topology.PodOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod)
	}
	server, victim, attacker := pods[0], pods[1], pods[2]
	endpoint := netip.AddrPortFrom(server.Addrs[0], 8080)
	if err := server.Serve(state.TCP, endpoint, "server"); err != nil {
		t.Fatal(err)
	}
	var translated atomic.Uint64
	var pair *sockethooks.Pair
	err = l.Node().Do(func() (err error) {
		pair, err = sockethooks.NewPair(t.Context(), sockethooks.Of(l), nftables.Options{
			ResetRemoved: true, LocalDetector: state.LocalDetector{ClusterCIDRs: slices.Concat(l.Options().NodePodCIDRs, l.Options().OtherPodCIDRs)},
		}, &translated)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Close()
	frontend := netip.MustParseAddrPort("10.96.0.10:80")
	show := func(revision state.Revision, to state.Route) {
		t.Helper()
		u := &state.Update{Revision: revision, Full: true, Changed: []*state.Service{{
			Name: state.ServiceName{Namespace: "default", Name: "web"}, Ports: []state.Port{{
				Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: to, Outside: to},
				Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: frontend.Addr(), Port: frontend.Port()}},
			}},
		}}}
		u.Node = &state.Node{Name: "node", Addresses: l.Node().Addrs, LocalDetector: &state.LocalDetector{ClusterCIDRs: l.Options().NodePodCIDRs}}
		if _, err := pair.Apply(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	show(1, state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: endpoint, Local: true}}})

	from := netip.AddrPortFrom(victim.Addrs[0], 40_000)
	direct, err := victim.Dial(t.Context(), state.TCP, endpoint, from)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	if err := alive(direct); err != nil { // which reads the greeting
		t.Fatal(err)
	}
	hooked, err := l.Node().Dial(t.Context(), state.TCP, frontend, netip.AddrPort{}) // shows when connections have been ended
	if err != nil {
		t.Fatal(err)
	}
	defer hooked.Close()
	// What the attacker sends goes nowhere, so that the socket stays in the middle of connecting.
	err = attacker.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		own := &net.IPNet{IP: from.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}
		_, everything, _ := net.ParseCIDR("0.0.0.0/0")
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		for _, r := range routes {
			err = errors.Join(err, netlink.RouteDel(&r))
		}
		if err = errors.Join(err, netlink.AddrAdd(lo, &netlink.Addr{IPNet: own}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everything, Scope: netlink.SCOPE_LINK})); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.Addr().As4(), Port: int(from.Port())}); err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: frontend.Addr().As4(), Port: int(frontend.Port())}); err != unix.EINPROGRESS {
			return fmt.Errorf("connect: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	show(2, state.Route{Verdict: state.Reject})
	await.Until(t, "the node's connection to the endpoint is ended", func() bool {
		if _, err := pair.Verify(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := hooked.Write([]byte("x")) // the next packet after a reset
		return err != nil
	})
	_ = direct.SetDeadline(time.Now().Add(20 * time.Second))
	if err := alive(direct); err != nil {
		t.Errorf("the connection of the pod whose address it was: %v", err)
	}
}

// alive returns why a connection is no longer answered.
func alive(c net.Conn) error {
	_, err := c.Write([]byte("x\n"))
	if err == nil {
		_, err = bufio.NewReader(c).ReadString('\n')
	}
	return err
}

// reliable returns a base that does not fail.
func reliable() *backendtest.Backend {
	b := backendtest.New(1)
	b.SetFailureRate(0)
	return b
}

// TestManyConnectionsToARemovedEndpoint prints how long it takes from the removal of an endpoint until all connections to it have ended
// that went through a Service. The node's connections go through hooks, and a pod's through netfilter. Connections of clients that know
// the address of the endpoint go on.
func TestManyConnectionsToARemovedEndpoint(t *testing.T) {
	needHooks(t)
	many, others := 10_000, 100
	if testing.Short() {
		many = 500
	}
	l := netnstest.Lab(t, topology.Options{})
	server, err := l.AddPod(topology.PodOptions{Name: "server"})
	if err != nil {
		t.Fatal(err)
	}
	client, err := l.AddPod(topology.PodOptions{Name: "client"})
	if err != nil {
		t.Fatal(err)
	}
	// The connections wait to be accepted, so that the test does not need a file for their other ends.
	endpoint := netip.AddrPortFrom(server.Addrs[0], 8080)
	if err := server.SetSysctls(netns.Sysctl{Path: "net/core/somaxconn", Value: "20000"}); err != nil {
		t.Fatal(err)
	}
	err = server.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		return errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: int(endpoint.Port())}), unix.Listen(fd, 20_000))
	})
	if err != nil {
		t.Fatal(err)
	}
	var translated atomic.Uint64
	var pair *sockethooks.Pair
	counted := map[state.ServiceName]uint64{}
	err = l.Node().Do(func() (err error) {
		pair, err = sockethooks.NewPair(t.Context(), sockethooks.Of(l), nftables.Options{
			ResetRemoved:  true,
			OnResets:      func(s state.ServiceName, n uint64) { counted[s] += n },
			LocalDetector: state.LocalDetector{ClusterCIDRs: slices.Concat(l.Options().NodePodCIDRs, l.Options().OtherPodCIDRs)},
		}, &translated)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Close()
	frontend := netip.MustParseAddrPort("10.96.0.10:80")
	web := func(endpoints ...state.Endpoint) *state.Service {
		to := state.Route{Verdict: state.Reject}
		if len(endpoints) > 0 {
			to = state.Route{Verdict: state.Forward, Endpoints: endpoints}
		}
		return &state.Service{Name: state.ServiceName{Namespace: "default", Name: "web"}, Ports: []state.Port{{
			Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: to, Outside: to},
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: frontend.Addr(), Port: frontend.Port()}},
		}}}
	}
	show := func(u *state.Update) {
		t.Helper()
		u.Node = &state.Node{Name: "node", Addresses: l.Node().Addrs, LocalDetector: &state.LocalDetector{ClusterCIDRs: l.Options().NodePodCIDRs}}
		if _, err := pair.Apply(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	show(&state.Update{Revision: 1, Full: true, Changed: []*state.Service{web(state.Endpoint{Addr: endpoint, Local: true})}})

	dial := func(n int, to netip.AddrPort) (conns []net.Conn) {
		t.Helper()
		for i := range n {
			from := client
			if i%2 == 0 {
				from = l.Node()
			}
			c, err := from.Dial(t.Context(), state.TCP, to, netip.AddrPort{})
			if err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			t.Cleanup(func() { c.Close() })
			conns = append(conns, c)
		}
		return conns
	}
	conns, direct := dial(many, frontend), dial(others, endpoint)
	if n := pair.Status().Translated; n != uint64(many)/2 {
		t.Fatalf("%d connections went through hooks, want the %d of the node", n, many/2)
	}
	began := time.Now()
	show(&state.Update{Revision: 2, Changed: []*state.Service{web()}})
	applied := time.Since(began)
	wrong := 0
	var ended time.Duration // for the node's connections
	for _, node := range []bool{true, false} {
		for i, c := range conns {
			if node != (i%2 == 0) {
				continue
			}
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			var err error
			want := unix.ECONNABORTED
			if !node { // its next packet is answered
				want = unix.ECONNRESET
				_, err = c.Write([]byte("x"))
			}
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if !errors.Is(err, want) {
				if wrong++; wrong < 5 {
					t.Errorf("connection %d: %v, want %v", i, err, want)
				}
			}
		}
		if node {
			ended = time.Since(began)
		}
	}
	took := time.Since(began)
	for i, c := range direct {
		_ = c.SetDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d by the endpoint's own address: %v, want silence", i, err)
		}
	}
	if _, err := pair.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d connections ended; the update took %v, those of the node had ended after %v, and the packets of the others took %v each; %v resets counted",
		many-wrong, many, applied, ended, (took-ended)/time.Duration(many/2), counted)
	if counted[state.ServiceName{Namespace: "default", Name: "web"}] != uint64(many)/2 {
		t.Errorf("%v resets are counted", counted)
	}
}
