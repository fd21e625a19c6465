//go:build linux

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/kubeapi"
	"github.com/switchyard-net/switchyard/test/loadcheck"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/topology"
)

// edgeNames are the nodes of a cluster with the edge. Packets for virtual addresses come in at one of them.
var edgeNames = []string{"a", "b", "c", "d"}

// edgePods are the pods and their nodes. Two of them are no endpoints of the load: plain is the control's, and marks shows whether changes have arrived.
var edgePods = map[string]string{"a1": "a", "b1": "b", "b2": "b", "c1": "c", "c2": "c", "plain": "c", "marks": "c"}

// edgeWeb is the Service of the load. Its port edgeMark has another endpoint after each change, as markService. Large changes come in parts, and its name makes it
// the last part. A Service of its own would show earlier.
var edgeWeb = serviceOf{name: "web", number: 10, lb: true}

// edgeMarks is after how many changes the mark says the same again: later than nodes track a connection that has ended.
const edgeMark, edgeMarks = 99, 512

// edgeMetrics is where each process serves its metrics, inside its node.
var edgeMetrics = netip.MustParseAddrPort("127.0.0.1:10249")

var edgeFamilies = []state.Family{state.IPv4, state.IPv6}

// edgeLab is a cluster of four nodes in namespaces, each with a process of Switchyard, which all follow one API server:
//
//	client ── router ── switch ── nodes a, b, c and d ── pods
//
// One goroutine changes it.
type edgeLab struct {
	dir, program string
	hosts        map[string]*topology.Host
	servers      []*loadcheck.Server
	receipts     loadcheck.Receipts
	links        int
	api          *kubeapi.Server
	listeners    []*http.Server
	nodes        map[string]*edgeNode
	rng          *rand.Rand
	// endpoints are the pods that are endpoints, or were. weights are the weights of the slices of nodes, 1 by default.
	endpoints []*edgeEndpoint
	weights   map[string]int
	// open judges open connections of TCP, which must outlast everything, and fresh all others.
	open, fresh loadcheck.Ledger
	changes     int
	sent        map[string]string
	toldAt      time.Time // of the last change; zero once it is applied
	slowest     time.Duration
}

// edgeEndpoint is a pod as an endpoint. It serves all the time.
type edgeEndpoint struct {
	name, node        string
	terminating, gone bool
}

// edgeNode is a node with its process.
type edgeNode struct {
	host         *topology.Host
	program, log string
	config       string
	// edge is the section of the configuration file, empty for none.
	edge    string
	process *process // nil if it does not run
	client  http.Client
}

// edgeOn turns the edge on for the Service of the load, and edgeOff turns it off.
const edgeOn, edgeOff = "{mode: tcx, maxSlots: 65536}", "{mode: none}"

func edgeUnderlay(n int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("198.51.100.%d", n)), netip.MustParseAddr(fmt.Sprintf("2001:db8:0:2::%x", n))}
}

func edgePodCIDRs(node string) []netip.Prefix {
	n := slices.Index(edgeNames, node) + 1
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/64", n))}
}

// edgeClients are the addresses of the client and of the router in its network.
var edgeClients = [][]netip.Addr{
	{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8:0:1::64")}, {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:0:1::1")},
}

const edgeRouter = 254

// newEdgeLab builds the lab. Endpoints are the pods of the load. No process runs yet, and packets come in at a.
func newEdgeLab(dir, program string, seed uint64, endpoints ...string) (l *edgeLab, err error) {
	l = &edgeLab{
		dir: dir, program: program, hosts: map[string]*topology.Host{}, api: kubeapi.New(), nodes: map[string]*edgeNode{}, rng: rand.New(rand.NewPCG(seed, 0)),
		weights: map[string]int{}, sent: map[string]string{},
	}
	for _, name := range endpoints {
		l.endpoints = append(l.endpoints, &edgeEndpoint{name: name, node: edgePods[name]})
	}
	if err := l.build(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *edgeLab) build() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	add := func() error { return l.hosts["switch"].Netlink().LinkAdd(bridge) }
	up := func() error { return l.hosts["switch"].Netlink().LinkSetUp(bridge) }
	if err := inTurn(func() error { return l.add("switch", nil, false) }, add, up); err != nil {
		return err
	}
	names := append(slices.Clone(edgeNames), "router")
	for i, name := range names {
		number := i + 1
		if name == "router" {
			number = edgeRouter
		}
		if err := inTurn(
			func() error { return l.add(name, edgeUnderlay(number), true) },
			func() error { return l.connect("switch", name, name, "eth0") },
			func() error { return l.address(name, "eth0", edgeUnderlay(number), 24, 64) },
			func() error {
				port, err := l.hosts["switch"].Netlink().LinkByName(name)
				if err != nil {
					return err
				}
				return l.hosts["switch"].Netlink().LinkSetMaster(port, bridge)
			},
		); err != nil {
			return err
		}
	}
	if err := inTurn(
		func() error { return l.add("client", edgeClients[0], false) },
		func() error { return l.connect("client", "eth0", "router", "eth1") },
		func() error { return l.address("client", "eth0", edgeClients[0], 24, 64) },
		func() error { return l.address("router", "eth1", edgeClients[1], 24, 64) },
	); err != nil {
		return err
	}
	for i, all := range []string{"0.0.0.0/0", "::/0"} {
		errs := []error{l.route("client", "eth0", netip.MustParsePrefix(all), edgeClients[1][i])}
		for n, node := range edgeNames {
			errs = append(errs, l.route(node, "eth0", netip.MustParsePrefix(all), edgeUnderlay(edgeRouter)[i]))
			for _, other := range append(slices.Clone(edgeNames), "router") {
				if other != node {
					errs = append(errs, l.route(other, "eth0", edgePodCIDRs(node)[i], edgeUnderlay(n + 1)[i]))
				}
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(edgePods)) {
		if err := l.pod(name); err != nil {
			return fmt.Errorf("pod %s: %w", name, err)
		}
	}
	for _, name := range edgeNames {
		if err := l.node(name); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	return l.via("a")
}

// add makes a host.
func (l *edgeLab) add(name string, addrs []netip.Addr, forwards bool) error {
	yes := map[bool]string{true: "1", false: "0"}[forwards]
	h, err := topology.NewHost(name, addrs, []netns.Sysctl{
		{Path: "net/ipv4/ip_forward", Value: yes}, {Path: "net/ipv6/conf/all/forwarding", Value: yes},
		{Path: "net/ipv4/conf/all/rp_filter", Value: "1"}, {Path: "net/ipv4/conf/default/rp_filter", Value: "1"},
		{Path: "net/ipv6/conf/all/accept_dad", Value: "0"}, {Path: "net/ipv6/conf/default/accept_dad", Value: "0"}, {Path: "net/ipv6/conf/default/dad_transmits", Value: "0"},
		{Path: "net/ipv4/conf/all/send_redirects", Value: "0"}, {Path: "net/ipv4/conf/default/send_redirects", Value: "0"},
	})
	if err == nil {
		l.hosts[name] = h
	}
	return err
}

// connect connects two hosts by a pair of devices.
func (l *edgeLab) connect(a, aName, b, bName string) error {
	l.links++
	mac := func(end byte) net.HardwareAddr { return net.HardwareAddr{2, 0x53, 0x59, end, 0, byte(l.links)} }
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: aName, HardwareAddr: mac(1)}, PeerName: bName, PeerHardwareAddr: mac(2)}
	err := l.hosts[b].Fd(func(fd int) error {
		pair.PeerNamespace = netlink.NsFd(fd)
		return l.hosts[a].Netlink().LinkAdd(pair)
	})
	if err != nil {
		return err
	}
	return errors.Join(l.setUp(a, aName), l.setUp(b, bName))
}

func (l *edgeLab) setUp(name, device string) error {
	dev, err := l.hosts[name].Netlink().LinkByName(device)
	if err != nil {
		return err
	}
	return l.hosts[name].Netlink().LinkSetUp(dev)
}

func (l *edgeLab) address(name, device string, addrs []netip.Addr, bits4, bits6 int) error {
	dev, err := l.hosts[name].Netlink().LinkByName(device)
	for _, addr := range addrs {
		if err != nil {
			return err
		}
		a := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits4, 32)}}
		if addr.Is6() {
			a.IPNet.Mask, a.Flags = net.CIDRMask(bits6, 128), unix.IFA_F_NODAD
		}
		err = l.hosts[name].Netlink().AddrReplace(dev, a)
	}
	return err
}

// route has a host route packets through a gateway, or directly if that is invalid.
func (l *edgeLab) route(name, device string, to netip.Prefix, gateway netip.Addr) error {
	dev, err := l.hosts[name].Netlink().LinkByName(device)
	if err != nil {
		return err
	}
	dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	r := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}
	if gateway.IsValid() {
		r.Gw, r.Scope, r.Flags = gateway.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
	}
	return l.hosts[name].Netlink().RouteReplace(r)
}

// via has packets for virtual addresses come in at a node.
func (l *edgeLab) via(node string) error {
	var errs []error
	for i, vip := range edgeWeb.lbIPs() {
		errs = append(errs, l.route("router", "eth0", netip.PrefixFrom(vip, vip.BitLen()), l.hosts[node].Addrs[i]))
	}
	return errors.Join(errs...)
}

// plugged has the cable of a node in the switch, or takes it out.
func (l *edgeLab) plugged(node string, in bool) error {
	port, err := l.hosts["switch"].Netlink().LinkByName(node)
	if err != nil {
		return err
	}
	if in {
		return l.hosts["switch"].Netlink().LinkSetUp(port)
	}
	return l.hosts["switch"].Netlink().LinkSetDown(port)
}

// pod starts a pod, which serves.
func (l *edgeLab) pod(name string) error {
	node := edgePods[name]
	number := slices.Index(slices.Sorted(maps.Keys(edgePods)), name) + 10
	var addrs []netip.Addr
	for _, cidr := range edgePodCIDRs(node) {
		b := cidr.Addr().AsSlice()
		b[len(b)-1] = byte(number)
		addr, _ := netip.AddrFromSlice(b)
		addrs = append(addrs, addr)
	}
	gateways := []netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")}
	if err := inTurn(
		func() error { return l.add(name, addrs, false) },
		func() error { return l.connect(name, "eth0", node, name) },
		func() error { return l.address(name, "eth0", addrs, 32, 128) },
		func() error { return l.address(node, name, gateways[:1], 32, 128) },
	); err != nil {
		return err
	}
	inside, err1 := l.hosts[name].Netlink().LinkByName("eth0")
	outside, err2 := l.hosts[node].Netlink().LinkByName(name)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for i, all := range []string{"0.0.0.0/0", "::/0"} {
		family := []int{unix.AF_INET, unix.AF_INET6}[i]
		if err := errors.Join(
			l.route(node, name, netip.PrefixFrom(addrs[i], addrs[i].BitLen()), netip.Addr{}),
			l.route(name, "eth0", netip.MustParsePrefix(all), gateways[i]),
			l.hosts[name].Netlink().NeighSet(&netlink.Neigh{
				LinkIndex: inside.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: gateways[i].AsSlice(), HardwareAddr: outside.Attrs().HardwareAddr,
			}),
			l.hosts[node].Netlink().NeighSet(&netlink.Neigh{
				LinkIndex: outside.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: addrs[i].AsSlice(), HardwareAddr: inside.Attrs().HardwareAddr,
			}),
		); err != nil {
			return err
		}
	}
	if name == "marks" {
		for i := range edgeMarks {
			if err := l.hosts[name].Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, uint16(9000+i)), fmt.Sprint(i)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, addr := range addrs {
		server, err := loadcheck.Serve(l.hosts[name], netip.AddrPortFrom(addr, servedPort), &l.receipts)
		if err != nil {
			return err
		}
		l.servers = append(l.servers, server)
	}
	return nil
}

// node gives a node its files and a listener of the API server.
func (l *edgeLab) node(name string) error {
	n := &edgeNode{host: l.hosts[name], program: l.program, log: filepath.Join(l.dir, name+".log"), config: filepath.Join(l.dir, name, "config.yaml"), edge: edgeOn}
	n.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return n.host.Dial(ctx, state.TCP, edgeMetrics, netip.AddrPort{})
	}}
	l.nodes[name] = n
	if err := os.MkdirAll(filepath.Dir(n.config), 0o755); err != nil {
		return err
	}
	return n.host.Do(func() error {
		listener, err := net.Listen("tcp", apiAddress)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: l.api}
		l.listeners = append(l.listeners, server)
		go func() { _ = server.Serve(listener) }()
		return nil
	})
}

// writeConfig writes the configuration file of a node.
func (n *edgeNode) writeConfig() error {
	fields := map[string]string{
		"mode": "nftables", "hostnameOverride": n.host.Name, "configHardFail": "false", "clientConnection": "{contentType: application/json}", "adminBindAddress": "none",
		"detectLocal": "{clusterCIDRs: [10.244.0.0/16, \"fd00:10:244::/48\"]}", "linux": noNodeSetup,
	}
	if n.edge != "" {
		fields["edge"] = n.edge
	}
	if err := os.WriteFile(n.config+"~", configOf(fields), 0o600); err != nil {
		return err
	}
	return os.Rename(n.config+"~", n.config)
}

// start starts the process of a node.
func (l *edgeLab) start(name string) (err error) {
	n := l.nodes[name]
	if err := n.writeConfig(); err != nil {
		return err
	}
	attr := &unix.SchedAttr{Policy: unix.SCHED_NORMAL, Nice: edgeNice}
	n.process, err = start(n.host, n.log, attr, n.program, "proxy", "--config", n.config, "--master", "http://"+apiAddress)
	return err
}

// edgeNice is the nice value of the processes of nodes, which go before other programs of the machine, and behind the load.
const edgeNice = -10

// end ends the process of a node by a signal, and waits.
func (l *edgeLab) end(name string, signal syscall.Signal) error {
	n := l.nodes[name]
	if n.process == nil {
		return nil
	}
	p := n.process
	n.process = nil
	if err := p.end(signal); err != nil {
		return errors.Join(err, tail(n.log))
	}
	return nil
}

// failure returns why a process has ended although nobody asked it to.
func (l *edgeLab) failure() error {
	for name, n := range l.nodes {
		if n.process == nil {
			continue
		}
		select {
		case <-n.process.Done():
			return errors.Join(fmt.Errorf("the process of node %s has ended: %w", name, n.process.Err()), tail(n.log))
		default:
		}
	}
	return nil
}

func (l *edgeLab) close() error {
	var errs []error
	for name := range l.nodes {
		errs = append(errs, l.end(name, syscall.SIGKILL))
	}
	for _, server := range l.listeners {
		errs = append(errs, server.Close())
	}
	for _, server := range l.servers {
		errs = append(errs, server.Close())
	}
	for _, h := range l.hosts {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

// annotation returns the annotation of a Node by which it takes part, empty if it has none.
func (l *edgeLab) annotation(node string) string {
	var n struct {
		Metadata struct {
			Annotations map[string]string
		}
	}
	_ = json.Unmarshal(l.api.Object("nodes", node), &n) // what is not there has no annotation
	return n.Metadata.Annotations[model.EdgeAnnotation]
}

// edgeValue is the annotation of Nodes that take part.
const edgeValue = "v1,7635"

// annotate writes the annotation of a Node as somebody else may do, and removes it if it is empty.
func (l *edgeLab) annotate(node, value string) error {
	text := "null"
	if value != "" {
		text = fmt.Sprintf("%q", value)
	}
	_, err := l.api.Patch("nodes", node, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, model.EdgeAnnotation, text))
	return err
}

// objects returns the cluster but for its Nodes, which have annotations. The mark is last.
func (l *edgeLab) objects() []Object {
	web := edgeWeb.object()
	web.Annotations = map[string]string{model.EdgeAnnotation: "true"}
	web.Spec.Ports = append(web.Spec.Ports, corev1.ServicePort{Name: "zz-mark", Protocol: corev1.ProtocolTCP, Port: edgeMark})
	list := []Object{web}
	for _, node := range edgeNames {
		for i, f := range edgeFamilies {
			slice := newSlice(edgeWeb.name, f, servedPort)
			slice.Name += "-" + node
			if w := l.weights[node]; w > 0 {
				slice.Annotations = map[string]string{model.WeightAnnotation: fmt.Sprint(w)}
			}
			for _, e := range l.endpoints {
				if e.node == node && !e.gone {
					slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
						Addresses: []string{l.hosts[e.name].Addrs[i].String()}, NodeName: new(node),
						Conditions: discoveryv1.EndpointConditions{Ready: new(!e.terminating), Serving: new(true), Terminating: new(e.terminating)},
					})
				}
			}
			list = append(list, slice)
		}
	}
	return append(list, l.marks()...)
}

// marks returns the endpoints that say the number of the last change.
func (l *edgeLab) marks() (list []Object) {
	for i, f := range edgeFamilies {
		slice := newSlice(edgeWeb.name, f, 0)
		slice.Name += "-mark"
		slice.Ports = []discoveryv1.EndpointPort{{Name: new("zz-mark"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(9000 + l.changes%edgeMarks))}}
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{l.hosts["marks"].Addrs[i].String()}, NodeName: new(edgePods["marks"])}}
		list = append(list, slice)
	}
	return list
}

// send hands the cluster to all nodes, without waiting.
func (l *edgeLab) send() error {
	l.changes++
	w := &oracle.World{NodeName: "a", DetectLocal: true, NodePortAddrs: func(a netip.Addr) bool { return slices.Contains(l.hosts["a"].Addrs, a) }}
	objects := l.objects()
	if len(l.sent) == 0 { // later, Nodes are their processes'
		var nodes []Object
		for _, name := range edgeNames {
			nodes = append(nodes, nodeObject(l.hosts[name], edgePodCIDRs(name)))
		}
		if err := l.put(nodes); err != nil {
			return err
		}
	}
	for _, object := range objects {
		o, _, err := kubeconv.Object(object)
		if err != nil {
			return fmt.Errorf("%T %s: %w", object, object.GetName(), err)
		}
		switch o := o.(type) {
		case *model.Service:
			w.Services = append(w.Services, o)
		case *model.EndpointSlice:
			w.Slices = append(w.Slices, o)
		}
	}
	l.open.Change(w)
	l.fresh.Change(w)
	l.toldAt = time.Now()
	return l.put(objects)
}

// put hands those objects to the API server that have changed.
func (l *edgeLab) put(objects []Object) error {
	var changed []Object
	for _, object := range objects {
		text, err := json.Marshal(object)
		if err != nil {
			return err
		}
		if key := fmt.Sprintf("%T %s", object, object.GetName()); l.sent[key] != string(text) {
			l.sent[key] = string(text)
			changed = append(changed, object)
		}
	}
	return l.api.Put(changed)
}

// edgeSlack is how long after the mark a packet may be under way that has met an earlier table.
const edgeSlack = 20 * time.Millisecond

// settle waits until the processes that run have applied the last state, and only that one counts.
func (l *edgeLab) settle(ctx context.Context) error {
	if err := inTurn(func() error { return l.applied(ctx) }, func() error { return pause(ctx, edgeSlack) }); err != nil {
		return err
	}
	l.open.Acked()
	l.fresh.Acked()
	return nil
}

// applied waits until the mark of the last state shows at all nodes with a process, and nothing is pending.
func (l *edgeLab) applied(ctx context.Context) error {
	want := fmt.Sprint(l.changes % edgeMarks)
	for _, name := range edgeNames {
		n := l.nodes[name]
		if n.process == nil {
			continue
		}
		for _, vip := range edgeWeb.clusterIPs() {
			if err := l.await(ctx, fmt.Sprintf("change %d at node %s", l.changes, name), func() bool {
				answer := n.host.Probe(ctx, state.TCP, netip.AddrPortFrom(vip, edgeMark), topology.ProbeOptions{Timeout: usualAnswer})
				return answer.Outcome == topology.Answered && answer.Server == want
			}); err != nil {
				return errors.Join(err, n.stacks())
			}
		}
		if err := l.await(ctx, fmt.Sprintf("node %s applies change %d", name, l.changes), func() bool { return n.isDone(ctx) }); err != nil {
			return errors.Join(err, n.stacks())
		}
	}
	if !l.toldAt.IsZero() { // nodes that start apply changes of long ago
		l.slowest, l.toldAt = max(l.slowest, time.Since(l.toldAt)), time.Time{}
	}
	return nil
}

// stacks ends the process of a node and returns the end of its log, with the stacks of its goroutines.
func (n *edgeNode) stacks() error {
	return errors.Join(n.process.end(syscall.SIGQUIT), tail(n.log))
}

// isDone reports whether a node has applied all that it knows, by its metrics.
func (n *edgeNode) isDone(ctx context.Context) bool {
	resp, err := n.metrics(ctx)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, is := strings.CutPrefix(lines.Text(), "switchyard_oldest_pending_change_timestamp_seconds "); is {
			return value == "0"
		}
	}
	return false
}

func (n *edgeNode) metrics(ctx context.Context) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+edgeMetrics.String()+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	return n.client.Do(req)
}

// change sends the cluster to all nodes and waits.
func (l *edgeLab) change(ctx context.Context) error {
	if err := l.send(); err != nil {
		return err
	}
	return l.settle(ctx)
}

// await waits for something.
func (l *edgeLab) await(ctx context.Context, what string, done func() bool) error {
	for began := time.Now(); !done(); {
		if err := errors.Join(pause(ctx, 10*time.Millisecond), l.failure()); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if time.Since(began) > edgePatience {
			return fmt.Errorf("%s: not after %v", what, edgePatience)
		}
	}
	return nil
}

// edgePatience is how long something may take that is waited for.
const edgePatience = 30 * time.Second

// takePart waits until these nodes take part in the edge, and no other.
func (l *edgeLab) takePart(ctx context.Context, nodes ...string) error {
	for _, name := range edgeNames {
		wanted := slices.Contains(nodes, name)
		if err := l.await(ctx, fmt.Sprintf("node %s takes part: %v", name, wanted), func() bool { return (l.annotation(name) != "") == wanted }); err != nil {
			return errors.Join(err, tail(l.nodes[name].log))
		}
	}
	return nil
}

// explain describes what may have led a connection to the wrong server, as cluster.explain does: the latest changes, and what nodes track.
func (l *edgeLab) explain(proto state.Protocol, from netip.AddrPort) string {
	lines := []string{l.fresh.Changes()}
	for _, name := range edgeNames {
		tracked, err := l.hosts[name].Tracked(proto, from)
		if err != nil {
			tracked = append(tracked, err.Error())
		}
		for _, line := range tracked {
			lines = append(lines, fmt.Sprintf("tracked by node %s: %s", name, line))
		}
	}
	return "\n      " + strings.Join(lines, "\n      ")
}

// sees waits until servers see the addresses of new clients, or the addresses of nodes.
func (l *edgeLab) sees(ctx context.Context, clients bool) error {
	const enough = 10 // of new connections in a row
	return l.await(ctx, fmt.Sprintf("servers see clients: %v", clients), func() bool {
		for i := range enough {
			family := i % len(edgeFamilies)
			conn, err := l.dial(ctx, family)
			if err != nil {
				return false
			}
			_, client, err := ask(conn, time.Second)
			if conn.Close(); err != nil || (client == l.hosts["client"].Addrs[family]) != clients {
				return false
			}
		}
		return true
	})
}

// dial opens a connection from the client to the Service.
func (l *edgeLab) dial(ctx context.Context, family int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return l.hosts["client"].Dial(ctx, state.TCP, netip.AddrPortFrom(edgeWeb.lbIPs()[family], tcpPort), netip.AddrPort{})
}

// ask sends a request and returns who has answered, and the client as the server sees it.
func ask(conn net.Conn, timeout time.Duration) (server, client netip.Addr, err error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return server, client, err
	}
	if _, err := conn.Write([]byte("0 0\n")); err != nil {
		return server, client, err
	}
	buf := make([]byte, 256)
	n, err := conn.Read(buf)
	if err != nil {
		return server, client, err
	}
	fields := strings.Fields(string(buf[:n]))
	if len(fields) != 4 {
		return server, client, fmt.Errorf("the answer is %q", buf[:n])
	}
	at, err1 := netip.ParseAddrPort(fields[0])
	from, err2 := netip.ParseAddrPort(fields[1])
	return at.Addr(), from.Addr(), errors.Join(err1, err2)
}

// nodeOf returns the node of the pod with an address.
func (l *edgeLab) nodeOf(addr netip.Addr) string {
	for pod, node := range edgePods {
		if slices.Contains(l.hosts[pod].Addrs, addr) {
			return node
		}
	}
	return ""
}
