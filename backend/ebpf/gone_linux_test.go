package ebpf_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/backendtest"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// TestConnectionsToEndpointsThatAreGone finds the connections of pods and of the node that hooks have translated to endpoints which are
// gone, and no others.
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

	var found []backend.Flow
	var b *ebpf.Backend
	err = l.Node().Do(func() (err error) {
		b, err = ebpf.New(reliable(), ebpf.Options{
			Namespaces: namespaces, LocalDetector: state.LocalDetector{ClusterCIDRs: slices.Concat(l.Options().NodePodCIDRs, l.Options().OtherPodCIDRs)},
			ResetFlows: func(flows []backend.Flow) error { found = append(found, flows...); return nil },
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

	dial := func(h *topology.Host, to netip.AddrPort) netip.AddrPort {
		t.Helper()
		c, err := h.Dial(t.Context(), state.TCP, to, netip.AddrPort{})
		if err != nil {
			t.Fatalf("%s to %v: %v", h.Name, to, err)
		}
		t.Cleanup(func() { c.Close() })
		local := c.(*net.TCPConn).LocalAddr().(*net.TCPAddr).AddrPort()
		return netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	}
	var want []backend.Flow
	for i, addr := range frontends {
		for _, h := range []*topology.Host{client, l.Node()} {
			want = append(want, backend.Flow{Client: dial(h, netip.AddrPortFrom(addr, 80)), Endpoint: endpoints[0][i].Addr})
			dial(h, netip.AddrPortFrom(addr, 81)) // of another endpoint
			dial(h, endpoints[0][i].Addr)         // by its own address
		}
	}

	b.Gone([]netip.AddrPort{endpoints[0][0].Addr, endpoints[0][1].Addr})
	show(&state.Update{Revision: 2, Removed: []state.ServiceName{{Namespace: "default", Name: "web"}}})
	for deadline := time.After(time.Minute); len(found) < len(want); {
		select {
		case <-b.Disturbed():
		case <-deadline:
			t.Fatalf("found %v, want %v", found, want)
		}
		if _, err := b.Verify(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	order := func(a, b backend.Flow) int { return a.Client.Compare(b.Client) }
	slices.SortFunc(found, order)
	slices.SortFunc(want, order)
	if !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}

// reliable returns a base that does not fail.
func reliable() *backendtest.Backend {
	b := backendtest.New(1)
	b.SetFailureRate(0)
	return b
}

// TestManyConnectionsToARemovedEndpoint prints how long it takes from the removal of an endpoint until all connections are reset that hooks
// have translated to it. Those of clients that know its address go on.
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
	if n := pair.Status().Translated; n != uint64(many) {
		t.Fatalf("%d connections went through hooks, want %d", n, many)
	}
	began := time.Now()
	show(&state.Update{Revision: 2, Changed: []*state.Service{web()}})
	applied := time.Since(began)
	select {
	case <-pair.Disturbed():
	case <-time.After(time.Minute):
		t.Fatal("no connection was found")
	}
	found := time.Since(began)
	if _, err := pair.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	verified := time.Since(began)
	wrong := 0
	for i, c := range conns {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, unix.ECONNRESET) {
			if wrong++; wrong < 5 {
				t.Errorf("connection %d: %v, want a reset", i, err)
			}
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
	t.Logf("%d of %d connections were reset by their next packet; the update took %v, they were found after %v, known to netfilter after %v, and their packets took %v each; %v resets counted",
		many-wrong, many, applied, found, verified, (took-verified)/time.Duration(many), counted)
	if counted[state.ServiceName{Namespace: "default", Name: "web"}] != uint64(many) {
		t.Errorf("%v resets are counted", counted)
	}
}
