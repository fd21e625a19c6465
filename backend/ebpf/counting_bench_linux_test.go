package ebpf_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	ciliumebpf "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
	"github.com/switchyard-net/switchyard/test/usage"
)

// BenchmarkCounters has hooks and nftables below them count or not, with 10 and 10,000 Services. It measures what the hook of a
// connection takes, the connection as a whole, and the memory of the maps. It also measures a full update, a change of endpoints, a
// Service that goes and comes back, and reading back all counts. Use -benchtime=1x -count=7, and compare the least.
func BenchmarkCounters(b *testing.B) {
	for _, services := range []int{10, 10_000} {
		for _, on := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d services, counters %v", services, on), func(b *testing.B) { benchmarkCounters(b, services, on) })
		}
	}
}

// numbered is a service with a cluster IP that is made of n, and some endpoints.
func numbered(n int, endpoints ...netip.AddrPort) *state.Service {
	to := state.Route{Verdict: state.Forward}
	for _, e := range endpoints {
		to.Endpoints = append(to.Endpoints, state.Endpoint{Addr: e, Local: true})
	}
	return &state.Service{Name: state.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%05d", n)}, Ports: []state.Port{{
		Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: to, Outside: to, Masquerade: state.MasqueradeUnlessPod},
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}), Port: webPort}},
	}}}
}

func benchmarkCounters(b *testing.B, services int, on bool) {
	s := newSockets(b)
	first, second := netip.AddrPortFrom(s.server.Addrs[0], serverPort), netip.AddrPortFrom(s.another.Addrs[0], serverPort)
	if first.Compare(second) > 0 {
		first, second = second, first
	}
	var keys []state.FrontendKey
	s.services = nil
	for n := range services {
		service := numbered(n, first, second)
		s.services = append(s.services, service)
		keys = append(keys, service.Ports[0].Key(&service.Ports[0].Frontends[0]))
	}
	s.startWith(nftables.Options{Counters: on})
	all := s.update()
	apply := func(u state.Update, full bool, changed []*state.Service, removed ...state.ServiceName) {
		u.Full, u.Changed, u.Removed = full, changed, removed
		_, err := s.pair.Apply(b.Context(), &u)
		ok(b, err)
	}

	const connections = 5000
	b.Run("connection", func(b *testing.B) {
		stats, err := ciliumebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
		ok(b, err)
		defer stats.Close()
		program := ebpf.HookProgram(s.pair.Backend, "connect4")
		var took time.Duration
		before, err := program.Stats()
		ok(b, err)
		for b.Loop() {
			took += connectMany(b, s.client, services, connections)
		}
		after, err := program.Stats()
		ok(b, err)
		b.ReportMetric(float64(after.Runtime-before.Runtime)/float64(after.RunCount-before.RunCount), "hook-ns/op")
		b.ReportMetric(float64(s.pair.Status().Memory)/float64(services), "maps-B/service")
		usage.Report(b, took, connections)
	})
	const reading = "reading what hooks have counted"
	one, other := []*state.Service{numbered(1, first, second)}, []*state.Service{numbered(1, first)}
	for _, c := range []struct {
		name  string
		times int
		do    func()
	}{
		{"endpoint leaves and comes back", 100, func() { apply(*all, false, other); apply(*all, false, one) }},
		{"service goes and comes back", 100, func() { apply(*all, false, nil, one[0].Name); apply(*all, false, one) }},
		{"all services go and come back", 1, func() { apply(*all, true, nil); apply(*all, true, all.Changed) }},
		{reading, 1, func() {
			_, err := s.pair.HookCounts(keys)
			ok(b, err)
		}},
	} {
		if c.name == reading && !on {
			continue
		}
		usage.Run(b, c.name, c.times, usage.Process, c.do)
	}
}

// connectMany connects to one service after the other, and returns the processor time that it took.
func connectMany(b *testing.B, h *topology.Host, services, connections int) (took time.Duration) {
	ok(b, h.Do(func() error {
		before := usage.Thread()
		for i := range connections {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			n := i % services
			err = unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{10, 96, byte(n >> 8), byte(n)}, Port: webPort})
			unix.Close(fd)
			if err != nil {
				return err
			}
		}
		took = usage.Thread() - before
		return nil
	}))
	return took
}
