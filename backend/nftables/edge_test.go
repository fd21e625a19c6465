//go:build linux

package nftables

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// edgeMark marks packets of the edge in tests.
const edgeMark = 1 << 11

// Source ports of clients. The node of the lab marks packets from the first thousand, as the programs of the edge would.
const (
	markedPorts   = 20_000
	unmarkedPorts = 21_000
)

// edgeLab is a node with the edge view, and a client outside whose packets are marked by their source port.
type edgeLab struct {
	t       *testing.T
	lab     *topology.Lab
	ns      *netns.NS // the node's
	options Options
	backend *Backend
	port    uint16 // of the last connection
}

func newEdgeLab(t *testing.T) *edgeLab {
	l := &edgeLab{t: t, lab: netnstest.Lab(t, topology.Options{}), options: Options{Edge: edgeMark}}
	for name, elsewhere := range map[string]bool{"a": false, "b": false, "far": true} {
		pod, err := l.lab.AddPod(topology.PodOptions{Name: name, OtherNode: elsewhere})
		if err != nil {
			t.Fatal(err)
		}
		l.serve(pod, name, 8080)
	}
	l.serve(l.lab.Node(), "node", 9090)
	netnstest.Do(t, l.lab.Node(), func() (err error) { l.ns, err = netns.Current(); return err })
	t.Cleanup(func() { l.ns.Close() })
	// Packets that the node forwards to an endpoint, or elsewhere, are counted by their source port.
	netnstest.NFT(t, l.ns, fmt.Sprintf(`add table inet test
		add set inet test forwarded { type inet_service; size 65535; flags dynamic; }
		add chain inet test marking { type filter hook prerouting priority raw; }
		add rule inet test marking iifname %s meta l4proto { tcp, udp } th sport %d-%d meta mark set meta mark | %#x
		add chain inet test forward { type filter hook forward priority filter + 1; }
		add rule inet test forward meta l4proto { tcp, udp } add @forwarded { th sport counter }`,
		topology.UnderlayInterface, markedPorts, markedPorts+999, edgeMark))
	l.options.LocalDetector.ClusterCIDRs = slices.Concat(l.lab.Options().NodePodCIDRs, l.lab.Options().OtherPodCIDRs)
	l.backend = newBackend(t, l.ns, l.options)
	return l
}

func (l *edgeLab) serve(h *topology.Host, name string, port uint16) {
	l.t.Helper()
	for _, p := range []state.Protocol{state.TCP, state.UDP} {
		if err := h.Serve(p, netip.AddrPortFrom(netip.Addr{}, port), name); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *edgeLab) endpoints(f state.Family, pods ...string) (eps []state.Endpoint) {
	for _, name := range pods {
		eps = append(eps, state.Endpoint{Addr: netip.AddrPortFrom(addrIn(l.lab.Pod(name), f), 8080), Local: name != "far"})
	}
	slices.SortFunc(eps, state.Endpoint.Compare)
	return eps
}

// vip is the address of the load balancer of a service, and elsewhere an address of another node.
var (
	vip       = map[state.Family]netip.Addr{state.IPv4: addr("203.0.113.1"), state.IPv6: addr("2001:db8:113::1")}
	elsewhere = map[state.Family]netip.Addr{state.IPv4: addr("198.51.100.7"), state.IPv6: addr("2001:db8:51::7")}
)

// web is a service on all nodes with a load balancer and a NodePort. Of its edge, these pods are on the node, and there are shares if shared is set.
func (l *edgeLab) web(port uint16, shared bool, pods ...string) *state.Service {
	var ports []state.Port
	for _, f := range families {
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			r := forward(l.endpoints(f, "a", "b", "far"))
			edge := &state.Edge{Local: forward(l.endpoints(f, pods...))}
			if len(pods) == 0 {
				edge.Local.Verdict = state.Drop
			}
			if shared {
				edge.Shares = []state.EdgeShare{{Node: 1, Weight: 1}, {Node: 2, Weight: 1}}
			}
			ports = append(ports, state.Port{
				Name: proto.String(), Protocol: proto, Family: f, Edge: edge,
				Frontends: []state.Frontend{{Kind: state.LoadBalancer, Addr: vip[f], Port: port}, {Kind: state.NodePort, Port: 30_000 + port}},
				External:  state.Traffic{Inside: r, Outside: r, Masquerade: state.MasqueradeAlways},
			})
		}
	}
	return serviceOf(fmt.Sprint("web-", port), ports...)
}

func (l *edgeLab) show(services ...*state.Service) {
	l.t.Helper()
	u := full(services...)
	u.Node = &state.Node{Name: "node", ServiceCIDRs: l.lab.Options().ServiceCIDRs, Addresses: l.lab.Node().Addrs}
	apply(l.t, l.backend, u)
	if r := verify(l.t, l.backend); r.Written != 0 {
		l.t.Errorf("a verification writes %d objects", r.Written)
	}
}

// source returns a source port that nobody has used.
func (l *edgeLab) source(marked bool) uint16 {
	l.port++
	if marked {
		return markedPorts + l.port
	}
	return unmarkedPorts + l.port
}

// probe connects from the client.
func (l *edgeLab) probe(marked bool, proto state.Protocol, dst netip.AddrPort, want topology.Outcome) topology.Answer {
	l.t.Helper()
	o := topology.ProbeOptions{SourcePort: l.source(marked), Timeout: time.Minute}
	if want == topology.TimedOut {
		o.Timeout = 150 * time.Millisecond
	}
	a := l.lab.Client().Probe(l.t.Context(), proto, dst, o)
	if a.Outcome != want {
		l.t.Errorf("%v %v, marked %v: %v by %s, want %v (%v)", proto, dst, marked, a.Outcome, a.Server, want, a.Err)
	}
	return a
}

// each calls fn for both families and the protocols of the edge.
func (l *edgeLab) each(fn func(f state.Family, proto state.Protocol, client netip.Addr)) {
	for _, f := range families {
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			fn(f, proto, addrIn(l.lab.Client(), f))
		}
	}
}

// TestEdgeView sends packets that other nodes have handed over, and others, to frontends of all kinds.
func TestEdgeView(t *testing.T) {
	l := newEdgeLab(t)
	l.show(l.web(80, true, "a", "b"), l.web(81, false, "b"), l.web(82, true))
	l.each(func(f state.Family, proto state.Protocol, client netip.Addr) {
		node := addrIn(l.lab.Node(), f)
		for _, dst := range []netip.Addr{vip[f], node, elsewhere[f]} {
			port := func(n uint16) netip.AddrPort {
				if dst != vip[f] {
					n += 30_000
				}
				return netip.AddrPortFrom(dst, n)
			}
			seen := map[string]bool{}
			for range 30 {
				a := l.probe(true, proto, port(80), topology.Answered)
				if seen[a.Server] = true; a.Source.Addr() != client {
					t.Errorf("%v %v: the server sees %v, want %v", proto, port(80), a.Source, client)
				}
			}
			if want := map[string]bool{"a": true, "b": true}; !maps.Equal(seen, want) {
				t.Errorf("%v %v: marked connections come to %v, want %v", proto, port(80), seen, want)
			}
			if a := l.probe(true, proto, port(81), topology.Answered); a.Server != "b" || a.Source.Addr() != client {
				t.Errorf("%v %v: %+v", proto, port(81), a)
			}
			l.probe(true, proto, port(82), topology.TimedOut)
			if dst == elsewhere[f] {
				l.probe(false, proto, port(80), topology.TimedOut) // as ever, this node does not serve it
				continue
			}
			seen = map[string]bool{}
			for range 40 {
				a := l.probe(false, proto, port(82), topology.Answered)
				if seen[a.Server] = true; a.Source.Addr() == client {
					t.Errorf("%v %v: an unmarked connection of %v is not masqueraded", proto, port(82), client)
				}
			}
			if len(seen) != 3 {
				t.Errorf("%v %v: unmarked connections come to %v, want all three", proto, port(82), seen)
			}
		}
	})
}

// TestEdgeLongConnections: all packets of a connection are marked, and an endpoint that has left the edge view keeps its connections.
func TestEdgeLongConnections(t *testing.T) {
	l := newEdgeLab(t)
	l.show(l.web(80, true, "a"))
	for _, f := range families {
		conn, err := l.lab.Client().Dial(t.Context(), state.TCP, netip.AddrPortFrom(vip[f], 80), netip.AddrPortFrom(netip.Addr{}, l.source(true)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		answers := bufio.NewReader(conn)
		for _, pods := range [][]string{{"a", "b"}, {"b"}, {}, {"a"}} {
			a, err := topology.ReadAnswer(answers)
			if err != nil || a.Server != "a" {
				t.Fatalf("%v, before the pods %v: %+v, %v", f, pods, a, err)
			}
			l.show(l.web(80, true, pods...))
			if _, err := conn.Write([]byte("again\n")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestEdgeSourceRanges: source ranges count for the client, although another node hands its connections over.
func TestEdgeSourceRanges(t *testing.T) {
	l := newEdgeLab(t)
	restricted := func(others bool) *state.Service {
		s := l.web(80, true, "a", "b")
		for i := range s.Ports {
			p := &s.Ports[i]
			client := addrIn(l.lab.Client(), p.Family)
			if others {
				client = client.Next()
			}
			p.Frontends[0].Restricted, p.Frontends[0].Sources = true, []netip.Prefix{netip.PrefixFrom(client, client.BitLen())}
		}
		return s
	}
	for _, others := range []bool{false, true, false} {
		l.show(restricted(others))
		want := topology.Answered
		if others {
			want = topology.TimedOut
		}
		l.each(func(f state.Family, proto state.Protocol, _ netip.Addr) {
			for _, marked := range []bool{true, false} {
				l.probe(marked, proto, netip.AddrPortFrom(vip[f], 80), want)
			}
			l.probe(true, proto, netip.AddrPortFrom(elsewhere[f], 30_080), topology.Answered) // has no ranges
		})
	}
}

// TestEdgeCounts: connections in the edge view count as all others do, and so do those that are dropped there.
func TestEdgeCounts(t *testing.T) {
	l := newEdgeLab(t)
	l.options.Counters = true
	if err := l.backend.Reconfigure(l.options); err != nil {
		t.Fatal(err)
	}
	l.backend.inspector.finder = dial(t, l.ns)
	open, closed, empty := l.web(80, true, "a"), l.web(81, true, "a"), l.web(82, true)
	for i := range closed.Ports {
		closed.Ports[i].Frontends[0].Restricted = true
	}
	l.show(open, closed, empty)
	want := map[state.FrontendKey]backend.Counts{}
	l.each(func(f state.Family, proto state.Protocol, _ netip.Addr) {
		key := func(port uint16) state.FrontendKey {
			return state.FrontendKey{Family: f, Protocol: proto, Addr: vip[f], Port: port}
		}
		nodePort := state.FrontendKey{Family: f, Protocol: proto, Port: 30_080}
		for range 2 {
			l.probe(true, proto, netip.AddrPortFrom(vip[f], 80), topology.Answered)
		}
		l.probe(false, proto, netip.AddrPortFrom(vip[f], 80), topology.Answered)
		l.probe(true, proto, netip.AddrPortFrom(vip[f], 81), topology.TimedOut)
		l.probe(true, proto, netip.AddrPortFrom(vip[f], 82), topology.TimedOut)
		l.probe(true, proto, netip.AddrPortFrom(elsewhere[f], nodePort.Port), topology.Answered)
		want[key(80)] = backend.Counts{Connections: 3}
		want[key(81)] = backend.Counts{Connections: 1, Drops: 1}
		want[key(82)] = backend.Counts{Connections: 1, Drops: 1}
		want[nodePort] = backend.Counts{Connections: 1}
	})
	recordtest.CheckCounts(t, "with the edge", l.backend, want)
}

// TestEdgeUntranslated: marked packets that are for no frontend come neither to a pod, nor to the node, nor back to where they came from.
func TestEdgeUntranslated(t *testing.T) {
	l := newEdgeLab(t)
	plain := l.web(85, true, "a")
	for i := range plain.Ports {
		plain.Ports[i].Edge = nil
	}
	l.show(l.web(80, true, "a", "b"), plain)
	l.each(func(f state.Family, proto state.Protocol, _ netip.Addr) {
		pod, node := netip.AddrPortFrom(addrIn(l.lab.Pod("a"), f), 8080), netip.AddrPortFrom(addrIn(l.lab.Node(), f), 9090)
		for name, dst := range map[string]netip.AddrPort{
			"another port": netip.AddrPortFrom(vip[f], 81), "another address": netip.AddrPortFrom(vip[f].Next(), 80), "a NodePort of nobody": netip.AddrPortFrom(elsewhere[f], 30_081),
			"not for the edge": netip.AddrPortFrom(vip[f], 85), "a NodePort not for the edge": netip.AddrPortFrom(elsewhere[f], 30_085), "pod": pod, "node": node,
		} {
			l.probe(true, proto, dst, topology.TimedOut)
			if n := l.forwarded()[markedPorts+l.port]; n > 0 {
				t.Errorf("%v %s: %d packets are forwarded", proto, name, n)
			}
		}
		for _, dst := range []netip.AddrPort{pod, node, netip.AddrPortFrom(vip[f], 85)} {
			l.probe(false, proto, dst, topology.Answered)
		}
	})
	// A connection that began without the mark, and has no translation.
	conn, err := l.lab.Client().Dial(t.Context(), state.TCP, l.endpoints(state.IPv4, "a")[0].Addr, netip.AddrPortFrom(netip.Addr{}, l.source(false)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	if _, err := topology.ReadAnswer(answers); err != nil {
		t.Fatal(err)
	}
	netnstest.NFT(t, l.ns, fmt.Sprintf("add rule inet test marking tcp sport %d meta mark set meta mark | %#x", unmarkedPorts+l.port, edgeMark))
	if _, err := conn.Write([]byte("again\n")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(150 * time.Millisecond))
	if a, err := topology.ReadAnswer(answers); err == nil {
		t.Errorf("a later packet without a translation comes to %s", a.Server)
	}
}

// forwarded returns how many packets the node has forwarded, by their source port.
func (l *edgeLab) forwarded() map[uint16]int {
	l.t.Helper()
	counts := map[uint16]int{}
	listed := netnstest.NFT(l.t, l.ns, "list", "set", "inet", "test", "forwarded")
	for _, m := range regexp.MustCompile(`(\d+) counter packets (\d+)`).FindAllStringSubmatch(listed, -1) {
		port, _ := strconv.ParseUint(m[1], 10, 16)
		n, _ := strconv.Atoi(m[2])
		counts[uint16(port)] = n
	}
	return counts
}

// The flags of TCP.
const (
	flagSyn = 1 << 1
	flagRst = 1 << 2
	flagAck = 1 << 4
)

// segment sends a segment of TCP without data, from a host that has no such connection.
func (l *edgeLab) segment(from *topology.Host, source uint16, dst netip.AddrPort, flags byte) {
	l.t.Helper()
	src, network := addrIn(from, state.FamilyOf(dst.Addr())), "ip4:tcp"
	if dst.Addr().Is6() {
		network = "ip6:tcp"
	}
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, source)
	binary.BigEndian.PutUint16(tcp[2:], dst.Port())
	tcp[4], tcp[8], tcp[12], tcp[13], tcp[14] = 1, 1, 5<<4, flags, 1
	pseudo := slices.Concat(src.AsSlice(), dst.Addr().AsSlice(), []byte{0, byte(state.TCP), 0, byte(len(tcp))})
	binary.BigEndian.PutUint16(tcp[16:], netnstest.Checksum(pseudo, tcp))
	netnstest.Do(l.t, from, func() error {
		conn, err := net.ListenPacket(network, src.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.WriteTo(tcp, &net.IPAddr{IP: dst.Addr().AsSlice()})
		return err
	})
}

// settles waits until the node has handled what a host has sent to it: an answer of the node comes after it.
func (l *edgeLab) settles(h *topology.Host) {
	l.t.Helper()
	for _, a := range l.lab.Node().Addrs {
		if answer := h.Probe(l.t.Context(), state.UDP, netip.AddrPortFrom(a, 9090), topology.ProbeOptions{Timeout: time.Minute}); answer.Outcome != topology.Answered {
			l.t.Fatalf("the node does not answer: %+v", answer)
		}
	}
}

// TestEdgeGuard: while the programs of the edge are gone, packets of the connections that they hand over come unmarked, and the node does not know these. The packets
// are dropped, and all others go where they went.
func TestEdgeGuard(t *testing.T) {
	l := newEdgeLab(t)
	l.show(l.web(80, true, "a", "b"), l.web(81, false, "a"))
	// A loose node takes packets in the middle of a connection for the first ones of another one, and a node that is not takes them for packets of none.
	for _, on := range []bool{true, false} {
		if !on {
			l.options.Edge = 0
			if err := l.backend.Reconfigure(l.options); err != nil {
				t.Fatal(err)
			}
			l.show(l.web(80, true, "a", "b"), l.web(81, false, "a"))
		}
		for _, loose := range []bool{true, false} {
			value := map[bool]string{true: "1", false: "0"}[loose]
			if err := l.ns.SetSysctls(netns.Sysctl{Path: "net/netfilter/nf_conntrack_tcp_loose", Value: value}); err != nil {
				t.Fatal(err)
			}
			l.guard(on, loose)
		}
	}
}

// guard sends segments of unknown connections with the edge on or off. Connection tracking is loose or not.
func (l *edgeLab) guard(on, loose bool) {
	client, pod := l.lab.Client(), l.lab.Pod("b")
	type segment struct {
		name    string
		port    uint16
		dropped bool
	}
	var sent []segment
	for _, f := range families {
		node := addrIn(l.lab.Node(), f)
		for _, c := range []struct {
			name    string
			from    *topology.Host
			dst     netip.AddrPort
			flags   byte
			marked  bool
			dropped bool
		}{
			{"ACK to the load balancer", client, netip.AddrPortFrom(vip[f], 80), flagAck, false, on},
			{"RST to the load balancer", client, netip.AddrPortFrom(vip[f], 80), flagRst | flagAck, false, on},
			{"SYN to the load balancer", client, netip.AddrPortFrom(vip[f], 80), flagSyn, false, false},
			{"ACK to one that is not handed over", client, netip.AddrPortFrom(vip[f], 81), flagAck, false, false},
			{"ACK to another port", client, netip.AddrPortFrom(vip[f], 99), flagAck, false, false},
			{"ACK of a pod", pod, netip.AddrPortFrom(vip[f], 80), flagAck, false, false},
			{"ACK to a NodePort", client, netip.AddrPortFrom(node, 30_080), flagAck, false, on || !loose}, // to the node, which resets it
			{"SYN to a NodePort", client, netip.AddrPortFrom(node, 30_080), flagSyn, false, false},
			{"marked ACK", client, netip.AddrPortFrom(vip[f], 80), flagAck, true, on && !loose}, // a packet of no connection is not translated
		} {
			port := l.source(c.marked)
			l.segment(c.from, port, c.dst, c.flags)
			sent = append(sent, segment{fmt.Sprintf("%v %s, edge %v, loose %v", f, c.name, on, loose), port, c.dropped})
		}
	}
	l.settles(client)
	l.settles(pod)
	forwarded := l.forwarded()
	for _, s := range sent {
		if (forwarded[s.port] == 0) != s.dropped {
			l.t.Errorf("%s: %d packets are forwarded, want it dropped: %v", s.name, forwarded[s.port], s.dropped)
		}
	}
	// Connections that the node knows go on.
	for range 3 {
		for _, f := range families {
			l.probe(false, state.TCP, netip.AddrPortFrom(vip[f], 80), topology.Answered)
		}
	}
}

// edgeServices are services of all kinds, some with an edge.
func edgeServices() []*state.Service {
	list := someServices()
	for i := range list {
		list[i] = withEdge(list[i], 1)
	}
	return list
}

// TestEdgeOnAndOff turns the edge on and off. What there is for it comes and goes, and nothing else changes: without an edge, a node has the rules and elements
// that it has with records that know none.
func TestEdgeOnAndOff(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	off, on := Options{LocalDetector: detectPods(families...)}, Options{LocalDetector: detectPods(families...), Edge: edgeMark}
	rules := func() (text string) {
		for _, f := range []string{"ip", "ip6"} {
			text += netnstest.NFT(t, ns, "--terse", "list", "table", f, tableName)
		}
		return text
	}
	b := newBackend(t, ns, off)
	apply(t, b, full(someServices()...))
	elements, before := dump(t, conn), rules()
	if strings.Contains(before, "edge") || strings.Contains(before, "handed-over") {
		t.Error("there are rules for the edge, which is off")
	}
	services := edgeServices()
	check := func(when string, o Options) {
		t.Helper()
		if has := b.Features()&state.EdgeShares != 0; has != (o.Edge != 0) {
			t.Errorf("%s: the dataplane takes records of the edge: %v", when, has)
		}
		r := apply(t, b, full(services...).For(b.Features()))
		if strings.Contains(when, "again") && r.Written != 0 {
			t.Errorf("%s: %d objects are written", when, r.Written)
		}
		more := 0
		for _, c := range changesBetween(elements, dump(t, conn)) {
			if more++; !strings.HasPrefix(c, "+") {
				t.Errorf("%s: element %s", when, c)
			}
		}
		if same := rules() == before; same != (o.Edge == 0) || same != (more == 0) {
			t.Errorf("%s: the rules are the same: %v, and there are %d more elements", when, same, more)
		}
	}
	check("off", off)
	for _, o := range []Options{on, off, on, off} {
		when := fmt.Sprintf("with Edge %#x", o.Edge)
		if err := b.Reconfigure(o); err != nil {
			t.Fatal(err)
		}
		if r := verify(t, b); r.Written == 0 {
			t.Errorf("%s: a verification writes nothing", when)
		}
		if diff := changesBetween(elements, dump(t, conn)); o.Edge == 0 && len(diff) > 0 {
			t.Errorf("%s: a verification, before there are records without an edge, leaves %v", when, diff)
		}
		check(when, o)
		check("again "+when, o)
	}
	for _, o := range []Options{on, on, off, off} {
		closeBackend(b)
		b = newBackend(t, ns, o)
		check(fmt.Sprintf("after a restart with Edge %#x", o.Edge), o)
	}
}

// TestEdgeOptions: the mark is one bit that nothing else has.
func TestEdgeOptions(t *testing.T) {
	for _, o := range []Options{
		{Edge: 3}, {Edge: 1 << 14}, {Edge: 1 << 5, MasqueradeBit: new(5)}, {Edge: 1 << 13, UpstreamMark: 1 << 13}, {Edge: backend.RelayMark},
	} {
		if err := o.check(); err == nil || !strings.Contains(err.Error(), "one bit") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []Options{{}, {Edge: 1 << 13}, {Edge: 1 << 31}, {Edge: 1 << 14, MasqueradeBit: new(15)}} {
		if err := o.check(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestEdgeInspect reads back what becomes of connections that other nodes hand over. An element that somebody deletes is missed, and comes back.
func TestEdgeInspect(t *testing.T) {
	ns := netnstest.New(t)
	b := newSharedBackend(t, ns, Options{Edge: edgeMark})
	b.inspector.finder = dial(t, ns)
	services := edgeServices()
	apply(t, b, full(services...))
	check := func() (missing int) {
		t.Helper()
		for _, s := range services {
			for p, f := range s.Frontends() {
				q := backend.Query{Frontend: p.Key(f), Dst: f.Addr, Outside: true, Edge: true, Source: addr("192.0.2.7")}
				if f.Kind == state.NodePort {
					q.Dst = elsewhere[p.Family]
				}
				if p.Family == state.IPv6 {
					q.Source = addr("2001:db8::7")
				}
				held, err := b.Inspect(q)
				if err != nil {
					t.Fatal(err)
				}
				want := state.Route{}
				if p.Edge.Takes(f.Kind) {
					want = p.Edge.Local
				}
				if question := (recordtest.Question{Query: q, Service: s.Name, Route: &want}); question.Check(held) != "" && want.Verdict != state.Unused || held.Verdict != want.Verdict {
					missing++
				}
			}
		}
		return missing
	}
	if n := check(); n > 0 {
		t.Errorf("%d frontends differ", n)
	}
	netnstest.NFT(t, ns, "flush set ip switchyard service-edge-drop; flush map ip6 switchyard node-port-slots")
	if check() == 0 {
		t.Error("nothing is missed after somebody has flushed sets")
	}
	if r := verify(t, b); r.Repaired == 0 {
		t.Errorf("a verification after it: %+v", r)
	}
	if n := check(); n > 0 {
		t.Errorf("%d frontends differ after the repair", n)
	}
}
