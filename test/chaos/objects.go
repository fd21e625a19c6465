//go:build linux

package chaos

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/kubeapi"
	"github.com/switchyard-net/switchyard/test/topology"
)

// Object is an object of the Kubernetes API.
type Object = kubeapi.Object

// namespace is where all services are.
const namespace = "default"

// servedPort is where all pods serve.
const servedPort = 8080

// serviceOf is what a service of the load is made of. Each is reachable at a cluster IP of each family, over TCP and UDP.
type serviceOf struct {
	name       string
	number     byte // the last byte of its addresses
	nodePort   int32
	lb, sticky bool
	// local is externalTrafficPolicy Local.
	local bool
}

// The ports of each service. UDP has another one, since a NodePort is for one protocol only in some proxies.
const (
	tcpPort = 80
	udpPort = 53
)

func (s *serviceOf) clusterIPs() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, s.number}), netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", s.number))}
}

func (s *serviceOf) lbIPs() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, s.number}), netip.MustParseAddr(fmt.Sprintf("2001:db8:113::%x", s.number))}
}

func (s *serviceOf) object() *corev1.Service {
	o := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: s.clusterIPs()[0].String(),
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: tcpPort, TargetPort: intstr.FromInt32(servedPort)},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: udpPort, TargetPort: intstr.FromInt32(servedPort)},
			},
		},
	}
	for _, a := range s.clusterIPs() {
		o.Spec.ClusterIPs = append(o.Spec.ClusterIPs, a.String())
	}
	if s.sticky {
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	if s.nodePort != 0 {
		o.Spec.Type = corev1.ServiceTypeNodePort
		o.Spec.Ports[0].NodePort, o.Spec.Ports[1].NodePort = s.nodePort, s.nodePort+1
	}
	if s.lb {
		o.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, a := range s.lbIPs() {
			o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
		}
	}
	if s.local {
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	return o
}

// newSlice returns a slice of a service without endpoints.
func newSlice(service string, f state.Family, port int32) *discoveryv1.EndpointSlice {
	kind, suffix := discoveryv1.AddressTypeIPv4, "-v4"
	if f == state.IPv6 {
		kind, suffix = discoveryv1.AddressTypeIPv6, "-v6"
	}
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + suffix, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: kind,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(port)},
			{Name: new("udp"), Protocol: new(corev1.ProtocolUDP), Port: new(port)},
		},
	}
}

// clusterObjects are those that every cluster has.
func clusterObjects(l *topology.Lab) []Object {
	o := l.Options()
	cidr := &networkingv1.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
	}
	for _, p := range o.ServiceCIDRs {
		cidr.Spec.CIDRs = append(cidr.Spec.CIDRs, p.String())
	}
	return []Object{cidr, nodeObject(l.Node(), o.NodePodCIDRs), nodeObject(l.OtherNode(), o.OtherPodCIDRs)}
}

func nodeObject(h *topology.Host, podCIDRs []netip.Prefix) *corev1.Node {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: h.Name}}
	for _, p := range podCIDRs {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, p.String())
	}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	for _, a := range h.Addrs {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	return n
}

// backgroundObjects are services that nobody calls: they make changes, and with them commits, larger. Every generation has other
// endpoints.
func backgroundObjects(services, generation int) []Object {
	var list []Object
	for i := range services {
		name := fmt.Sprintf("background-%d", i)
		list = append(list, &corev1.Service{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: backgroundIP(i), ClusterIPs: []string{backgroundIP(i)},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
				Ports: []corev1.ServicePort{{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: tcpPort, TargetPort: intstr.FromInt32(servedPort)}},
			},
		}, backgroundSlice(i, generation))
	}
	return list
}

func backgroundIP(i int) string {
	return netip.AddrFrom4([4]byte{10, 96, byte(100 + i>>8), byte(i)}).String()
}

func backgroundSlice(i, generation int) *discoveryv1.EndpointSlice {
	slice := newSlice(fmt.Sprintf("background-%d", i), state.IPv4, servedPort)
	slice.Ports = slice.Ports[:1]
	for e := range 3 {
		addr := netip.AddrFrom4([4]byte{10, 245, byte(i), byte(1 + (generation+e)%200)})
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}})
	}
	return slice
}
