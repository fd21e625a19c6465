//go:build linux

package nftables

import (
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/state"
)

// connectionsPerNS is how many connections are begun in one namespace: connection tracking keeps all of them meanwhile.
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
	three := []netip.Prefix{prefix("192.0.2.0/24"), prefix("198.18.0.0/15"), prefix("203.0.113.7/32")}
	for _, c := range []struct {
		name      string
		services  []*state.Service
		manyHosts bool // each connection is from another client
	}{
		{"no service", nil, false},
		{"plain", []*state.Service{service(0)}, false},
		{"plain beside sticky", []*state.Service{service(0), sticky}, false},
		{"restricted by 3 lengths", []*state.Service{service(0, three...)}, false},
		{"sticky, new clients", []*state.Service{service(time.Hour)}, true},
		{"sticky, known client", []*state.Service{service(time.Hour)}, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			var took time.Duration
			for left := b.N; left > 0; left -= connectionsPerNS {
				took += sendFirstPackets(b, c.services, c.manyHosts, min(left, connectionsPerNS))
			}
			b.ReportMetric(0, "ns/op") // which counts other processes, too
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// sendFirstPackets returns the processor time that it takes to send count packets.
func sendFirstPackets(b *testing.B, services []*state.Service, manyHosts bool, count int) time.Duration {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ns := newNS(b)
	h, dev := addDevice(b, ns, "192.0.2.1/24")
	peer, err := h.LinkByName("veth-b")
	if err != nil {
		b.Fatal(err)
	}
	everything := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	for _, err := range []error{
		h.LinkSetARPOff(dev), h.LinkSetUp(peer),
		h.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: everything}),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
	dataplane := newBackend(b, ns, Options{})
	defer closeBackend(dataplane)
	apply(b, dataplane, full(services...))
	var fd int
	inNS(b, ns, func() (err error) {
		fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
		return err
	})
	defer syscall.Close(fd)
	// An IPv4 header, UDP's, and no payload. The kernel fills in the checksum and the identification.
	packet := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 0, 203, 0, 113, 1, 0, 0, 0, 80, 0, 8, 0, 0}
	to := &syscall.SockaddrInet4{Addr: [4]byte{203, 0, 113, 1}}
	before := processorTime()
	for i := range count {
		if manyHosts {
			binary.BigEndian.PutUint16(packet[14:], uint16(i))
		}
		binary.BigEndian.PutUint16(packet[20:], uint16(1024+i))
		if err := syscall.Sendto(fd, packet, 0, to); err != nil {
			b.Fatal(err)
		}
	}
	return processorTime() - before
}
