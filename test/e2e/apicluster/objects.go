package apicluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// The labels and annotations that a service proxy reads.
const (
	proxyNameLabel    = "service.kubernetes.io/service-proxy-name"
	namespaceOptOut   = "networking.k8s.io/kube-proxy"
	externalNameValue = "example.com"
)

// Service is the API's form of a service: what package kubeconv would make the same model.Service of.
func Service(s *model.Service) *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name, CreationTimestamp: metav1.NewTime(s.Created)},
		Spec: corev1.ServiceSpec{
			Type:                     serviceTypes[s.Type],
			ExternalIPs:              texts(s.ExternalIPs),
			LoadBalancerSourceRanges: texts(s.SourceRanges),
			HealthCheckNodePort:      int32(s.HealthCheckNodePort),
			SessionAffinity:          corev1.ServiceAffinityNone,
		},
	}
	if s.HasProxyName {
		o.Labels = map[string]string{proxyNameLabel: s.ProxyName}
	}
	for _, a := range s.Annotations {
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, a.Name, a.Value)
	}
	for _, p := range s.Ports {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{
			Name: p.Name, Protocol: protocol(p.Protocol), Port: int32(p.Port), TargetPort: intstr.FromInt32(int32(p.Port)), NodePort: int32(p.NodePort),
		})
	}
	if s.Affinity > 0 {
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		o.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(s.Affinity / time.Second))},
		}
	}
	for _, a := range s.LoadBalancerIPs {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	if s.Type == model.TypeExternalName {
		o.Spec.ExternalName = cmp.Or(s.ExternalName, externalNameValue)
		return o
	}
	o.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	if s.InternalLocal {
		o.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	external := s.Type == model.TypeNodePort || s.Type == model.TypeLoadBalancer || len(s.ExternalIPs) > 0
	if s.ExternalLocal && external {
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if s.Type == model.TypeLoadBalancer {
		without := len(s.Ports) > 0 && s.Ports[0].NodePort == 0
		o.Spec.AllocateLoadBalancerNodePorts = new(!without)
	}
	setClusterIPs(&o.Spec, s)
	return o
}

func setClusterIPs(spec *corev1.ServiceSpec, s *model.Service) {
	if s.Headless {
		spec.ClusterIP, spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		return
	}
	if len(s.ClusterIPs) == 0 {
		return
	}
	spec.ClusterIPs = texts(s.ClusterIPs)
	spec.ClusterIP = spec.ClusterIPs[0]
	spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	if len(s.ClusterIPs) > 1 {
		spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}
	for _, a := range s.ClusterIPs {
		family := corev1.IPv4Protocol
		if a.Is6() {
			family = corev1.IPv6Protocol
		}
		spec.IPFamilies = append(spec.IPFamilies, family)
	}
}

var serviceTypes = map[model.ServiceType]corev1.ServiceType{
	model.TypeClusterIP: corev1.ServiceTypeClusterIP, model.TypeNodePort: corev1.ServiceTypeNodePort,
	model.TypeLoadBalancer: corev1.ServiceTypeLoadBalancer, model.TypeExternalName: corev1.ServiceTypeExternalName,
}

// EndpointSlice is the API's form of a slice.
func EndpointSlice(s *model.EndpointSlice) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, Labels: map[string]string{}, Annotations: map[string]string{}},
		AddressType: map[state.Family]discoveryv1.AddressType{
			0: discoveryv1.AddressTypeFQDN, state.IPv4: discoveryv1.AddressTypeIPv4, state.IPv6: discoveryv1.AddressTypeIPv6,
		}[s.Family],
	}
	if s.Service != "" {
		o.Labels[discoveryv1.LabelServiceName] = s.Service
	}
	if s.Headless {
		o.Labels[corev1.IsHeadlessService] = ""
	}
	if s.HasProxyName {
		o.Labels[proxyNameLabel] = s.ProxyName
	}
	if !s.TriggerTime.IsZero() {
		o.Annotations[corev1.EndpointsLastChangeTriggerTime] = s.TriggerTime.Format(time.RFC3339Nano)
	}
	if s.Weight != "" {
		o.Annotations[s.WeightName()] = s.Weight
	}
	for _, p := range s.Ports {
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(protocol(p.Protocol)), Port: new(int32(p.Port))})
	}
	for i, e := range s.Endpoints {
		o.Endpoints = append(o.Endpoints, endpoint(&e))
		if s.Hostnames != nil && s.Hostnames[i] != "" {
			o.Endpoints[i].Hostname = new(s.Hostnames[i])
		}
		if name := s.Pods.At(i); name != "" {
			o.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: name}
		}
	}
	return o
}

func endpoint(e *model.Endpoint) discoveryv1.Endpoint {
	o := discoveryv1.Endpoint{
		Addresses: []string{e.Addr.String()},
		Conditions: discoveryv1.EndpointConditions{
			Ready: new(e.Ready), Serving: new(e.Serving), Terminating: new(e.Terminating),
		},
	}
	if e.NodeName != "" {
		o.NodeName = new(e.NodeName)
	}
	if e.Zone != "" {
		o.Zone = new(e.Zone)
	}
	if len(e.ZoneHints)+len(e.NodeHints) > 0 {
		o.Hints = &discoveryv1.EndpointHints{}
		for _, zone := range e.ZoneHints {
			o.Hints.ForZones = append(o.Hints.ForZones, discoveryv1.ForZone{Name: zone})
		}
		for _, node := range e.NodeHints {
			o.Hints.ForNodes = append(o.Hints.ForNodes, discoveryv1.ForNode{Name: node})
		}
	}
	return o
}

// conditions are the conditions of unready nodes, as kubelets and the node lifecycle controller write them.
var conditions = map[model.NodeHealth]corev1.NodeCondition{
	model.NodeNotReady:     {Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "container runtime network not ready"},
	model.NodeShuttingDown: {Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "node is shutting down"},
	model.NodeSilent:       {Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status."},
}

// Node is the API's form of a node.
func Node(n *model.Node) *corev1.Node {
	o := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec:       corev1.NodeSpec{PodCIDRs: texts(n.PodCIDRs)},
	}
	if len(n.PodCIDRs) > 0 {
		o.Spec.PodCIDR = o.Spec.PodCIDRs[0]
	}
	if n.Zone != "" {
		o.Labels = map[string]string{corev1.LabelTopologyZone: n.Zone}
	}
	for _, a := range n.Addresses {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	if ready, ok := conditions[n.Health]; ok {
		ready.Type = corev1.NodeReady
		if !n.HealthSince.IsZero() {
			ready.LastTransitionTime = metav1.NewTime(n.HealthSince)
		}
		o.Status.Conditions = []corev1.NodeCondition{ready}
	}
	return o
}

// Namespace is the API's form of a namespace.
func Namespace(n *model.Namespace) *corev1.Namespace {
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	if n.ProxyDisabled {
		o.Labels = map[string]string{namespaceOptOut: "disabled"}
	}
	return o
}

// ServiceCIDR is the API's form of a service CIDR.
func ServiceCIDR(c *model.ServiceCIDR) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: texts(c.CIDRs)},
	}
}

func protocol(p state.Protocol) corev1.Protocol { return corev1.Protocol(p.String()) }

// texts prints addresses or prefixes.
func texts[T netip.Addr | netip.Prefix](list []T) []string {
	var out []string
	for _, v := range list {
		out = append(out, fmt.Sprint(v))
	}
	return out
}
