package ebpf_test

import (
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// counted is a node that counts, and what is expected to be counted there by hooks and by nftables below them.
type counted struct {
	*sockets
	hooks, base map[state.FrontendKey]backend.Counts
}

func newCounted(t *testing.T) *counted {
	c := &counted{sockets: newSockets(t)}
	c.clear()
	c.startWith(nftables.Options{Counters: true})
	return c
}

// clear expects that nothing was counted.
func (c *counted) clear() {
	c.hooks, c.base = map[state.FrontendKey]backend.Counts{}, map[state.FrontendKey]backend.Counts{}
}

// keys are the frontends of all services that the test has.
func (c *counted) keys() (keys []state.FrontendKey) {
	for _, s := range append([]*state.Service{web(c.server)}, c.services...) {
		for i := range s.Ports {
			for j := range s.Ports[i].Frontends {
				keys = append(keys, s.Ports[i].Key(&s.Ports[i].Frontends[j]))
			}
		}
	}
	return keys
}

// check compares what each layer has counted with what is expected of it, and the sum.
func (c *counted) check(t *testing.T, when string) {
	t.Helper()
	keys := c.keys()
	hooks, err := c.pair.HookCounts(keys)
	ok(t, err)
	base, err := c.pair.Base.Counts(keys)
	ok(t, err)
	all, err := c.pair.Counts(keys)
	ok(t, err)
	for i, key := range keys {
		sum := c.hooks[key]
		sum.Add(c.base[key])
		if hooks[i] != c.hooks[key] || base[i] != c.base[key] || all[i] != sum {
			t.Errorf("%s: %v: hooks have counted %+v, want %+v; nftables %+v, want %+v; both %+v", when, key, hooks[i], c.hooks[key], base[i], c.base[key], all[i])
		}
	}
}

func (c *counted) expect(in map[state.FrontendKey]backend.Counts, key state.FrontendKey, counts backend.Counts) {
	was := in[key]
	was.Add(counts)
	in[key] = was
}

// tcpKey is the frontend that an address and port lead to.
func tcpKey(to netip.AddrPort) state.FrontendKey {
	key := state.FrontendKey{Family: state.FamilyOf(to.Addr().Unmap()), Protocol: state.TCP, Addr: to.Addr().Unmap(), Port: to.Port()}
	if to.Port() == nodePort {
		key.Addr = netip.Addr{}
	}
	return key
}

// connect connects once, from an address if that is valid, and closes the socket.
func connect(h *topology.Host, from netip.Addr, to netip.AddrPort) error {
	return h.Do(func() error {
		family := unix.AF_INET
		if to.Addr().Is6() {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // no port waits
		if from.IsValid() {
			if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0))); err != nil {
				return err
			}
		}
		return unix.Connect(fd, sockaddr(to))
	})
}

// TestCounts: each new connection counts once, by the hooks or by nftables, and at the frontend that it was made to.
func TestCounts(t *testing.T) {
	c := newCounted(t)
	vip, vip6 := netip.AddrPortFrom(clusterIPs[0], webPort), netip.AddrPortFrom(clusterIPs[1], webPort)
	one := backend.Counts{Connections: 1}
	c.check(t, "at first")

	for _, h := range []*topology.Host{c.client, c.node} {
		for i, to := range []netip.AddrPort{
			vip, vip6, netip.AddrPortFrom(mapped(vip.Addr()), webPort),
			netip.AddrPortFrom(c.node.Addrs[0], nodePort), netip.AddrPortFrom(c.node.Addrs[1], nodePort),
		} {
			for range i + 1 {
				ok(t, connect(h, netip.Addr{}, to))
				c.expect(c.hooks, tcpKey(to), one)
			}
		}
	}
	for _, loopback := range []string{"127.0.0.1", "::1"} {
		to := netip.AddrPortFrom(netip.MustParseAddr(loopback), nodePort)
		ok(t, connect(c.node, netip.Addr{}, to))
		c.expect(c.hooks, tcpKey(to), one)
	}
	c.check(t, "through hooks")
	for range 3 { // nftables masquerades these
		ok(t, connect(c.node, c.node.Addrs[0], vip), connect(c.node, c.node.Addrs[1], vip6))
		c.expect(c.base, tcpKey(vip), one)
		c.expect(c.base, tcpKey(vip6), one)
	}
	for _, to := range []netip.AddrPort{vip, vip6} {
		if a := c.client.Probe(t.Context(), state.UDP, to, topology.ProbeOptions{}); a.Server != c.server.Name {
			t.Errorf("%v: %+v", to, a)
		}
		key := tcpKey(to)
		key.Protocol = state.UDP
		c.expect(c.base, key, one)
	}
	ok(t, connect(c.client, netip.Addr{}, netip.AddrPortFrom(c.server.Addrs[0], serverPort))) // to no frontend
	c.check(t, "past hooks")

	t.Run("several CPUs", func(t *testing.T) {
		const each = 200
		var cpus unix.CPUSet
		ok(t, unix.SchedGetaffinity(0, &cpus))
		var connecting sync.WaitGroup
		failed := make(chan error, 2*len(cpus)*64)
		many := 0
		for cpu := range len(cpus) * 64 {
			if !cpus.IsSet(cpu) {
				continue
			}
			for range 2 { // two that interrupt each other
				many += each
				connecting.Go(func() {
					runtime.LockOSThread() // and the thread ends with the goroutine
					var one unix.CPUSet
					one.Set(cpu)
					err := unix.SchedSetaffinity(0, &one)
					for range each {
						err = errors.Join(err, connect(c.client, netip.Addr{}, vip), connect(c.client, netip.Addr{}, vip6))
					}
					failed <- err
				})
			}
		}
		connecting.Wait()
		close(failed)
		for err := range failed {
			ok(t, err)
		}
		for _, to := range []netip.AddrPort{vip, vip6} {
			c.expect(c.hooks, tcpKey(to), backend.Counts{Connections: uint64(many)})
		}
		c.check(t, "on all CPUs")
	})
	t.Run("updates", func(t *testing.T) {
		c.services = []*state.Service{web(c.another)}
		c.apply()
		ok(t, connect(c.client, netip.Addr{}, vip))
		c.expect(c.hooks, tcpKey(vip), one)
		c.check(t, "with another endpoint")
		none := web(c.server)
		for i := range none.Ports {
			for _, route := range []*state.Route{&none.Ports[i].Internal.Inside, &none.Ports[i].Internal.Outside, &none.Ports[i].External.Inside, &none.Ports[i].External.Outside} {
				*route = state.Route{Verdict: state.Reject}
			}
		}
		c.services = []*state.Service{none}
		c.apply()
		for _, to := range []netip.AddrPort{vip, vip6} {
			if err := connect(c.client, netip.Addr{}, to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%v without endpoints: %v", to, err)
			}
			c.expect(c.base, tcpKey(to), backend.Counts{Connections: 1, Rejects: 1})
		}
		c.check(t, "without endpoints")
		c.services = []*state.Service{web(c.server)}
		c.apply()
		ok(t, connect(c.client, netip.Addr{}, vip))
		c.expect(c.hooks, tcpKey(vip), one)
		c.check(t, "with endpoints again")
		other := web(c.server)
		other.Name.Name = "other"
		c.services = []*state.Service{other}
		c.apply()
		ok(t, connect(c.client, netip.Addr{}, vip))
		c.expect(c.hooks, tcpKey(vip), one)
		c.check(t, "when the frontends have gone to another Service")
	})
	t.Run("service mesh", func(t *testing.T) {
		ok(t, c.client.Serve(state.TCP, netip.MustParseAddrPort("127.0.0.1:15001"), "proxy"))
		c.pair.Reconfigure(ebpf.Options{MeshPorts: []uint16{15001}, Counters: true})
		c.apply()
		ok(t, connect(c.client, netip.Addr{}, vip), connect(c.node, netip.Addr{}, vip))
		c.expect(c.base, tcpKey(vip), one)
		c.expect(c.hooks, tcpKey(vip), one)
		c.check(t, "with other options")
		c.pair.Reconfigure(ebpf.Options{Counters: true})
		c.apply()
	})
	t.Run("removed", func(t *testing.T) {
		had := c.services
		c.services = nil
		c.apply()
		c.clear()
		c.check(t, "without Services")
		c.services = had
		c.apply()
		c.check(t, "when it is there again")
		ok(t, connect(c.client, netip.Addr{}, vip6))
		c.expect(c.hooks, tcpKey(vip6), one)
		c.check(t, "when it is there again")
	})
	t.Run("off", func(t *testing.T) {
		c.pair.Reconfigure(ebpf.Options{})
		c.apply()
		c.translates(t, 1, func() { ok(t, connect(c.client, netip.Addr{}, vip)) })
		clear(c.hooks)
		c.check(t, "when hooks do not count")
		c.pair.Reconfigure(ebpf.Options{Counters: true})
		c.apply()
		c.check(t, "when hooks count again")
		ok(t, connect(c.client, netip.Addr{}, vip))
		c.expect(c.hooks, tcpKey(vip), one)
		c.check(t, "when hooks count again")
	})
}
