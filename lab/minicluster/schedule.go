package minicluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-net/switchyard/state"
)

// hostPort is a port of a node that one pod in the node's network can have.
type hostPort struct {
	node     string
	protocol state.Protocol
	port     uint16
}

// noNode is why a workload has no pods.
const noNode = "does not run here: its nodeSelector or nodeAffinity asks for another system or processor than linux and amd64, or for none of the nodes"

// nodeLabels are labels that all nodes have. A selector that asks for another system or processor fits none of them.
var nodeLabels = map[string]string{
	corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
	"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
}

// fits reports whether a pod may run on a node by its nodeSelector and nodeAffinity. Labels that mark a node's
// purpose, such as node pools, are assumed to match, because somebody who runs the manifest has such nodes. Names and
// zones of another cluster are also assumed to match.
func (b *builder) fits(n Node, spec *corev1.PodSpec) bool {
	unmet := func(r corev1.NodeSelectorRequirement) bool { return !b.meets(n, r) }
	for key, value := range spec.NodeSelector {
		if unmet(corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}) {
			return false
		}
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return slices.ContainsFunc(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, unmet) && !slices.ContainsFunc(t.MatchFields, unmet)
	})
}

func (b *builder) meets(n Node, r corev1.NodeSelectorRequirement) bool {
	value, known := nodeLabels[r.Key]
	switch r.Key {
	case corev1.LabelHostname, "metadata.name":
		value = n.Name
		known = slices.ContainsFunc(b.opts.Nodes, func(o Node) bool { return slices.Contains(r.Values, o.Name) })
	case corev1.LabelTopologyZone:
		value = n.Zone
		known = slices.ContainsFunc(b.opts.Nodes, func(o Node) bool { return slices.Contains(r.Values, o.Zone) })
	}
	listed := slices.Contains(r.Values, value)
	switch {
	case known && r.Operator == corev1.NodeSelectorOpIn:
		return listed
	case known && r.Operator == corev1.NodeSelectorOpNotIn:
		return !listed
	}
	return !known || r.Operator != corev1.NodeSelectorOpDoesNotExist
}

// schedule gives a pod its node and its addresses, and reports whether there is a node for it.
func (b *builder) schedule(w *workload, p *Pod) bool {
	nodes := b.candidates(w, p.Node)
	if len(nodes) == 0 {
		if w.pods == 0 && w.pending == 0 {
			b.warnf(w.object, "", "%s", noNode)
		}
		w.pending++
		return false
	}
	if !p.HostNetwork {
		p.Node = nodes[0].Name
		addrs, err := b.pods.take(p.Node, p.Namespace+"/"+p.Name)
		if err != nil {
			b.fail(w.object, "", err)
			return false
		}
		p.Addrs = addrs
		return true
	}
	for _, n := range nodes {
		p.Node = n.Name
		if b.claimHostPorts(p) {
			p.Addrs = slices.Clone(n.Addrs)
			return true
		}
	}
	if w.pending == 0 {
		b.warnf(w.object, "", "its pod %s does not run here: with hostNetwork it needs ports of a node that %s has, and there are %d nodes",
			p.Name, b.blocker(p, nodes), len(b.opts.Nodes))
	}
	w.pending++
	return false
}

// candidates are the nodes that a pod may run on, the preferred one first. A manifest's nodeName, and a DaemonSet, leave no choice.
func (b *builder) candidates(w *workload, preferred string) []Node {
	named := func(name string) func(Node) bool { return func(n Node) bool { return n.Name == name } }
	if i := slices.IndexFunc(b.opts.Nodes, named(w.spec.NodeName)); i >= 0 {
		return b.opts.Nodes[i : i+1]
	}
	i := slices.IndexFunc(b.opts.Nodes, named(preferred))
	if w.replicas == oneOnEachNode {
		return b.opts.Nodes[i : i+1]
	}
	nodes := slices.Concat(b.opts.Nodes[i:], b.opts.Nodes[:i])
	return slices.DeleteFunc(nodes, func(n Node) bool { return !b.fits(n, w.spec) })
}

// claimHostPorts takes a pod's ports on its node, all of them or none.
func (b *builder) claimHostPorts(p *Pod) bool {
	if slices.ContainsFunc(p.Ports, func(c ContainerPort) bool { return !b.mayClaim(p, c) }) {
		return false
	}
	for _, c := range p.Ports {
		b.claimHostPort(p, c)
	}
	return true
}

func (b *builder) mayClaim(p *Pod, c ContainerPort) bool {
	other, taken := b.hostPorts[hostPort{p.Node, c.Protocol, c.Port}]
	return !taken || other == p.Namespace+"/"+p.Name
}

// claimHostPort takes one port on the pod's node and reports whether it was free.
func (b *builder) claimHostPort(p *Pod, c ContainerPort) bool {
	if !b.mayClaim(p, c) {
		return false
	}
	b.hostPorts[hostPort{p.Node, c.Protocol, c.Port}] = p.Namespace + "/" + p.Name
	return true
}

// blocker is a pod that has a port that another one needs.
func (b *builder) blocker(p *Pod, nodes []Node) string {
	for _, c := range p.Ports {
		if other, taken := b.hostPorts[hostPort{nodes[0].Name, c.Protocol, c.Port}]; taken {
			return other
		}
	}
	return "another pod"
}
