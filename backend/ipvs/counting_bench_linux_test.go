package ipvs_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/usage"
)

// BenchmarkCounters has nftables below IPVS count or not, with 1,000 Services that IPVS serves. It measures the processor time of a
// full update, of a Service that goes and comes back, and of an endpoint that does. It is for a kernel with IPVS:
// DATAPLANE=ipvs scripts/kernel-test.sh -test.run xxx -test.bench Counters -test.benchtime=1x -test.count=4. Compare the least.
func BenchmarkCounters(b *testing.B) {
	needIPVS(b)
	const services = 1000
	var all []*state.Service
	numbered := func(n int, endpoints ...string) *state.Service {
		return service(fmt.Sprint("s", n), state.TCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(n >> 8), byte(n)}), 80).String(), endpoints...)
	}
	for n := range services {
		all = append(all, numbered(n, "10.244.0.1:80", "10.244.0.2:80"))
	}
	for _, on := range []bool{false, true} {
		ns, err := netns.New()
		if err != nil {
			b.Fatal(err)
		}
		defer ns.Close()
		var p *pair
		if err := ns.Do(func() (err error) {
			p, err = newPair(b.Context(), nftables.Options{Counters: on}, ipvs.Options{})
			return err
		}); err != nil {
			b.Fatal(err)
		}
		defer p.Close()
		apply := func(u state.Update) {
			u.Node = &state.Node{Name: "node"}
			if _, err := p.Apply(b.Context(), &u); err != nil {
				b.Fatal(err)
			}
		}
		for _, c := range []struct {
			name  string
			times int
			do    func()
		}{
			{"all services go and come back", 1, func() { apply(state.Update{Full: true}); apply(state.Update{Full: true, Changed: all}) }},
			{"endpoint leaves and comes back", 50, func() {
				apply(state.Update{Changed: []*state.Service{numbered(1, "10.244.0.1:80")}})
				apply(state.Update{Changed: all[1:2]})
			}},
			{"service goes and comes back", 50, func() {
				apply(state.Update{Removed: []state.ServiceName{all[1].Name}})
				apply(state.Update{Changed: all[1:2]})
			}},
		} {
			usage.Run(b, fmt.Sprintf("counters %v, %s", on, c.name), c.times, usage.Process, c.do)
		}
	}
}
