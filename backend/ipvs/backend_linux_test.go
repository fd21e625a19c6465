package ipvs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/internal/kernel/ipvs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

func sorted(words []string) []string {
	slices.Sort(words)
	return words
}

// key parses "10.96.0.10:80/TCP".
func key(s string) plan.Key {
	addr, protocol, _ := strings.Cut(s, "/")
	return plan.Key{Protocol: map[string]state.Protocol{"TCP": state.TCP, "UDP": state.UDP, "SCTP": state.SCTP}[protocol], Addr: netip.MustParseAddrPort(addr)}
}

func endpoints(list string) (e []state.Endpoint) {
	for a := range strings.FieldsSeq(list) {
		e = append(e, state.Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	slices.SortFunc(e, state.Endpoint.Compare)
	return e
}

func route(e []state.Endpoint) state.Route {
	if len(e) == 0 {
		return state.Route{Verdict: state.Reject}
	}
	return state.Route{Verdict: state.Forward, Endpoints: e}
}

// web makes a service with one port, whose frontend is a cluster IP.
func web(name, frontend, list string) *state.Service {
	k, e := key(frontend), endpoints(list)
	return &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}, Ports: []state.Port{{
		Protocol: k.Protocol, Family: k.Family(), Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: k.Addr.Addr(), Port: k.Addr.Port()}},
		Internal: state.Traffic{Inside: route(e), Outside: route(e), Masquerade: state.MasqueradeUnlessPod},
	}}}
}

func (n *node) wantShown(server, want string) {
	n.t.Helper()
	if got := n.shown(server); got != want {
		n.t.Errorf("%s is %q, want %q", server, got, want)
	}
}

func TestServesAndLetsGo(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t), Scheduler: "lc"})
	const vip = "10.96.0.10:80/TCP"
	n.full(web("web", vip, "10.244.0.1:8080 10.244.0.2:8080"))
	n.wantShown(vip, "lc 10.244.0.1:8080=1 10.244.0.2:8080=1")
	if len(n.base.shown[state.ServiceName{Namespace: "default", Name: "web"}].Ports) > 0 {
		t.Error("the base has the port, too")
	}

	// An endpoint that goes keeps its connections, until they have ended.
	n.update(web("web", vip, "10.244.0.2:8080"))
	n.wantShown(vip, "lc 10.244.0.1:8080=0 10.244.0.2:8080=1")
	leaving := n.ipvs.at(key(vip)).dests[netip.MustParseAddrPort("10.244.0.1:8080")]
	leaving.Inactive = 1
	n.drainNow(time.Now())
	n.wantShown(vip, "lc 10.244.0.1:8080=0 10.244.0.2:8080=1")
	leaving.Inactive = 0
	n.drainNow(time.Now())
	n.wantShown(vip, "lc 10.244.0.2:8080=1")

	// One that comes back in between takes connections again, and is no longer asked to go.
	n.update(web("web", vip, "10.244.0.1:8080"))
	n.update(web("web", vip, "10.244.0.1:8080 10.244.0.2:8080"))
	n.drainNow(time.Now().Add(2 * time.Hour))
	n.wantShown(vip, "lc 10.244.0.1:8080=1 10.244.0.2:8080=1")

	// Without endpoints, the base refuses connections. Those that are open go on until the deadline.
	n.update(web("web", vip, ""))
	n.wantShown(vip, "lc 10.244.0.1:8080=0 10.244.0.2:8080=0")
	if !n.base.serves(key(vip)) {
		t.Error("the base does not serve a frontend without endpoints")
	}
	for _, d := range n.ipvs.at(key(vip)).dests {
		d.Active = 1
	}
	n.drainNow(time.Now().Add(59 * time.Minute))
	n.wantShown(vip, "lc 10.244.0.1:8080=0 10.244.0.2:8080=0")
	n.drainNow(time.Now().Add(61 * time.Minute))
	n.wantShown(vip, "")
	if len(n.links.addrs) > 0 {
		t.Errorf("addresses are left: %v", n.links.addrs)
	}
}

// TestWeights: real servers have the weights of endpoints where the scheduler knows weights, and the base serves the rest.
func TestWeights(t *testing.T) {
	const vip = "10.96.0.10:80/TCP"
	weighted := func(refused uint32, weights ...uint16) *state.Service {
		s := web("web", vip, "10.244.0.1:8080 10.244.0.2:8080")
		t := &s.Ports[0].Internal
		for i, w := range weights {
			t.Inside.Endpoints[i].Weight = w
		}
		t.Inside.Refused, t.Outside.Refused = refused, refused
		return s
	}
	n := newNode(t, Options{Logger: logger(t), Scheduler: "wlc"})
	n.full(weighted(0, 80, 15))
	n.wantShown(vip, "wlc 10.244.0.1:8080=80 10.244.0.2:8080=15")
	n.update(weighted(0, 80, 65535))
	n.wantShown(vip, "wlc 10.244.0.1:8080=80 10.244.0.2:8080=65535")
	n.restart()
	if result := n.full(weighted(0, 80, 65535)); result.Written > 0 {
		t.Errorf("a restart writes %d", result.Written)
	}
	n.update(weighted(0))
	n.wantShown(vip, "wlc 10.244.0.1:8080=1 10.244.0.2:8080=1")
	n.update(weighted(5, 80, 15))
	n.wantShown(vip, "wlc 10.244.0.1:8080=0 10.244.0.2:8080=0")
	if !n.base.serves(key(vip)) {
		t.Error("the base does not serve a frontend that refuses a share")
	}

	n = newNode(t, Options{Logger: logger(t), Scheduler: "lc"})
	n.full(weighted(0, 80, 15))
	n.wantShown(vip, "")
	if !n.base.serves(key(vip)) {
		t.Error("the base does not serve a frontend whose weights the scheduler does not know")
	}
	n.update(weighted(0, 80, 80))
	n.wantShown(vip, "lc 10.244.0.1:8080=80 10.244.0.2:8080=80")
}

// TestLeastConnections: a service that asks for least connections has its own scheduler, with the weights of endpoints. The base serves it if the kernel does
// not have that scheduler.
func TestLeastConnections(t *testing.T) {
	const vip, other = "10.96.0.10:80/TCP", "10.96.0.11:80/TCP"
	asking := web("web", vip, "10.244.0.1:8080 10.244.0.2:8080")
	asking.Ports[0].Balance = state.LeastConnections
	n := newNode(t, Options{Logger: logger(t)})
	n.full(web("web", vip, "10.244.0.1:8080 10.244.0.2:8080"), web("other", other, "10.244.0.1:8080"))
	n.wantShown(vip, "rr 10.244.0.1:8080=1 10.244.0.2:8080=1")
	n.update(asking)
	n.wantShown(vip, "wlc 10.244.0.1:8080=1 10.244.0.2:8080=1")
	n.wantShown(other, "rr 10.244.0.1:8080=1")
	n.restart()
	if result := n.full(asking, web("other", other, "10.244.0.1:8080")); result.Written > 0 {
		t.Errorf("a restart writes %d", result.Written)
	}
	weighted := web("web", vip, "10.244.0.1:8080 10.244.0.2:8080")
	weighted.Ports[0].Balance = state.LeastConnections
	weighted.Ports[0].Internal.Inside.Endpoints[1].Weight, weighted.Ports[0].Internal.Inside.Endpoints[0].Weight = 9, 3
	n.update(weighted)
	n.wantShown(vip, "wlc 10.244.0.1:8080=3 10.244.0.2:8080=9")
	n.update(web("web", vip, "10.244.0.1:8080 10.244.0.2:8080"))
	n.wantShown(vip, "rr 10.244.0.1:8080=1 10.244.0.2:8080=1")

	n = newNode(t, Options{Logger: logger(t)})
	n.ipvs.schedulers = []string{"rr"}
	if result := n.full(asking); len(result.Failed) > 0 {
		t.Errorf("without the scheduler: %v", result.Failed)
	}
	n.wantShown(vip, "")
	if !n.base.serves(key(vip)) {
		t.Error("the base does not serve a frontend whose connections IPVS cannot count")
	}
	if len(n.refused) > 0 {
		t.Errorf("each Verify will ask the kernel again for %v", n.refused)
	}
}

func TestFlowsOfUDP(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t)})
	const vip = "10.96.0.10:53/UDP"
	dns := web("dns", vip, "10.244.0.1:53 10.244.0.2:53")
	n.full(dns)
	// One that terminates keeps its flows, one that is gone does not.
	dns = web("dns", vip, "10.244.0.2:53")
	dns.Ports[0].Lingering = endpoints("10.244.0.1:53")
	n.update(dns)
	n.drainNow(time.Now().Add(2 * time.Hour))
	n.wantShown(vip, "rr 10.244.0.1:53=0 10.244.0.2:53=1")
	n.update(web("dns", vip, "10.244.0.2:53"))
	n.wantShown(vip, "rr 10.244.0.2:53=1")

	// Flows of a frontend that the base serves from now on go on while their endpoint serves.
	dns = web("dns", vip, "10.244.0.2:53")
	dns.Ports[0].Affinity = time.Hour
	n.update(dns)
	n.wantShown(vip, "rr 10.244.0.2:53=0")
	dns = web("dns", vip, "10.244.0.3:53")
	dns.Ports[0].Affinity = time.Hour
	n.update(dns)
	n.wantShown(vip, "")
}

func TestResetRemoved(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t), ResetRemoved: true})
	const vip = "10.96.0.10:80/TCP"
	n.full(web("web", vip, "10.244.0.1:8080 10.244.0.2:8080"))
	next := web("web", vip, "10.244.0.2:8080")
	next.Ports[0].Lingering = endpoints("10.244.0.1:8080")
	n.update(next)
	n.wantShown(vip, "rr 10.244.0.1:8080=0 10.244.0.2:8080=1")
	n.update(web("web", vip, "10.244.0.2:8080"))
	n.wantShown(vip, "rr 10.244.0.2:8080=1")
	if p := n.base.shown[next.Name].Ports; len(p) != 1 || len(p[0].Frontends) > 0 {
		t.Errorf("the base has ports %+v, want the endpoints of one without frontends: it would reset connections to them", p)
	}
}

func TestRestartWritesNothing(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t), StrictARP: true, UDPTimeout: 10 * time.Second})
	services := []*state.Service{
		web("dns", "10.96.0.11:53/UDP", "10.244.0.1:53"), web("six", "[fd00::10]:80/SCTP", "[fd00:1::1]:8080"),
		web("web", "10.96.0.10:80/TCP", "10.244.0.1:8080 10.244.0.2:8080"),
	}
	if n.full(services...).Written == 0 {
		t.Fatal("nothing was written")
	}
	n.restart()
	before := n.ipvs.changes
	if r := n.full(services...); r.Written > 0 || len(r.Failed) > 0 {
		t.Errorf("a restart has written %d objects, failed with %v", r.Written, r.Failed)
	}
	if made := n.ipvs.changes - before; made > 0 {
		t.Errorf("a restart has made %d changes of virtual servers", made)
	}
	if r, err := n.Verify(t.Context()); err != nil || r.Written > 0 || r.Repaired > 0 {
		t.Errorf("Verify has written %d, repaired %d, %v", r.Written, r.Repaired, err)
	}
	// What goes while nobody looks drains like everything else.
	n.restart()
	n.full(services[:2]...)
	n.wantShown("10.96.0.10:80/TCP", "rr 10.244.0.1:8080=0 10.244.0.2:8080=0")
	n.drainNow(time.Now())
	n.wantShown("10.96.0.10:80/TCP", "")
	if n.links.addrs[netip.MustParseAddr("10.96.0.10")] {
		t.Error("the address is left")
	}
}

func TestDriftIsRepaired(t *testing.T) {
	const vip = "10.96.0.10:80/TCP"
	for name, drift := range map[string]func(*node){
		"endpoint gone":     func(n *node) { delete(n.ipvs.at(key(vip)).dests, netip.MustParseAddrPort("10.244.0.1:8080")) },
		"endpoint's weight": func(n *node) { n.ipvs.at(key(vip)).dests[netip.MustParseAddrPort("10.244.0.1:8080")].Weight = 0 },
		"scheduler":         func(n *node) { n.ipvs.at(key(vip)).as.Scheduler = "lc" },
		"server gone":       func(n *node) { delete(n.ipvs.servers, *name2(vip)) },
		"address gone":      func(n *node) { clear(n.links.addrs) },
		"device gone":       func(n *node) { n.links.link = nil },
		"device down":       func(n *node) { n.links.link.Flags &^= net.FlagUp },
		"stray address":     func(n *node) { n.links.addrs[netip.MustParseAddr("10.96.0.99")] = true },
		"conntrack":         func(n *node) { n.files[sysctlConntrack].value = "0" },
		"timeout":           func(n *node) { n.ipvs.timeouts.TCP = time.Second },
		"table gone":        func(n *node) { n.must(n.ns.Do(deleteTables)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, Options{Logger: logger(t), TCPTimeout: time.Hour})
			n.full(web("web", vip, "10.244.0.1:8080 10.244.0.2:8080"))
			if strings.HasPrefix(name, "table") && n.tables.flags != 0 {
				return // this kernel keeps others from deleting it
			}
			drift(n)
			r, err := n.Verify(t.Context())
			if err != nil || r.Repaired == 0 && name != "device down" {
				t.Errorf("Verify has repaired %d, %v", r.Repaired, err)
			}
			n.wantShown(vip, "rr 10.244.0.1:8080=1 10.244.0.2:8080=1")
			if got := slices.Collect(maps.Keys(n.links.addrs)); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.96.0.10")}) {
				t.Errorf("addresses %v", got)
			}
			if n.links.link.Flags&net.FlagUp == 0 || n.files[sysctlConntrack].value != "1" || n.ipvs.timeouts.TCP != time.Hour {
				t.Error("device or settings are not repaired")
			}
			if r, err := n.Verify(t.Context()); err != nil || r.Written > 0 {
				t.Errorf("the second Verify has written %d, %v", r.Written, err)
			}
		})
	}
}

func name2(s string) *ipvs.Server { return name(key(s)) }

// TestOthersAreLeftAlone: virtual servers of other programs stay whatever happens, and frontends in their ranges are left to the base.
func TestOthersAreLeftAlone(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t), ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.1.0/24")}})
	others := []ipvs.Server{
		{Protocol: 6, Addr: netip.MustParseAddrPort("192.0.2.1:80"), Scheduler: "rr"},
		{Protocol: 6, Addr: netip.MustParseAddrPort("10.96.1.10:80"), Scheduler: "rr"},
		{Mark: 7, Scheduler: "lc"},
	}
	for _, s := range others {
		n.must(n.ipvs.AddServer(&s))
	}
	n.full(web("theirs", "10.96.1.10:80/TCP", "10.244.0.1:80"), web("web", "10.96.0.10:80/TCP", "10.244.0.1:80"))
	if !n.base.serves(key("10.96.1.10:80/TCP")) {
		t.Error("the base does not serve a frontend in an excluded range")
	}
	n.restart()
	n.full()
	n.drainNow(time.Now())
	left, _ := n.ipvs.Servers()
	if len(left) != len(others) {
		t.Errorf("left are %v, want %v", left, others)
	}
}

// TestTakesOverAServer: a server in the way is of kube-proxy, or of an earlier process whose device is gone.
func TestTakesOverAServer(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t)})
	const vip = "10.96.0.10:80/TCP"
	was := *name(key(vip))
	was.Scheduler, was.Flags = "lc", 1
	n.must(n.ipvs.AddServer(&was))
	if refused := n.ipvs.AddDests(&was, []ipvs.Dest{
		{Addr: netip.MustParseAddrPort("10.244.0.1:80"), Weight: 1}, {Addr: netip.MustParseAddrPort("10.244.0.9:80"), Weight: 1},
	}); len(refused) > 0 {
		t.Fatal(refused)
	}
	if r := n.full(web("web", vip, "10.244.0.1:80")); len(r.Failed) > 0 {
		t.Error(r.Failed)
	}
	n.wantShown(vip, "rr 10.244.0.1:80=1 10.244.0.9:80=0")
	if f := n.ipvs.at(key(vip)).as.Flags; f != 0 {
		t.Errorf("flags %d are left", f)
	}
}

func TestUnknownScheduler(t *testing.T) {
	err := checkScheduler(newFakeIPVS(), "nosuch")
	if err == nil || !strings.Contains(err.Error(), "ip_vs_nosuch") || !strings.Contains(err.Error(), "ipvs.scheduler") {
		t.Errorf("error %v, want one that names the field and the module", err)
	}
	n := newNode(t, Options{Logger: logger(t)})
	const vip = "10.96.0.10:80/TCP"
	n.full(web("web", vip, "10.244.0.1:80"))
	if err := n.Reconfigure(Options{Scheduler: "nosuch"}); err == nil {
		t.Error("an unknown scheduler is taken")
	}
	n.must(n.Reconfigure(Options{Scheduler: "lc"}))
	n.wantShown(vip, "rr 10.244.0.1:80=1")
	n.full(web("web", vip, "10.244.0.1:80"))
	n.wantShown(vip, "lc 10.244.0.1:80=1")
}

// TestSettings: what a setting was before stands in the device's alias, whatever process changed it, and comes back with the option.
func TestSettings(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t), StrictARP: true, TCPFinTimeout: 1500 * time.Millisecond})
	n.files[sysctlIgnore].value = "2"
	n.full()
	values := func() string {
		return fmt.Sprint(n.files[sysctlConntrack].value, n.files[sysctlExpire].value, n.files[sysctlIgnore].value, n.files[sysctlAnnounce].value,
			n.ipvs.timeouts)
	}
	if got, want := values(), "1112{15m0s 2s 5m0s}"; strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("settings %s, want %s", got, want)
	}
	const alias = "before switchyard: arp_announce=0 arp_ignore=2 conntrack=0 expire_nodest_conn=0 tcpfin=120"
	if n.links.link.Alias != alias {
		t.Errorf("alias %q, want %q", n.links.link.Alias, alias)
	}
	n.links.link = nil // somebody deletes the device
	n.must(second(n.Verify(t.Context())))
	if n.links.link.Alias != alias {
		t.Errorf("alias of another device %q, want %q", n.links.link.Alias, alias)
	}
	n.restart()
	n.full()
	if n.links.link.Alias != alias {
		t.Errorf("alias after a restart %q, want %q", n.links.link.Alias, alias)
	}
	n.must(n.Reconfigure(Options{}))
	n.full()
	if got, want := values(), "1120{15m0s2m0s5m0s}"; strings.ReplaceAll(got, " ", "") != want {
		t.Errorf("settings without options %s, want %s", got, want)
	}
}

func second[T any](_ T, err error) error { return err }

// TestNodeAddresses: an address that is the machine's own is not given to IPVS, and leaves it when it becomes that.
func TestNodeAddresses(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t)})
	const vip = "203.0.113.10:80/TCP"
	service := web("web", vip, "10.244.0.1:80")
	n.full(service)
	n.wantShown(vip, "rr 10.244.0.1:80=1")
	n.must(n.ns.Do(func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(203, 0, 113, 10), Mask: net.CIDRMask(32, 32)}})
	}))
	await.Receive(t, "disturbed by an address", n.Disturbed())
	if _, err := n.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !n.base.serves(key(vip)) {
		t.Error("the base does not serve an address of the machine")
	}
	n.drainNow(time.Now())
	if n.links.addrs[netip.MustParseAddr("203.0.113.10")] {
		t.Error("the device has an address of the machine")
	}
}

// TestDeviceIsWatched: without its device, IPVS gets no packets.
func TestDeviceIsWatched(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t)})
	n.must(n.ns.Do(func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: ifaddr.ServiceDevice}, PeerName: "peer"}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
	await.Receive(t, "disturbed by the loss of the device", n.Disturbed())
}

// TestChangeCostsWhatItChanges: with many services, a change asks the kernel for nothing, and writes what is different.
func TestChangeCostsWhatItChanges(t *testing.T) {
	n := newNode(t, Options{})
	var services []*state.Service
	for i := range 500 {
		services = append(services, web(fmt.Sprintf("s%03d", i), fmt.Sprintf("10.96.%d.%d:80/TCP", i/250, 1+i%250), "10.244.0.1:80 10.244.0.2:80"))
	}
	n.full(services...)
	changes, asked := n.ipvs.changes, n.ipvs.asked
	r := n.update(web("s123", "10.96.0.124:80/TCP", "10.244.0.1:80 10.244.0.3:80"))
	if got := n.ipvs.changes - changes; got != 2 {
		t.Errorf("another endpoint has made %d changes of virtual servers, want 2", got)
	}
	if got := n.ipvs.asked - asked; got > 0 {
		t.Errorf("another endpoint has asked for servers or endpoints %d times", got)
	}
	if r.Written != 3 { // and an element for hairpins; the other one is of all
		t.Errorf("written %d, want 3", r.Written)
	}
}

// TestRetire: endpoints of a retired Backend go as their connections end, and it serves again when it is asked to.
func TestRetire(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t)})
	const vip = "10.96.0.10:80/TCP"
	records := []*state.Service{web("web", vip, "10.244.0.1:80"), web("xdns", "10.96.0.11:53/UDP", "10.244.0.1:53")}
	n.full(records...)
	dest := func() *ipvs.Dest { return n.ipvs.at(key(vip)).dests[netip.MustParseAddrPort("10.244.0.1:80")] }
	dest().Active = 1
	n.Retire()
	n.full(records...)
	n.drainNow(time.Now())
	n.wantShown(vip, "rr 10.244.0.1:80=0")
	if n.Carried() != 1 {
		t.Errorf("%d servers are left, want that with a connection", n.Carried())
	}
	n.Resume(n.base)
	n.full(records...)
	n.wantShown(vip, "rr 10.244.0.1:80=1")
	n.Retire()
	n.full(records...)
	dest().Active = 0
	n.drainNow(time.Now())
	if len(n.ipvs.servers) > 0 || len(n.links.addrs) > 0 || n.Carried() > 0 {
		t.Errorf("servers %v and addresses %v are left", n.ipvs.servers, n.links.addrs)
	}
}

// TestHistories applies random changes, with failures of the kernel and of the base, and sees that at all times one of the two serves each
// frontend, and in the end the right one does what the record says.
func TestHistories(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newHistory(t, seed).run() })
	}
}

type history struct {
	*node
	r       *rand.Rand
	records map[state.ServiceName]*state.Service
	applied map[state.ServiceName]*state.Service // without failure
	before  map[plan.Key]bool                    // frontends that were applied, and still are
	failing bool
	owing   bool // a full update
}

func newHistory(t *testing.T, seed uint64) *history {
	scheduler := []string{"rr", "wlc"}[seed%2]
	h := &history{node: newNode(t, Options{ResetRemoved: seed%4 == 3, Scheduler: scheduler}), r: rand.New(rand.NewPCG(seed, 1)), records: map[state.ServiceName]*state.Service{}, applied: map[state.ServiceName]*state.Service{}}
	fails := func(rate int) func() bool { return func() bool { return h.failing && h.r.IntN(rate) == 0 } }
	h.ipvs.fail, h.links.fail, h.base.fail = fails(30), fails(30), fails(20)
	// When one of the two lets go of a frontend that there was and is, the other has it.
	h.ipvs.weakened = func(k plan.Key) {
		if h.before[k] && !h.base.serves(k) {
			t.Errorf("IPVS has let go of %v, which the base does not serve", k)
		}
	}
	return h
}

func (h *history) service(i int) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%d", i)}}
	for j := range 1 + h.r.IntN(3) {
		protocol := []state.Protocol{state.TCP, state.UDP, state.SCTP}[h.r.IntN(3)]
		p := state.Port{Name: fmt.Sprint("p", j), Protocol: protocol, Family: state.IPv4}
		cluster := netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + i)})
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.ClusterIP, Addr: cluster, Port: uint16(80 + j)})
		if h.r.IntN(2) == 0 {
			p.Frontends = append(p.Frontends, state.Frontend{Kind: state.LoadBalancer, Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i)}),
				Port: uint16(80 + j), Restricted: h.r.IntN(4) == 0})
		}
		if h.r.IntN(3) == 0 {
			p.Frontends = append(p.Frontends, state.Frontend{Kind: state.NodePort, Port: uint16(30000 + 10*i + j)})
		}
		pick := func() (e []state.Endpoint) {
			for n := range 4 {
				if h.r.IntN(2) == 0 {
					e = append(e, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), byte(1 + n)}), 8080)})
				}
			}
			return e
		}
		all := pick()
		to := route(all)
		if len(all) > 0 && h.r.IntN(3) == 0 {
			for n := range all {
				all[n].Weight = uint16(1 + h.r.IntN(3))
			}
			to.Refused = uint32(max(0, h.r.IntN(8)-5))
		}
		p.Internal = state.Traffic{Inside: to, Outside: to, Masquerade: state.Masquerade(h.r.IntN(4))}
		p.External = p.Internal
		if h.r.IntN(4) == 0 {
			p.External.Outside = route(pick())
		}
		if h.r.IntN(6) == 0 {
			p.Affinity = time.Hour
		}
		if protocol == state.UDP {
			p.Lingering = slices.DeleteFunc(pick(), func(e state.Endpoint) bool {
				return slices.ContainsFunc(all, func(a state.Endpoint) bool { return a.Addr == e.Addr }) || slices.Contains(p.External.Outside.Endpoints, e)
			})
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

func eachFrontend(s *state.Service, each func(plan.Key)) {
	for i := range s.Ports {
		for _, f := range s.Ports[i].Frontends {
			if f.Kind != state.NodePort {
				each(plan.Key{Protocol: s.Ports[i].Protocol, Addr: netip.AddrPortFrom(f.Addr, f.Port)})
			}
		}
	}
}

func keysOf(services map[state.ServiceName]*state.Service) map[plan.Key]bool {
	keys := map[plan.Key]bool{}
	for _, s := range services {
		eachFrontend(s, func(k plan.Key) { keys[k] = true })
	}
	return keys
}

func (h *history) run() {
	pending := map[state.ServiceName]bool{}
	for step := range 120 {
		h.failing = step%3 > 0
		full := h.r.IntN(10) == 0
		for range 1 + h.r.IntN(3) {
			i := h.r.IntN(6)
			s := h.service(i)
			if pending[s.Name] = true; h.r.IntN(5) == 0 {
				delete(h.records, s.Name)
			} else {
				h.records[s.Name] = s
			}
		}
		if h.r.IntN(15) == 0 {
			failing := h.failing
			h.failing, full = false, true
			h.restart()
			h.failing, h.applied = failing, map[state.ServiceName]*state.Service{}
		}
		h.apply(full || step == 0, pending)
		if !h.failing {
			for len(pending) > 0 { // as Run does
				h.apply(false, pending)
			}
			h.check()
		}
		h.drainNow(time.Now())
	}
	h.failing = false
	clear(h.records)
	h.before = map[plan.Key]bool{}
	h.full()
	h.drainNow(time.Now())
	if len(h.ipvs.servers) > 0 || len(h.links.addrs) > 0 || len(h.tables.held) > 0 {
		h.t.Errorf("servers %v, addresses %v and elements %v are left", h.ipvs.servers, h.links.addrs, h.tables.held)
	}
}

// apply applies what is pending, once.
func (h *history) apply(full bool, pending map[state.ServiceName]bool) {
	h.rev++
	u := &state.Update{Revision: h.rev, Full: full || h.owing, Node: testNode}
	names := maps.Clone(pending)
	if u.Full {
		names = map[state.ServiceName]bool{}
		for name := range h.records {
			names[name] = true
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(names), state.ServiceName.Compare) {
		if s := h.records[name]; s != nil {
			u.Changed = append(u.Changed, s)
		} else {
			u.Removed = append(u.Removed, name)
		}
	}
	h.owing = u.Full
	is := keysOf(h.records)
	h.before = keysOf(h.applied)
	maps.DeleteFunc(h.before, func(k plan.Key, _ bool) bool { return !is[k] })
	h.base.refuses = map[state.ServiceName]bool{}
	for _, s := range u.Changed {
		if h.failing && h.r.IntN(20) == 0 {
			h.base.refuses[s.Name] = true
		}
	}
	r, err := reconcilers.Of(h.Backend).Apply(h.t.Context(), u)
	if err != nil {
		if !h.failing {
			h.t.Fatal(err)
		}
		return
	}
	h.owing = false
	clear(pending)
	if u.Full {
		maps.DeleteFunc(h.applied, func(name state.ServiceName, _ *state.Service) bool { return !names[name] })
	}
	for name := range names {
		if delete(h.applied, name); r.Failed[name] == nil && h.records[name] != nil {
			h.applied[name] = h.records[name]
		}
	}
	for name := range r.Failed {
		if !h.failing {
			h.t.Fatal(r.Failed)
		}
		pending[name] = true
	}
	for _, s := range h.applied {
		h.checkCounted(s)
	}
	if h.before = map[plan.Key]bool{}; h.failing && h.r.IntN(3) == 0 {
		_, _ = h.Verify(h.t.Context())
	}
}

// checkCounted checks that the base counts connections to all frontends of a record, whether IPVS or the base serves them.
func (h *history) checkCounted(s *state.Service) {
	eachFrontend(s, func(k plan.Key) {
		if !h.base.counted[s.Name][k] {
			h.t.Errorf("%v is not counted", k)
		}
	})
}

// check compares with the records.
func (h *history) check() {
	if !h.known || len(h.refused) > 0 {
		if _, err := h.Verify(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
	}
	for _, s := range h.records {
		h.checkCounted(s)
		d := h.settings.Divide(s, func(plan.Key) bool { return false })
		served := map[plan.Key]bool{}
		for i := range d.Servers {
			want := &d.Servers[i]
			served[want.Key] = true
			in := h.ipvs.at(want.Key)
			if in == nil {
				h.t.Errorf("%v is not served", want.Key)
				continue
			}
			for a, dest := range in.dests {
				if (dest.Weight > 0) != want.Has(a) {
					h.t.Errorf("%v: endpoint %v has weight %d", want.Key, a, dest.Weight)
				}
			}
			for _, e := range want.Endpoints {
				if dest := in.dests[e.Addr]; dest == nil || dest.Weight != max(1, uint32(e.Weight)) {
					h.t.Errorf("%v has endpoint %v as %+v, want the weight %d", want.Key, e.Addr, dest, e.Weight)
				}
			}
		}
		eachFrontend(s, func(k plan.Key) {
			if h.base.serves(k) == served[k] {
				h.t.Errorf("%v: base %v, IPVS %v", k, h.base.serves(k), served[k])
			}
			if in := h.ipvs.at(k); in != nil && in.live() != served[k] {
				h.t.Errorf("%v is live in IPVS, which does not serve it", k)
			}
		})
	}
	addrs, is := map[netip.Addr]bool{}, keysOf(h.records)
	for _, in := range h.ipvs.servers {
		addrs[in.as.Addr.Addr()] = true
		if k := keyOf(&in.as); !is[k] && in.live() {
			h.t.Errorf("%v is served for nobody", k)
		}
	}
	if !maps.Equal(addrs, h.links.addrs) {
		h.t.Errorf("addresses %v, want %v", h.links.addrs, addrs)
	}
	if h.t.Failed() {
		h.t.FailNow()
	}
}
