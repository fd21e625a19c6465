//go:build linux

package iptables

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
	"github.com/switchyard-net/switchyard/test/usage"
)

// BenchmarkCounters has the dataplane count or not, with 10 and 1,000 Services of UDP with an IPv4 cluster IP. It measures the
// processor time of the first datagram of a connection with its socket, of a full update, and of reading back all counts. It also
// measures an endpoint and a Service that leave and come back, with the programs that are started. Use -benchtime=1x -count=5, and
// compare the least.
func BenchmarkCounters(b *testing.B) {
	for _, v := range []Variant{Legacy, NFT} {
		for _, services := range []int{10, 1000} {
			for _, on := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s, %d services, counters %v", v, services, on), func(b *testing.B) { benchmarkCounters(b, services, Options{Variant: v, Counters: on}) })
			}
		}
	}
}

func benchmarkCounters(b *testing.B, services int, o Options) {
	c := newCounting(b)
	dataplane := newBackend(b, c.ns, o)
	udp := func(n, endpoints int) *state.Service {
		return recordtest.Service(fmt.Sprintf("s%d", n), recordtest.ClusterIPPort(state.IPv4, state.UDP, n, recordtest.Endpoints(state.IPv4, n, endpoints)))
	}
	all := make([]*state.Service, services)
	var keys []state.FrontendKey
	for n := range all {
		all[n] = udp(n, 5)
		keys = append(keys, all[n].Ports[0].Key(&all[n].Ports[0].Frontends[0]))
	}
	apply(b, dataplane, recordtest.Full(all...))
	const datagrams = 5000
	b.Run("first datagram", func(b *testing.B) {
		var took time.Duration
		for b.Loop() {
			took += c.sendMany(all, datagrams)
		}
		usage.Report(b, took, datagrams)
	})
	one, other := udp(1, 5), udp(1, 4)
	const reading = "reading all"
	for _, of := range []struct {
		name  string
		times int
		do    func()
	}{
		{"endpoint leaves and comes back", 10, func() { apply(b, dataplane, recordtest.Delta(other)); apply(b, dataplane, recordtest.Delta(one)) }},
		{"service goes and comes back", 10, func() {
			apply(b, dataplane, &state.Update{Removed: []state.ServiceName{one.Name}, Node: recordtest.Node()})
			apply(b, dataplane, recordtest.Delta(one))
		}},
		{"all services go and come back", 1, func() { apply(b, dataplane, recordtest.Full()); apply(b, dataplane, recordtest.Full(all...)) }},
		{reading, 20, func() {
			if _, err := dataplane.Counts(keys); err != nil {
				b.Fatal(err)
			}
		}},
	} {
		if of.name == reading && !o.Counters {
			continue
		}
		usage.Run(b, of.name, of.times, usage.Family, of.do)
	}
}

// sendMany sends datagrams to one service after the other, from a port of its own each, and returns the processor time that it took.
func (c *counting) sendMany(services []*state.Service, datagrams int) (took time.Duration) {
	netnstest.Do(c.t, c.ns, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before := usage.Thread()
		for i := range datagrams {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			c.port = 10_000 + (c.port+1)%50_000
			to := &unix.SockaddrInet4{Addr: services[i%len(services)].Ports[0].Frontends[0].Addr.As4(), Port: 80}
			if err = unix.Bind(fd, &unix.SockaddrInet4{Port: c.port}); err == nil {
				err = unix.Sendto(fd, []byte("first"), 0, to)
			}
			unix.Close(fd)
			if err != nil {
				return err
			}
		}
		took = usage.Thread() - before
		return nil
	})
	return took
}
