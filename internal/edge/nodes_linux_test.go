//go:build !race

// The race detector of Go 1.26 itself crashes in a few of a hundred runs if these nodes load their programs in one process, as in golang/go#78156.

package edge_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// cluster is the objects that all nodes of a lab get. Nodes write their annotations there.
type cluster struct {
	mu      sync.Mutex // guards all below
	nodes   map[string]*model.Node
	objects []model.Object // others
	sinks   []model.Sink
}

// Run implements [model.Source].
func (c *cluster) Run(ctx context.Context, sink model.Sink) error {
	c.mu.Lock()
	all := slices.Clone(c.objects)
	for _, n := range c.nodes {
		all = append(all, n)
	}
	sink.Update(all, nil)
	sink.Complete()
	c.sinks = append(c.sinks, sink)
	c.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (c *cluster) update(o model.Object) {
	for _, sink := range c.sinks {
		sink.Update([]model.Object{o}, nil)
	}
}

// source is the cluster for one node, which can annotate itself.
type source struct {
	*cluster
	node string
}

// AnnounceEdge and WithdrawEdge implement [model.WithEdge].
func (s *source) AnnounceEdge(_ context.Context, port uint16) error {
	return s.annotate(fmt.Sprintf("v1,%d", port))
}
func (s *source) WithdrawEdge(context.Context) error { return s.annotate("") }

func (s *source) annotate(value string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := *s.nodes[s.node]
	n.Edge = value
	s.nodes[s.node] = &n
	s.update(&n)
	return nil
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
	c := &cluster{nodes: map[string]*model.Node{}}
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
		l.nft(name, "delete table ip lab\ndelete table ip6 lab\n") // the rules are the dataplane's
		nodes[name] = runNode(l, c, name, mode, section)
	}
	return nodes
}

// runNode runs the whole of a node.
func runNode(l *lab, c *cluster, name string, mode config.Mode, section config.Edge) *running {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var n *node.Node
	must(l.t, l.hosts[name].Do(func() (err error) {
		n, err = node.New(ctx, node.Options{
			Config: nodeConfig(name, mode, section),
			Source: func(*config.Config, string) (model.Source, error) { return &source{c, name}, nil },
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

func nodeConfig(name string, mode config.Mode, section config.Edge) *config.Config {
	c := config.Default()
	c.HostnameOverride, c.Mode, c.Edge = name, mode, section
	c.DetectLocal.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	c.HealthzBindAddress, c.MetricsBindAddress, c.AdminBindAddress = netip.AddrPort{}, netip.AddrPort{}, "none"
	return c
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
	for _, addr := range nodeIPs("a") {
		for range 8 {
			if r, err := l.ask("client", "tcp", at(addr, nodePort)); err != nil || r.kept() != nodePorts {
				t.Errorf("a NodePort at %v: %+v, %v", addr, r, err)
			}
		}
	}
	open, err := l.dial("client", "tcp", at(vips[0], webPort))
	must(t, err)
	defer open.Close()
	if _, err := exchange(open, []byte("x\n")); err != nil {
		t.Fatal(err)
	}
	off := section
	off.Mode = config.EdgeNone
	must(t, nodes["b"].Reconfigure(nodeConfig("b", mode, off)))
	keeps(false)
	if got := c.announced(); slices.Contains(got, "b") {
		t.Errorf("%v take part", got)
	}
	if r, err := exchange(open, []byte("y\n")); err != nil || !r.kept() {
		t.Errorf("an open connection: %+v, %v", r, err)
	}
	must(t, nodes["b"].Reconfigure(nodeConfig("b", mode, section)))
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
	nodes["b"] = runNode(l, c, "b", config.ModeNFTables, section)
	served("pb1", "pb2", "pc1")
	check("with b again")
	l.via("d")
	check("with packets that come in at d")
	nodes["a"].stop()
	check("without a")
	served("pb1", "pb2", "pc1")
}
