package minicluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/internal/apirules"
	"github.com/switchyard-net/switchyard/state"
)

// SliceController is the value of the label endpointslice.kubernetes.io/managed-by on slices that were made of selectors.
const SliceController = "endpointslice-controller.k8s.io"

// maxEndpoints is how many endpoints the EndpointSlice controller puts into one slice by default.
const maxEndpoints = 100

// selected are the pods that a Service selects, in the order of their names.
func (b *builder) selected(svc *corev1.Service) []*Pod {
	if len(svc.Spec.Selector) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	sel := labels.SelectorFromSet(svc.Spec.Selector)
	var pods []*Pod
	for i := range b.out.Pods {
		if p := &b.out.Pods[i]; p.Namespace == svc.Namespace && sel.Matches(labels.Set(p.Labels)) {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, c *Pod) int { return cmp.Compare(a.Name, c.Name) })
	return pods
}

// listenOnTargets gives pods the numeric targetPorts of their Services, because a containerPort is information only. In the
// network of a node, a port is one pod's.
func (b *builder) listenOnTargets() {
	for _, svc := range b.services {
		for _, p := range b.selected(svc.Service) {
			for _, sp := range svc.Spec.Ports {
				proto, _ := protocolOf(sp.Protocol) // validated
				if sp.TargetPort.Type != intstr.Int || p.listens(proto, uint16(sp.TargetPort.IntVal)) {
					continue
				}
				port := ContainerPort{Protocol: proto, Port: uint16(sp.TargetPort.IntVal)}
				if !p.HostNetwork || b.claimHostPort(p, port) {
					p.Ports = append(p.Ports, port)
				}
			}
		}
	}
}

// listens reports whether a pod has a port under any name.
func (p *Pod) listens(proto state.Protocol, port uint16) bool { return hasPort(p.Ports, proto, port) }

func hasPort(list []ContainerPort, proto state.Protocol, port uint16) bool {
	return slices.ContainsFunc(list, func(c ContainerPort) bool { return c.Protocol == proto && c.Port == port })
}

// addSlices makes the EndpointSlices of one Service. Each family has one for each set of port numbers that its pods
// have. Long slices are split.
func (b *builder) addSlices(svc clusterService) {
	pods := b.selected(svc.Service)
	if len(pods) == 0 {
		return
	}
	for _, family := range svc.Spec.IPFamilies {
		groups := make(map[string]*discoveryv1.EndpointSlice)
		var order []*discoveryv1.EndpointSlice
		for _, p := range pods {
			i := slices.IndexFunc(p.Addrs, func(a netip.Addr) bool { return familyOf(a) == family })
			if i < 0 {
				continue
			}
			ports := resolvePorts(svc.Service, p)
			key := portsKey(ports)
			if groups[key] == nil || len(groups[key].Endpoints) == maxEndpoints {
				groups[key] = newSlice(svc.Service, family, ports)
				order = append(order, groups[key])
			}
			groups[key].Endpoints = append(groups[key].Endpoints, b.endpoint(svc.Service, p, p.Addrs[i]))
		}
		for i, s := range order {
			s.Name = fmt.Sprintf("%s-%s-%d", svc.Name, strings.ToLower(string(family)), i+1)
			b.out.Slices = append(b.out.Slices, s)
		}
	}
}

func newSlice(svc *corev1.Service, family corev1.IPFamily, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Labels: map[string]string{
			discoveryv1.LabelServiceName: svc.Name,
			discoveryv1.LabelManagedBy:   SliceController,
		}},
		AddressType: discoveryv1.AddressType(family),
		Ports:       ports,
	}
	if apirules.Headless(svc) {
		s.Labels[corev1.IsHeadlessService] = ""
	}
	return s
}

func (b *builder) endpoint(svc *corev1.Service, p *Pod, addr netip.Addr) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{addr.String()},
		Conditions: discoveryv1.EndpointConditions{
			Ready:       new(p.Ready && !p.Terminating || svc.Spec.PublishNotReadyAddresses),
			Serving:     new(p.Ready || svc.Spec.PublishNotReadyAddresses),
			Terminating: new(p.Terminating),
		},
		NodeName:  new(p.Node),
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name},
	}
	if i := slices.IndexFunc(b.opts.Nodes, func(n Node) bool { return n.Name == p.Node }); b.opts.Nodes[i].Zone != "" {
		e.Zone = new(b.opts.Nodes[i].Zone)
	}
	if svc.Spec.TrafficDistribution == nil || !*e.Conditions.Ready {
		return e
	}
	switch *svc.Spec.TrafficDistribution {
	case corev1.ServiceTrafficDistributionPreferSameNode:
		e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: p.Node}}}
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
		e.Hints = &discoveryv1.EndpointHints{}
	default:
		return e
	}
	if e.Zone != nil {
		e.Hints.ForZones = []discoveryv1.ForZone{{Name: *e.Zone}}
	}
	return e
}

// resolvePorts describes which port numbers of a pod a Service leads to; ports that the pod does not name are left out.
func resolvePorts(svc *corev1.Service, p *Pod) []discoveryv1.EndpointPort {
	var ports []discoveryv1.EndpointPort
	for i := range svc.Spec.Ports {
		sp := &svc.Spec.Ports[i]
		n, ok := resolveTarget(sp, p)
		if !ok {
			continue
		}
		ports = append(ports, discoveryv1.EndpointPort{
			Name: new(sp.Name), Protocol: new(sp.Protocol), Port: new(int32(n)), AppProtocol: sp.AppProtocol,
		})
	}
	return ports
}

func resolveTarget(sp *corev1.ServicePort, p *Pod) (uint16, bool) {
	if sp.TargetPort.Type == intstr.Int {
		return uint16(sp.TargetPort.IntVal), true
	}
	proto, _ := protocolOf(sp.Protocol)
	for _, c := range p.declared {
		if c.Name == sp.TargetPort.StrVal && c.Protocol == proto {
			return c.Port, true
		}
	}
	return 0, false
}

func portsKey(ports []discoveryv1.EndpointPort) string {
	var s strings.Builder
	for _, p := range ports {
		fmt.Fprintf(&s, "%s/%s/%d ", *p.Name, *p.Protocol, *p.Port)
	}
	return s.String()
}
