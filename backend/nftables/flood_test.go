//go:build linux

package nftables

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/usage"
)

// BenchmarkFlood fills the kernel's table with as many UDP flows as fit into it by default, to one service that loses an endpoint and
// gets it back again and again. It measures how long the changes of another service take at the same time. They are due every 2 ms.
// Anyone who sends packets can do the same.
func BenchmarkFlood(b *testing.B) {
	b.Run("IPv4", func(b *testing.B) { benchmarkFlood(b, state.IPv4, true) })
	b.Run("IPv4-without-filters", func(b *testing.B) { benchmarkFlood(b, state.IPv4, false) })
	b.Run("IPv6", func(b *testing.B) { benchmarkFlood(b, state.IPv6, true) })
}

// listedFlows is the kernel's table where it cannot delete by filters.
type listedFlows struct{ *conntrack.Conn }

func (listedFlows) DeleteAll(conntrack.Filter) (int, error) { return 0, errors.ErrUnsupported }

func benchmarkFlood(b *testing.B, family state.Family, filters bool) {
	const flows, endpoints = 262_000, 5
	ns, err := netns.New()
	if err != nil {
		b.Skip(err)
	}
	defer ns.Close()
	version := func(port int, protocol state.Protocol, first, n int) *state.Service {
		return serviceOf("service-"+strconv.Itoa(port), clusterIPPort(family, protocol, port, endpointsOf(family, first, n)))
	}
	full := version(1, state.UDP, 1, endpoints)
	others := []*state.Service{version(2, state.TCP, 10, 5), version(2, state.TCP, 11, 5)}
	var backend *Backend
	if err := ns.Do(func() error {
		if backend, err = New(b.Context(), Options{}); err != nil {
			return err
		}
		return fillTable(full, flows)
	}); err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	if !filters {
		backend.cutter.Close()
		backend.cutter = conntrack.NewCutter(listedFlows{backend.flows}, conntrack.CutterOptions{Logger: slog.New(slog.DiscardHandler)})
		backend.cutter.Start()
	}
	apply := func(u *state.Update) {
		if _, err := backend.Apply(b.Context(), u); err != nil {
			b.Fatal(err)
		}
	}
	apply(&state.Update{Full: true, Changed: []*state.Service{full, others[0]}, Node: testNode})
	time.Sleep(5 * time.Second) // all flows are looked at after a start
	runtime.GC()
	cpu, before, peak := usage.Process(), resident(), 0
	var took []time.Duration
	began, n, flips := time.Now(), 0, 0
	for b.Loop() {
		n++
		if d := time.Since(began); int(d/(700*time.Millisecond)) > flips {
			flips++
			flooded := full
			if flips%2 == 1 { // each endpoint in turn
				gone := flips / 2 % endpoints
				flooded = serviceOf(full.Name.Name, clusterIPPort(family, state.UDP, 1, slices.Delete(endpointsOf(family, 1, endpoints), gone, gone+1)))
			}
			apply(&state.Update{Changed: []*state.Service{flooded}, Node: testNode})
		}
		due := began.Add(time.Duration(n) * 2 * time.Millisecond)
		time.Sleep(time.Until(due))
		apply(&state.Update{Changed: []*state.Service{others[n%2]}, Node: testNode})
		took = append(took, time.Since(due))
		if n%100 == 0 {
			peak = max(peak, resident())
		}
	}
	elapsed := time.Since(began)
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
	b.ReportMetric((usage.Process()-cpu).Seconds()/elapsed.Seconds()*100, "%CPU")
	b.ReportMetric(float64(max(peak-before, 0))/(1<<20), "more-MiB")
}

// fillTable makes flows to the endpoints of a service in the table of the calling thread's network namespace.
func fillTable(s *state.Service, flows int) error {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	p := &s.Ports[0]
	family, dst := netlink.InetFamily(unix.AF_INET), p.Frontends[0]
	if p.Family == state.IPv6 {
		family = unix.AF_INET6
	}
	for i := range flows {
		client := dst.Addr.As16()
		client[13], client[14] = byte(i>>15), 77
		src, e := netip.AddrFrom16(client).Unmap(), p.Internal.Inside.Endpoints[i%len(p.Internal.Inside.Endpoints)].Addr
		port := uint16(1024 + i%(1<<15))
		if err := h.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 3600,
			Forward: netlink.IPTuple{SrcIP: src.AsSlice(), SrcPort: port, DstIP: dst.Addr.AsSlice(), DstPort: dst.Port, Protocol: unix.IPPROTO_UDP},
			Reverse: netlink.IPTuple{SrcIP: e.Addr().AsSlice(), SrcPort: e.Port(), DstIP: src.AsSlice(), DstPort: port, Protocol: unix.IPPROTO_UDP},
		}); err != nil {
			return err
		}
	}
	return nil
}

// resident is the memory of this process, in bytes.
func resident() int {
	b, err := os.ReadFile("/proc/self/statm")
	if fields := strings.Fields(string(b)); err == nil && len(fields) > 1 {
		pages, _ := strconv.Atoi(fields[1])
		return pages * os.Getpagesize()
	}
	return 0
}
