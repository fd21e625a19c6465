package kubeconv

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/switchyard-net/switchyard/model"
)

// proxyLabel with the value "disabled" takes a namespace from the proxy.
const proxyLabel = "networking.k8s.io/kube-proxy"

// Node converts a Node. Addresses that are none are left out without a word: they come from a cloud provider, and the API
// server takes them as they are.
func Node(n *corev1.Node) (*model.Node, error) {
	if n == nil {
		return nil, errNil
	}
	var f faults
	m := &model.Node{Name: f.name(n.Name), Zone: f.label(n.Labels, corev1.LabelTopologyZone)}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, address := range n.Status.Addresses {
			if address.Type != kind {
				continue
			}
			if a, ok := parseAddr(address.Address); ok {
				m.Addresses = append(m.Addresses, a)
			}
		}
		if kind == corev1.NodeInternalIP {
			m.Internal = len(m.Addresses)
		}
	}
	if len(n.Spec.PodCIDRs) > 0 {
		m.PodCIDRs = f.prefixes("spec.podCIDRs", n.Spec.PodCIDRs)
	} else if n.Spec.PodCIDR != "" {
		p, ok := parsePrefix(n.Spec.PodCIDR)
		if !ok {
			f.add("spec.podCIDR", n.Spec.PodCIDR, problemCIDR)
		}
		m.PodCIDRs = append(m.PodCIDRs, p)
	}
	m.Health, m.HealthSince = health(n.Status.Conditions)
	m.Edge = annotation(n.Annotations, model.EdgeAnnotation)
	if len(f) > 0 {
		return nil, f.err()
	}
	return m, nil
}

// shuttingDown is the text of the condition Ready by which a kubelet reports the shutdown of its machine. The message has it alone or among
// others (pkg/kubelet/nodeshutdown, ShutdownStatus; pkg/kubelet/nodestatus, ReadyCondition).
const shuttingDown = "node is shutting down"

// health reads the condition Ready. A status that is none counts as ready, as for a Node without the condition.
func health(conditions []corev1.NodeCondition) (h model.NodeHealth, since time.Time) {
	for i := range conditions {
		c := &conditions[i]
		if c.Type != corev1.NodeReady {
			continue
		}
		switch {
		case c.Status == corev1.ConditionFalse && c.Reason == "KubeletNotReady" && strings.Contains(c.Message, shuttingDown):
			h = model.NodeShuttingDown
		case c.Status == corev1.ConditionFalse:
			h = model.NodeNotReady
		case c.Status == corev1.ConditionUnknown:
			h = model.NodeSilent
		default:
			return model.NodeReady, time.Time{}
		}
		if !c.LastTransitionTime.IsZero() {
			since = c.LastTransitionTime.UTC().Truncate(time.Second)
		}
		return h, since
	}
	return model.NodeReady, time.Time{}
}

// Namespace converts a Namespace.
func Namespace(n *corev1.Namespace) (*model.Namespace, error) {
	if n == nil {
		return nil, errNil
	}
	var f faults
	m := &model.Namespace{Name: f.name(n.Name), ProxyDisabled: n.Labels[proxyLabel] == "disabled"}
	if len(f) > 0 {
		return nil, f.err()
	}
	return m, nil
}

// ServiceCIDR converts a ServiceCIDR.
func ServiceCIDR(c *networkingv1.ServiceCIDR) (*model.ServiceCIDR, error) {
	if c == nil {
		return nil, errNil
	}
	var f faults
	m := &model.ServiceCIDR{Name: f.name(c.Name), CIDRs: f.prefixes("spec.cidrs", c.Spec.CIDRs)}
	if len(f) > 0 {
		return nil, f.err()
	}
	return m, nil
}
