package brain_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// edged is a configuration with the edge, and a Service with a load balancer IP and a node port that it takes.
func edged() (*brain.Config, *model.Service) {
	cfg, svc := config(), service()
	cfg.Edge.Enabled = true
	svc.Type, svc.LoadBalancerIPs, svc.Ports[0].NodePort = model.TypeLoadBalancer, addrs("192.0.2.1"), 30080
	return cfg, svc
}

// showEdge writes an edge as "node1:2 other:1, local 10.1.0.1=0, except NodePort". It takes the names of nodes from slices.
func showEdge(e *state.Edge, slices ...*model.EndpointSlice) string {
	if e == nil {
		return "none"
	}
	names := map[uint32]string{}
	for _, s := range slices {
		for _, ep := range s.Endpoints {
			names[state.PeerID(ep.NodeName)] = ep.NodeName
		}
	}
	var shares []string
	for _, s := range e.Shares {
		shares = append(shares, fmt.Sprintf("%s:%d", names[s.Node], s.Weight))
	}
	return fmt.Sprintf("%s, local %s, except %v", strings.Join(shares, " "), showWeights(e.Local), e.Except)
}

// TestEdgeShares: each node has the sum of the weights of its endpoints in the external route, and Local has the endpoints of policy Local.
func TestEdgeShares(t *testing.T) {
	const a, b, c, d = "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"
	for _, test := range []struct {
		name      string
		endpoints []string
		want      string // by the ID of the nodes: other, n2, node1
		why       brain.EdgeReason
		node      string
	}{
		{"endpoints on three nodes", []string{a + " here", b + " here", c, d + " on=n2"}, "n2:1 node1:2 other:1, local 10.1.0.1=0 10.1.0.2=0", "", ""},
		{"none here", []string{a, b, d + " on=n2"}, "n2:1 other:2, local Drop", "", ""},
		{"only here", []string{a + " here"}, "node1:1, local 10.1.0.1=0", "", ""},
		{"not all are ready", []string{a + " here notready", b + " here dying", c}, "other:1, local 10.1.0.2=0", "", ""},
		{"none is ready", []string{a + " here dying", b + " dying", c + " notready on=n2"}, "node1:1 other:1, local 10.1.0.1=0", "", ""},
		{"hints leave some out", []string{a + " here zones=b", b + " zones=a", c + " zones=a on=n2"}, "n2:1 other:1, local 10.1.0.1=0", "", ""},
		{"no endpoint", nil, ", local Drop", brain.EdgeNoEndpoints, ""},
		{"no endpoint serves", []string{a + " notready", b + " here dead"}, ", local Drop", brain.EdgeNoEndpoints, ""},
		{"an endpoint is on no node", []string{a + " here", b + " on="}, ", local 10.1.0.1=0", brain.EdgeNoNode, ""},
		{"a node does not take part", []string{a + " here", b + " apart", c + " on=n2 apart"}, ", local 10.1.0.1=0", brain.EdgeNodeApart, "other"},
		{"this node does not take part", []string{a + " here apart", b}, ", local 10.1.0.1=0", brain.EdgeNodeApart, "node1"},
		{"a node without connections does not take part", []string{a + " here", b + " notready apart"}, "node1:1, local 10.1.0.1=0", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg, svc := edged()
			s := slice(state.IPv4, test.endpoints...)
			p := &compute(t, cfg, thisNode(), svc, s).Ports[0]
			if got, want := showEdge(p.Edge, s), test.want+", except NodePort"; got != want {
				t.Errorf("the edge is %s\nwant %s", got, want)
			}
			why := brain.Explain(cfg, thisNode(), svc, []*model.EndpointSlice{s}).Port(p)
			if why.Edge != test.why || why.EdgeNode != test.node {
				t.Errorf("the reason is %q and node %q, want %q and %q", why.Edge, why.EdgeNode, test.why, test.node)
			}
		})
	}
}

// TestEdgeWeights: shares have the weights of the external route, and Local has weights of its own.
func TestEdgeWeights(t *testing.T) {
	cfg, svc := edged()
	heavy, light := weighted("a", "65535", "10.1.0.1 here", "10.1.0.2"), weighted("b", "1", "10.1.0.3", "10.1.0.4 here", "10.1.0.5 here")
	drained := weighted("c", "0", "10.1.0.6 here")
	edge := compute(t, cfg, thisNode(), svc, heavy, light, drained).Ports[0].Edge
	const want = "node1:65537 other:65536, local 10.1.0.1=65535 10.1.0.4=1 10.1.0.5=1, except NodePort"
	if got := showEdge(edge, heavy); got != want {
		t.Errorf("the edge is %s, want %s", got, want)
	}
	// Zone weights are for policy Cluster only.
	svc.Annotations = []model.Annotation{{Name: model.ZoneWeightsAnnotation, Value: "same=4,other=1"}}
	zones := slice(state.IPv4, "10.1.0.1 here zone=a", "10.1.0.2 zone=b", "10.1.0.3 zone=b")
	edge = compute(t, cfg, thisNode(), svc, zones).Ports[0].Edge
	if got := showEdge(edge, zones); got != "node1:4 other:2, local 10.1.0.1=0, except NodePort" {
		t.Errorf("with zone weights, the edge is %s", got)
	}
}

// TestEdgeShareIsBounded: the weights of many endpoints of a node have more than 32 bits.
func TestEdgeShareIsBounded(t *testing.T) {
	cfg, svc := edged()
	s := weighted("a", "65535", "10.1.0.1 here")
	one := weighted("b", "1", "10.2.0.1 here")
	for i := range 65600 {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 3 + byte(i>>16), byte(i >> 8), byte(i)}), NodeName: "other", Ready: true, Serving: true})
	}
	edge := compute(t, cfg, thisNode(), svc, s, one).Ports[0].Edge
	if got := showEdge(edge, s); !strings.HasPrefix(got, "node1:65536 other:4294967295, ") {
		t.Errorf("the edge is %s", got)
	}
}

// TestEdgeNotTaken: a port has no edge if nodes could not do exactly what they do without it, or if nobody asks for it.
func TestEdgeNotTaken(t *testing.T) {
	annotated := func(name, value string) func(*brain.Config, *model.Service) {
		return func(_ *brain.Config, svc *model.Service) {
			svc.Annotations = append(svc.Annotations, model.Annotation{Name: name, Value: value})
		}
	}
	for _, test := range []struct {
		name   string
		change func(*brain.Config, *model.Service)
		why    brain.EdgeReason
	}{
		{"the edge is off", func(cfg *brain.Config, _ *model.Service) { cfg.Edge.Enabled = false }, brain.EdgeDisabled},
		{"the Service has opted out", annotated(model.EdgeAnnotation, "false"), brain.EdgeOptedOut},
		{"the Service asks for what it has", annotated(model.EdgeAnnotation, "true"), ""},
		{"a bad annotation", annotated(model.EdgeAnnotation, "yes"), ""},
		{"only annotated Services", func(cfg *brain.Config, _ *model.Service) { cfg.Edge.Annotated = true }, brain.EdgeNotAsked},
		{"only annotated Services, and one", func(cfg *brain.Config, svc *model.Service) {
			cfg.Edge.Annotated = true
			annotated(model.EdgeAnnotation, "true")(cfg, svc)
		}, ""},
		{"only annotated Services, and a bad annotation", func(cfg *brain.Config, svc *model.Service) {
			cfg.Edge.Annotated = true
			annotated(model.EdgeAnnotation, "yes")(cfg, svc)
		}, brain.EdgeNotAsked},
		{"policy Local", func(_ *brain.Config, svc *model.Service) { svc.ExternalLocal = true }, brain.EdgePolicyLocal},
		{"internal policy Local", func(_ *brain.Config, svc *model.Service) { svc.InternalLocal = true }, ""},
		{"affinity", func(_ *brain.Config, svc *model.Service) { svc.Affinity = time.Hour }, brain.EdgeAffinity},
		{"a hash", annotated(model.BalanceAnnotation, "hash"), brain.EdgeBalance},
		{"ejection", annotated(model.EjectAnnotation, "true"), brain.EdgeEjection},
		{"ejection by the configuration", func(cfg *brain.Config, _ *model.Service) { cfg.Ejection = true }, brain.EdgeEjection},
		{"a deadline", annotated(model.DrainAnnotation, "30s"), brain.EdgeDeadline},
		{"a cluster IP", func(_ *brain.Config, svc *model.Service) { svc.Type = model.TypeClusterIP }, brain.EdgeNoFrontend},
		{"an externalIP", func(_ *brain.Config, svc *model.Service) {
			svc.Type, svc.ExternalIPs = model.TypeClusterIP, addrs("192.0.2.9")
		}, ""},
		{"a node port", func(_ *brain.Config, svc *model.Service) { svc.Type = model.TypeNodePort }, brain.EdgeNoFrontend},
		{"a node port on request", func(cfg *brain.Config, svc *model.Service) {
			svc.Type, cfg.Edge.Kinds = model.TypeNodePort, state.KindsOf(state.NodePort)
		}, ""},
		{"other kinds than these", func(cfg *brain.Config, _ *model.Service) { cfg.Edge.Kinds = state.KindsOf(state.ExternalIP) }, brain.EdgeNoFrontend},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, protocol := range []state.Protocol{state.TCP, state.UDP, state.SCTP} {
				cfg, svc := edged()
				test.change(cfg, svc)
				s := slice(state.IPv4, "10.1.0.1 here", "10.1.0.2")
				svc.Ports[0].Protocol, s.Ports[0].Protocol = protocol, protocol
				p := &compute(t, cfg, thisNode(), svc, s).Ports[0]
				want := test.why
				switch {
				case protocol == state.UDP && (want == brain.EdgeEjection || want == brain.EdgeDeadline): // which are for TCP
					want = ""
				case protocol == state.SCTP && !slices.Contains([]brain.EdgeReason{brain.EdgeDisabled, brain.EdgeOptedOut, brain.EdgeNotAsked, brain.EdgeNoFrontend, brain.EdgePolicyLocal}, want):
					want = brain.EdgeProtocol
				}
				why := brain.Explain(cfg, thisNode(), svc, []*model.EndpointSlice{s}).Port(p)
				if why.Edge != want || (p.Edge == nil) != (want != "") {
					t.Errorf("%v: the reason is %q, want %q; the edge is %s", protocol, why.Edge, want, showEdge(p.Edge, s))
				}
			}
		})
	}
	cfg, svc := edged()
	annotated(model.PortRangesAnnotation, "rtp=10000-10100/UDP")(cfg, svc)
	s := slice(state.IPv4, "10.1.0.1 here")
	why := brain.Explain(cfg, thisNode(), svc, []*model.EndpointSlice{s})
	for i := range why.Record.Ports {
		p, want := &why.Record.Ports[i], brain.EdgeReason("")
		if p.Frontends[0].LastPort != 0 {
			want = brain.EdgeRange
		}
		if got := why.Port(p).Edge; got != want || (p.Edge == nil) != (want != "") {
			t.Errorf("port %s: the reason is %q, want %q", p.Name, got, want)
		}
	}
}

// TestEdgeOfOneAddressOnTwoNodes: the result does not depend on the order of slices that name an address on different nodes. An endpoint that terminates
// gives way to the next pod with its address.
func TestEdgeOfOneAddressOnTwoNodes(t *testing.T) {
	cfg, svc := edged()
	for _, test := range []struct{ a, b, want string }{
		{"10.1.0.1 on=n2", "10.1.0.1 on=n3", "n2:1, local Drop, except NodePort"},
		{"10.1.0.1 on=n2 dying", "10.1.0.1 on=n3", "n3:1, local Drop, except NodePort"},
		{"10.1.0.1 on=n2 apart dying", "10.1.0.1 on=n3", "n3:1, local Drop, except NodePort"},
	} {
		a, b := slice(state.IPv4, test.a), slice(state.IPv4, test.b)
		b.Name = "other"
		for _, list := range [][]*model.EndpointSlice{{a, b}, {b, a}} {
			if got := showEdge(compute(t, cfg, thisNode(), svc, list...).Ports[0].Edge, list...); got != test.want {
				t.Errorf("%s and %s: the edge is %s, want %s", test.a, test.b, got, test.want)
			}
		}
	}
}

// TestEdgeExcept: kinds of frontends that are not chosen are in the record.
func TestEdgeExcept(t *testing.T) {
	for kinds, want := range map[state.FrontendKinds]string{
		0:                                 "NodePort",
		state.KindsOf(state.LoadBalancer): "ExternalIP,NodePort",
		state.KindsOf(state.LoadBalancer, state.NodePort):                    "ExternalIP",
		state.KindsOf(state.ExternalIP, state.LoadBalancer, state.NodePort):  "none",
		state.KindsOf(state.ClusterIP, state.ExternalIP, state.LoadBalancer): "NodePort",
	} {
		cfg, svc := edged()
		cfg.Edge.Kinds = kinds
		if got := compute(t, cfg, thisNode(), svc, slice(state.IPv4, "10.1.0.1")).Ports[0].Edge.Except.String(); got != want {
			t.Errorf("%v: except %s, want %s", kinds, got, want)
		}
	}
}

// TestEdgeSharesOfARecordAreBounded: the last ports of a Service on very many nodes have no shares.
func TestEdgeSharesOfARecordAreBounded(t *testing.T) {
	cfg, svc := edged()
	s := slice(state.IPv4)
	for i := range 20_000 {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), NodeName: fmt.Sprint("n", i), Ready: true, Serving: true})
	}
	svc.Ports, s.Ports = nil, nil
	for i := range 5 {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Protocol: state.TCP, Port: uint16(80 + i)})
		s.Ports = append(s.Ports, model.EndpointPort{Name: fmt.Sprint("p", i), Protocol: state.TCP, Port: uint16(80 + i)})
	}
	why := brain.Explain(cfg, thisNode(), svc, []*model.EndpointSlice{s})
	for i, want := range []int{20_000, 20_000, 20_000, 0, 0} {
		p := &why.Record.Ports[i]
		if got := len(p.Edge.Shares); got != want || (why.Port(p).Edge == brain.EdgeTooLarge) != (want == 0) {
			t.Errorf("port %s has %d shares and the reason %q, want %d", p.Name, got, why.Port(p).Edge, want)
		}
	}
}

// TestEdgeIsAnAddition: for any input, the record with the edge is the record without it, but for its edges.
func TestEdgeIsAnAddition(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	taken := 0
	for range 5_000 {
		in := (&generator{randomBytes(r)}).input()
		in.cfg.Edge.Enabled = true
		with := in.compute()
		in.cfg.Edge.Enabled = false
		without := in.compute()
		if with != nil {
			with = with.WithPorts(slices.Clone(with.Ports))
			for i := range with.Ports {
				if with.Ports[i].Edge != nil {
					taken++
				}
				with.Ports[i].Edge = nil
			}
		}
		if text(with) != text(without) {
			t.Fatalf("with the edge the record is\n%s\nwithout it\n%s", text(with), text(without))
		}
	}
	if taken < 200 {
		t.Errorf("only %d ports have an edge: the generator has become one-sided", taken)
	}
}

// TestEdgeByHand compares the edges of random Services on all nodes of a random cluster with a count by hand. Local must be the external route of the
// same Service with policy Local, and a node that serves a share must have endpoints for it.
func TestEdgeByHand(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	nodes := []string{"node-a", "node-b", "node-c", "node-d"}
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	shared, handed, refused := 0, 0, 0
	for round := range 1000 {
		cfg, svc := edged()
		on := map[netip.Addr]string{}
		var from []*model.EndpointSlice
		apart := map[string]bool{pick(nodes...): r.IntN(3) == 0}
		for i := range 1 + r.IntN(3) {
			s := weighted(fmt.Sprint("s", i), pick("", "", "1", "3", "0"))
			for j := range r.IntN(5) {
				e := endpoint(fmt.Sprintf("10.1.%d.%d %s %s", i, j, pick("", "", "", "notready", "dying", "dead"), pick("", "", "zones=z1", "zones=z2")))
				e.NodeName = pick(nodes...)
				e.NodeApart = apart[e.NodeName]
				on[e.Addr] = e.NodeName
				s.Endpoints = append(s.Endpoints, e)
			}
			from = append(from, s)
		}
		local := *svc
		local.ExternalLocal = true
		served := map[string]bool{} // nodes that serve what others hand over to them
		edges := map[string]*state.Edge{}
		for _, name := range nodes {
			cfg.NodeName = name
			node := &model.Node{Name: name, Zone: pick("z1", "z2")}
			p := compute(t, cfg, node, svc, from...).Ports[0]
			edges[name] = p.Edge
			want := compute(t, cfg, node, &local, from...).Ports[0].External.Outside
			if len(want.Endpoints) == 0 {
				want = state.Route{Verdict: state.Drop}
			}
			if !p.Edge.Local.Equal(&want) {
				t.Fatalf("round %d: Local is %s, and policy Local has %s", round, showWeights(p.Edge.Local), showWeights(want))
			}
			served[name] = p.Edge.Local.Verdict == state.Forward
			count, unserved := map[uint32]uint32{}, false
			for _, e := range p.External.Outside.Endpoints {
				count[state.PeerID(on[e.Addr.Addr()])] += uint32(max(1, e.Weight))
				unserved = unserved || apart[on[e.Addr.Addr()]]
			}
			if unserved {
				count = nil
				refused++
			}
			got := map[uint32]uint32{}
			for _, s := range p.Edge.Shares {
				got[s.Node] = s.Weight
			}
			if !maps.Equal(got, count) || !slices.IsSortedFunc(p.Edge.Shares, state.EdgeShare.Compare) {
				t.Fatalf("round %d: node %s has the shares %v, want %v", round, name, p.Edge.Shares, count)
			}
			shared += len(got)
		}
		for from, e := range edges {
			for _, name := range nodes {
				if slices.ContainsFunc(e.Shares, func(s state.EdgeShare) bool { return s.Node == state.PeerID(name) }) {
					handed++
					if !served[name] {
						t.Fatalf("round %d: node %s hands connections over to %s, which drops them", round, from, name)
					}
				}
			}
		}
	}
	if shared < 500 || handed < 500 || refused < 200 {
		t.Errorf("there were %d shares, %d of them checked, and %d ports with a node apart: the clusters have become one-sided", shared, handed, refused)
	}
}

// TestEdgePort reads the annotation of Nodes.
func TestEdgePort(t *testing.T) {
	for value, want := range map[string]uint16{
		"": 0, "v1,7635": 7635, "v1,1": 1, "v1,65535": 65535, "v1,0": 0, "v1,65536": 0, "v1": 0, "v1,": 0, "v1,+1": 0, "v1,07635": 0, "v1,7635,": 0, "v1, 7635": 0,
		"v2,7635": 0, "V1,7635": 0, "7635": 0, "true": 0, ",": 0, "v1,7635…": 0,
	} {
		port, reason := brain.EdgePort(&model.Node{Edge: value})
		if port != want || (reason == "") != (want != 0 || value == "") {
			t.Errorf("%q: port %d, want %d; it must be %s", value, port, want, reason)
		}
	}
}

// TestPeerOf: a peer has what other nodes need, and no more of it than they have room for.
func TestPeerOf(t *testing.T) {
	node := &model.Node{Name: "n1", Zone: "z", Addresses: addrs("192.0.2.1 fd00::1"), PodCIDRs: prefixes("10.2.0.0/24 10.1.0.7/24 10.2.0.0/24"), Edge: "v1,7635"}
	want := state.Peer{ID: state.PeerID("n1"), Name: "n1", Addresses: addrs("192.0.2.1 fd00::1"), PodCIDRs: prefixes("10.1.0.0/24 10.2.0.0/24"), Port: 7635}
	if got := brain.PeerOf(node); !got.Equal(&want) {
		t.Errorf("the peer is %+v, want %+v", got, want)
	}
	node.Addresses = nil
	if got := brain.PeerOf(node); got.Port != 0 {
		t.Errorf("a node without addresses takes part: %+v", got)
	}
	for i := range 100 {
		node.Addresses = append(node.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
		node.PodCIDRs = append(node.PodCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16))
	}
	if got := brain.PeerOf(node); len(got.Addresses) != model.MostOfNode || len(got.PodCIDRs) > model.MostOfNode || got.Port != 7635 {
		t.Errorf("of 100 addresses and ranges, the peer has %d and %d", len(got.Addresses), len(got.PodCIDRs))
	}
}
