package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// Workloads are facts about the cluster that a service proxy does not read. They make answers clearer, and decide
// nothing. All of them may be missing.
type Workloads struct {
	Pods     []PodInfo
	Services map[state.ServiceName]ServiceInfo
}

// PodInfo is a pod.
type PodInfo struct {
	Namespace, Name, Node string
	// HostNetwork reports whether the pod has the addresses of its node.
	HostNetwork bool
	Addrs       []netip.Addr
	Labels      map[string]string
	// NotReady is why the pod is not ready, empty if it is.
	NotReady string
	// Ports are the names of its containers' ports.
	Ports []string
}

func (p *PodInfo) ref() string { return p.Namespace + "/" + p.Name }

// ServiceInfo has the fields of a Service that a service proxy does not read.
type ServiceInfo struct {
	Selector map[string]string
	Targets  []Target
	// ProxyModeIPs are the addresses of load balancers that do not want nodes to take connections to them (ipMode: Proxy), and Hostnames are those
	// that are known by a name only.
	ProxyModeIPs []netip.Addr
	Hostnames    []string
}

// Target is where a port of a Service leads to.
type Target struct {
	Name   string // of the Service's port
	Port   uint16
	Target string // targetPort
}

// Pod returns the pod of a name, nil if it is not known.
func (w *Workloads) Pod(namespace, name string) *PodInfo {
	i := slices.IndexFunc(w.Pods, func(p PodInfo) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		return nil
	}
	return &w.Pods[i]
}

// at returns the pod with an address, nil if none is known. It ignores pods in the host's network, which share their
// addresses.
func (w *Workloads) at(addr netip.Addr, node string) *PodInfo {
	i := slices.IndexFunc(w.Pods, func(p PodInfo) bool {
		return !p.HostNetwork && slices.Contains(p.Addrs, addr) && (node == "" || p.Node == "" || p.Node == node)
	})
	if i < 0 {
		return nil
	}
	return &w.Pods[i]
}

func (w *Workloads) podAt(addr netip.Addr, node string) string {
	if p := w.at(addr, node); p != nil {
		return p.ref()
	}
	return ""
}

func (w *Workloads) isOn(addr netip.Addr, node string) bool {
	p := w.at(addr, node)
	return p != nil && p.Node == node
}

func (w *Workloads) notReady(addr netip.Addr, node string) string {
	if p := w.at(addr, node); p != nil {
		return p.NotReady
	}
	return ""
}

// proxyMode returns the Service whose load balancer has an address for itself, empty if there is none.
func (w *Workloads) proxyMode(addr netip.Addr) string {
	for name, s := range w.Services {
		if slices.Contains(s.ProxyModeIPs, addr) {
			return name.String()
		}
	}
	return ""
}

// targetOf returns the port of a Service that leads to a port number of its pods.
func (w *Workloads) targetOf(name state.ServiceName, target uint16) string {
	for _, t := range w.Services[name].Targets {
		if t.Target == fmt.Sprint(target) {
			return fmt.Sprint(t.Port)
		}
	}
	return ""
}

// withoutSlices completes the sentence that a Service has no EndpointSlice.
func (w *Workloads) withoutSlices(name state.ServiceName) (clue, remedy string) {
	s, known := w.Services[name]
	if !known {
		return "", "look at the selector of the Service and at the labels of the pods: kubectl describe service"
	}
	if len(s.Selector) == 0 {
		return ", and without a selector nobody makes one", "add a selector, or write an EndpointSlice with the label kubernetes.io/service-name"
	}
	selector := labelsText(s.Selector)
	var matching, elsewhere, inNamespace []*PodInfo
	for i := range w.Pods {
		p := &w.Pods[i]
		matches := selects(s.Selector, p.Labels)
		switch {
		case p.Namespace == name.Namespace && matches:
			matching = append(matching, p)
		case p.Namespace == name.Namespace:
			inNamespace = append(inNamespace, p)
		case matches:
			elsewhere = append(elsewhere, p)
		}
	}
	switch {
	case len(matching) > 0:
		return fmt.Sprintf(", although %s matches its selector (%s)", count(len(matching), "pod"), selector),
			"look at the controller manager, which makes EndpointSlices; a source that is a dump needs them, too (kubectl get endpointslices)"
	case len(elsewhere) > 0:
		return fmt.Sprintf(", and no pod of namespace %s matches its selector (%s); pod %s does, in another namespace", name.Namespace, selector, elsewhere[0].ref()),
			"put the Service into the namespace of its pods: selectors do not reach beyond it"
	case len(w.Pods) == 0:
		return fmt.Sprintf("; its selector is %s", selector), "compare the selector with the labels of the pods: kubectl get pods --show-labels"
	}
	clue = fmt.Sprintf(", and no pod matches its selector (%s)", selector)
	if near := nearest(s.Selector, inNamespace); near != nil {
		clue += fmt.Sprintf("; the nearest is pod %s with %s", near.ref(), labelsText(near.Labels))
	}
	return clue, "make the selector of the Service and the labels of the pods the same"
}

// withoutPort completes the sentence that no slice has an endpoint for a port.
func (w *Workloads) withoutPort(name state.ServiceName, port string, slicesWithout []brain.SliceReasons) (clue, remedy string) {
	s := w.Services[name]
	for _, t := range s.Targets {
		if t.Name == port && t.Target != "" && strings.Trim(t.Target, "0123456789") != "" {
			has := []string{}
			for i := range w.Pods {
				if p := &w.Pods[i]; p.Namespace == name.Namespace && selects(s.Selector, p.Labels) {
					has = append(has, p.Ports...)
				}
			}
			slices.Sort(has)
			clue = fmt.Sprintf("; its targetPort is %q, a name", t.Target)
			if has = slices.Compact(has); len(has) > 0 {
				clue += fmt.Sprintf(", and its pods have the ports %s", some(has))
			}
			return clue, "let targetPort be the number, or the name of a port in the containers of the pods"
		}
	}
	family := slices.ContainsFunc(slicesWithout, func(r brain.SliceReasons) bool { return r.Reason == brain.OtherFamily })
	if family && !slices.ContainsFunc(slicesWithout, func(r brain.SliceReasons) bool { return r.Reason != brain.OtherFamily }) {
		return "; there are some of another IP family", "give the pods addresses of both families, or the Service the family of its pods (spec.ipFamilies)"
	}
	return "", "let the EndpointSlices have a port with the name and protocol of the Service's"
}

// selects reports whether labels have all that a selector asks for.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return len(selector) > 0
}

// nearest returns the pod whose labels come nearest to a selector: of its keys or values, they share most.
func nearest(selector map[string]string, pods []*PodInfo) *PodInfo {
	var best *PodInfo
	most := 0
	for _, p := range pods {
		n := 0
		for k, v := range p.Labels {
			if want, ok := selector[k]; ok && want == v {
				n += 3
			} else if ok {
				n++
			} else {
				for _, want := range selector {
					if want == v {
						n++
					}
				}
			}
		}
		if n > most {
			best, most = p, n
		}
	}
	return best
}

func labelsText(labels map[string]string) string {
	var texts []string
	for k, v := range labels {
		texts = append(texts, k+"="+v)
	}
	slices.Sort(texts)
	return some(texts)
}
