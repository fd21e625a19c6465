//go:build linux

package ipvs_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/backend/nftables"
	kernel "github.com/switchyard-net/switchyard/internal/kernel/ipvs"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// host is a network namespace with IPVS above nftables.
type host struct {
	*pair
	t        *testing.T
	ns       *netns.NS
	revision state.Revision
	// looked gets a value when the base has looked for stale flows of IPv4.
	looked chan struct{}
}

func (h *host) onFlowsCut(f state.Family, _ time.Duration, _ int) {
	if f == state.IPv4 {
		select {
		case h.looked <- struct{}{}:
		default:
		}
	}
}

func newHost(t *testing.T, o ipvs.Options) *host {
	t.Helper()
	needIPVS(t)
	ns := netnstest.New(t)
	h := &host{t: t, ns: ns, looked: make(chan struct{}, 1)}
	h.open(o)
	t.Cleanup(func() { h.must(h.Close()) })
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) open(o ipvs.Options) {
	h.t.Helper()
	h.must(h.ns.Do(func() (err error) {
		h.pair, err = newPair(h.t.Context(), nftables.Options{OnFlowsCut: h.onFlowsCut, Counters: true}, o)
		return err
	}))
}

func (h *host) restart(o ipvs.Options) {
	h.t.Helper()
	h.must(h.Close())
	h.open(o)
}

// do calls fn inside the namespace.
func (h *host) do(fn func() error) {
	h.t.Helper()
	h.must(h.ns.Do(fn))
}

func (h *host) full(services ...*state.Service) backend.Result {
	h.t.Helper()
	h.revision++
	r, err := h.Apply(h.t.Context(), &state.Update{Revision: h.revision, Full: true, Node: &state.Node{Name: "node"}, Changed: services})
	h.must(err)
	for name, err := range r.Failed {
		h.t.Errorf("service %v: %v", name, err)
	}
	return r
}

// service makes a Service with one port at a cluster IP.
func service(name string, protocol state.Protocol, frontend string, endpoints ...string) *state.Service {
	f := netip.MustParseAddrPort(frontend)
	r := state.Route{Verdict: state.Forward}
	for _, e := range endpoints {
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.MustParseAddrPort(e)})
	}
	return &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}, Ports: []state.Port{{
		Protocol: protocol, Family: state.FamilyOf(f.Addr()), Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: f.Addr(), Port: f.Port()}},
		Internal: state.Traffic{Inside: r, Outside: r, Masquerade: state.MasqueradeUnlessPod},
	}}}
}

func three() []*state.Service {
	return []*state.Service{
		service("dns", state.UDP, "10.96.0.11:53", "10.244.0.1:53"),
		service("six", state.SCTP, "[fd00:96::10]:80", "[fd00:244::1]:8080"),
		service("web", state.TCP, "10.96.0.10:80", "10.244.0.1:8080", "10.244.0.2:8080"),
	}
}

// shown is what the kernel holds: servers with their endpoints, and the addresses of the device.
func (h *host) shown() string {
	h.t.Helper()
	var lines []string
	h.do(func() error {
		c, err := kernel.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		servers, err := c.Servers()
		for i := range servers {
			dests, destErr := c.Dests(&servers[i])
			err = errors.Join(err, destErr)
			slices.SortFunc(dests, func(a, b kernel.Dest) int { return a.Addr.Compare(b.Addr) })
			var line strings.Builder
			line.WriteString(fmt.Sprint(&servers[i], " ", servers[i].Scheduler))
			for _, d := range dests {
				line.WriteString(fmt.Sprintf(" %v=%d", d.Addr, d.Weight))
			}
			lines = append(lines, line.String())
		}
		if link, linkErr := netlink.LinkByName("switchyard-ipvs"); linkErr == nil {
			addrs, addrErr := netlink.AddrList(link, netlink.FAMILY_ALL)
			err = errors.Join(err, addrErr)
			for _, a := range addrs {
				if !a.IP.IsLinkLocalUnicast() {
					lines = append(lines, "address "+a.IP.String())
				}
			}
		}
		return err
	})
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

const threeShown = `SCTP [fd00:96::10]:80 rr [fd00:244::1]:8080=1
TCP 10.96.0.10:80 rr 10.244.0.1:8080=1 10.244.0.2:8080=1
UDP 10.96.0.11:53 rr 10.244.0.1:53=1
address 10.96.0.10
address 10.96.0.11
address fd00:96::10`

func (h *host) wantShown(want string) {
	h.t.Helper()
	if got := h.shown(); got != want {
		h.t.Errorf("the kernel holds\n%s\nwant\n%s", got, want)
	}
}

// settings are sysctls and timeouts.
func (h *host) settings() (s string) {
	h.t.Helper()
	h.do(func() error {
		for _, name := range []string{"ipv4/vs/conntrack", "ipv4/vs/expire_nodest_conn", "ipv4/conf/all/arp_ignore", "ipv4/conf/all/arp_announce"} {
			b, err := os.ReadFile("/proc/sys/net/" + name)
			if err != nil {
				return err
			}
			s += strings.TrimSpace(string(b))
		}
		c, err := kernel.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		t, err := c.Timeouts()
		s += fmt.Sprint(" ", t)
		return err
	})
	return s
}

// TestRealKernel is the life of a node in a kernel that has IPVS.
func TestRealKernel(t *testing.T) {
	o := ipvs.Options{StrictARP: true, UDPTimeout: 42 * time.Second}
	h := newHost(t, o)
	before := h.settings()
	h.full(three()...)
	h.wantShown(threeShown)
	if got, want := h.settings(), "1112 {15m0s 2m0s 42s}"; got != want {
		t.Errorf("settings %s, want %s", got, want)
	}

	// A restart finds everything.
	h.restart(o)
	if r := h.full(three()...); r.Written > 0 {
		t.Errorf("a restart has written %d objects", r.Written)
	}

	// What others change is repaired.
	for name, drift := range map[string]func() error{
		"device": func() error {
			link, err := netlink.LinkByName("switchyard-ipvs")
			return errors.Join(err, netlink.LinkDel(link))
		},
		"servers": func() error {
			c, err := kernel.Dial()
			if err != nil {
				return err
			}
			defer c.Close()
			servers, err := c.Servers()
			for i := range servers {
				err = errors.Join(err, c.DeleteServer(&servers[i]))
			}
			return err
		},
		"sysctl": func() error { return os.WriteFile("/proc/sys/net/ipv4/vs/conntrack", []byte("0"), 0) },
		"tables": func() error {
			conn, err := nft.Dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			var b nft.Batch
			b.DeleteTable(nft.Table{Family: nft.IPv4, Name: "switchyard-ipvs"})
			return conn.Commit(&b)
		},
	} {
		h.do(drift)
		r, err := h.Verify(t.Context())
		if err != nil || r.Repaired == 0 {
			t.Errorf("%s: Verify has repaired %d, %v", name, r.Repaired, err)
		}
		h.wantShown(threeShown)
		if r, err := h.Verify(t.Context()); err != nil || r.Written > 0 {
			t.Errorf("%s: the second Verify has written %d, %v", name, r.Written, err)
		}
	}
	await.Receive(t, "disturbed by the loss of the device", h.Disturbed())

	// Another program's server, at its own address, stays whatever happens.
	theirs := kernel.Server{Protocol: 6, Addr: netip.MustParseAddrPort("192.0.2.1:80"), Scheduler: "rr"}
	h.do(func() error {
		c, err := kernel.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		return c.AddServer(&theirs)
	})
	o.Scheduler = "wlc"
	h.must(h.Reconfigure(o))
	h.full(three()[2])
	h.wantShown(`SCTP [fd00:96::10]:80 rr [fd00:244::1]:8080=0
TCP 10.96.0.10:80 wlc 10.244.0.1:8080=1 10.244.0.2:8080=1
TCP 192.0.2.1:80 rr
address 10.96.0.10
address fd00:96::10`) // one drains
	if err := h.Reconfigure(ipvs.Options{Scheduler: "nosuch"}); err == nil || !strings.Contains(err.Error(), "ip_vs_nosuch") {
		t.Errorf("scheduler nosuch: %v", err)
	}

	// Cleanup leaves nothing but that.
	h.must(h.Close())
	h.do(func() error {
		if there, err := ipvs.Programmed(); err != nil || !there {
			t.Errorf("programmed: %v, %v", there, err)
		}
		removed, err := ipvs.Cleanup(t.Context())
		if !removed {
			t.Error("Cleanup has found nothing")
		}
		if there, programmedErr := ipvs.Programmed(); programmedErr != nil || there {
			t.Errorf("programmed after Cleanup: %v, %v", there, programmedErr)
		}
		return err
	})
	h.wantShown("TCP 192.0.2.1:80 rr")
	if got := h.settings(); got != before {
		t.Errorf("settings %s after Cleanup, want %s", got, before)
	}
	h.open(ipvs.Options{})
}

// TestRemovedEndpoint: a connection goes on when its endpoint has left, and with ResetRemoved it ends with a reset.
func TestRemovedEndpoint(t *testing.T) {
	for _, reset := range []bool{false, true} {
		h := newHost(t, ipvs.Options{ResetRemoved: reset})
		var listener net.Listener
		h.local(net.IPv4(10, 0, 0, 1))
		h.do(func() (err error) { listener, err = net.Listen("tcp4", "10.0.0.1:8080"); return err })
		defer listener.Close()
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c) }()
			}
		}()
		h.full(service("web", state.TCP, "10.96.0.10:80", "10.0.0.1:8080"))
		var conn net.Conn
		h.do(func() (err error) { conn, err = net.Dial("tcp4", "10.96.0.10:80"); return err })
		defer conn.Close()
		h.must(conn.SetDeadline(time.Now().Add(time.Minute)))
		talk := func() error {
			if _, err := conn.Write([]byte("x")); err != nil {
				return err
			}
			_, err := io.ReadFull(conn, make([]byte, 1))
			return err
		}
		h.must(talk())
		h.full(service("web", state.TCP, "10.96.0.10:80", "10.0.0.2:8080"))
		if err := talk(); reset != errors.Is(err, syscall.ECONNRESET) || !reset && err != nil {
			t.Errorf("with resets %v: %v", reset, err)
		}
	}
}

// TestEndpointLeadsBack: connections to a service whose endpoint is its own cluster IP end, and the kernel handles a bounded number of packets for them.
func TestEndpointLeadsBack(t *testing.T) {
	h := newHost(t, ipvs.Options{})
	h.local()
	h.full(service("tcp", state.TCP, "10.96.0.10:80", "10.96.0.10:80"), service("udp", state.UDP, "10.96.0.10:53", "10.96.0.10:53"))
	packets := func() (n uint64) {
		h.do(func() error {
			text, err := os.ReadFile("/proc/thread-self/net/ip_vs_stats")
			if err != nil {
				return err
			}
			lines := strings.Split(string(text), "\n") // two of headings, then connections, incoming and outgoing packets and bytes
			n, err = strconv.ParseUint(strings.Fields(lines[2])[1], 16, 64)
			return err
		})
		return n
	}
	h.do(func() error {
		conn, err := net.Dial("udp4", "10.96.0.10:53")
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("x")); err != nil && !errors.Is(err, syscall.EPERM) { // dropped on its second way out
			return err
		}
		if conn, err := net.DialTimeout("tcp4", "10.96.0.10:80", 3*time.Second); err == nil {
			conn.Close()
			t.Error("a connection without a server was accepted")
		} else {
			t.Log(err)
		}
		return nil
	})
	if n := packets(); n == 0 || n > 100 {
		t.Errorf("%d packets for one datagram and one connection", n)
	} else {
		t.Logf("%d packets", n)
	}
}

// local gives the host addresses.
func (h *host) local(addrs ...net.IP) {
	h.t.Helper()
	h.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		errs := []error{netlink.LinkSetUp(lo)}
		for _, a := range addrs {
			errs = append(errs, netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: a, Mask: net.CIDRMask(32, 32)}}))
		}
		return errors.Join(errs...)
	})
}

// TestFlowsOfRetired: a flow of datagrams whose endpoint has left is ended by IPVS, not by the dataplane that takes new ones. Otherwise the kernel would
// end the one that has begun in its place, when the real server goes.
func TestFlowsOfRetired(t *testing.T) {
	h := newHost(t, ipvs.Options{})
	h.local(net.IPv4(10, 0, 0, 1), net.IPv4(10, 0, 0, 2), net.IPv4(10, 0, 0, 3))
	h.do(func() error { // the address of the Service goes with the virtual server
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)}})
	})
	for _, addr := range []string{"10.0.0.1:53", "10.0.0.2:53"} {
		var server net.PacketConn
		h.do(func() (err error) { server, err = net.ListenPacket("udp4", addr); return err })
		defer server.Close()
		go func() {
			for {
				_, from, err := server.ReadFrom(make([]byte, 1))
				if err != nil {
					return
				}
				_, _ = server.WriteTo([]byte(addr), from)
			}
		}()
	}
	before, after := service("dns", state.UDP, "10.96.0.11:53", "10.0.0.1:53"), service("dns", state.UDP, "10.96.0.11:53", "10.0.0.2:53")
	h.full(before)
	var client net.Conn
	h.do(func() (err error) {
		client, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(10, 0, 0, 3)}}).Dial("udp4", "10.96.0.11:53")
		return err
	})
	defer client.Close()
	h.must(client.SetDeadline(time.Now().Add(time.Minute)))
	ask := func() string {
		b := make([]byte, 32)
		_, err := client.Write([]byte("x"))
		h.must(err)
		n, err := client.Read(b)
		h.must(err)
		return string(b[:n])
	}
	if got := ask(); got != "10.0.0.1:53" {
		t.Fatalf("answered by %s before anything has changed", got)
	}
	if table := h.tracked(); len(table) != 1 || !table[0].Scheduled {
		t.Errorf("the kernel tracks %+v, want a flow that IPVS has scheduled", table)
	}

	h.Retire()
	u := &state.Update{Revision: h.revision + 1, Full: true, Node: &state.Node{Name: "node"}, Changed: []*state.Service{after}}
	_, err := h.base.Apply(t.Context(), u)
	h.must(err)
	await.Receive(t, "the base has looked for stale flows", h.looked)
	if got := ask(); got != "10.0.0.1:53" {
		t.Errorf("answered by %s while IPVS has the previous endpoint", got)
	}
	_, err = h.Apply(t.Context(), u)
	h.must(err)
	await.Until(t, "the kernel tracks nothing", func() bool { return len(h.tracked()) == 0 }, func() any { return h.tracked() })
	if got := ask(); got != "10.0.0.2:53" {
		t.Errorf("answered by %s after the previous endpoint has left IPVS", got)
	}
	if table := h.tracked(); len(table) != 1 || table[0].Scheduled {
		t.Errorf("the kernel tracks %+v, want a flow that a rule has translated", table)
	}
}

// tracked lists the tracked flows of UDP over IPv4.
func (h *host) tracked() (all []conntrack.Flow) {
	h.t.Helper()
	h.do(func() error {
		c, err := conntrack.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Flows(conntrack.Filter{Family: state.IPv4, Protocol: state.UDP}, func(flows []conntrack.Flow) error {
			all = append(all, flows...)
			return nil
		})
	})
	return all
}

// TestAddDests: of many at once, the kernel takes those that are not there.
func TestAddDests(t *testing.T) {
	h := newHost(t, ipvs.Options{})
	server := kernel.Server{Protocol: 17, Addr: netip.MustParseAddrPort("[2001:db8::1]:53"), Scheduler: "rr"}
	list := make([]kernel.Dest, 100)
	for i := range list {
		list[i] = kernel.Dest{Addr: netip.AddrPortFrom(netip.MustParseAddr("2001:db8::2"), uint16(1000+i)), Weight: uint32(i)}
	}
	there := []int{0, 31, 32, 70, 99}
	h.do(func() error {
		c, err := kernel.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		if refused := c.AddDests(&server, list[:2]); len(refused) != 2 || !errors.Is(refused[0], syscall.ESRCH) {
			t.Errorf("without a server: %v", refused)
		}
		if err := c.AddServer(&server); err != nil {
			return err
		}
		for _, i := range there {
			if refused := c.AddDests(&server, list[i:i+1]); len(refused) > 0 {
				t.Error(refused)
			}
		}
		refused := c.AddDests(&server, list)
		if got := slices.Sorted(maps.Keys(refused)); !slices.Equal(got, there) || !errors.Is(refused[70], syscall.EEXIST) {
			t.Errorf("refused are %v, want those that are there: %v", refused, there)
		}
		got, err := c.Dests(&server)
		slices.SortFunc(got, func(a, b kernel.Dest) int { return a.Addr.Compare(b.Addr) })
		if !slices.Equal(got, list) {
			t.Errorf("the kernel holds %v", got)
		}
		return err
	})
}

// TestRealCounts: connections that IPVS serves count once each, by TCP and UDP, and so do those that nftables serves or rejects while it has the
// frontend.
func TestRealCounts(t *testing.T) {
	h := newHost(t, ipvs.Options{})
	h.local(net.IPv4(10, 0, 0, 1))
	var listener net.Listener
	h.do(func() (err error) { listener, err = net.Listen("tcp4", "10.0.0.1:8080"); return err })
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	var echo net.PacketConn
	h.do(func() (err error) { echo, err = net.ListenPacket("udp4", "10.0.0.1:53"); return err })
	defer echo.Close()
	go func() {
		for b := make([]byte, 16); ; {
			n, from, err := echo.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(b[:n], from)
		}
	}()
	want := map[state.FrontendKey]backend.Counts{}
	tcp := state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}
	udp := state.FrontendKey{Family: state.IPv4, Protocol: state.UDP, Addr: netip.MustParseAddr("10.96.0.11"), Port: 53}
	connect := func(key state.FrontendKey, times int) {
		t.Helper()
		for range times {
			var conn net.Conn
			h.do(func() (err error) {
				conn, err = net.Dial(map[state.Protocol]string{state.TCP: "tcp4", state.UDP: "udp4"}[key.Protocol], netip.AddrPortFrom(key.Addr, key.Port).String())
				return err
			})
			h.must(conn.SetDeadline(time.Now().Add(time.Minute)))
			for range 2 { // which is one connection
				_, err := conn.Write([]byte("x"))
				h.must(err)
				_, err = io.ReadFull(conn, make([]byte, 1))
				h.must(err)
			}
			h.must(conn.Close())
			count := want[key]
			count.Add(backend.Counts{Connections: 1})
			want[key] = count
		}
	}
	check := func(when string, served uint64) {
		t.Helper()
		keys := []state.FrontendKey{tcp, udp}
		got, err := h.base.Counts(keys)
		h.must(err)
		for i, key := range keys {
			if got[i] != want[key] {
				t.Errorf("%s: %v has counted %+v, want %+v", when, key, got[i], want[key])
			}
		}
		var byIPVS uint64
		h.do(func() error { byIPVS = connections(t); return nil })
		if byIPVS != served {
			t.Errorf("%s: IPVS has served %d connections, want %d", when, byIPVS, served)
		}
	}
	web, dns := service("web", state.TCP, "10.96.0.10:80", "10.0.0.1:8080"), service("dns", state.UDP, "10.96.0.11:53", "10.0.0.1:53")
	h.full(web, dns)
	connect(tcp, 5)
	connect(udp, 3)
	check("by IPVS", 8)

	sticky := service("web", state.TCP, "10.96.0.10:80", "10.0.0.1:8080")
	sticky.Ports[0].Affinity = time.Hour
	h.full(sticky, dns)
	connect(tcp, 2)
	check("by nftables", 8)

	nobody := service("web", state.TCP, "10.96.0.10:80")
	nobody.Ports[0].Internal.Inside.Verdict, nobody.Ports[0].Internal.Outside.Verdict = state.Reject, state.Reject
	h.full(nobody, dns)
	h.do(func() error {
		if conn, err := net.Dial("tcp4", "10.96.0.10:80"); err == nil {
			t.Error("a Service without endpoints takes a connection")
			conn.Close()
		}
		return nil
	})
	count := want[tcp]
	count.Add(backend.Counts{Connections: 1, Rejects: 1})
	want[tcp] = count
	check("without an endpoint", 8)

	h.restart(ipvs.Options{})
	h.full(web, dns)
	connect(tcp, 1)
	connect(udp, 1)
	check("by IPVS again, of another process", 10)
}
