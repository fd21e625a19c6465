//go:build linux

package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/usage"
)

// connectionsPerNS is how many connections are begun in one namespace. Connection tracking keeps all of them until the end.
const connectionsPerNS = 20_000

// BenchmarkFirstPacket sends the first datagram of many connections from the node, and lets it go out of a device that nobody listens
// at. It includes what the kernel does without any rules, "no service". Use -benchtime=20000x.
func BenchmarkFirstPacket(b *testing.B) {
	service := func(affinity time.Duration, sources ...netip.Prefix) *state.Service {
		eps := forward(endpointsOf(state.IPv4, 1, 5))
		return serviceOf("measured", state.Port{
			Name: "p", Protocol: state.UDP, Family: state.IPv4, Affinity: affinity,
			Frontends: []state.Frontend{{
				Kind: state.LoadBalancer, Addr: addr("203.0.113.1"), Port: 80, Restricted: len(sources) > 0, Sources: sources,
			}},
			External: state.Traffic{Inside: eps, Outside: eps},
		})
	}
	sticky := serviceOf("sticky", func() state.Port {
		p := clusterIPPort(state.IPv4, state.UDP, 1, endpointsOf(state.IPv4, 1, 5))
		p.Affinity = time.Hour
		return p
	}())
	balanced := func(name string, n int, by state.Balance, r state.Route) *state.Service {
		p := clusterIPPort(state.IPv4, state.UDP, n, nil)
		p.Internal, p.Balance = state.Traffic{Inside: r, Outside: r}, by
		return serviceOf(name, p)
	}
	measured := func(by state.Balance, r state.Route) *state.Service {
		s := service(0)
		s.Ports[0].External, s.Ports[0].Balance = state.Traffic{Inside: r, Outside: r}, by
		return s
	}
	one, five := forward(endpointsOf(state.IPv4, 1, 1)), forward(endpointsOf(state.IPv4, 1, 5))
	weighted, refusing := balanced("weighted", 2, state.Random, routeTo(0, 1, 255)), balanced("refusing", 3, state.Random, routeTo(20, 80))
	hashed := balanced("hashed", 4, state.HashClient, five)
	pinged := balanced("pinged", 5, state.Random, five)
	pinged.Ports[0].Frontends[0].Ping = true
	three := []netip.Prefix{prefix("192.0.2.0/24"), prefix("198.18.0.0/15"), prefix("203.0.113.7/32")}
	for _, c := range []struct {
		name      string
		services  []*state.Service
		manyHosts bool // each connection is from another client
	}{
		{"no service", nil, false},
		{"plain", []*state.Service{service(0)}, false},
		{"one endpoint", []*state.Service{measured(state.Random, one)}, false},
		{"plain and weighted", []*state.Service{service(0), weighted}, false},
		{"one endpoint and weighted", []*state.Service{measured(state.Random, one), weighted}, false},
		{"one endpoint and refusing", []*state.Service{measured(state.Random, one), refusing}, false},
		{"plain and pinged", []*state.Service{service(0), pinged}, false},
		{"plain and hashed", []*state.Service{service(0), hashed}, false},
		{"weights", []*state.Service{measured(state.Random, routeTo(0, 80, 15, 4, 3, 2))}, false},
		{"hashed by client", []*state.Service{measured(state.HashClient, five)}, true},
		{"hashed by connection", []*state.Service{measured(state.HashConnection, five)}, false},
		{"plain and sticky", []*state.Service{service(0), sticky}, false},
		{"restricted by 3 lengths", []*state.Service{service(0, three...)}, false},
		{"sticky, new clients", []*state.Service{service(time.Hour)}, true},
		{"sticky, known client", []*state.Service{service(time.Hour)}, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			var took time.Duration
			for left := b.N; left > 0; left -= connectionsPerNS {
				took += sendFirstPackets(b, c.services, c.manyHosts, min(left, connectionsPerNS))
			}
			usage.Report(b, took, 1)
		})
	}
}

// BenchmarkEstablishedPacket sends packets of one TCP connection from the node, translated or not, with endpoints that are gone, none of them its
// own. Use -benchtime=1000000x -count=7, and compare the least.
func BenchmarkEstablishedPacket(b *testing.B) {
	service := func(endpoints ...state.Endpoint) *state.Service {
		eps := forward(endpoints)
		return serviceOf("measured", state.Port{
			Name: "p", Protocol: state.TCP, Family: state.IPv4,
			Frontends: []state.Frontend{{Kind: state.LoadBalancer, Addr: addr("203.0.113.1"), Port: 80}},
			External:  state.Traffic{Inside: eps, Outside: eps},
		})
	}
	for _, c := range []struct {
		name string
		on   bool
		gone int
	}{{"off", false, 0}, {"none gone", true, 0}, {"1 gone", true, 1}, {"10,000 gone", true, 10_000}} {
		for _, to := range []string{"203.0.113.1", "203.0.113.2"} {
			kind := map[string]string{"203.0.113.1": "translated", "203.0.113.2": "direct"}[to]
			b.Run(c.name+", "+kind, func(b *testing.B) {
				node := newPacketNode(b)
				dataplane := newBackend(b, node.ns, Options{ResetRemoved: c.on})
				defer closeBackend(dataplane)
				apply(b, dataplane, full(service(endpointsOf(state.IPv4, 1, 1+c.gone)...)))
				apply(b, dataplane, delta(service(endpointsOf(state.IPv4, 1, 1)...)))
				took := node.send(b, []byte{ // an IPv4 header, and TCP's with the flag ACK
					0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 0, 203, 0, 113, addr(to).As4()[3],
					0x80, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0,
				}, b.N, func([]byte, int) {})
				usage.Report(b, took, 1)
			})
		}
	}
}

// BenchmarkEjectingPacket sends packets of one TCP connection from the node, while a port ejects silent endpoints and while none does. Use
// -benchtime=1000000x -count=7, and compare the least.
func BenchmarkEjectingPacket(b *testing.B) {
	for _, ejects := range []bool{false, true} {
		for name, flags := range map[string]byte{"ACK": 0x10, "repeated SYN": 0x02} {
			b.Run(fmt.Sprintf("ejects %v, %s", ejects, name), func(b *testing.B) {
				node := newPacketNode(b)
				dataplane := newBackend(b, node.ns, Options{})
				defer closeBackend(dataplane)
				p := clusterIPPort(state.IPv4, state.TCP, 1, endpointsOf(state.IPv4, 1, 5))
				p.Ejection = ejects
				apply(b, dataplane, full(serviceOf("measured", p)))
				conn := dial(b, node.ns)
				await.Until(b, "the table of suspects", func() bool {
					exists, err := conn.HasTable(suspectTable(state.IPv4))
					return err == nil && exists == ejects
				})
				took := node.send(b, []byte{ // an IPv4 header, and TCP's
					0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 0, 10, 96, 0, 1,
					0x80, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0,
				}, b.N, func([]byte, int) {})
				usage.Report(b, took, 1)
			})
		}
	}
}

// sendFirstPackets returns the processor time that it takes to send count packets.
func sendFirstPackets(b *testing.B, services []*state.Service, manyHosts bool, count int) time.Duration {
	b.Helper()
	node := newPacketNode(b)
	dataplane := newBackend(b, node.ns, Options{})
	defer closeBackend(dataplane)
	apply(b, dataplane, full(services...))
	// An IPv4 header, UDP's, and no payload.
	packet := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 0, 203, 0, 113, 1, 0, 0, 0, 80, 0, 8, 0, 0}
	return node.send(b, packet, count, func(packet []byte, i int) {
		if manyHosts {
			binary.BigEndian.PutUint16(packet[14:], uint16(i))
		}
		binary.BigEndian.PutUint16(packet[20:], uint16(1024+i))
	})
}

// packetNode is a node that sends packets out of a device that nobody listens at.
type packetNode struct{ ns *netns.NS }

func newPacketNode(b *testing.B) packetNode {
	b.Helper()
	ns := netnstest.New(b)
	netnstest.Outward(b, ns, "192.0.2.1/24")
	return packetNode{ns}
}

// send returns the processor time that it takes to send a packet count times, each after a change. The kernel fills in the checksum and the
// identification.
func (n packetNode) send(b *testing.B, packet []byte, count int, change func(packet []byte, i int)) time.Duration {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var fd int
	netnstest.Do(b, n.ns, func() (err error) {
		fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
		return err
	})
	defer syscall.Close(fd)
	to := &syscall.SockaddrInet4{Addr: [4]byte(packet[16:20])}
	before := usage.Thread()
	for i := range count {
		change(packet, i)
		if err := syscall.Sendto(fd, packet, 0, to); err != nil {
			b.Fatal(err)
		}
	}
	return usage.Thread() - before
}

// BenchmarkGoneEndpoints lets an endpoint leave its service and come back while others are gone, and reads what they have counted.
func BenchmarkGoneEndpoints(b *testing.B) {
	for _, gone := range []int{-1, 0, 1, 10_000, ruleset.MaxGone - 1} {
		ns := netnstest.New(b)
		dataplane := newBackend(b, ns, Options{ResetRemoved: gone >= 0})
		many := serviceOf("many", clusterIPPort(state.IPv4, state.TCP, 1, nil))
		few := serviceOf("many", clusterIPPort(state.IPv4, state.TCP, 1, nil))
		for i := range max(gone, 0) {
			a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			many.Ports[0].Lingering = append(many.Ports[0].Lingering, state.Endpoint{Addr: netip.AddrPortFrom(a, 80)})
		}
		there := serviceOf("one", clusterIPPort(state.IPv4, state.TCP, 2, endpointsOf(state.IPv4, 1, 5)))
		left := serviceOf("one", clusterIPPort(state.IPv4, state.TCP, 2, endpointsOf(state.IPv4, 1, 4)))
		apply(b, dataplane, full(many, there))
		began := time.Now()
		apply(b, dataplane, delta(few))
		if gone > 1 {
			b.Logf("%d endpoints at once: %v", gone, time.Since(began))
		}
		name := fmt.Sprintf("%d gone", gone)
		if gone < 0 {
			name = "off"
		}
		b.Run(name+", one leaves and comes back", func(b *testing.B) {
			for b.Loop() {
				apply(b, dataplane, delta(left))
				apply(b, dataplane, delta(there))
			}
		})
		b.Run(name+", Verify", func(b *testing.B) {
			for b.Loop() {
				verify(b, dataplane)
			}
		})
		if gone > 0 {
			b.Run(name+", reading counters", func(b *testing.B) {
				for b.Loop() {
					if err := dataplane.count(state.IPv4, dataplane.resets.Keys(state.IPv4)); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(name+", reading all", func(b *testing.B) {
				for b.Loop() {
					if _, err := dataplane.readResets(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		closeBackend(dataplane)
	}
}
