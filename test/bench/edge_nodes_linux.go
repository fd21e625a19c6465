package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/kernel/ctusage"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// The variants of the entry node, which packets from outside come in at.
const (
	entryToday   = "today"   // nftables alone: the entry node masquerades
	entryTCX     = "tcx"     // the edge in front of nftables
	entryXDP     = "xdp"     // the edge in the driver
	entryDropped = "dropped" // no node at all: a program drops packets in the driver
)

// edgeMark marks the packets that nftables serves by the edge view.
const edgeMark = 1 << 13

// The addresses of labs, which are the defaults of package topology. Node i has address i+1 and its own range of pods.
var (
	edgeUnderlay = netip.MustParsePrefix("192.0.2.0/24")
	edgePods     = netip.MustParsePrefix("10.244.0.0/16")
	edgeFrontend = netip.MustParseAddrPort("203.0.113.1:80")
)

func edgeNodeAddr(i int) netip.Addr { return nth(edgeUnderlay, i+1) }

func edgeNodePods(i int) netip.Prefix { return netip.PrefixFrom(nth(edgePods, (i+1)<<8), 24) }

func edgePod(node, i int) netip.Addr { return nth(edgeNodePods(node), 10+i) }

// edgeObjects are a Service of type LoadBalancer with one port, and nodes that take part. Each node has so many endpoints.
func edgeObjects(p state.Protocol, endpoints ...int) []model.Object {
	name := state.ServiceName{Namespace: "bench", Name: "edge"}
	service := &model.Service{
		Name: name, Type: model.TypeLoadBalancer, ClusterIPs: []netip.Addr{clusterIP.Addr()}, LoadBalancerIPs: []netip.Addr{edgeFrontend.Addr()},
		Ports: []model.ServicePort{{Name: "p", Protocol: p, Port: edgeFrontend.Port(), NodePort: measuredNodePort}},
	}
	slice := &model.EndpointSlice{
		Namespace: name.Namespace, Name: name.Name + "-1", Service: name.Name, Family: state.IPv4,
		Ports: []model.EndpointPort{{Name: "p", Protocol: p, Port: labServerPort}},
	}
	objects := []model.Object{service, slice}
	for i, n := range endpoints {
		objects = append(objects, &model.Node{
			Name: nodeNames[i], Addresses: []netip.Addr{edgeNodeAddr(i)}, PodCIDRs: []netip.Prefix{edgeNodePods(i)}, Edge: fmt.Sprintf("v1,%d", edge.DefaultPort),
		})
		for k := range n {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: edgePod(i, k), Ready: true, Serving: true, NodeName: nodeNames[i]})
		}
	}
	return objects
}

// edgeState returns the state of a node for a variant.
func edgeState(ctx context.Context, node int, variant string, objects []model.Object) (*state.Update, error) {
	return stateOf(ctx, brain.Config{
		NodeName: nodeNames[node], LocalDetector: edgeDetector, Edge: brain.Edge{Enabled: variant != entryToday},
	}, objects...)
}

// edgeDetector is how a node sees which clients are pods.
var edgeDetector = state.LocalDetector{ClusterCIDRs: []netip.Prefix{edgePods}}

// namespace is where a node is: a host of a lab, or a namespace of its own.
type namespace interface{ Do(fn func() error) error }

// edgeNode is the dataplane of a node. It has an edge unless that is nil.
type edgeNode struct {
	closers
	in   namespace
	edge *edge.Edge
}

// openEdgeNode programs a node as the program does: first nftables, then the edge. It fails if the edge does not do all that it can.
func openEdgeNode(ctx context.Context, in namespace, node int, variant string, objects []model.Object) (_ *edgeNode, err error) {
	n := &edgeNode{in: in}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s, %s: %w", nodeNames[node], variant, err), n.close())
		}
	}()
	u, err := edgeState(ctx, node, variant, objects)
	if err != nil {
		return nil, err
	}
	o := nftables.Options{LocalDetector: edgeDetector}
	if variant != entryToday {
		o.Edge = edgeMark
	}
	var rules *nftables.Backend
	if err := in.Do(func() (err error) { rules, err = nftables.New(ctx, o); return err }); err != nil {
		return nil, err
	}
	n.add(rules.Close)
	result, err := rules.Apply(ctx, u)
	if err != nil {
		return nil, err
	}
	for _, failed := range result.Failed {
		return nil, failed
	}
	if variant == entryToday {
		return n, nil
	}
	err = in.Do(func() (err error) {
		n.edge, err = edge.Open(edge.Settings{Mark: edgeMark, XDP: variant == entryXDP})
		return err
	})
	if err != nil {
		return nil, err
	}
	n.add(n.edge.Close)
	if err := n.edge.Apply(u, nil); err != nil {
		return nil, err
	}
	s := n.edge.Status()
	for port, left := range s.Left {
		return nil, fmt.Errorf("%v: %w", port, left)
	}
	if s.Ports == 0 {
		return nil, errors.New("the edge serves no port: a node with endpoints does not take part")
	}
	if variant == entryXDP && !slices.Equal(s.Driver, s.Attached) {
		return nil, fmt.Errorf("the program of the edge is in the drivers of %v, want it in the drivers of %v", s.Driver, s.Attached)
	}
	return n, nil
}

// tracked returns how many connections the node tracks in the network namespace of the calling thread. Its own probes of other nodes do not count. n may be nil.
func (n *edgeNode) tracked() (tracked int, err error) {
	if n == nil || n.edge == nil {
		tracked, _, err = ctusage.Read()
		return tracked, err
	}
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	if err != nil {
		return 0, fmt.Errorf("tracked connections: %w", err)
	}
	for _, f := range flows {
		if f.Forward.DstPort != edge.DefaultPort {
			tracked++
		}
	}
	return tracked, nil
}
