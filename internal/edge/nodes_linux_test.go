//go:build !race

// The race detector of Go 1.26 itself crashes in a few of a hundred runs if these nodes load their programs in one process, as in golang/go#78156.

package edge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/switchyard-net/switchyard/config"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// cluster is the objects that all nodes of a lab get. Nodes write their annotations there.
type cluster struct {
	// sockets is where nodes serve their admin APIs.
	sockets string

	mu      sync.Mutex // guards all below
	nodes   map[string]*model.Node
	objects []model.Object          // others
	sinks   map[string][]model.Sink // by the node that gets what changes
	refuses error                   // why nodes cannot annotate themselves
	// late is a node that hears of no change until it is another one, and unheard the changes.
	late    string
	unheard []model.Object
}

func (c *cluster) follow(ctx context.Context, node string, sink model.Sink) error {
	c.mu.Lock()
	all := slices.Clone(c.objects)
	for _, n := range c.nodes {
		all = append(all, n)
	}
	sink.Update(all, nil)
	sink.Complete()
	c.sinks[node] = append(c.sinks[node], sink)
	c.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (c *cluster) update(o model.Object) {
	for node, sinks := range c.sinks {
		if node == c.late {
			c.unheard = append(c.unheard, o)
			continue
		}
		for _, sink := range sinks {
			sink.Update([]model.Object{o}, nil)
		}
	}
}

// delay has a node hear of all changes so far, and another one of none from now on, unless that is empty.
func (c *cluster) delay(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, sink := range c.sinks[c.late] {
		sink.Update(c.unheard, nil)
	}
	c.late, c.unheard = node, nil
}

// source is the cluster for one node, which can annotate itself.
type source struct {
	*cluster
	node string
}

// Run implements [model.Source].
func (s *source) Run(ctx context.Context, sink model.Sink) error { return s.follow(ctx, s.node, sink) }

// AnnounceEdge and WithdrawEdge implement [model.WithEdge].
func (s *source) AnnounceEdge(_ context.Context, port uint16) error {
	return s.annotate(fmt.Sprintf("v1,%d", port))
}
func (s *source) WithdrawEdge(context.Context) error { return s.annotate("") }

func (s *source) annotate(value string) error {
	s.mu.Lock()
	err := s.refuses
	s.mu.Unlock()
	if err == nil {
		s.annotateNode(s.node, value)
	}
	return err
}

// annotateNode has somebody annotate a node.
func (c *cluster) annotateNode(node, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := *c.nodes[node]
	n.Edge = value
	c.nodes[node] = &n
	c.update(&n)
}

// move has only these pods take new connections. The others go on with those that they have.
func (c *cluster) move(ready ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, o := range c.objects {
		slice, ok := o.(*model.EndpointSlice)
		if !ok {
			continue
		}
		moved := *slice
		moved.Endpoints = slices.Clone(slice.Endpoints)
		for j := range moved.Endpoints {
			e := &moved.Endpoints[j]
			e.Ready = slices.ContainsFunc(ready, func(pod string) bool { return slices.Contains(podIPs(pod), e.Addr) })
			e.Terminating = !e.Ready
		}
		c.objects[i] = &moved
		c.update(&moved)
	}
}

// announced returns the nodes that take part.
func (c *cluster) announced() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.nodes {
		if n.Edge != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// clusterOf returns the cluster of a lab: its nodes, and a Service of type LoadBalancer with its pods.
func clusterOf(l *lab) *cluster {
	c := &cluster{sockets: l.t.TempDir(), nodes: map[string]*model.Node{}, sinks: map[string][]model.Sink{}}
	for _, name := range nodeNames {
		c.nodes[name] = &model.Node{Name: name, Addresses: l.addresses(name), PodCIDRs: podCIDRs(name)}
	}
	svc := &model.Service{
		Name: state.ServiceName{Namespace: "default", Name: "web"}, Type: model.TypeLoadBalancer, LoadBalancerIPs: vips,
		ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")},
		Annotations: []model.Annotation{{Name: model.EdgeAnnotation, Value: "true"}},
	}
	for _, protocol := range []state.Protocol{state.TCP, state.UDP} {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: protocol.String(), Protocol: protocol, Port: webPort, NodePort: nodePort})
	}
	c.objects = append(c.objects, svc)
	for i, family := range families {
		s := &model.EndpointSlice{Namespace: "default", Name: "web-" + family.String(), Service: "web", Family: family}
		for _, p := range svc.Ports {
			s.Ports = append(s.Ports, model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: podPort})
		}
		for _, pod := range l.pods {
			s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: podIPs(pod)[i], Ready: true, Serving: true, NodeName: podNodes[pod]})
		}
		c.objects = append(c.objects, s)
	}
	return c
}

// running is a node that runs. stop ends it and waits for that.
type running struct {
	*node.Node
	stop func()
}

// runNodes runs the whole of each node in a mode, with this configuration of the edge.
func runNodes(l *lab, c *cluster, mode config.Mode, section config.Edge) map[string]*running {
	l.t.Helper()
	nodes := map[string]*running{}
	for _, name := range nodeNames {
		nodes[name] = c.run(l, name, &source{c, name}, mode, section)
	}
	return nodes
}

// run runs the whole of a node, with the objects of a source. The rules are the dataplane's.
func (c *cluster) run(l *lab, name string, src model.Source, mode config.Mode, section config.Edge) *running {
	l.t.Helper()
	l.nft(name, "table ip lab {}\ndelete table ip lab\ntable ip6 lab {}\ndelete table ip6 lab\n")
	ctx, cancel := context.WithCancel(context.Background())
	var n *node.Node
	must(l.t, l.hosts[name].Do(func() (err error) {
		n, err = node.New(ctx, node.Options{
			Config: c.config(name, mode, section),
			Source: func(*config.Config, string) (model.Source, error) { return src, nil },
		})
		return err
	}))
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Errorf("node %s: %v", name, err)
		}
	})
	l.t.Cleanup(stop)
	return &running{n, stop}
}

func (c *cluster) config(name string, mode config.Mode, section config.Edge) *config.Config {
	all := config.Default()
	all.HostnameOverride, all.Mode, all.Edge = name, mode, section
	all.DetectLocal.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	all.HealthzBindAddress, all.MetricsBindAddress, all.AdminBindAddress = netip.AddrPort{}, netip.AddrPort{}, "unix://"+filepath.Join(c.sockets, name)
	return all
}

// admin returns the admin API of a node.
func (c *cluster) admin(t *testing.T, node string) adminv1.AdminClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(c.sockets, node), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return adminv1.NewAdminClient(conn)
}

// explained asks a node about a connection.
func explained(t *testing.T, admin adminv1.AdminClient, from, to string) (a explain.Answer) {
	t.Helper()
	m, err := admin.Explain(t.Context(), &adminv1.ExplainRequest{From: from, To: to}, grpc.WaitForReady(true))
	must(t, err)
	must(t, json.Unmarshal([]byte(m.GetAnswers()[0]), &a))
	return a
}

// TestNodes: nodes that are configured for the edge tell each other that they take part, and hand connections over from then on. When one of them turns the
// edge off, all connections go the usual way, and connections that were handed over go on.
func TestNodes(t *testing.T) {
	t.Run("nftables", func(t *testing.T) { testNodes(t, config.ModeNFTables, false) })
	t.Run("ebpf, NodePorts taken", func(t *testing.T) { testNodes(t, config.ModeEBPF, true) })
}

func testNodes(t *testing.T, mode config.Mode, nodePorts bool) {
	l := newLab(t, state.IPv4, "pb1", "pc1")
	c := clusterOf(l)
	section := config.Default().Edge
	section.Mode = config.EdgeTCX
	if nodePorts {
		section.Frontends = append(section.Frontends, "NodePort")
	}
	nodes := runNodes(l, c, mode, section)
	await.Until(t, "all nodes take part", func() bool { return slices.Equal(c.announced(), nodeNames) }, func() any { return c.announced() })
	// keeps asks until all connections keep the client's address, or lose it, and both pods answer.
	keeps := func(want bool) {
		t.Helper()
		try := func() error {
			servers := map[string]int{}
			for i, vip := range vips {
				for _, network := range []string{"tcp", "udp"} {
					for range 4 {
						r, err := l.ask("client", network, at(vip, webPort))
						if err != nil || r.kept() != want {
							return fmt.Errorf("IPv%d %s: %+v, %v", []int{4, 6}[i], network, r, err)
						}
						servers[r.server]++
					}
				}
			}
			if len(servers) != 2 {
				return fmt.Errorf("only %v answered", slices.Collect(maps.Keys(servers)))
			}
			return nil
		}
		var last error
		await.Until(t, fmt.Sprintf("clients keep their addresses: %v", want), func() bool { last = try(); return last == nil }, func() any { return last })
	}
	keeps(true)
	if m, err := c.admin(t, "a").GetStatus(t.Context(), &adminv1.GetStatusRequest{}); err != nil || m.GetStatus().GetEdge().GetPorts() != 4 || m.GetStatus().GetEdge().GetHandedOver() == 0 {
		t.Errorf("the status is %v, %v", m, err)
	}
	for _, addr := range nodeIPs("a") {
		for range 8 {
			if r, err := l.ask("client", "tcp", at(addr, nodePort)); err != nil || r.kept() != nodePorts {
				t.Errorf("a NodePort at %v: %+v, %v", addr, r, err)
			}
		}
	}
	admin := c.admin(t, "a")
	for i, vip := range vips { // the node that explain names is the one that serves
		for range 6 {
			r, err := l.ask("client", "tcp", at(vip, webPort))
			must(t, err)
			answer := explained(t, admin, r.local.String(), at(vip, webPort).String())
			if e := answer.Edge; e == nil || e.Node != podNodes[r.server] || e.Slots != 1021 || e.Slot >= 1021 || !strings.HasPrefix(answer.Source, clientIPs[i].String()) {
				t.Errorf("a connection that %s has served is explained by %+v, and the server sees %s", r.server, e, answer.Source)
			}
		}
	}
	if answer := explained(t, admin, clientIPs[0].String(), at(vips[0], webPort).String()); answer.Edge != nil || !slices.ContainsFunc(answer.Notes, func(n string) bool { return strings.Contains(n, "ask from IP:PORT") }) {
		t.Errorf("without the client's port: %+v, notes %q", answer.Edge, answer.Notes)
	}
	open, err := l.dial("client", "tcp", at(vips[0], webPort))
	must(t, err)
	defer open.Close()
	if _, err := exchange(open, []byte("x\n")); err != nil {
		t.Fatal(err)
	}
	off := section
	off.Mode = config.EdgeNone
	must(t, nodes["b"].Reconfigure(c.config("b", mode, off)))
	keeps(false)
	if answer := explained(t, admin, clientIPs[0].String()+":5000", at(vips[0], webPort).String()); answer.Edge != nil || strings.HasPrefix(answer.Source, clientIPs[0].String()) {
		t.Errorf("with node b apart: %+v, and the server sees %s", answer.Edge, answer.Source)
	}
	if got := c.announced(); slices.Contains(got, "b") {
		t.Errorf("%v take part", got)
	}
	if r, err := exchange(open, []byte("y\n")); err != nil || !r.kept() {
		t.Errorf("an open connection: %+v, %v", r, err)
	}
	must(t, nodes["b"].Reconfigure(c.config("b", mode, section)))
	keeps(true)
	if r, err := exchange(open, []byte("z\n")); err != nil || !r.kept() {
		t.Errorf("an open connection, with the edge on again: %+v, %v", r, err)
	}
}

// TestNodesChange: open connections go on while endpoints leave and come back, and when a node with endpoints starts again. They go on while packets begin to
// come in at another node, and when the process of the first node ends. New connections get what endpoints there are.
func TestNodesChange(t *testing.T) {
	l := newLab(t, state.IPv4, "pb1", "pb2", "pc1")
	c := clusterOf(l)
	section := config.Default().Edge
	section.Mode = config.EdgeTCX
	nodes := runNodes(l, c, config.ModeNFTables, section)
	await.Until(t, "all nodes take part", func() bool { return slices.Equal(c.announced(), nodeNames) }, func() any { return c.announced() })
	// served waits until new connections keep the client's address and only these pods answer.
	served := func(pods ...string) {
		t.Helper()
		var last error
		await.Until(t, fmt.Sprintf("%v answer", pods), func() bool {
			servers := map[string]int{}
			for range 40 {
				r, err := l.ask("client", "tcp", at(vips[0], webPort))
				if last = err; err == nil && !r.kept() {
					last = fmt.Errorf("%+v", r)
				}
				if last != nil {
					return false
				}
				servers[r.server]++
			}
			if len(servers) != len(pods) {
				last = fmt.Errorf("%v answered", servers)
			}
			return last == nil
		}, func() any { return last })
	}
	served("pb1", "pb2", "pc1")
	type client struct {
		conn   net.Conn
		server string
	}
	var clients []client
	for i := range 60 {
		conn, err := l.dial("client", "tcp", at(vips[i%2], webPort))
		must(t, err)
		defer conn.Close()
		r, err := exchange(conn, []byte("x\n"))
		must(t, err)
		clients = append(clients, client{conn, r.server})
	}
	check := func(when string) {
		t.Helper()
		for i, c := range clients {
			if r, err := exchange(c.conn, []byte("x\n")); err != nil || r.server != c.server || !r.kept() {
				t.Errorf("%s, connection %d to %s: %+v, %v", when, i, c.server, r, err)
			}
		}
	}
	c.move("pc1")
	served("pc1")
	check("with all new connections at c")
	c.move("pb1")
	served("pb1")
	check("with all new connections at b")
	c.move("pb1", "pb2", "pc1")
	served("pb1", "pb2", "pc1")
	check("with all pods again")
	nodes["b"].stop()
	await.Until(t, "new connections without b", func() bool { r, err := l.ask("client", "tcp", at(vips[0], webPort)); return err == nil && !r.kept() }, func() any { return "no" })
	nodes["b"] = c.run(l, "b", &source{c, "b"}, config.ModeNFTables, section)
	served("pb1", "pb2", "pc1")
	check("with b again")
	l.via("d")
	check("with packets that come in at d")
	nodes["a"].stop()
	check("without a")
	served("pb1", "pb2", "pc1")
}

// TestNodesLeave: a node that turns the edge off, or ends, serves what others hand over until they have heard of it.
func TestNodesLeave(t *testing.T) {
	l := newLab(t, state.IPv4, "pb1", "pc1")
	c := clusterOf(l)
	section := config.Default().Edge
	section.Mode = config.EdgeTCX
	nodes := runNodes(l, c, config.ModeNFTables, section)
	off := section
	off.Mode = config.EdgeNone
	for _, how := range []struct {
		name        string
		leave, join func() error
	}{
		{
			"the edge is turned off",
			func() error { return nodes["b"].Reconfigure(c.config("b", config.ModeNFTables, off)) },
			func() error { return nodes["b"].Reconfigure(c.config("b", config.ModeNFTables, section)) },
		},
		{
			"another mode",
			func() error { return nodes["b"].Reconfigure(c.config("b", config.ModeIPTables, off)) },
			func() error { return nodes["b"].Reconfigure(c.config("b", config.ModeNFTables, section)) },
		},
		{
			"the process ends",
			func() error { nodes["b"].stop(); return nil },
			func() error { nodes["b"] = c.run(l, "b", &source{c, "b"}, config.ModeNFTables, section); return nil },
		},
	} {
		await.Until(t, "all nodes take part", func() bool { return slices.Equal(c.announced(), nodeNames) }, func() any { return c.announced() })
		l.served("connections are handed over", true)
		c.delay("a")
		left, began := make(chan error, 1), time.Now()
		go func() { left <- how.leave() }()
		for time.Since(began) < 400*time.Millisecond {
			for _, vip := range vips { // datagrams, which nobody sends again
				if _, err := l.ask("client", "udp", at(vip, webPort)); err != nil {
					t.Errorf("%s, and another node has not heard of it after %v: %v", how.name, time.Since(began), err)
				}
			}
		}
		c.delay("")
		must(t, <-left)
		l.served("connections go the usual way", false)
		must(t, how.join())
	}
}

// plain is a source that cannot annotate Nodes, as manifests and relays are.
type plain struct{ model.Source }

// problem waits until a node has this problem of the edge, or none if it is empty.
func (c *cluster) problem(t *testing.T, node, want string) {
	t.Helper()
	admin := c.admin(t, node)
	var problems []string
	await.Until(t, fmt.Sprintf("the problem of node %s is %q", node, want), func() bool {
		m, err := admin.GetStatus(t.Context(), &adminv1.GetStatusRequest{}, grpc.WaitForReady(true))
		problems = nil
		for _, p := range m.GetStatus().GetProblems() {
			if p.GetPart() == "edge" {
				problems = append(problems, p.GetMessage())
			}
		}
		if err != nil || m.GetStatus().GetApplied() == 0 {
			return false
		}
		return want == "" && len(problems) == 0 || want != "" && strings.Contains(strings.Join(problems, "; "), want)
	}, func() any { return problems })
}

// TestNodesReportUselessEdge: an edge that is configured and of no use is reported, with the remedy, until it is of use.
func TestNodesReportUselessEdge(t *testing.T) {
	l := newLab(t, state.IPv4, "pb1")
	c := clusterOf(l)
	section := config.Default().Edge
	section.Mode = config.EdgeTCX
	n := c.run(l, "a", plain{&source{c, "a"}}, config.ModeNFTables, section)
	c.problem(t, "a", "node a does not tell others that it takes packets, and this process cannot annotate Nodes: annotate it with switchyard.net/edge=v1,7635")
	c.annotateNode("a", "v1,9999")
	c.problem(t, "a", "node a tells others port 9999, and this process cannot annotate Nodes")
	c.annotateNode("a", "v1,7635")
	c.problem(t, "a", "")
	bad := section
	bad.Interfaces = []string{"nowhere"}
	must(t, n.Reconfigure(c.config("a", config.ModeNFTables, bad)))
	c.problem(t, "a", "there is no device nowhere: set edge.interfaces")
	c.problem(t, "a", "other nodes hand packets over to this one, which takes none: remove the annotation switchyard.net/edge from Node a")
	off := section
	off.Mode = config.EdgeNone
	must(t, n.Reconfigure(c.config("a", config.ModeNFTables, off)))
	c.problem(t, "a", "")

	c.mu.Lock()
	c.refuses = errors.New("nodes is forbidden: patch")
	c.mu.Unlock()
	c.run(l, "b", &source{c, "b"}, config.ModeNFTables, section)
	c.problem(t, "b", "other nodes do not know whether this one takes packets: nodes is forbidden: patch")
	c.mu.Lock()
	c.refuses = nil
	c.mu.Unlock()
	c.problem(t, "b", "")
	await.Until(t, "node b takes part", func() bool { return slices.Contains(c.announced(), "b") })
	c.annotateNode("b", "") // by mistake
	await.Until(t, "node b takes part again", func() bool { return slices.Contains(c.announced(), "b") })
}

// TestNodesCheckNetwork: a node whose answers the network drops takes no part, and says why. Connections of its pods go the usual way.
func TestNodesCheckNetwork(t *testing.T) {
	l := newLab(t, state.IPv4, "pb1", "pc1")
	c := clusterOf(l)
	section := config.Default().Edge
	section.Mode = config.EdgeTCX
	l.guarded("b")
	nodes := map[string]*running{}
	for _, name := range []string{"a", "c", "d", "b"} { // b has others to ask
		nodes[name] = c.run(l, name, &source{c, name}, config.ModeNFTables, section)
		if name != "b" {
			await.Until(t, name+" takes part", func() bool { return slices.Contains(c.announced(), name) })
		}
	}
	c.problem(t, "b", fmt.Sprintf("the network drops packets that this node sends from %v", vips))
	for range 8 {
		if r, err := l.ask("client", "tcp", at(vips[0], webPort)); err != nil || r.kept() {
			t.Errorf("a connection: %+v, %v", r, err)
		}
	}
	if slices.Contains(c.announced(), "b") {
		t.Error("node b takes part")
	}
	trusting := section
	trusting.TrustNetwork = true
	must(t, nodes["b"].Reconfigure(c.config("b", config.ModeNFTables, trusting)))
	await.Until(t, "node b takes part, as it is told", func() bool { return slices.Contains(c.announced(), "b") })
	c.problem(t, "b", "")

	l.nft("switch", "delete table bridge guard\n")
	nodes["b"].stop()
	nodes["b"] = c.run(l, "b", &source{c, "b"}, config.ModeNFTables, section)
	await.Until(t, "node b takes part", func() bool { return slices.Contains(c.announced(), "b") })
	c.problem(t, "b", "")
}
