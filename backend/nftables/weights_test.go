//go:build linux

package nftables

import (
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// drawn are connections that a test counts.
const drawn = 20_000

// newDrawNode returns a node whose packets to others go out of a device that nobody listens at.
func newDrawNode(t testing.TB) *netns.NS {
	t.Helper()
	ns := netnstest.New(t)
	h, dev := addDevice(t, ns, "192.0.2.1/24")
	peer, err := h.LinkByName("veth-b")
	if err != nil {
		t.Fatal(err)
	}
	everything := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	for _, err := range []error{
		h.LinkSetARPOff(dev), h.LinkSetUp(peer),
		h.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: everything}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return ns
}

// drawnFrom is a frontend that tests draw from.
var drawnFrom = netip.MustParseAddrPort("203.0.113.1:80")

// drawnService is a service whose connections take a route.
func drawnService(r state.Route) *state.Service {
	return serviceOf("drawn", state.Port{
		Name: "p", Protocol: state.UDP, Family: state.IPv4,
		Frontends: []state.Frontend{{Kind: state.LoadBalancer, Addr: drawnFrom.Addr(), Port: drawnFrom.Port()}},
		External:  state.Traffic{Inside: r, Outside: r},
	})
}

// draw sends the first datagrams of connections from a node, each from another port of one of the clients 198.18.0.0 and following, and returns
// where they went. Connections that are refused go nowhere. The connections have the numbers from first on, so that others can follow.
func draw(t testing.TB, ns *netns.NS, clients, first, connections int) map[netip.AddrPort]netip.AddrPort {
	t.Helper()
	went := map[netip.AddrPort]netip.AddrPort{}
	netnstest.Do(t, ns, func() error {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		packet := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}
		to := &syscall.SockaddrInet4{Addr: drawnFrom.Addr().As4()}
		copy(packet[16:], to.Addr[:])
		binary.BigEndian.PutUint16(packet[22:], drawnFrom.Port())
		for i := first; i < first+connections; i++ {
			binary.BigEndian.PutUint16(packet[14:], uint16(i%clients))
			binary.BigEndian.PutUint16(packet[20:], uint16(1024+i/clients))
			if err := syscall.Sendto(fd, packet, 0, to); err != nil && !errors.Is(err, syscall.EPERM) { // which is for what a rule drops
				return err
			}
		}
		c, err := conntrack.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Flows(conntrack.Filter{Family: state.IPv4, Protocol: state.UDP, Dst: drawnFrom.Addr()}, func(flows []conntrack.Flow) error {
			for _, f := range flows {
				if i := int(f.Orig.Src.Port()-1024)*clients + int(binary.BigEndian.Uint16(f.Orig.Src.Addr().AsSlice()[2:])); i >= first {
					went[f.Orig.Src] = f.Reply.Src
				}
			}
			return nil
		})
	})
	return went
}

// checkDrawn checks that each endpoint got the share of connections that its weight asks for, within 4 standard deviations and what the slots of
// a class may misplace. All other connections were refused.
func checkDrawn(t *testing.T, r *state.Route, went map[netip.AddrPort]netip.AddrPort, connections int) {
	t.Helper()
	counts := map[netip.AddrPort]int{}
	for _, endpoint := range went {
		counts[endpoint]++
	}
	sum := float64(r.Refused)
	for _, e := range r.Endpoints {
		sum += float64(e.Weight)
	}
	check := func(who any, got int, asked float64) {
		const misplaced = 0.01
		share := float64(got) / float64(connections)
		if sigma := math.Sqrt(asked * (1 - asked) / float64(connections)); math.Abs(share-asked) > 4*sigma+misplaced {
			t.Errorf("%v: %d of %d connections, %.2f%%, want %.2f%%", who, got, connections, 100*share, 100*asked)
		}
	}
	for _, e := range r.Endpoints {
		check(e.Addr, counts[e.Addr], float64(e.Weight)/sum)
		delete(counts, e.Addr)
	}
	check("refused", connections-len(went), float64(r.Refused)/sum)
	if len(counts) > 0 {
		t.Errorf("connections went to %v", counts)
	}
}

// routeTo returns a route to endpoints with weights.
func routeTo(refused uint32, weights ...uint16) state.Route {
	r := forward(endpointsOf(state.IPv4, 1, len(weights)))
	r.Refused = refused
	for i, w := range weights {
		r.Endpoints[i].Weight = w
	}
	return r
}

// TestDrawByWeight makes 20,000 real connections, and changes the weights in between.
func TestDrawByWeight(t *testing.T) {
	t.Parallel()
	ns := newDrawNode(t)
	b := newBackend(t, ns, Options{})
	defer closeBackend(b)
	apply(t, b, full())
	const each = drawn / 2
	for i, weights := range [][]uint16{{80, 15, 5}, {1, 1, 98}} {
		r := routeTo(0, weights...)
		apply(t, b, delta(drawnService(r)))
		checkDrawn(t, &r, draw(t, ns, 1, i*each, each), each)
	}
}

// TestRefuseByWeight makes 20,000 real connections to a service that refuses a share of them.
func TestRefuseByWeight(t *testing.T) {
	t.Parallel()
	ns := newDrawNode(t)
	b := newBackend(t, ns, Options{Counters: true})
	b.inspector.finder = dial(t, ns)
	defer closeBackend(b)
	apply(t, b, full())
	const each = drawn / 2
	refused := 0
	for i, r := range []state.Route{routeTo(80, 20), routeTo(20, 60, 20)} {
		apply(t, b, delta(drawnService(r)))
		went := draw(t, ns, 1, i*each, each)
		checkDrawn(t, &r, went, each)
		refused += each - len(went)
	}
	counts, err := b.Counts([]state.FrontendKey{{Family: state.IPv4, Protocol: state.UDP, Addr: drawnFrom.Addr(), Port: drawnFrom.Port()}})
	if err != nil || counts[0].Rejects != uint64(refused) {
		t.Errorf("%d connections were refused, counted %+v, %v", refused, counts, err)
	}
}

// TestHashOnNodes hashes 2,000 real connections of 1,000 clients on two nodes, by client and by connection. Both nodes make the same choice, for
// all of a client's connections if they hash by client. When one of ten endpoints leaves, at most 3% of the others' clients move.
func TestHashOnNodes(t *testing.T) {
	t.Parallel()
	const clients, connections = 1000, 2000
	all := forward(endpointsOf(state.IPv4, 1, 10))
	left := forward(slices.Delete(endpointsOf(state.IPv4, 1, 10), 4, 5))
	gone, table := all.Endpoints[4].Addr, consistent.Table(&all)
	for _, by := range []state.Balance{state.HashClient, state.HashConnection} {
		var went [2]map[netip.AddrPort]netip.AddrPort
		for node := range went {
			ns := newDrawNode(t)
			b := newBackend(t, ns, Options{})
			if b.Features()&state.Balances == 0 {
				closeBackend(b)
				t.Skipf("this kernel does not have %s", nft.Hashing.Name)
			}
			service := func(r state.Route) *state.Service {
				s := drawnService(r)
				s.Ports[0].Balance = by
				return s
			}
			// The second node has got there from another state.
			if node == 1 {
				apply(t, b, full(service(left)))
			}
			apply(t, b, full(service(all)))
			went[node] = draw(t, ns, clients, 0, connections)
			b.inspector.finder = dial(t, ns)
			checkInspected(t, b, service(all), went[node])
			if by == state.HashClient {
				apply(t, b, full(service(left)))
				checkMoved(t, went[node], draw(t, ns, clients, connections, clients), gone)
			}
			closeBackend(b)
		}
		if len(went[0]) != connections || !maps.Equal(went[0], went[1]) {
			t.Errorf("%v: two nodes make different choices", by)
		}
		for from, to := range went[0] {
			if want := all.Endpoints[table[consistent.Slot(by, from, len(table))]].Addr; to != want {
				t.Fatalf("%v: %v goes to %v, and its slot is that of %v", by, from, to, want)
			}
			other := netip.AddrPortFrom(from.Addr(), 1024+1025-from.Port())
			if by == state.HashClient && went[0][other] != to {
				t.Errorf("client %v has endpoints %v and %v", from.Addr(), to, went[0][other])
			}
		}
	}
}

// checkInspected checks that what is read back for a client is where its packets went. The slot of a hash of ports is not known.
func checkInspected(t *testing.T, b *Backend, s *state.Service, went map[netip.AddrPort]netip.AddrPort) {
	t.Helper()
	p, n := &s.Ports[0], 0
	for from, to := range went {
		if n++; n > 50 {
			return
		}
		held, err := b.Inspect(backend.Query{Frontend: p.Key(&p.Frontends[0]), Dst: p.Frontends[0].Addr, Source: from.Addr(), Outside: true})
		d := held.Draw
		if err != nil || !d.Hashed || d.Slots != 1021 || len(d.Shares) != 10 {
			t.Fatalf("%v: read back %+v, %v", from, held, err)
		}
		if p.Balance == state.HashConnection {
			to = netip.AddrPort{}
		}
		if d.Endpoint != to {
			t.Fatalf("%v goes to %v; read back is %v", from, to, d.Endpoint)
		}
	}
}

// checkMoved checks that clients of endpoints that are still there have kept them, up to 3%.
func checkMoved(t *testing.T, before, after map[netip.AddrPort]netip.AddrPort, gone netip.AddrPort) {
	t.Helper()
	moved, others := 0, 0
	for from, to := range after {
		was := before[netip.AddrPortFrom(from.Addr(), 1024)]
		if to == gone {
			t.Errorf("client %v goes to %v, which has left", from, to)
		}
		if was == gone {
			continue
		}
		if others++; was != to {
			moved++
		}
	}
	if others < len(after)/2 || moved*100 > others*3 {
		t.Errorf("%d of %d clients of other endpoints have moved", moved, others)
	}
}

// TestProblemsOfWeights: services that have no room for their slots are reported, until they have.
func TestProblemsOfWeights(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	b := newBackend(t, ns, Options{})
	defer closeBackend(b)
	service := func(weights ...uint16) *state.Service {
		p := clusterIPPort(state.IPv4, state.TCP, 1, nil)
		r := routeTo(0, weights...)
		p.Internal = state.Traffic{Inside: r, Outside: r}
		for i := range 1 + apportion.MaxServiceSlots/128 {
			p.Frontends = append(p.Frontends, state.Frontend{Kind: state.ClusterIP, Addr: p.Frontends[0].Addr, Port: uint16(100 + i)})
		}
		return serviceOf("large", p)
	}
	apply(t, b, full(service(1, 255)))
	if problems := b.Problems(); len(problems) != 1 || !strings.Contains(problems[0].Error(), "1 services, the first is test/large") {
		t.Errorf("a service too many slots: %v", problems)
	}
	apply(t, b, delta(service(1, 3)))
	if problems := b.Problems(); len(problems) != 0 {
		t.Errorf("it has room: %v", problems)
	}
}
