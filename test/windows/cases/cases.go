// Package cases has the histories for comparing Switchyard's dataplane for Windows nodes with upstream's proxier. It also defines the form
// of their load balancers.
package cases

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

// The node under test, its network, and how much happens in a random history.
const (
	Node      = "node-a"
	NodeAddr  = "172.16.0.1"
	Network   = "pods"
	SourceVIP = "10.244.0.250"
	steps     = 24
)

// Root is the name of the HNS endpoint that answers health checks of load balancers' addresses, and RootAddr is its address. HealthzPort is
// the port for Services without a port of their own.
const (
	Root        = "cbr0"
	RootAddr    = "10.244.0.251"
	HealthzPort = 10256
)

// Pod is a pod of the cluster, and the address of its node.
type Pod struct{ Addr, Node netip.Addr }

// Pods are the pods of all histories: the nodes take turns.
func Pods() []Pod {
	var list []Pod
	for i := range 7 {
		list = append(list, Pod{netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), netip.AddrFrom4([4]byte{172, 16, 0, byte(i%3 + 1)})})
	}
	return list
}

// Case is a history of a cluster, and how the node is set up in it.
type Case struct {
	Name                             string
	Overlay, DSR, Modify, HealthVIPs bool
	Steps                            []Step
}

// Step is what happens to the cluster at once.
type Step struct {
	// Made are the addresses of pods for which the network plugin makes an HNS endpoint before. It has already made
	// the endpoints of the node's own Pods.
	Made    []netip.Addr
	Set     []model.Object
	Deleted []model.Ref
	// Refused has HNS refuse to delete load balancers during the step. The objects that it then holds are not
	// compared.
	Refused bool
}

// All are the histories of 200 seeds, and the situations of upstream's tests. The caller owns their objects.
func All() []Case {
	var list []Case
	for seed := range uint64(200) {
		list = append(list, random(seed))
	}
	return append(list, upstreams()...)
}

// random returns the history of a seed. All is of IPv4: the two families have a proxier each upstream.
func random(seed uint64) Case {
	nodes := []randcluster.Node{}
	for i, name := range []string{Node, "node-b", "node-c"} {
		nodes = append(nodes, randcluster.Node{Name: name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, 0, byte(i + 1)})}})
	}
	o := randcluster.Options{
		NodeName: Node, Nodes: nodes, FixedNodes: true, FixedServiceCIDRs: true, Admissible: true,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24"), netip.MustParsePrefix("fd00:96::/112")},
		Protocols:    []state.Protocol{state.TCP, state.UDP}, Ports: []uint16{80, 81, 443},
	}
	for _, pod := range Pods() {
		node := nodes[pod.Node.As4()[3]-1].Name
		o.Endpoints = append(o.Endpoints, randcluster.Endpoint{Node: node, Addr: netip.AddrPortFrom(pod.Addr, 8080)},
			randcluster.Endpoint{Node: node, Addr: netip.AddrPortFrom(pod.Addr, 9090)})
	}
	for i := range 8 {
		o.ClusterIPs = append(o.ClusterIPs, netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", i+10)), netip.MustParseAddr(fmt.Sprintf("fd00:96::%d", i+10)))
		o.ExternalIPs = append(o.ExternalIPs, netip.MustParseAddr(fmt.Sprintf("198.51.100.%d", i+1)))
		o.LoadBalancerIPs = append(o.LoadBalancerIPs, netip.MustParseAddr(fmt.Sprintf("203.0.113.%d", i+1)))
	}
	for i := range 30 {
		o.NodePorts = append(o.NodePorts, uint16(30080+i))
	}
	c := Case{Name: fmt.Sprint("seed ", seed), Overlay: seed%3 == 0, DSR: seed%2 == 0, Modify: seed%5 > 1}
	h := randcluster.New(seed, o)
	for range steps {
		set, deleted := h.Step()
		isNamespace := func(obj model.Object) bool { _, ok := obj.(*model.Namespace); return ok }
		c.Steps = append(c.Steps, Step{Set: slices.DeleteFunc(set, isNamespace), Deleted: deleted}) // no proxy of a node looks at namespaces upstream
	}
	return c
}

// LoadBalancer is one of HNS.
type LoadBalancer struct {
	VIP                                  string // empty for node ports
	Protocol                             state.Protocol
	Port, TargetPort                     uint16
	Endpoints                            []string // addresses, sorted
	SourceVIP                            string
	DSR, External, LocalRouted, Affinity bool
}

// Frontend is what no two load balancers of a node have in common.
func (lb *LoadBalancer) Frontend() string {
	return fmt.Sprintf("%s:%d/%v", lb.VIP, lb.Port, lb.Protocol)
}

// Recorded are the load balancers after each step of a case.
type Recorded struct {
	Name  string
	Steps [][]LoadBalancer
}
