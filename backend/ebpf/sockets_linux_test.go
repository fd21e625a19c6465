package ebpf_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// sockets is a node with a pair, two servers and a client.
type sockets struct {
	t                             testing.TB
	lab                           *topology.Lab
	pair                          *sockethooks.Pair
	node, client, server, another *topology.Host
	services                      []*state.Service
}

const webPort, nodePort, serverPort = 80, 30080, 8080

// The cluster IPs of the service web, by family.
var clusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")}

func newSockets(t testing.TB) *sockets {
	t.Helper()
	needHooks(t)
	l := netnstest.Lab(t, topology.Options{})
	s := &sockets{t: t, lab: l, node: l.Node()}
	for name, to := range map[string]**topology.Host{"client": &s.client, "server": &s.server, "another": &s.another} {
		pod, err := l.AddPod(topology.PodOptions{Name: name})
		ok(t, err)
		*to = pod
		if name != "client" {
			ok(t, (*to).Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, serverPort), name), (*to).Serve(state.UDP, netip.AddrPortFrom(netip.Addr{}, serverPort), name))
		}
	}
	s.services = []*state.Service{web(s.server)}
	return s
}

func ok(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// web is a service with the servers of a pod behind a cluster IP and a NodePort of each family.
func web(server *topology.Host) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: "web"}}
	for _, p := range []state.Protocol{state.TCP, state.UDP} {
		for i, addr := range clusterIPs {
			to := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.AddrPortFrom(server.Addrs[i], serverPort), Local: true}}}
			port := state.Port{
				Protocol: p, Family: state.FamilyOf(addr),
				Internal:  state.Traffic{Inside: to, Outside: to, Masquerade: state.MasqueradeUnlessPod},
				Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: webPort}},
			}
			if p == state.TCP {
				port.Frontends = append(port.Frontends, state.Frontend{Kind: state.NodePort, Port: nodePort})
				port.External = state.Traffic{Inside: to, Outside: to, Masquerade: state.MasqueradeNode}
			}
			s.Ports = append(s.Ports, port)
		}
	}
	return s
}

// start makes the pair, with NodePorts on loopback addresses, too.
func (s *sockets) start() {
	s.t.Helper()
	s.startWith(nftables.Options{})
}

func (s *sockets) startWith(base nftables.Options) {
	s.t.Helper()
	var translated atomic.Uint64
	ok(s.t, s.node.Do(func() (err error) {
		s.pair, err = sockethooks.NewPair(s.t.Context(), sockethooks.Of(s.lab), base, &translated)
		return err
	}))
	s.t.Cleanup(func() {
		if err := s.pair.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			s.t.Error(err)
		}
	})
	s.apply()
}

func (s *sockets) update() *state.Update {
	o := s.lab.Options()
	return &state.Update{Full: true, Changed: s.services, Node: &state.Node{
		Name: "node", Addresses: s.node.Addrs, ServiceCIDRs: o.ServiceCIDRs,
		LocalDetector: &state.LocalDetector{ClusterCIDRs: slices.Concat(o.NodePodCIDRs, o.OtherPodCIDRs)},
		NodePorts:     &state.NodePortAddresses{CIDRs: append([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}, o.Underlay...)},
	}}
}

func (s *sockets) apply() {
	s.t.Helper()
	_, err := s.pair.Apply(s.t.Context(), s.update())
	ok(s.t, err)
	if now := s.pair.Status(); now.State != ebpf.On {
		s.t.Fatalf("hooks are %v: %v", now.State, now.Reason)
	}
}

// socket opens one of a host, which is closed with the test. It has no timeouts: with these, signals of Go's scheduler would end calls with EINTR.
func (s *sockets) socket(t *testing.T, h *topology.Host, family, kind, proto int) (fd int) {
	t.Helper()
	ok(t, h.Do(func() (err error) { fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto); return err }))
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func peer(t *testing.T, fd int) netip.AddrPort {
	t.Helper()
	sa, err := unix.Getpeername(fd)
	ok(t, err)
	return addrPort(sa)
}

// answer reads the line of a server: its name, and the client's address as it sees it.
func answer(t *testing.T, fd int) (server string, source netip.Addr) {
	t.Helper()
	b := make([]byte, 200)
	n, err := unix.Read(fd, b)
	ok(t, err)
	line, _, _ := strings.Cut(string(b[:n]), "\n")
	name, from, _ := strings.Cut(line, " ")
	a, err := netip.ParseAddrPort(from)
	ok(t, err)
	return name, a.Addr()
}

// translates checks how many connections hooks translate while something is done.
func (s *sockets) translates(t *testing.T, want uint64, do func()) {
	t.Helper()
	before := s.pair.Status().Translated
	do()
	if got := s.pair.Status().Translated - before; got != want {
		t.Errorf("hooks have translated %d connections, want %d", got, want)
	}
}

// connects connects a TCP socket of a host and checks who answers, and what is shown as the peer.
func (s *sockets) connects(t *testing.T, h *topology.Host, to netip.AddrPort, translated uint64) (source netip.Addr) {
	t.Helper()
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	s.translates(t, translated, func() {
		fd := s.socket(t, h, family, unix.SOCK_STREAM, 0)
		if err := unix.Connect(fd, sockaddr(to)); err != nil {
			t.Fatalf("%s to %v: %v", h.Name, to, err)
		}
		var name string
		if name, source = answer(t, fd); name != s.server.Name {
			t.Errorf("%s to %v: %s answers", h.Name, to, name)
		}
		if got := peer(t, fd); got != to {
			t.Errorf("%s to %v: the peer is %v", h.Name, to, got)
		}
	})
	return source
}

func mapped(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }

// TestSockets connects in all the ways there are.
func TestSockets(t *testing.T) {
	s := newSockets(t)
	s.start()
	vip, vip6 := netip.AddrPortFrom(clusterIPs[0], webPort), netip.AddrPortFrom(clusterIPs[1], webPort)
	loopback := netip.MustParseAddr("127.0.0.1")

	t.Run("the peer is the frontend", func(t *testing.T) {
		for _, h := range []*topology.Host{s.client, s.node} {
			for _, to := range []netip.AddrPort{
				vip, vip6, netip.AddrPortFrom(mapped(vip.Addr()), webPort),
				netip.AddrPortFrom(s.node.Addrs[0], nodePort), netip.AddrPortFrom(s.node.Addrs[1], nodePort),
			} {
				source := s.connects(t, h, to, 1)
				if h == s.client && !slices.Contains(h.Addrs, source) {
					t.Errorf("the server sees a pod that connects to %v as %v", to, source)
				}
			}
		}
	})
	t.Run("connecting again elsewhere", func(t *testing.T) {
		for i, to := range []netip.AddrPort{vip, vip6} {
			family := []int{unix.AF_INET, unix.AF_INET6}[i]
			fd := s.socket(t, s.client, family, unix.SOCK_STREAM, 0)
			for _, next := range []netip.AddrPort{
				to, netip.AddrPortFrom(s.another.Addrs[i], serverPort), to, netip.AddrPortFrom(s.server.Addrs[i], serverPort), to,
			} {
				ok(t, unix.Connect(fd, sockaddr(next)))
				answer(t, fd)
				if got := peer(t, fd); got != next {
					t.Errorf("connected to %v, the peer is %v", next, got)
				}
				ok(t, disconnect(fd))
			}
		}
	})
	t.Run("UDP", func(t *testing.T) {
		for _, to := range []netip.AddrPort{vip, vip6} {
			s.translates(t, 0, func() {
				if a := s.client.Probe(t.Context(), state.UDP, to, topology.ProbeOptions{Timeout: time.Minute}); a.Server != s.server.Name {
					t.Errorf("%v: %+v", to, a)
				}
			})
		}
	})
	t.Run("bound sockets", func(t *testing.T) {
		for _, c := range []struct {
			host       *topology.Host
			from       netip.Addr
			to         netip.AddrPort
			translated uint64
		}{
			{s.client, s.client.Addrs[0], vip, 1},
			{s.client, s.client.Addrs[1], vip6, 1},
			{s.client, netip.IPv4Unspecified(), vip, 1},
			// Netfilter masquerades these.
			{s.node, s.node.Addrs[0], vip, 0},
			{s.node, s.node.Addrs[1], vip6, 0},
			{s.node, mapped(s.node.Addrs[0]), netip.AddrPortFrom(mapped(vip.Addr()), webPort), 0},
			{s.node, loopback, netip.AddrPortFrom(loopback, nodePort), 0},
			{s.node, netip.IPv4Unspecified(), vip, 1},
			{s.node, netip.IPv6Unspecified(), vip6, 1},
		} {
			family := unix.AF_INET
			if c.from.Is6() {
				family = unix.AF_INET6
			}
			s.translates(t, c.translated, func() {
				fd := s.socket(t, c.host, family, unix.SOCK_STREAM, 0)
				ok(t, unix.Bind(fd, sockaddr(netip.AddrPortFrom(c.from, 0))))
				if err := unix.Connect(fd, sockaddr(c.to)); err != nil {
					t.Errorf("%s from %v to %v: %v", c.host.Name, c.from, c.to, err)
					return
				}
				if _, source := answer(t, fd); c.host == s.client && !slices.Contains(c.host.Addrs, source) {
					t.Errorf("the server sees %v, bound to %v", source, c.from)
				}
				if got := peer(t, fd); got != c.to {
					t.Errorf("%s from %v to %v: the peer is %v", c.host.Name, c.from, c.to, got)
				}
			})
		}
	})
	t.Run("non-blocking", func(t *testing.T) {
		s.translates(t, 1, func() {
			fd := s.socket(t, s.client, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
			if err := unix.Connect(fd, sockaddr(vip)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
				t.Fatal(err)
			}
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			_, err := unix.Poll(poll, 60_000)
			ok(t, err)
			if err := unix.Connect(fd, sockaddr(vip)); err != nil && !errors.Is(err, unix.EISCONN) {
				t.Errorf("connecting again: %v", err)
			}
			if got := peer(t, fd); got != vip {
				t.Errorf("the peer is %v", got)
			}
		})
	})
	t.Run("TCP fast open", func(t *testing.T) {
		ok(t, s.client.SetSysctls(netns.Sysctl{Path: "net/ipv4/tcp_fastopen", Value: "1"}))
		s.translates(t, 1, func() {
			fd := s.socket(t, s.client, unix.AF_INET, unix.SOCK_STREAM, 0)
			ok(t, unix.Sendto(fd, []byte("x\n"), unix.MSG_FASTOPEN, sockaddr(vip)))
			if name, _ := answer(t, fd); name != s.server.Name || peer(t, fd) != vip {
				t.Errorf("%s answers, the peer is %v", name, peer(t, fd))
			}
		})
	})
	t.Run("MPTCP", func(t *testing.T) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
		if err != nil {
			t.Skip(err)
		}
		unix.Close(fd)
		s.translates(t, 1, func() {
			fd := s.socket(t, s.client, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
			ok(t, unix.Connect(fd, sockaddr(vip)))
			if name, _ := answer(t, fd); name != s.server.Name {
				t.Errorf("%s answers", name)
			}
		})
	})
	t.Run("this host", func(t *testing.T) {
		// Address 0 is the client's own namespace, where nothing listens.
		for _, to := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified(), mapped(netip.IPv4Unspecified()), loopback, netip.IPv6Loopback(), mapped(loopback)} {
			s.translates(t, 0, func() {
				family := unix.AF_INET
				if to.Is6() {
					family = unix.AF_INET6
				}
				fd := s.socket(t, s.client, family, unix.SOCK_STREAM, 0)
				if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, nodePort))); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("a pod's own %v: %v", to, err)
				}
			})
		}
		s.translates(t, 0, func() {
			for i, to := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
				fd := s.socket(t, s.node, []int{unix.AF_INET, unix.AF_INET6}[i], unix.SOCK_STREAM, 0)
				_ = unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, nodePort)))
			}
		})
		for _, localnet := range []string{"1", "0"} {
			ok(t, s.node.SetSysctls(netns.Sysctl{Path: "net/ipv4/conf/all/route_localnet", Value: localnet}))
			for _, to := range []netip.Addr{loopback, netip.IPv6Loopback(), mapped(loopback)} {
				s.connects(t, s.node, netip.AddrPortFrom(to, nodePort), 1)
			}
		}
	})
	t.Run("service mesh", func(t *testing.T) {
		meshed, err := s.lab.AddPod(topology.PodOptions{Name: "meshed"})
		ok(t, err)
		ok(t, meshed.Serve(state.TCP, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 15001), "proxy"))
		s.pair.Reconfigure(ebpf.Options{MeshPorts: []uint16{4140, 15001}})
		s.apply()
		before := s.pair.Status().Mesh
		for _, to := range []netip.AddrPort{vip, vip6} {
			s.connects(t, meshed, to, 0)
			s.connects(t, s.client, to, 1)
			s.connects(t, s.node, to, 1)
		}
		if n := s.pair.Status().Mesh - before; n != 2 {
			t.Errorf("%d connections were left to the mesh, want 2", n)
		}
	})
	t.Run("node only", func(t *testing.T) {
		s.pair.Reconfigure(ebpf.Options{NodeOnly: true})
		s.apply()
		for _, to := range []netip.AddrPort{vip, vip6} {
			s.connects(t, s.client, to, 0)
			s.connects(t, s.node, to, 1)
		}
		s.pair.Reconfigure(ebpf.Options{})
		s.apply()
		s.connects(t, s.client, vip, 1)
	})
	t.Run("close", func(t *testing.T) {
		fd := s.socket(t, s.client, unix.AF_INET, unix.SOCK_STREAM, 0)
		ok(t, unix.Connect(fd, sockaddr(vip)))
		answer(t, fd)
		ok(t, s.pair.Backend.Close())
		for _, h := range []*topology.Host{s.client, s.node} {
			s.connects(t, h, vip, 0) // by netfilter
		}
		_, err := unix.Write(fd, []byte("still\n"))
		ok(t, err)
		if name, _ := answer(t, fd); name != s.server.Name {
			t.Errorf("%s answers a connection from before", name)
		}
	})
}

// disconnect makes a socket one that can connect again.
func disconnect(fd int) error {
	var unspecified unix.RawSockaddr // family AF_UNSPEC
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspecified)), unix.SizeofSockaddrInet4); errno != 0 {
		return errno
	}
	return nil
}

// TestFirstNamespace: on a machine that is one node, hooks need no path, and are in the root of all cgroups.
func TestFirstNamespace(t *testing.T) {
	needHooks(t)
	if cookie, err := ebpf.NamespaceCookie(); err != nil || cookie != 1 {
		t.Skipf("this is not the kernel's first network namespace: %d, %v", cookie, err)
	}
	b, err := ebpf.New(reliable(), ebpf.Options{})
	ok(t, err)
	defer b.Close()
	if s := b.Status(); s.State != ebpf.On {
		t.Errorf("hooks are %v: %v", s.State, s.Reason)
	}
}

// inProcess is what a process of its own with hooks is given: the path of the namespaces, and an update.
const inProcess = "SWITCHYARD_TEST_HOOKS"

// TestKilledHooks kills a process with hooks 20 times, with connections being made. None is lost: netfilter has the rest.
func TestKilledHooks(t *testing.T) {
	if input := os.Getenv(inProcess); input != "" {
		ok(t, runHooks(input))
		return
	}
	s := newSockets(t)
	namespaces, err := sockethooks.Namespaces(sockethooks.Of(s.lab))
	ok(t, err)
	defer namespaces.Close()
	path, unpin, err := sockethooks.Pin(namespaces, t.TempDir())
	ok(t, err)
	defer unpin()
	var base *nftables.Backend
	ok(t, s.node.Do(func() (err error) { base, err = nftables.New(t.Context(), nftables.Options{}); return err }))
	defer base.Close()
	_, err = base.Apply(t.Context(), s.update())
	ok(t, err)
	input, err := json.Marshal(processInput{path, s.update()})
	ok(t, err)

	stop := make(chan struct{})
	lost, made := make(chan error, 1000), atomic.Int64{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			from, to := s.client, clusterIPs[i/2%2]
			if i%2 == 0 {
				from = s.node
			}
			if a := from.Probe(t.Context(), state.TCP, netip.AddrPortFrom(to, webPort), topology.ProbeOptions{Timeout: time.Minute}); a.Outcome != topology.Answered {
				select {
				case lost <- fmt.Errorf("%s to %v: %v, %w", from.Name, to, a.Outcome, a.Err):
				default:
				}
			}
			made.Add(1)
		}
	}()
	for range 20 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledHooks$")
		cmd.Env = append(os.Environ(), inProcess+"="+string(input))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		ok(t, err)
		ok(t, s.node.Do(cmd.Start))
		// It says so when it has translated some.
		line := make([]byte, len("translated\n"))
		if _, err := io.ReadFull(out, line); err != nil {
			t.Errorf("the process with hooks ended: %v\n%s%s", err, line, stderr.String())
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	close(stop)
	<-done
	close(lost)
	for err := range lost {
		t.Error(err)
	}
	t.Logf("%d connections", made.Load())
}

type processInput struct {
	Namespaces string
	Update     *state.Update
}

// runHooks attaches hooks, says when they have translated some connections, and goes on until it is killed.
func runHooks(input string) error {
	runtime.LockOSThread()
	var in processInput
	if err := json.Unmarshal([]byte(input), &in); err != nil {
		return err
	}
	namespaces, err := ebpf.OpenNamespaces(in.Namespaces)
	if err != nil {
		return err
	}
	b, err := ebpf.New(reliable(), ebpf.Options{Namespaces: namespaces})
	if err != nil {
		return err
	}
	defer b.Close()
	if s := b.Status(); s.State != ebpf.On {
		return s.Reason
	}
	if _, err := b.Apply(context.Background(), in.Update); err != nil {
		return err
	}
	for b.Status().Translated < 5 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("translated")
	select {}
}
