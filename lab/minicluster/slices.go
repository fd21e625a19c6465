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

// listenOnTargets gives pods that declare no containerPorts the numeric targetPorts of their Services.
func (b *builder) listenOnTargets() {
	undeclared := make(map[*Pod]bool)
	for i := range b.out.Pods {
		undeclared[&b.out.Pods[i]] = len(b.out.Pods[i].Ports) == 0
	}
	for _, svc := range b.out.Services {
		for _, p := range b.selected(svc) {
			if !undeclared[p] {
				continue
			}
			for _, sp := range svc.Spec.Ports {
				proto, _ := protocolOf(sp.Protocol) // checked when the Service was prepared
				port := ContainerPort{Protocol: proto, Port: uint16(sp.TargetPort.IntValue())}
				if sp.TargetPort.Type == intstr.Int && !slices.Contains(p.Ports, port) {
					p.Ports = append(p.Ports, port)
				}
			}
		}
	}
}

// addSlices makes the EndpointSlices of one Service: for each family, one for each set of port numbers that its pods have, cut
// where it gets too long.
func (b *builder) addSlices(svc *corev1.Service) {
	pods := b.selected(svc)
	if len(pods) == 0 {
		return
	}
	b.checkTargets(svc, pods)
	for _, family := range svc.Spec.IPFamilies {
		groups := make(map[string]*discoveryv1.EndpointSlice)
		var order []*discoveryv1.EndpointSlice
		for _, p := range pods {
			i := slices.IndexFunc(p.Addrs, func(a netip.Addr) bool { return familyOf(a) == family })
			if i < 0 {
				continue
			}
			ports := resolvePorts(svc, p)
			key := portsKey(ports)
			if groups[key] == nil || len(groups[key].Endpoints) == maxEndpoints {
				groups[key] = newSlice(svc, family, ports)
				order = append(order, groups[key])
			}
			groups[key].Endpoints = append(groups[key].Endpoints, b.endpoint(svc, p, p.Addrs[i]))
		}
		for i, s := range order {
			s.Name = fmt.Sprintf("%s-%s-%d", svc.Name, strings.ToLower(string(family)), i+1)
			b.out.Slices = append(b.out.Slices, s)
		}
	}
}

// checkTargets warns of the usual reasons why a Service does not reach its pods.
func (b *builder) checkTargets(svc *corev1.Service, pods []*Pod) {
	for i, sp := range svc.Spec.Ports {
		proto, _ := protocolOf(sp.Protocol)
		heard := slices.ContainsFunc(pods, func(p *Pod) bool {
			n, ok := resolveTarget(&sp, p)
			return ok && slices.ContainsFunc(p.Ports, func(c ContainerPort) bool { return c.Protocol == proto && c.Port == n })
		})
		if !heard {
			b.warnf("Service %s/%s: spec.ports[%d].targetPort %s/%s is no containerPort of any of the %d pods that it selects",
				svc.Namespace, svc.Name, i, sp.TargetPort.String(), sp.Protocol, len(pods))
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
	if headless(svc) {
		s.Labels[corev1.IsHeadlessService] = ""
	}
	return s
}

func (b *builder) endpoint(svc *corev1.Service, p *Pod, addr netip.Addr) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{addr.String()},
		Conditions: discoveryv1.EndpointConditions{
			Ready:       new(p.Ready || svc.Spec.PublishNotReadyAddresses),
			Serving:     new(p.Ready || svc.Spec.PublishNotReadyAddresses),
			Terminating: new(false),
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
	for _, c := range p.Ports {
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
