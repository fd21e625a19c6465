package diagnosis

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// Facts are what a service proxy does not read of a cluster. They make findings clearer, and decide nothing about connections. All of them
// may be missing, and a nil *Facts has none.
type Facts struct {
	Pods []Pod
	// Whole is set if Pods are all that there are, also if there are none.
	Whole bool
	// Partial is set if something was left out that may have workloads.
	Partial bool
	// Workloads make pods.
	Workloads []Workload
	Services  map[state.ServiceName]ServiceFacts
	// Endpoints are objects of kind Endpoints that were written by hand, by their Service.
	Endpoints map[state.ServiceName]Endpoints
	// Custom are custom resources and their definitions: their operators may create pods.
	Custom []Custom
	// Unlabelled are EndpointSlices without the label kubernetes.io/service-name, as namespace and name.
	Unlabelled []state.ServiceName
	// Place returns the file, line and column of a field of an object, empty if it is in no file. It may be nil.
	Place func(o Object, field string) string
}

// Pod is a pod.
type Pod struct {
	Namespace, Name, Node string
	// HostNetwork reports whether the pod has the addresses of its node.
	HostNetwork bool
	Addrs       []netip.Addr
	Labels      map[string]string
	// NotReady is why the pod is not ready, empty if it is. Gate is the readiness gate that it waits for.
	NotReady, Gate string
	// Ports are the ports that its containers declare. Mentioned are the numbers in its probes, commands and environment: something may listen there.
	Ports     []ContainerPort
	Mentioned []uint16
	// Configured is the name of a ConfigMap that its containers read, empty for none: it may have further ports.
	Configured string
}

// ContainerPort is a port that a container declares.
type ContainerPort struct {
	Name     string
	Protocol state.Protocol
	Port     uint16
}

// has reports whether a pod has the target of a port.
func (p *Pod) has(t *Target, protocol state.Protocol) bool {
	number, _ := strconv.ParseUint(t.Target, 10, 16)
	if protocol == state.TCP && !t.named() && slices.Contains(p.Mentioned, uint16(number)) {
		return true
	}
	return slices.ContainsFunc(p.Ports, func(c ContainerPort) bool {
		return c.Protocol == protocol && (t.named() && c.Name == t.Target || !t.named() && uint64(c.Port) == number)
	})
}

func (p *Pod) portsText() string {
	var texts []string
	for _, c := range p.Ports {
		texts = append(texts, fmt.Sprintf("%d/%v", c.Port, c.Protocol))
	}
	if len(texts) == 0 {
		return "none"
	}
	return Some(texts)
}

// Workload is what makes pods.
type Workload struct {
	Object Object
	Labels map[string]string // of its pods
	// Idle completes the sentence that names a workload without pods. Remedy and Severity are for a Service that selects only such workloads.
	Idle, Remedy string
	Severity     Severity
}

// Custom is a custom resource, or the definition of some, which has neither kind nor name.
type Custom struct{ Group, Kind, Name string }

// operator returns the API group whose operator may create the pods of a selector, empty if there is none. The selector
// of such a group has a label of the group, or the kind and the name of a custom resource.
func (f *Facts) operator(selector map[string]string) string {
	for _, c := range f.Custom {
		kind, name := false, false
		for key, value := range selector {
			if domain, _, ok := strings.Cut(key, "/"); ok && (domain == c.Group || strings.HasSuffix(c.Group, "."+domain)) {
				return c.Group
			}
			kind = kind || strings.EqualFold(key, c.Kind) || strings.EqualFold(value, c.Kind)
			name = name || c.Name != "" && value == c.Name
		}
		if kind && name {
			return c.Group
		}
	}
	return ""
}

// hasWorkload reports whether a pod or workload of a namespace is known.
func (f *Facts) hasWorkload(namespace string) bool {
	return slices.ContainsFunc(f.templates(), func(w *Workload) bool { return w.Object.Namespace == namespace })
}

// ServiceFacts has the fields of a Service that a service proxy does not read.
type ServiceFacts struct {
	Selector map[string]string
	Targets  []Target
	// Prefers is the setting by which the Service prefers close endpoints, such as trafficDistribution PreferClose, and PrefersField its field.
	Prefers, PrefersField string
	// ProxyModeIPs are the addresses of load balancers whose connections nodes must not take (ipMode: Proxy). Hostnames
	// are the load balancers that are known by a name only.
	ProxyModeIPs []netip.Addr
	Hostnames    []string
}

// Target is where a port of a Service leads to.
type Target struct {
	Name     string // of the Service's port
	Protocol state.Protocol
	Port     uint16
	Target   string // targetPort
	Field    string // the path of what decides it
}

// named reports whether the target is the name of a port.
func (t *Target) named() bool { return strings.Trim(t.Target, "0123456789") != "" }

// Endpoints is an object of kind Endpoints.
type Endpoints struct {
	Name string
	// Addresses counts its addresses, ready or not.
	Addresses int
	// NotMirrored is what keeps the cluster from making EndpointSlices of it, empty for nothing.
	NotMirrored string
}

// Pod returns the pod of a name, nil if it is not known.
func (f *Facts) Pod(namespace, name string) *Pod {
	if f == nil {
		return nil
	}
	i := slices.IndexFunc(f.Pods, func(p Pod) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Pods[i]
}

// At returns the pod with an address, nil if none is known. It ignores pods in the host's network, which share their
// addresses.
func (f *Facts) At(addr netip.Addr, node string) *Pod {
	if f == nil {
		return nil
	}
	i := slices.IndexFunc(f.Pods, func(p Pod) bool {
		return !p.HostNetwork && slices.Contains(p.Addrs, addr) && (node == "" || p.Node == "" || p.Node == node)
	})
	if i < 0 {
		return nil
	}
	return &f.Pods[i]
}

// PodOf is namespace/name of the pod of an endpoint, empty if it is not known. If the slice names no pod, as in slices that people write, it is
// the pod with the address.
func (f *Facts) PodOf(r *brain.EndpointReasons) string {
	if name := r.Pod(); name != "" {
		return r.Slice.Namespace + "/" + name
	}
	return f.At(r.Addr.Addr(), r.Endpoint.NodeName).Ref()
}

// Ref is namespace/name of a pod, empty for nil.
func (p *Pod) Ref() string {
	if p == nil {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

func (f *Facts) service(name state.ServiceName) (ServiceFacts, bool) {
	if f == nil {
		return ServiceFacts{}, false
	}
	s, ok := f.Services[name]
	return s, ok
}

func (f *Facts) known(name state.ServiceName) bool {
	_, ok := f.service(name)
	return ok
}

// empty reports whether no pod and no workload is known.
func (f *Facts) empty() bool { return len(f.Pods)+len(f.Workloads) == 0 }

func (f *Facts) endpoints(name state.ServiceName) *Endpoints {
	if f == nil {
		return nil
	}
	if e, ok := f.Endpoints[name]; ok {
		return &e
	}
	return nil
}

// unlabelled returns the EndpointSlice that was probably meant for a Service: its name begins as the Service's.
func (f *Facts) unlabelled(name state.ServiceName) string {
	for _, s := range f.Unlabelled {
		if s.Namespace == name.Namespace && (s.Name == name.Name || strings.HasPrefix(s.Name, name.Name+"-")) {
			return s.Name
		}
	}
	return ""
}

// selected are the pods that a selector matches, in the order of their names.
func (f *Facts) selected(namespace string, selector map[string]string) (list []*Pod) {
	if f == nil {
		return nil
	}
	for i := range f.Pods {
		if p := &f.Pods[i]; p.Namespace == namespace && selectsAll(selector, p.Labels) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *Pod) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// templates are the workloads, and then the pods, which may have none.
func (f *Facts) templates() (list []*Workload) {
	for i := range f.Workloads {
		list = append(list, &f.Workloads[i])
	}
	for i := range f.Pods {
		p := &f.Pods[i]
		list = append(list, &Workload{Object: Object{"Pod", p.Namespace, p.Name}, Labels: p.Labels})
	}
	return list
}

func (f *Facts) place(o Object, field string) string {
	if f == nil || f.Place == nil {
		return ""
	}
	return f.Place(o, field)
}
