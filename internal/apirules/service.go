package apirules

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

func sorted(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// ValidateService returns why an API server refuses a Service, which has its defaults, and nil if it accepts the
// Service. It does not check the families of its addresses, which the allocator checks.
func ValidateService(s *corev1.Service) []*Fault {
	var f faults
	// Newer API servers take any DNS label for a name, older ones only those that begin with a letter.
	f.check("metadata.name", s.Name, validation.IsDNS1123Label(s.Name))
	f.labels("metadata.labels", s.Labels)
	f.labels("spec.selector", s.Spec.Selector)
	f.serviceType(s)
	f.servicePorts(s)
	f.affinity(&s.Spec)
	f.policies(s)
	f.addresses(s)
	return f
}

func (f *faults) serviceType(s *corev1.Service) {
	spec := &s.Spec
	switch spec.Type {
	case corev1.ServiceTypeClusterIP:
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		if Headless(s) {
			f.add("spec.clusterIP", "None is for Services of type ClusterIP, and the type is %s: leave out one of the two", spec.Type)
		}
	case corev1.ServiceTypeExternalName:
		if spec.ClusterIP != "" || len(spec.ClusterIPs) > 0 {
			f.add("spec.clusterIP", "must be empty for type ExternalName: leave it out")
		}
		if spec.IPFamilyPolicy != nil || len(spec.IPFamilies) > 0 {
			f.add("spec.ipFamilies", "must be empty for type ExternalName, as must spec.ipFamilyPolicy: leave them out")
		}
		name := strings.TrimSuffix(spec.ExternalName, ".")
		if name == "" {
			f.add("spec.externalName", "is empty: give the name that the Service stands for")
		} else {
			f.check("spec.externalName", spec.ExternalName, validation.IsDNS1123Subdomain(name))
		}
	default:
		f.add("spec.type", "%q is none of ClusterIP, NodePort, LoadBalancer, ExternalName", spec.Type)
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		if spec.LoadBalancerClass != nil {
			f.add("spec.loadBalancerClass", "is for type LoadBalancer only: leave it out, or change spec.type")
		}
		if spec.AllocateLoadBalancerNodePorts != nil {
			f.add("spec.allocateLoadBalancerNodePorts", "is for type LoadBalancer only: leave it out, or change spec.type")
		}
		if len(spec.LoadBalancerSourceRanges) > 0 {
			f.add("spec.loadBalancerSourceRanges", "is for type LoadBalancer only: leave it out, or change spec.type")
		}
	}
}

// kubeletPort is the port that a LoadBalancer must not expose.
const kubeletPort = 10250

func (f *faults) servicePorts(s *corev1.Service) {
	spec := &s.Spec
	if len(spec.Ports) == 0 && !Headless(s) && spec.Type != corev1.ServiceTypeExternalName {
		f.add("spec.ports", "is empty: give at least one port")
	}
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	names, ports, nodePorts := map[string]int{}, map[key]int{}, map[key]int{}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		at := fmt.Sprintf("spec.ports[%d]", i)
		f.servicePort(at, p, len(spec.Ports) > 1)
		if first, twice := names[p.Name]; twice && p.Name != "" {
			f.add(at+".name", "%q is the name of spec.ports[%d], too: give each its own", p.Name, first)
		} else if !twice {
			names[p.Name] = i
		}
		k := key{p.Protocol, p.Port}
		if first, twice := ports[k]; twice {
			f.add(at, "port %d/%s is also in spec.ports[%d]: remove one of them", p.Port, p.Protocol, first)
		} else {
			ports[k] = i
		}
		if spec.Type == corev1.ServiceTypeLoadBalancer && p.Port == kubeletPort {
			f.add(at+".port", "%d must not be exposed, because it is the kubelet's: take another one", kubeletPort)
		}
		if p.NodePort == 0 {
			continue
		}
		if !NodePorted(s) {
			f.add(at+".nodePort", "is for types NodePort and LoadBalancer, and the type is %s: leave it out, or change spec.type", spec.Type)
			continue
		}
		k = key{p.Protocol, p.NodePort}
		if first, twice := nodePorts[k]; twice {
			f.add(at+".nodePort", "%d/%s is also in spec.ports[%d]: take another one", p.NodePort, p.Protocol, first)
		} else {
			nodePorts[k] = i
		}
	}
}

func (f *faults) servicePort(at string, p *corev1.ServicePort, several bool) {
	switch {
	case p.Name == "" && several:
		f.add(at+".name", "is empty: a Service with several ports must name each")
	case p.Name != "":
		f.check(at+".name", p.Name, validation.IsDNS1123Label(p.Name))
	}
	f.portNumber(at+".port", p.Port)
	f.protocol(at+".protocol", p.Protocol)
	switch t := p.TargetPort; t.Type {
	case intstr.Int:
		f.portNumber(at+".targetPort", t.IntVal)
	case intstr.String:
		for _, c := range validation.IsValidPortName(t.StrVal) {
			remedy := ""
			if validation.IsValidPortNum(t.IntValue()) == nil {
				remedy = fmt.Sprintf(": for the number, write %d without quotes", t.IntValue())
			}
			f.add(at+".targetPort", "%q is not the name of a port, which %s%s", t.StrVal, c, remedy)
		}
	}
	if p.AppProtocol != nil {
		f.check(at+".appProtocol", *p.AppProtocol, validation.IsQualifiedName(*p.AppProtocol))
	}
}

func (f *faults) portNumber(field string, n int32) {
	if n < 1 || n > 65535 {
		f.add(field, "%d is not in the range 1-65535", n)
	}
}

func (f *faults) protocol(field string, p corev1.Protocol) {
	switch p {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	default:
		f.add(field, "%q is none of TCP, UDP, SCTP", p)
	}
}

func (f *faults) affinity(spec *corev1.ServiceSpec) {
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if spec.SessionAffinityConfig != nil {
			f.add("spec.sessionAffinityConfig", "is for sessionAffinity ClientIP: leave it out, or set spec.sessionAffinity")
		}
	case corev1.ServiceAffinityClientIP:
		if n := *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; n < 1 || n > 86400 {
			f.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not in the range 1-86400", n)
		}
	default:
		f.add("spec.sessionAffinity", "%q is neither ClientIP nor None", spec.SessionAffinity)
	}
}

func (f *faults) policies(s *corev1.Service) {
	spec := &s.Spec
	switch p := spec.ExternalTrafficPolicy; {
	case p == "":
	case !external(s):
		f.add("spec.externalTrafficPolicy", "is for Services that are reached from outside, by type NodePort or LoadBalancer or by externalIPs: leave it out, or change spec.type")
	case p != corev1.ServiceExternalTrafficPolicyCluster && p != corev1.ServiceExternalTrafficPolicyLocal:
		f.add("spec.externalTrafficPolicy", "%q is neither Cluster nor Local", p)
	}
	if p := spec.InternalTrafficPolicy; p != nil && *p != corev1.ServiceInternalTrafficPolicyCluster && *p != corev1.ServiceInternalTrafficPolicyLocal {
		f.add("spec.internalTrafficPolicy", "%q is neither Cluster nor Local", *p)
	}
	if d := spec.TrafficDistribution; d != nil && *d != corev1.ServiceTrafficDistributionPreferClose &&
		*d != corev1.ServiceTrafficDistributionPreferSameZone && *d != corev1.ServiceTrafficDistributionPreferSameNode {
		f.add("spec.trafficDistribution", "%q is none of PreferSameZone, PreferSameNode, PreferClose", *d)
	}
	if n := spec.HealthCheckNodePort; n != 0 {
		if spec.Type != corev1.ServiceTypeLoadBalancer || spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			f.add("spec.healthCheckNodePort", "is for type LoadBalancer with externalTrafficPolicy Local: leave it out")
		}
		f.portNumber("spec.healthCheckNodePort", n)
	}
}

func (f *faults) addresses(s *corev1.Service) {
	spec := &s.Spec
	if len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] != spec.ClusterIP && spec.Type != corev1.ServiceTypeExternalName {
		f.add("spec.clusterIPs[0]", "%s is not spec.clusterIP, which is %s: make them the same, or leave out one of them", spec.ClusterIPs[0], spec.ClusterIP)
	}
	for i, ip := range spec.ClusterIPs {
		if ip == corev1.ClusterIPNone {
			if i > 0 || len(spec.ClusterIPs) > 1 {
				f.add(fmt.Sprintf("spec.clusterIPs[%d]", i), "None must be the only one: leave out the others")
			}
			continue
		}
		f.address(fmt.Sprintf("spec.clusterIPs[%d]", i), ip, false)
	}
	for i, ip := range spec.ExternalIPs {
		f.address(fmt.Sprintf("spec.externalIPs[%d]", i), ip, true)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		if _, err := netip.ParsePrefix(strings.TrimSpace(cidr)); err != nil {
			f.add(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), "%q is not a CIDR such as 192.0.2.0/24", cidr)
		}
	}
}

// address checks an address. Others than unicast ones that packets are routed to are refused if special is set.
func (f *faults) address(field, text string, special bool) netip.Addr {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		f.add(field, "%q is not an IP address", text)
	case special && (a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast()):
		f.add(field, "%s is an unspecified, loopback, link-local or multicast address, which is not routed: take another one", text)
	}
	return a
}
