//go:build linux

package nftables

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// counting is a node whose processes connect to frontends, and what is expected to be counted.
type counting struct {
	t    *testing.T
	ns   *netns.NS
	want map[state.FrontendKey]backend.Counts
	port int // of the last client: connection tracking knows a port that is used again
}

func newCounting(t *testing.T) *counting {
	c := &counting{t: t, ns: netnstest.New(t), want: map[state.FrontendKey]backend.Counts{}, port: 10_000}
	netnstest.Outward(t, c.ns, "192.0.2.1/24", "2001:db8::1/64")
	return c
}

// connect sends the first datagram of some connections to each frontend of a service, all of which are to end in one way.
func (c *counting) connect(s *state.Service, connections int, ends backend.Counts) {
	c.t.Helper()
	for i := range s.Ports {
		p := &s.Ports[i]
		for j := range p.Frontends {
			f := &p.Frontends[j]
			to := netip.AddrPortFrom(f.Addr, f.Port)
			if f.Kind == state.NodePort {
				to = netip.AddrPortFrom(map[state.Family]netip.Addr{state.IPv4: addr("192.0.2.1"), state.IPv6: addr("2001:db8::1")}[p.Family], f.Port)
			}
			key := p.Key(f)
			want := c.want[key]
			for range connections {
				c.send(to)
				want.Add(ends)
			}
			c.want[key] = want
		}
	}
}

// send sends a datagram from a port of its own. That it is rejected or dropped may be an error of the socket.
func (c *counting) send(to netip.AddrPort) {
	c.t.Helper()
	c.port++
	netnstest.Datagram(c.t, c.ns, c.port, to)
}

// check compares what a dataplane has counted with what is expected.
func (c *counting) check(when string, b *Backend) {
	c.t.Helper()
	recordtest.CheckCounts(c.t, when, b, c.want)
}

// forget expects that all frontends count nothing.
func (c *counting) forget() {
	for key := range c.want {
		c.want[key] = backend.Counts{}
	}
}

// backend opens a dataplane that can be asked for counts.
func (c *counting) backend(o Options) *Backend {
	b := newBackend(c.t, c.ns, o)
	b.inspector.finder = dial(c.t, c.ns)
	return b
}

// udpService is a service of UDP, with a node port and a cluster IP of both families.
func udpService(name string, n, endpoints int, verdict state.Verdict, sticky time.Duration) *state.Service {
	var ports []state.Port
	for _, f := range families {
		p := clusterIPPort(f, state.UDP, n, endpointsOf(f, n, endpoints))
		p.Internal.Inside.Verdict, p.Internal.Outside.Verdict = verdict, verdict
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.NodePort, Port: uint16(30_000 + n)})
		p.External, p.Affinity = p.Internal, sticky
		ports = append(ports, p)
	}
	return serviceOf(name, ports...)
}

// TestCounts: each new connection counts once, by where it went, also when its endpoints change, and the process is replaced by another
// one. Without Counters, the tables are as if there had never been any.
func TestCounts(t *testing.T) {
	web, sticky := udpService("web", 1, 3, state.Forward, 0), udpService("sticky", 2, 2, state.Forward, time.Hour)
	crowd := udpService("crowd", 3, 30, state.Forward, 0)
	nobody, local := udpService("nobody", 4, 0, state.Reject, 0), udpService("local", 5, 0, state.Drop, 0)
	split := udpService("split", 6, 3, state.Forward, 0)
	closed := clusterIPPort(state.IPv4, state.UDP, 7, endpointsOf(state.IPv4, 1, 2))
	closed.External = closed.Internal
	closed.Frontends = []state.Frontend{{Kind: state.LoadBalancer, Addr: addr("203.0.113.7"), Port: 80, Restricted: true, Sources: []netip.Prefix{prefix("198.51.100.0/24")}}}
	restricted := serviceOf("restricted", closed)
	for i := range split.Ports {
		split.Ports[i].Internal.Masquerade, split.Ports[i].External.Masquerade = state.MasqueradeNode, state.MasqueradeNode
	}
	all := []*state.Service{web, sticky, crowd, nobody, local, split, restricted}
	passed, rejected, dropped := backend.Counts{Connections: 1}, backend.Counts{Connections: 1, Rejects: 1}, backend.Counts{Connections: 1, Drops: 1}

	c := newCounting(t)
	off := Options{NodePortAddresses: state.NodePortAddresses{CIDRs: []netip.Prefix{prefix("192.0.2.0/24"), prefix("2001:db8::/64")}}}
	on := off
	on.Counters = true
	b := c.backend(on)
	apply(t, b, full(all...))
	connectAll := func(times int) {
		for i, s := range all {
			ends := passed
			switch s {
			case nobody:
				ends = rejected
			case local, restricted:
				ends = dropped
			}
			c.connect(s, times+i, ends)
		}
	}
	connectAll(3)
	c.send(netip.MustParseAddrPort("10.96.0.1:81")) // no frontend
	c.check("at first", b)
	if listed := netnstest.NFT(t, c.ns, "list", "set", "ip", tableName, "service-reject-counts"); !strings.Contains(listed, "10.96.0.4 . udp . 80 counter packets 6 ") {
		t.Errorf("nft lists %s", listed)
	}

	// Endpoints come, go and come back, also in a service that had none.
	apply(t, b, delta(udpService("web", 1, 1, state.Forward, 0), udpService("nobody", 4, 2, state.Forward, 0)))
	c.connect(web, 2, passed)
	c.connect(nobody, 2, passed)
	apply(t, b, delta(udpService("web", 1, 0, state.Reject, 0)))
	c.connect(web, 2, rejected)
	apply(t, b, delta(web, nobody))
	c.check("when endpoints have changed", b)

	closeBackend(b)
	b = c.backend(on)
	if r := apply(t, b, full(all...)); r.Written != 0 {
		t.Errorf("%d objects written by another process", r.Written)
	}
	connectAll(1)
	c.check("with another process", b)
	if r := verify(t, b); r.Written != 0 {
		t.Errorf("%d objects repaired", r.Repaired)
	}

	if err := b.Reconfigure(off); err != nil {
		t.Fatal(err)
	}
	apply(t, b, full(all...))
	connectAll(1)
	c.forget()
	c.check("without counters", b)
	never := newCounting(t)
	apply(t, newBackend(t, never.ns, off), full(all...))
	if diff := changesBetween(dump(t, dial(t, c.ns)), dump(t, dial(t, never.ns))); len(diff) > 0 {
		t.Errorf("without counters, elements differ: %v", diff)
	}
	if diff := cmp.Diff(skeletonLines(t, never.ns), skeletonLines(t, c.ns)); diff != "" {
		t.Errorf("without counters, rules and sets differ (-want +got):\n%s", diff)
	}

	if err := b.Reconfigure(on); err != nil {
		t.Fatal(err)
	}
	apply(t, b, full(all...))
	c.check("when they are on again", b)
	connectAll(2)
	c.check("when they are on again", b)
}

// skeletonLines are the lines of what nft lists of all but elements, sorted: chains that were made later are listed later.
func skeletonLines(t *testing.T, ns *netns.NS) []string {
	t.Helper()
	return slices.Sorted(strings.Lines(netnstest.NFT(t, ns, "--terse", "list", "ruleset")))
}

// TestCountsOfServicesThatGo: a frontend that is gone counts nothing, and one that is there again begins at 0.
func TestCountsOfServicesThatGo(t *testing.T) {
	c := newCounting(t)
	b := c.backend(Options{Counters: true})
	web := udpService("web", 1, 2, state.Forward, 0)
	apply(t, b, full(web))
	c.connect(web, 5, backend.Counts{Connections: 1})
	c.check("at first", b)
	apply(t, b, &state.Update{Removed: []state.ServiceName{web.Name}, Node: testNode})
	c.forget()
	c.check("when it is gone", b)
	apply(t, b, delta(web))
	c.connect(web, 2, backend.Counts{Connections: 1})
	c.check("when it is there again", b)
}

// TestCountAbove: connections count to what another dataplane serves of a Service, too, which goes on when this one serves it, and they are left alone.
func TestCountAbove(t *testing.T) {
	c := newCounting(t)
	// With a detector, connections of the node are masqueraded if nothing else is said.
	b := c.backend(Options{Counters: true, LocalDetector: state.LocalDetector{ClusterCIDRs: []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:10:244::/48")}}, NodePortAddresses: state.NodePortAddresses{CIDRs: []netip.Prefix{prefix("192.0.2.0/24"), prefix("2001:db8::/64")}}})
	web, other := udpService("web", 1, 2, state.Forward, 0), udpService("other", 2, 2, state.Forward, 0)
	part := *web
	part.Ports = slices.Clone(web.Ports)
	for i := range part.Ports {
		part.Ports[i].Frontends = part.Ports[i].Frontends[1:] // the node port
	}
	netnstest.NFT(t, c.ns, "add table inet watch; add chain inet watch marked { type filter hook postrouting priority 0; }; "+
		"add rule inet watch marked ip daddr 10.96.0.1 meta mark & 0x4000 != 0 counter; add rule inet watch marked ip6 daddr fd00:10:96::1 meta mark & 0x4000 != 0 counter")
	netnstest.Do(t, c.ns, func() error { // as addresses of virtual servers are
		dev, err := netlink.LinkByName("out")
		if err != nil {
			return err
		}
		for i := range web.Ports {
			a := web.Ports[i].Frontends[0].Addr
			err = errors.Join(err, netlink.AddrAdd(dev, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD}))
		}
		return err
	})
	passed := backend.Counts{Connections: 1}
	one := map[state.ServiceName]*state.Service{web.Name: web}
	none := map[state.ServiceName]*state.Service{web.Name: nil}
	for _, step := range []struct {
		when   string
		whole  map[state.ServiceName]*state.Service
		full   bool
		u      *state.Update
		serves bool
	}{
		{"at first", one, true, full(other, &part), false},
		{"when another Service changes", map[state.ServiceName]*state.Service{other.Name: nil}, false, delta(other), false},
		{"when this one serves it", none, false, delta(web), true},
		{"when the other one does", one, false, delta(&part), false},
		{"after everything was compared", one, true, full(other, &part), false},
	} {
		b.CountAbove(step.whole, step.full)
		apply(t, b, step.u)
		c.connect(web, 2, passed)
		c.connect(other, 1, passed)
		c.check(step.when, b)
		for i := range web.Ports {
			key := web.Ports[i].Key(&web.Ports[i].Frontends[0])
			held, err := b.Inspect(backend.Query{Frontend: key, Dst: key.Addr})
			if serves := len(held.Endpoints) > 0; err != nil || serves != step.serves {
				t.Errorf("%s: %v has %+v, %v", step.when, key, held, err)
			}
		}
		if r := verify(t, b); r.Written != 0 {
			t.Errorf("%s: %d objects repaired", step.when, r.Written)
		}
	}
	if listed := netnstest.NFT(t, c.ns, "list", "table", "inet", "watch"); strings.Count(listed, "counter packets 0 ") != 2 {
		t.Errorf("packets to what the other one serves are marked for masquerading:\n%s", listed)
	}
	b.CountAbove(nil, true)
	apply(t, b, full(other, &part))
	for _, p := range web.Ports {
		c.want[p.Key(&p.Frontends[0])] = backend.Counts{}
	}
	c.check("when nobody serves it", b)
}
