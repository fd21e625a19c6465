package edge_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// lab is a cluster of four nodes:
//
//	client ── router ──┐
//	                   ├── switch ── nodes a, b, c and d ── pods
//	    neighbour ─────┘
//
// Packets for virtual addresses come in at one node. Nothing of a lab outlives its test.
type lab struct {
	t     testing.TB
	hosts map[string]*host
	// family is the family of the first address of each node, and so between nodes.
	family state.Family
	// links counts devices.
	links int
	edges map[string]*edge.Edge
	// pods are the names of the endpoints of the service, and drained those that get no new connections.
	pods []string
	// shares are the weights of the last update.
	shares map[string]uint32
	// flows are the flows of UDP that dial has opened, by flowOf.
	flows sync.Map
}

// host is a network namespace.
type host struct {
	*netns.NS
	name string
	nl   *netlink.Handle
}

const (
	mark = 0x2000
	// webPort and hostPort are the ports of the frontends whose endpoints are pods and processes in the node's own network.
	webPort, hostPort         = 80, 90
	podPort, hostEndpointPort = 8080, 9090
	nodePort                  = 30080
	drain                     = 5 * time.Minute
)

var (
	vips      = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:0:3::10")}
	clientIPs = []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8:0:1::64")}
	nodeNames = []string{"a", "b", "c", "d"}
	// podNodes are the nodes of the pods.
	podNodes = map[string]string{"pa1": "a", "pb1": "b", "pb2": "b", "pc1": "c"}
)

func number(node string) int { return slices.Index(nodeNames, node) + 1 }

// nodeIPs are the addresses of a node, and podIPs the addresses of a pod, IPv4 first.
func nodeIPs(node string) []netip.Addr { return onUnderlay(number(node)) }

func onUnderlay(n int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("198.51.100.%d", n)), netip.MustParseAddr(fmt.Sprintf("2001:db8:0:2::%x", n))}
}

func podIPs(pod string) []netip.Addr {
	n, i := number(podNodes[pod]), 10+int(pod[2]-'0')
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", n, i)), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%d", n, i))}
}

func podCIDRs(node string) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", number(node))), netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/64", number(node)))}
}

// newLab builds a lab in which endpoints run on pods. All nodes have the rules of netfilter, and no edge yet.
func newLab(t testing.TB, family state.Family, pods ...string) *lab {
	t.Helper()
	netnstest.Need(t)
	needPrograms(t)
	l := &lab{t: t, hosts: map[string]*host{}, family: family, edges: map[string]*edge.Edge{}, pods: pods}
	l.add("switch", false)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	must(t, l.hosts["switch"].nl.LinkAdd(bridge), l.hosts["switch"].nl.LinkSetUp(bridge))
	for _, name := range slices.Concat(nodeNames, []string{"router", "neighbour"}) {
		l.add(name, name != "neighbour")
		l.plug(name, "eth0")
	}
	l.add("client", false)
	l.connect("client", "eth0", "router", "eth1")
	l.address("client", "eth0", clientIPs, 24, 64)
	l.address("router", "eth1", []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:0:1::1")}, 24, 64)
	l.address("router", "eth0", onUnderlay(254), 24, 64)
	l.address("neighbour", "eth0", onUnderlay(200), 24, 64)
	l.route("client", "eth0", "0.0.0.0/0", "192.0.2.1")
	l.route("client", "eth0", "::/0", "2001:db8:0:1::1")
	for _, node := range nodeNames {
		l.address(node, "eth0", nodeIPs(node), 24, 64)
	}
	for _, node := range nodeNames {
		for i, all := range []string{"0.0.0.0/0", "::/0"} {
			l.route(node, "eth0", all, onUnderlay(254)[i].String())
			for _, other := range nodeNames {
				if other != node {
					l.route(node, "eth0", podCIDRs(other)[i].String(), nodeIPs(other)[i].String())
				}
			}
		}
	}
	for _, pod := range pods {
		l.pod(pod)
	}
	l.via("a")
	for _, node := range nodeNames {
		l.netfilter(node)
	}
	return l
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// needPrograms skips a test where the edge cannot run.
func needPrograms(t testing.TB) {
	t.Helper()
	err := edge.Available(edge.Settings{Mark: mark, XDP: true})
	if refused, ok := errors.AsType[*ebpf.VerifierError](err); ok {
		t.Fatalf("%+v", refused)
	}
	if err != nil {
		t.Skip(err)
	}
}

func (l *lab) add(name string, forwards bool) {
	l.t.Helper()
	ns := netnstest.New(l.t)
	h := &host{NS: ns, name: name}
	must(l.t, ns.Do(func() (err error) { h.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); return err }))
	l.t.Cleanup(h.nl.Close)
	lo, err := h.nl.LinkByName("lo")
	must(l.t, err, h.nl.LinkSetUp(lo))
	yes := map[bool]string{true: "1", false: "0"}[forwards]
	must(l.t, ns.SetSysctls(
		netns.Sysctl{Path: "net/ipv4/ip_forward", Value: yes}, netns.Sysctl{Path: "net/ipv6/conf/all/forwarding", Value: yes},
		netns.Sysctl{Path: "net/ipv4/conf/all/rp_filter", Value: "1"}, netns.Sysctl{Path: "net/ipv4/conf/default/rp_filter", Value: "1"},
		netns.Sysctl{Path: "net/ipv6/conf/all/accept_dad", Value: "0"}, netns.Sysctl{Path: "net/ipv6/conf/default/accept_dad", Value: "0"},
		netns.Sysctl{Path: "net/ipv6/conf/default/dad_transmits", Value: "0"},
		netns.Sysctl{Path: "net/ipv4/conf/all/send_redirects", Value: "0"}, netns.Sysctl{Path: "net/ipv4/conf/default/send_redirects", Value: "0"},
		netns.Sysctl{Path: "net/ipv4/icmp_ratemask", Value: "0"}, netns.Sysctl{Path: "net/ipv6/icmp/ratelimit", Value: "0"},
		netns.Sysctl{Path: "net/ipv4/ip_local_port_range", Value: "10000 29000"},
	))
	l.hosts[name] = h
}

// connect connects two hosts by a pair of devices.
func (l *lab) connect(a, aName, b, bName string) {
	l.t.Helper()
	l.links++
	mac := func(end byte) net.HardwareAddr { return net.HardwareAddr{2, 0x53, 0x59, end, 0, byte(l.links)} }
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: aName, HardwareAddr: mac(1)}, PeerName: bName, PeerHardwareAddr: mac(2)}
	must(l.t, l.hosts[b].Fd(func(fd int) error {
		pair.PeerNamespace = netlink.NsFd(fd)
		return l.hosts[a].nl.LinkAdd(pair)
	}))
	other, err := l.hosts[b].nl.LinkByName(bName)
	must(l.t, err, l.hosts[a].nl.LinkSetUp(pair), l.hosts[b].nl.LinkSetUp(other))
}

// plug connects a host with the switch.
func (l *lab) plug(name, device string) {
	l.t.Helper()
	end := name
	if device != "eth0" {
		end += device
	}
	l.connect("switch", end, name, device)
	up, err := l.hosts["switch"].nl.LinkByName(end)
	must(l.t, err)
	bridge, err := l.hosts["switch"].nl.LinkByName("br0")
	must(l.t, err, l.hosts["switch"].nl.LinkSetMaster(up, bridge))
}

func (l *lab) device(name, device string) netlink.Link {
	l.t.Helper()
	dev, err := l.hosts[name].nl.LinkByName(device)
	must(l.t, err)
	return dev
}

func (l *lab) address(name, device string, addrs []netip.Addr, bits4, bits6 int) {
	l.t.Helper()
	for _, addr := range addrs {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits4, 32)}}
		if addr.Is6() {
			a.IPNet.Mask, a.Flags = net.CIDRMask(bits6, 128), unix.IFA_F_NODAD
		}
		must(l.t, l.hosts[name].nl.AddrReplace(l.device(name, device), a))
	}
}

// route has a host route packets through a gateway, or directly if that is empty.
func (l *lab) route(name, device, to, gateway string) {
	l.t.Helper()
	_, dst, err := net.ParseCIDR(to)
	must(l.t, err)
	r := &netlink.Route{LinkIndex: l.device(name, device).Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}
	if gateway != "" {
		r.Gw, r.Scope, r.Flags = net.ParseIP(gateway), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
	}
	must(l.t, l.hosts[name].nl.RouteReplace(r))
}

// via has packets for virtual addresses come in at a node.
func (l *lab) via(node string) {
	l.t.Helper()
	for _, from := range []string{"router", "neighbour"} {
		for i, vip := range vips {
			l.route(from, "eth0", netip.PrefixFrom(vip, vip.BitLen()).String(), nodeIPs(node)[i].String())
		}
	}
	for i, all := range []string{"0.0.0.0/0", "::/0"} {
		l.route("neighbour", "eth0", all, onUnderlay(254)[i].String())
	}
}

// pod starts a pod, which serves.
func (l *lab) pod(name string) {
	l.t.Helper()
	node := podNodes[name]
	l.add(name, false)
	l.connect(name, "eth0", node, name)
	l.address(name, "eth0", podIPs(name), 32, 128)
	l.address(node, name, []netip.Addr{netip.MustParseAddr("169.254.1.1")}, 32, 128)
	for i, all := range []string{"0.0.0.0/0", "::/0"} {
		l.route(node, name, netip.PrefixFrom(podIPs(name)[i], podIPs(name)[i].BitLen()).String(), "")
		gateway := []string{"169.254.1.1", "fe80::1"}[i]
		l.route(name, "eth0", all, gateway)
		must(l.t, l.hosts[name].nl.NeighSet(&netlink.Neigh{
			LinkIndex: l.device(name, "eth0").Attrs().Index, Family: []int{unix.AF_INET, unix.AF_INET6}[i], State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(gateway), HardwareAddr: l.device(node, name).Attrs().HardwareAddr,
		}))
		must(l.t, l.hosts[node].nl.NeighSet(&netlink.Neigh{
			LinkIndex: l.device(node, name).Attrs().Index, Family: []int{unix.AF_INET, unix.AF_INET6}[i], State: netlink.NUD_PERMANENT,
			IP: podIPs(name)[i].AsSlice(), HardwareAddr: l.device(name, "eth0").Attrs().HardwareAddr,
		}))
	}
	l.serve(name, podPort)
}

// rules stand in for the nftables dataplane: the edge view for marked packets, the path of today for all others, and the guard.
var rules = template.Must(template.New("").Parse(`
{{ range .Families }}
table {{ .Family }} lab {}
delete table {{ .Family }} lab
table {{ .Family }} lab {
	chain guard {
		type filter hook prerouting priority -150
		meta mark & 0x2000 == 0 meta l4proto tcp tcp flags & (syn | ack) != syn ct state new {{ .Family }} daddr {{ .VIP }} counter drop
	}
	chain view {
{{ range .View }}		meta l4proto { tcp, udp } th dport { {{ .Ports }} } dnat {{ .Family }} to numgen random mod {{ .N }} map { {{ .To }} }
{{ end }}	}
	chain today {
{{ range .Today }}		{{ .Family }} daddr { {{ .Dst }} } meta l4proto { tcp, udp } th dport { {{ .Ports }} } meta mark set 0x4000 dnat {{ .Family }} to numgen random mod {{ .N }} map { {{ .To }} }
{{ end }}	}
	chain prerouting {
		type nat hook prerouting priority dstnat
		meta mark & 0x2000 != 0 goto view
		goto today
	}
	chain output {
		type nat hook output priority -100
		goto today
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		meta mark & 0x4000 != 0 masquerade
	}
	chain forward {
		type filter hook forward priority filter
		meta mark & 0x2000 != 0 ct status & dnat == 0 counter drop
	}
}
{{ end }}`))

type nat struct {
	Family, Ports, Dst, To string
	N                      int
}

// netfilter sets the rules of a node: marked packets go to its own pods only, and to its own process at hostPort.
func (l *lab) netfilter(node string) {
	l.t.Helper()
	type family struct {
		Family, VIP string
		View, Today []nat
	}
	var in struct{ Families []family }
	for i, name := range []string{"ip", "ip6"} {
		var all, own []netip.AddrPort
		for _, pod := range l.pods {
			to := netip.AddrPortFrom(podIPs(pod)[i], podPort)
			if all = append(all, to); podNodes[pod] == node {
				own = append(own, to)
			}
		}
		f := family{Family: name, VIP: vips[i].String()}
		dst := vips[i].String() + ", " + nodeIPs(node)[i].String()
		if len(own) > 0 {
			f.View = append(f.View, natTo(name, fmt.Sprintf("%d, %d", webPort, nodePort), "", own))
		}
		if len(all) > 0 {
			f.Today = append(f.Today, natTo(name, fmt.Sprintf("%d, %d", webPort, nodePort), dst, all))
		}
		if node == "b" {
			f.View = append(f.View, natTo(name, fmt.Sprint(hostPort), "", []netip.AddrPort{netip.AddrPortFrom(nodeIPs("b")[i], hostEndpointPort)}))
		}
		in.Families = append(in.Families, f)
	}
	var text bytes.Buffer
	must(l.t, rules.Execute(&text, in))
	l.nft(node, text.String())
}

func natTo(family, ports, dst string, to []netip.AddrPort) nat {
	var list []string
	for i, a := range to {
		list = append(list, fmt.Sprintf("%d : %v . %d", i, a.Addr(), a.Port()))
	}
	return nat{family, ports, dst, strings.Join(list, ", "), len(to)}
}

// nft runs nft with a text in a host.
func (l *lab) nft(name, text string) {
	l.t.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		l.t.Skip("the nft tool is not installed")
	}
	cmd := exec.Command(path, "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	netnstest.Output(l.t, l.hosts[name].NS, cmd)
}

// node returns the record of a node. Those in gone take no part.
func (l *lab) node(name string, gone ...string) *state.Node {
	n := &state.Node{Name: name, Addresses: l.addresses(name), PodCIDRs: podCIDRs(name)}
	for _, peer := range nodeNames {
		p := state.Peer{ID: state.PeerID(peer), Name: peer, Addresses: l.addresses(peer), PodCIDRs: podCIDRs(peer), Port: edge.DefaultPort}
		if slices.Contains(gone, peer) {
			p.Port = 0
		}
		n.Peers = append(n.Peers, p)
	}
	slices.SortFunc(n.Peers, func(a, b state.Peer) int { return a.Compare(&b) })
	return n
}

func (l *lab) addresses(node string) []netip.Addr {
	addrs := nodeIPs(node)
	if l.family == state.IPv6 {
		slices.Reverse(addrs)
	}
	return addrs
}

// service returns the record of the service whose nodes have these weights; b alone serves hostPort.
func service(shares map[string]uint32) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: "web"}}
	for _, name := range []string{"host", "web"} {
		for _, protocol := range []state.Protocol{state.TCP, state.UDP} {
			for _, vip := range vips {
				p := state.Port{Name: name, Protocol: protocol, Family: state.FamilyOf(vip), Edge: &state.Edge{}}
				if name == "web" {
					p.Frontends = []state.Frontend{{Kind: state.LoadBalancer, Addr: vip, Port: webPort}, {Kind: state.NodePort, Port: nodePort}}
					p.Edge.Shares = sharesOf(shares)
				} else {
					p.Frontends = []state.Frontend{{Kind: state.LoadBalancer, Addr: vip, Port: hostPort}}
					p.Edge.Shares = sharesOf(map[string]uint32{"b": 1})
				}
				s.Ports = append(s.Ports, p)
			}
		}
	}
	return s
}

func sharesOf(weights map[string]uint32) (list []state.EdgeShare) {
	for node, weight := range weights {
		list = append(list, state.EdgeShare{Node: state.PeerID(node), Weight: weight})
	}
	slices.SortFunc(list, state.EdgeShare.Compare)
	return list
}

// edge turns the edge on at a node, with the last shares.
func (l *lab) edge(node string, change ...func(*edge.Settings)) *edge.Edge {
	l.t.Helper()
	s := edge.Settings{Mark: mark, Drain: drain, Logger: nil}
	for _, c := range change {
		c(&s)
	}
	var e *edge.Edge
	must(l.t, l.hosts[node].Do(func() (err error) { e, err = edge.Open(s); return err }))
	l.edges[node] = e
	l.t.Cleanup(func() { _ = e.Close() })
	l.applyAt(node)
	return e
}

// on turns the edge on at all nodes.
func (l *lab) on(shares map[string]uint32, change ...func(*edge.Settings)) {
	l.t.Helper()
	l.shares = shares
	for _, node := range nodeNames {
		l.edge(node, change...)
	}
	l.settle()
}

// settle waits until no node counts as silent, and none is about to: on a busy machine, the first edge probes others for long before the last one is there.
func (l *lab) settle() {
	l.t.Helper()
	for node, e := range l.edges {
		await.Until(l.t, "all nodes answer node "+node, func() bool { return len(e.Status().Left) == 0 && e.Hears() }, func() any { return e.Status() })
	}
}

// apply has nodes apply other shares, all if none is named.
func (l *lab) apply(shares map[string]uint32, nodes ...string) {
	l.t.Helper()
	l.shares = shares
	if len(nodes) == 0 {
		nodes = nodeNames
	}
	for _, node := range nodes {
		if l.edges[node] != nil {
			l.applyAt(node)
		}
	}
}

func (l *lab) applyAt(node string) {
	l.t.Helper()
	must(l.t, l.edges[node].Apply(&state.Update{Full: true, Node: l.node(node), Changed: []*state.Service{service(l.shares)}}, nil))
	if s := l.edges[node].Status(); len(s.Left) > 0 || s.Reason != nil {
		l.t.Fatalf("node %s: %+v", node, s)
	}
}

// stats returns what a node has done with packets.
func (l *lab) stats(node string) edge.Stats {
	l.t.Helper()
	s, err := l.edges[node].Stats()
	must(l.t, err)
	return s
}

// tracked returns how many connections to virtual addresses and NodePorts a node tracks.
func (l *lab) tracked(node string) (n int) {
	l.t.Helper()
	must(l.t, l.hosts[node].Do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
				return err
			}
			for _, f := range flows {
				dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
				if slices.Contains(vips, dst.Unmap()) || f.Forward.DstPort == nodePort {
					n++
				}
			}
		}
		return nil
	}))
	return n
}

// flush has a node forget all connections.
func (l *lab) flush(node string) {
	l.t.Helper()
	must(l.t, l.hosts[node].Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
}

// setMTU changes the MTU of a device.
func (l *lab) setMTU(name, device string, mtu int) {
	l.t.Helper()
	must(l.t, l.hosts[name].nl.LinkSetMTU(l.device(name, device), mtu))
}

// checksums has a host compute checksums itself, or leave them to the device, which is none. Where a packet is split, they must be there.
func (l *lab) checksums(name, device string, own bool) {
	l.t.Helper()
	const setChecksums = 0x17 // ETHTOOL_STXCSUM
	value := [2]uint32{setChecksums, 1}
	if own {
		value[1] = 0
	}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], device)
	request.data = unsafe.Pointer(&value)
	must(l.t, l.hosts[name].Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	}))
}
