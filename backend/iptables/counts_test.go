//go:build linux

package iptables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// counting is a node whose processes connect to frontends, and what is expected to be counted.
type counting struct {
	t       testing.TB
	ns      *netns.NS
	r       *rand.Rand
	port    int // of the last client: connection tracking knows a port that is used again
	records map[string]*state.Service
	want    map[state.FrontendKey]backend.Counts
}

func newCounting(t testing.TB) *counting {
	c := &counting{t: t, ns: netnstest.New(t), r: rand.New(rand.NewPCG(1, 1)), port: 10_000, records: map[string]*state.Service{}, want: map[state.FrontendKey]backend.Counts{}}
	netnstest.Do(t, c.ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	netnstest.Outward(t, c.ns, "192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64", "2001:db8::2/64")
	return c
}

// record makes a Service of UDP, with a frontend of each kind in both families, whose endpoints and policy differ from time to time.
func (c *counting) record(name string, n int) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}}
	for _, f := range recordtest.Families {
		addr := func(v4, v6 string) netip.Addr {
			return netip.MustParseAddr(fmt.Sprintf(map[state.Family]string{state.IPv4: v4, state.IPv6: v6}[f], n))
		}
		route := func() state.Route {
			r := state.Route{Verdict: []state.Verdict{state.Reject, state.Drop}[c.r.IntN(2)]}
			for range c.r.IntN(3) { // none is not rare
				r.Verdict = state.Forward
				r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(addr("10.244.0.%d", "fd00:244::%d"), uint16(5000+len(r.Endpoints)))})
			}
			return r
		}
		p := state.Port{Protocol: state.UDP, Family: f, Frontends: []state.Frontend{
			{Kind: state.ClusterIP, Addr: addr("10.96.0.%d", "fd00:96::%d"), Port: 80},
			// An address of the node, and the node port of the next Service: the address counts.
			{Kind: state.ExternalIP, Addr: netip.MustParseAddr(map[state.Family]string{state.IPv4: "192.0.2.2", state.IPv6: "2001:db8::2"}[f]), Port: uint16(30_001 + n)},
			{Kind: state.LoadBalancer, Addr: addr("203.0.113.%d", "2001:db8:1::%d"), Port: 80},
			{Kind: state.LoadBalancer, Addr: addr("203.0.113.10%d", "2001:db8:1::10%d"), Port: 80, Restricted: true},
			{Kind: state.NodePort, Port: uint16(30_000 + n)},
		}}
		p.Internal = state.Traffic{Inside: route(), Outside: route(), Masquerade: state.MasqueradeAlways}
		p.External = state.Traffic{Inside: route(), Outside: route(), Masquerade: state.MasqueradeNode}
		if c.r.IntN(3) == 0 {
			p.Affinity = time.Hour
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// connect sends the first datagrams of some connections to each frontend, from the node, which is inside.
func (c *counting) connect() {
	c.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(c.records)) {
		s := c.records[name]
		for i := range s.Ports {
			p := &s.Ports[i]
			for j := range p.Frontends {
				f := &p.Frontends[j]
				verdict, to := p.External.Inside.Verdict, netip.AddrPortFrom(f.Addr, f.Port)
				switch {
				case f.Kind == state.ClusterIP:
					verdict = p.Internal.Inside.Verdict
				case f.Kind == state.NodePort:
					to = netip.AddrPortFrom(map[state.Family]netip.Addr{state.IPv4: recordtest.Addr("192.0.2.1"), state.IPv6: recordtest.Addr("2001:db8::1")}[p.Family], f.Port)
				case f.Restricted:
					verdict = state.Drop
				}
				want := c.want[p.Key(f)]
				for range 1 + c.r.IntN(2) {
					c.send(to)
					want.Add(map[state.Verdict]backend.Counts{
						state.Forward: {Connections: 1}, state.Reject: {Connections: 1, Rejects: 1}, state.Drop: {Connections: 1, Drops: 1},
					}[verdict])
				}
				c.want[p.Key(f)] = want
			}
		}
	}
	c.send(netip.MustParseAddrPort("10.96.0.1:81")) // no frontend
	c.send(netip.MustParseAddrPort("192.0.2.1:31000"))
}

// send sends a datagram from a port of its own. That it is rejected or dropped may be an error of the socket.
func (c *counting) send(to netip.AddrPort) {
	c.t.Helper()
	c.port++
	netnstest.Datagram(c.t, c.ns, c.port, to)
}

func (c *counting) all() (records []*state.Service) {
	for _, name := range slices.Sorted(maps.Keys(c.records)) {
		records = append(records, c.records[name])
	}
	return records
}

// check compares what is counted with what is expected.
func (c *counting) check(when string, b *Backend) {
	c.t.Helper()
	recordtest.CheckCounts(c.t, when, b, c.want)
}

// gone has a Service removed.
func (c *counting) gone(name string) {
	s := c.records[name]
	delete(c.records, name)
	for i := range s.Ports {
		for j := range s.Ports[i].Frontends {
			delete(c.want, s.Ports[i].Key(&s.Ports[i].Frontends[j]))
		}
	}
}

// TestCounts: in a random history, each new connection counts once, by where it went, also when endpoints change, and the process is replaced by
// another one. Without Counters, there is no trace of it.
func TestCounts(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		c := newCounting(t)
		on := Options{Variant: v, Counters: true}
		b := newBackend(t, c.ns, on)
		apply(t, b, recordtest.Full())
		for step := range 25 {
			n := 1 + c.r.IntN(4)
			name := fmt.Sprint("s", n)
			what := "a change"
			switch {
			case c.records[name] != nil && c.r.IntN(4) == 0:
				what = "a removal"
				u := &state.Update{Node: recordtest.Node(), Removed: []state.ServiceName{c.records[name].Name}}
				c.gone(name)
				apply(t, b, u)
			case c.r.IntN(6) == 0:
				what = "another process"
				closeBackend(t, b)
				b = newBackend(t, c.ns, on)
				apply(t, b, recordtest.Full(c.all()...))
			default:
				c.records[name] = c.record(name, n)
				apply(t, b, recordtest.Delta(c.records[name]))
			}
			c.connect()
			c.check(fmt.Sprintf("step %d, after %s", step, what), b)
			if t.Failed() {
				return
			}
		}
		for _, o := range []Options{{Variant: v}, on} {
			if err := b.Reconfigure(o); err != nil {
				t.Fatal(err)
			}
			apply(t, b, recordtest.Full(c.all()...))
			clear(c.want)
			if o.Counters {
				c.connect()
			} else if left := tables(t, c.ns, v); strings.Contains(left, "COUNTS") {
				t.Errorf("without counters, there is\n%s", left)
			}
			c.check(fmt.Sprintf("counters: %v", o.Counters), b)
		}
		if _, err := b.Counts(nil); err != nil {
			t.Error(err)
		}
		key := state.FrontendKey{Family: state.IPv4, Protocol: state.UDP, Addr: recordtest.Addr("10.96.0.9"), Port: 80}
		if got, err := b.Counts([]state.FrontendKey{key}); err != nil || got[0] != (backend.Counts{}) {
			t.Errorf("a frontend that nobody has: %+v, %v", got, err)
		}
		closeBackend(t, b)
		if _, err := b.Counts([]state.FrontendKey{key}); err == nil {
			t.Error("a dataplane that is closed reads counts")
		}
	})
}
