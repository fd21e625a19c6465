package edge_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// datagram returns an IPv4 packet of UDP.
func datagram(from, to netip.AddrPort, payload string) []byte {
	udp := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(udp[0:], from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(payload)))
	return ipv4(from.Addr(), to.Addr(), 17, 7, 0, append(udp, payload...))
}

// ipv4 returns an IPv4 packet with flags and offset of a fragment.
func ipv4(from, to netip.Addr, protocol byte, id, fragment uint16, payload []byte) []byte {
	ip := make([]byte, 20, 20+len(payload))
	ip[0], ip[8], ip[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(ip[4:], id)
	binary.BigEndian.PutUint16(ip[6:], fragment)
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], to.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], netnstest.Checksum(ip))
	return append(ip, payload...)
}

// header is what nodes write before the packets inside.
func header(version, hop byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{version, hop, 0, 0}, id)
}

// TestForgedEncapsulation: only nodes of the cluster may hand packets over, and only in the right form.
func TestForgedEncapsulation(t *testing.T) {
	t.Parallel()
	l := newLab(t, state.IPv4, "pb1", "pc1")
	l.on(map[string]uint32{"b": 1, "c": 1})
	victim := at(clientIPs[0], 5000)
	packet := datagram(victim, at(vips[0], webPort), "hello\n")
	heard := make(chan string, 100)
	must(t, l.hosts["client"].Do(func() error {
		conn, err := net.ListenPacket("udp4", victim.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			buf := make([]byte, 1500)
			for {
				n, _, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				heard <- string(buf[:n])
			}
		}()
		return nil
	}))
	send := func(from string, to netip.Addr, parts ...[]byte) {
		t.Helper()
		conn, err := l.dial(from, "udp", at(to, edge.DefaultPort))
		must(t, err)
		defer conn.Close()
		var all []byte
		for _, p := range parts {
			all = append(all, p...)
		}
		_, err = conn.Write(all)
		must(t, err)
	}
	counted := func(action programs.Action, n uint64) {
		t.Helper()
		await.Until(t, fmt.Sprintf("%d packets count as %v", n, action), func() bool { return l.stats("b")[action] == n }, func() any { return l.stats("b") })
	}
	b := nodeIPs("b")
	send("neighbour", b[0], header(1, 0, 0), packet)
	send("client", b[1], header(1, 0, 0), packet)
	counted(programs.Foreign, 2)
	for _, bad := range [][]byte{
		header(2, 0, 0), header(0, 0, 0), header(1, 4, 0), header(1, 251, 0), // an unknown version, and hops that there are not
		nil, // the packet is taken for a header
	} {
		send("a", b[0], bad, packet)
	}
	for _, inside := range [][]byte{nil, {0x45}, packet[:27], make([]byte, 60), []byte(strings.Repeat("\x65", 60))} { // cut off, or of no family
		send("a", b[0], header(1, 0, 0), inside)
	}
	for _, kind := range []byte{1, 47, 132} { // an echo request, GRE and SCTP: nobody hands them over
		send("a", b[0], header(1, 0, 0), ipv4(victim.Addr(), vips[0], kind, 1, 0, append([]byte{8}, make([]byte, 39)...)))
	}
	counted(programs.Malformed, 13)
	for _, id := range []uint32{0, 12345, state.PeerID("b")} { // probes of nobody, and of b itself
		send("a", b[0], header(1, 254, id), packet)
	}
	counted(programs.NoNode, 3)
	select {
	case line := <-heard:
		t.Errorf("an answer to a forged packet: %q", line)
	case <-time.After(300 * time.Millisecond):
	}

	// A node may. Whatever the header says, the packet goes to four nodes at most, and is served once.
	hops := func() (n uint64) {
		for _, node := range nodeNames {
			s := l.stats(node)
			n += s[programs.Asked] + s[programs.Returned]
		}
		return n
	}
	for _, h := range [][]byte{
		header(1, 0, 0), header(1, 0, state.PeerID("c")), header(1, 0, state.PeerID("b")), header(1, 0, 12345), header(1, 3, state.PeerID("c")),
		header(1, 255, state.PeerID("a")), header(1, 1, state.PeerID("a")), header(1, 2, 99),
	} {
		before, patience := hops(), 5*time.Second
		mayEndAtA := binary.BigEndian.Uint32(h[4:]) == state.PeerID("a")
		if mayEndAtA {
			patience = 500 * time.Millisecond
		}
		send("a", b[0], h, packet)
		select {
		case line := <-heard:
			if !strings.Contains(line, victim.String()) {
				t.Errorf("header %x: answer %q", h, line)
			}
		case <-time.After(patience):
			// It came to node a as the last one, which has no endpoints: the rules there drop it.
			if !mayEndAtA {
				t.Errorf("header %x: no answer", h)
			}
		}
		if n := hops() - before; n > 4 {
			t.Errorf("header %x: the packet went on %d times", h, n)
		}
		for _, node := range nodeNames {
			l.flush(node)
		}
	}
	// What is inside a packet inside is not taken for one of a node.
	send("a", b[0], header(1, 255, 0), datagram(victim, at(b[0], edge.DefaultPort), string(header(1, 255, 0))+string(packet)))
	select {
	case line := <-heard:
		t.Errorf("an answer to a packet in two tunnels: %q", line)
	case <-time.After(300 * time.Millisecond):
	}
}

// TestFloodOfFragments: fragments without end take no more room, and others' fragments arrive.
func TestFloodOfFragments(t *testing.T) {
	t.Parallel()
	l := newLab(t, state.IPv4, "pb1", "pc1")
	l.on(map[string]uint32{"b": 1, "c": 1})
	for _, name := range append(slices.Clone(nodeNames), l.pods...) { // the kernel's own memory for fragments is not what is tested
		must(t, l.hosts[name].SetSysctls(netns.Sysctl{Path: "net/ipv4/ipfrag_high_thresh", Value: "268435456"}))
	}
	var fd int
	must(t, l.hosts["client"].Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))
	defer unix.Close(fd)
	flood := func(fragment uint16) {
		for id := range 20000 {
			p := datagram(at(clientIPs[0], uint16(id)), at(vips[0], webPort), strings.Repeat("x", 24))
			p = ipv4(clientIPs[0], vips[0], 17, uint16(id), fragment, p[20:])
			err := unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: vips[0].As4()})
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				t.Fatal(err)
			}
		}
	}
	flood(0x2000) // first ones, of which no other one comes
	flood(0x0004) // later ones, of which no first one came
	for _, vip := range vips {
		for _, size := range []int{4000, 20000} {
			l.inFragments(vip, []byte(strings.Repeat("x", size)))
		}
	}
}

// alone opens an edge in a namespace of its own.
func alone(t testing.TB, change ...func(*edge.Settings)) *edge.Edge {
	t.Helper()
	ns := netnstest.New(t)
	needPrograms(t)
	netnstest.Outward(t, ns, "198.51.100.1/24", "2001:db8:0:2::1/64")
	for _, node := range nodeNames[1:] {
		answerProbes(t, ns, nodeIPs(node)[0])
	}
	s := edge.Settings{Mark: mark, TableSize: 251, MaxSlots: 4 * 251, Drain: drain}
	for _, c := range change {
		c(&s)
	}
	var e *edge.Edge
	netnstest.Do(t, ns, func() (err error) { e, err = edge.Open(s); return err })
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// answerProbes stands in for the edge of another node, which answers probes.
func answerProbes(t testing.TB, ns *netns.NS, addr netip.Addr) {
	t.Helper()
	netnstest.Do(t, ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		own := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}
		if err := errors.Join(netlink.LinkSetUp(lo), netlink.AddrReplace(lo, own)); err != nil {
			return err
		}
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at(addr, edge.DefaultPort)))
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			for buf := make([]byte, 64); ; {
				n, from, err := conn.ReadFromUDPAddrPort(buf)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
			}
		}()
		return nil
	})
}

// aNode is a node with peers: itself, b and c.
func aNode(names ...string) *state.Node {
	l := &lab{family: state.IPv4}
	n := l.node("a")
	if len(names) > 0 {
		kept := n.Peers[:0]
		for _, p := range n.Peers {
			for _, name := range names {
				if p.Name == name {
					kept = append(kept, p)
				}
			}
		}
		n.Peers = kept
	}
	return n
}

// numbered is a Service with a port of its own, and shares.
func numbered(i int, frontends int, shares map[string]uint32) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: fmt.Sprintf("web-%05d", i)}}
	p := state.Port{Name: "http", Protocol: state.TCP, Family: state.IPv4, Edge: &state.Edge{Shares: sharesOf(shares)}}
	for f := range frontends {
		addr := netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), byte(f)})
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.LoadBalancer, Addr: addr, Port: uint16(80 + f>>8)})
	}
	s.Ports = []state.Port{p}
	return s
}

func (s leftNames) String() string { return strings.Join(s, ",") }

type leftNames []string

func left(e *edge.Edge) string {
	var names leftNames
	for id, err := range e.Status().Left {
		names = append(names, id.Service.Name+": "+err.Error())
	}
	return names.String()
}

var (
	toB  = map[string]uint32{"b": 1}
	toBC = map[string]uint32{"b": 1, "c": 1}
)

// slotOf returns the owner and the earlier owners of the connection of a client to a service.
func slotOf(e *edge.Edge, i int) string {
	s, ok := e.Slot(state.TCP, at(clientIPs[0], 5000), at(netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), 0}), 80))
	if !ok {
		return "none"
	}
	return strings.Join(append([]string{s.Owner}, s.Earlier...), " ")
}

// TestRoom: ports without room are left to netfilter, and served once there is room.
func TestRoom(t *testing.T) {
	e := alone(t, func(s *edge.Settings) { s.Drain = 100 * time.Millisecond })
	var all []*state.Service
	for i := range 6 {
		all = append(all, numbered(i, 1, toBC))
	}
	must(t, e.Apply(&state.Update{Full: true, Node: aNode(), Changed: all}, nil))
	if s := e.Status(); s.Ports != 4 || len(s.Left) != 2 || !strings.Contains(left(e), "web-00005: no room for its slots: raise edge.maxSlots") {
		t.Errorf("%+v", s)
	}
	// What drains keeps its room until its time is over.
	must(t, e.Apply(&state.Update{Node: aNode(), Removed: []state.ServiceName{all[0].Name}}, nil))
	if s := e.Status(); s.Ports != 3 || s.Draining != 1 || len(s.Left) != 2 || slotOf(e, 0) != "none" {
		t.Errorf("a port drains: %+v", s)
	}
	await.Until(t, "a port is served that was left", func() bool { return e.Status().Ports == 4 }, func() any { return e.Status() })
	if s := e.Status(); s.Draining != 0 || len(s.Left) != 1 {
		t.Errorf("after the drain: %+v", s)
	}
	// A full update without most of them.
	must(t, e.Apply(&state.Update{Full: true, Node: aNode(), Changed: all[4:]}, nil))
	await.Until(t, "the others have drained", func() bool { s := e.Status(); return s.Ports == 2 && s.Draining == 0 }, func() any { return e.Status() })
	if s := e.Status(); len(s.Left) != 0 {
		t.Errorf("a full update: %+v", s)
	}
}

// TestFullMap: a port whose frontends do not fit is left, and its neighbours are served.
func TestFullMap(t *testing.T) {
	e := alone(t, func(s *edge.Settings) { s.Drain = 0 })
	must(t, e.Apply(&state.Update{Full: true, Node: aNode(), Changed: []*state.Service{numbered(1, 1, toBC), numbered(2, 20000, toBC), numbered(3, 1, toBC)}}, nil))
	if s := e.Status(); s.Ports != 2 || left(e) != "web-00002: no room for its frontends: raise edge.maxSlots" || slotOf(e, 1) == "none" || slotOf(e, 3) == "none" || slotOf(e, 2) != "none" {
		t.Errorf("%+v", s)
	}
	must(t, e.Apply(&state.Update{Node: aNode(), Changed: []*state.Service{numbered(2, 2, toBC)}}, nil))
	if s := e.Status(); s.Ports != 3 || len(s.Left) != 0 {
		t.Errorf("with fewer frontends: %+v", s)
	}
	if _, ok := e.Slot(state.TCP, at(clientIPs[0], 5000), at(netip.AddrFrom4([4]byte{203, 0, 2, 1}), 80)); !ok {
		t.Error("the second frontend is not served")
	}
	must(t, e.Apply(&state.Update{Node: aNode(), Changed: []*state.Service{numbered(2, 1, toBC)}}, nil))
	if _, ok := e.Slot(state.TCP, at(clientIPs[0], 5000), at(netip.AddrFrom4([4]byte{203, 0, 2, 1}), 80)); ok || slotOf(e, 2) == "none" {
		t.Error("a frontend that has been removed is served")
	}
}

// TestFrontendGoesToAnotherService: in one update, in either order.
func TestFrontendGoesToAnotherService(t *testing.T) {
	e := alone(t)
	b, c := numbered(1, 1, toB), numbered(2, 1, map[string]uint32{"c": 1})
	must(t, e.Apply(&state.Update{Full: true, Node: aNode(), Changed: []*state.Service{numbered(1, 1, toB), numbered(2, 1, map[string]uint32{"c": 1})}}, nil))
	for range 3 {
		b.Ports[0].Frontends, c.Ports[0].Frontends = c.Ports[0].Frontends, b.Ports[0].Frontends
		first, second := b.WithPorts(slices.Clone(b.Ports)), c.WithPorts(slices.Clone(c.Ports))
		must(t, e.Apply(&state.Update{Node: aNode(), Changed: []*state.Service{first, second}}, nil))
		want := [2]string{"b", "c"}
		if b.Ports[0].Frontends[0].Addr.As4()[2] == 2 {
			want = [2]string{"c", "b"}
		}
		if got := [2]string{slotOf(e, 1), slotOf(e, 2)}; got != want {
			t.Errorf("the frontends go to %q, want %q", got, want)
		}
	}
	must(t, e.Apply(&state.Update{Node: aNode(), Removed: []state.ServiceName{b.Name, c.Name}}, nil))
	if s := e.Status(); s.Ports != 0 || s.Draining != 2 {
		t.Errorf("%+v", s)
	}
}

// TestDrain: a frontend drains, comes back with its history, and is gone after its time. A Service that netfilter has failed with stays as it was.
func TestDrain(t *testing.T) {
	e := alone(t, func(s *edge.Settings) { s.Drain = 200 * time.Millisecond })
	with := func(shares map[string]uint32) *state.Update {
		return &state.Update{Node: aNode(), Changed: []*state.Service{numbered(1, 2, shares)}}
	}
	if err := e.Apply(with(toB), nil); err == nil {
		t.Error("the first update is not full")
	}
	full := with(toB)
	full.Full = true
	must(t, e.Apply(full, nil), e.Apply(with(nil), nil))
	if s := e.Status(); s.Ports != 0 || s.Draining != 2 || slotOf(e, 1) != "none" {
		t.Errorf("without shares: %+v", s)
	}
	must(t, e.Apply(with(map[string]uint32{"c": 1}), nil))
	if s := e.Status(); s.Ports != 1 || s.Draining != 0 || slotOf(e, 1) != "c b" {
		t.Errorf("with shares again: %+v, slot %q", s, slotOf(e, 1))
	}
	must(t, e.Apply(&state.Update{Node: aNode(), Removed: []state.ServiceName{full.Changed[0].Name}}, map[state.ServiceName]error{full.Changed[0].Name: os.ErrInvalid}))
	if slotOf(e, 1) != "c b" {
		t.Errorf("netfilter could not remove it: slot %q", slotOf(e, 1))
	}
	must(t, e.Apply(&state.Update{Node: aNode(), Removed: []state.ServiceName{full.Changed[0].Name}}, nil))
	await.Until(t, "the drain is over", func() bool { return e.Status().Draining == 0 })
	must(t, e.Apply(with(toBC), nil))
	if owners := strings.Fields(slotOf(e, 1)); len(owners) != 1 {
		t.Errorf("a new port has earlier owners: %q", owners)
	}
}

// TestNodesComeAndGo: shares of nodes that cannot serve leave a port to netfilter, and nodes that leave the cluster leave all slots.
func TestNodesComeAndGo(t *testing.T) {
	e := alone(t)
	apply := func(n *state.Node, shares map[string]uint32) {
		t.Helper()
		must(t, e.Apply(&state.Update{Full: true, Node: n, Changed: []*state.Service{numbered(1, 1, shares)}}, nil))
	}
	apply(aNode("a", "b"), toBC)
	if !strings.Contains(left(e), fmt.Sprintf("node with the ID %#x is not known", state.PeerID("c"))) {
		t.Errorf("a node that is not known: %s", left(e))
	}
	away := aNode()
	for i := range away.Peers {
		if away.Peers[i].Name == "c" {
			away.Peers[i].Port = 0
		}
	}
	apply(away, toBC)
	if !strings.Contains(left(e), "node c takes no part in the edge") {
		t.Errorf("a node that takes no part: %s", left(e))
	}
	v6 := aNode()
	v6.Addresses = v6.Addresses[:1]
	for i := range v6.Peers {
		if v6.Peers[i].Name == "c" {
			v6.Peers[i].Addresses = v6.Peers[i].Addresses[1:]
		}
	}
	apply(v6, toBC)
	if !strings.Contains(left(e), "node c has no address of a family that this node has") {
		t.Errorf("a node of another family: %s", left(e))
	}
	apply(aNode(), map[string]uint32{"c": 1})
	apply(aNode(), toB)
	apply(aNode(), map[string]uint32{"d": 1})
	if got := slotOf(e, 1); got != "d b c" {
		t.Errorf("slot %q", got)
	}
	apply(aNode("a", "c", "d"), map[string]uint32{"d": 1})
	if got := slotOf(e, 1); got != "d c" {
		t.Errorf("after node b has left: slot %q", got)
	}
	apply(aNode(), toB)
	if got := slotOf(e, 1); got != "b d c" {
		t.Errorf("after node b has come back: slot %q", got)
	}
	// Nodes whose IDs clash take no part.
	clash := aNode()
	twin := clash.Peers[0]
	for _, p := range clash.Peers {
		if p.Name == "b" {
			twin = p
		}
	}
	twin.Name, twin.Addresses = "twin", []netip.Addr{netip.MustParseAddr("198.51.100.77")}
	clash.Peers = append(clash.Peers, twin)
	apply(clash, toB)
	if !strings.Contains(left(e), "is not known") {
		t.Errorf("two nodes with one ID: %s", left(e))
	}
}

// TestTooManyNodes: if not all nodes and pods can be told from clients, nothing new is handed over.
func TestTooManyNodes(t *testing.T) {
	e := alone(t)
	n := aNode()
	for i := range programs.MaxNodes {
		n.Peers = append(n.Peers, state.Peer{ID: uint32(i), Name: fmt.Sprintf("node-%d", i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})}})
	}
	web := []*state.Service{numbered(1, 1, toBC)}
	must(t, e.Apply(&state.Update{Full: true, Node: aNode(), Changed: web}, nil))
	err := e.Apply(&state.Update{Node: n}, nil)
	if err == nil || !strings.Contains(err.Error(), "more than 16384 nodes: set edge.mode off") {
		t.Errorf("%v", err)
	}
	if s := e.Status(); s.Ports != 0 || s.Draining != 1 || s.Reason == nil {
		t.Errorf("with too many nodes: %+v", s)
	}
	must(t, e.Apply(&state.Update{Node: aNode()}, nil))
	if s := e.Status(); s.Ports != 1 || s.Draining != 0 || s.Reason != nil {
		t.Errorf("with fewer nodes: %+v", s)
	}
}

// TestSettings: bad settings are named with the remedy.
func TestSettings(t *testing.T) {
	for remedy, s := range map[string]edge.Settings{
		"edge.markBit":   {Mark: 3},
		"edge.tableSize": {Mark: mark, TableSize: 1000},
		"edge.maxSlots":  {Mark: mark, MaxSlots: 100},
		"edge.mtu":       {Mark: mark, MTU: 1000},
		"edge.drain":     {Mark: mark, Drain: -1},
	} {
		if _, err := edge.Open(s); err == nil || !strings.Contains(err.Error(), "set "+remedy) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// BenchmarkApply is a change of weights of one port, with 100 ports of ten nodes: table, slots and all.
func BenchmarkApply(b *testing.B) {
	e := alone(b, func(s *edge.Settings) { s.TableSize, s.MaxSlots = 0, 0 })
	n := aNode()
	var both [2]map[string]uint32
	for i := range 10 {
		name := fmt.Sprintf("node-%d", i)
		n.Peers = append(n.Peers, state.Peer{ID: state.PeerID(name), Name: name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 101, byte(i)})}, Port: edge.DefaultPort})
		for j := range both {
			if both[j] == nil {
				both[j] = map[string]uint32{}
			}
			both[j][name] = uint32(3 + i*j%2)
		}
	}
	var all []*state.Service
	for i := range 100 {
		all = append(all, numbered(i, 2, both[0]))
	}
	must(b, e.Apply(&state.Update{Full: true, Node: n, Changed: all}, nil))
	changes := [2]*state.Update{{Node: n, Changed: []*state.Service{numbered(50, 2, both[1])}}, {Node: n, Changed: all[50:51]}}
	for i := 0; b.Loop(); i++ {
		must(b, e.Apply(changes[i%2], nil))
	}
}
