package minicluster

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// serviceAllocators hand out what Services get from the cluster.
type serviceAllocators struct {
	primary   corev1.IPFamily
	cluster   map[corev1.IPFamily]*addrAllocator
	balancer  map[corev1.IPFamily]*addrAllocator
	nodePorts *portAllocator
}

func newServiceAllocators(opts *Options) *serviceAllocators {
	a := &serviceAllocators{cluster: byFamily(opts.ServiceCIDRs), balancer: byFamily(opts.LoadBalancerCIDRs), nodePorts: newPortAllocator()}
	if len(opts.ServiceCIDRs) > 0 {
		a.primary = familyOf(opts.ServiceCIDRs[0].Addr())
	}
	return a
}

func byFamily(prefixes []netip.Prefix) map[corev1.IPFamily]*addrAllocator {
	m := make(map[corev1.IPFamily]*addrAllocator)
	for _, p := range prefixes {
		m[familyOf(p.Addr())] = newAddrAllocator(p, 1)
	}
	return m
}

func familyOf(addr netip.Addr) corev1.IPFamily {
	if addr.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// addServices completes the Services. What manifests ask for by number is given out before anything is chosen for the others.
func (b *builder) addServices(services []*corev1.Service) {
	alloc := newServiceAllocators(&b.opts)
	slices.SortStableFunc(services, byName)
	services = slices.DeleteFunc(services, func(svc *corev1.Service) bool {
		err := alloc.prepare(svc)
		if err != nil {
			b.errorf("Service %s/%s: %w", svc.Namespace, svc.Name, err)
		}
		return err != nil
	})
	for i, svc := range services {
		if i > 0 && byName(services[i-1], svc) == 0 {
			b.errorf("Service %s/%s: exists twice in the manifests; remove one", svc.Namespace, svc.Name)
			continue
		}
		if err := alloc.complete(svc); err != nil {
			b.errorf("Service %s/%s: %w", svc.Namespace, svc.Name, err)
			continue
		}
		b.out.Services = append(b.out.Services, svc)
	}
}

func owner(svc *corev1.Service) string { return "Service " + svc.Namespace + "/" + svc.Name }

func headless(svc *corev1.Service) bool { return svc.Spec.ClusterIP == corev1.ClusterIPNone }

func nodePorted(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// prepare fills in the defaults and claims what the manifest asks for.
func (a *serviceAllocators) prepare(svc *corev1.Service) error {
	spec := &svc.Spec
	if svc.Name == "" {
		return fmt.Errorf("metadata.name is empty")
	}
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if err := setPortDefaults(spec); err != nil {
		return err
	}
	setPolicyDefaults(svc)
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if err := a.setFamilies(spec); err != nil {
		return err
	}
	if err := a.claimAddresses(svc); err != nil {
		return err
	}
	if !nodePorted(svc) {
		return nil
	}
	for i := range spec.Ports {
		if n := spec.Ports[i].NodePort; n != 0 {
			if err := a.nodePorts.claim(n, owner(svc)); err != nil {
				return fmt.Errorf("spec.ports[%d].nodePort: %w", i, err)
			}
		}
	}
	if n := spec.HealthCheckNodePort; n != 0 {
		if err := a.nodePorts.claim(n, owner(svc)); err != nil {
			return fmt.Errorf("spec.healthCheckNodePort: %w", err)
		}
	}
	return nil
}

func setPortDefaults(spec *corev1.ServiceSpec) error {
	if len(spec.Ports) == 0 && spec.ClusterIP != corev1.ClusterIPNone {
		return fmt.Errorf("spec.ports is empty; give at least one port")
	}
	names := make(map[string]bool)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.Name == "" && len(spec.Ports) > 1 {
			return fmt.Errorf("spec.ports[%d].name is empty; a Service with several ports must name each", i)
		}
		if names[p.Name] {
			return fmt.Errorf("spec.ports[%d].name: %q occurs twice; port names must differ", i, p.Name)
		}
		names[p.Name] = true
		if p.Port < 1 || p.Port > 65535 {
			return fmt.Errorf("spec.ports[%d].port: %d is not in the range 1-65535", i, p.Port)
		}
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if _, err := protocolOf(p.Protocol); err != nil {
			return fmt.Errorf("spec.ports[%d].protocol: %w", i, err)
		}
		if p.TargetPort == (intstr.IntOrString{}) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
		if n := p.TargetPort; n.Type == intstr.Int && (n.IntVal < 1 || n.IntVal > 65535) {
			return fmt.Errorf("spec.ports[%d].targetPort: %d is not in the range 1-65535", i, n.IntVal)
		}
	}
	return nil
}

func setPolicyDefaults(svc *corev1.Service) {
	spec := &svc.Spec
	if spec.InternalTrafficPolicy == nil {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.ExternalTrafficPolicy == "" && (nodePorted(svc) || len(spec.ExternalIPs) > 0) {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		if spec.SessionAffinityConfig == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{}
		}
		if spec.SessionAffinityConfig.ClientIP == nil {
			spec.SessionAffinityConfig.ClientIP = &corev1.ClientIPConfig{}
		}
		if spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig.ClientIP.TimeoutSeconds = new(corev1.DefaultClientIPServiceAffinitySeconds)
		}
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && spec.AllocateLoadBalancerNodePorts == nil {
		spec.AllocateLoadBalancerNodePorts = new(true)
	}
}

// setFamilies completes ipFamilyPolicy and ipFamilies. Addresses and families that the manifest gives decide.
func (a *serviceAllocators) setFamilies(spec *corev1.ServiceSpec) error {
	var given []corev1.IPFamily
	if spec.ClusterIP != corev1.ClusterIPNone {
		ips := spec.ClusterIPs
		if len(ips) == 0 && spec.ClusterIP != "" {
			ips = []string{spec.ClusterIP}
		}
		for i, s := range ips {
			ip, err := netip.ParseAddr(s)
			if err != nil {
				return fmt.Errorf("spec.clusterIPs[%d]: %q is not an IP address", i, s)
			}
			given = append(given, familyOf(ip))
		}
		spec.ClusterIPs = ips
	}
	for i, f := range spec.IPFamilies {
		if i < len(given) && given[i] != f {
			return fmt.Errorf("spec.ipFamilies[%d]: %s does not fit the address %s", i, f, spec.ClusterIPs[i])
		}
		if i >= len(given) {
			given = append(given, f)
		}
	}
	policy := corev1.IPFamilyPolicySingleStack
	switch {
	case spec.IPFamilyPolicy != nil:
		policy = *spec.IPFamilyPolicy
	case len(given) > 1:
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	if len(given) == 0 {
		given = append(given, a.primary)
	}
	if policy != corev1.IPFamilyPolicySingleStack && len(given) == 1 {
		given = append(given, otherFamily(given[0]))
	}
	switch {
	case policy == corev1.IPFamilyPolicySingleStack && len(given) > 1:
		return fmt.Errorf("spec.ipFamilyPolicy: SingleStack allows one family, but two are given")
	case len(given) > 2 || len(given) == 2 && given[0] == given[1]:
		return fmt.Errorf("spec.ipFamilies: at most one IPv4 and one IPv6 are allowed")
	}
	for i, f := range given {
		if a.cluster[f] != nil {
			continue
		}
		if i == 1 && policy == corev1.IPFamilyPolicyPreferDualStack {
			given = given[:1]
			break
		}
		return fmt.Errorf("spec.ipFamilies: the cluster has no service range for %q", f)
	}
	spec.IPFamilyPolicy, spec.IPFamilies = &policy, given
	return nil
}

func (a *serviceAllocators) claimAddresses(svc *corev1.Service) error {
	if headless(svc) {
		return nil
	}
	for i, s := range svc.Spec.ClusterIPs {
		ip := netip.MustParseAddr(s) // checked by setFamilies
		if err := a.cluster[familyOf(ip)].claim(ip, owner(svc)); err != nil {
			return fmt.Errorf("spec.clusterIPs[%d]: %w", i, err)
		}
	}
	for i, in := range svc.Status.LoadBalancer.Ingress {
		ip, err := netip.ParseAddr(in.IP)
		if err != nil {
			continue // a host name
		}
		if pool := a.balancer[familyOf(ip)]; pool != nil {
			if err := pool.claim(ip, owner(svc)); err != nil {
				return fmt.Errorf("status.loadBalancer.ingress[%d].ip: %w", i, err)
			}
		}
	}
	return nil
}

// complete gives a prepared Service what it still lacks.
func (a *serviceAllocators) complete(svc *corev1.Service) error {
	spec := &svc.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if headless(svc) {
		spec.ClusterIPs = []string{corev1.ClusterIPNone}
		return nil
	}
	for _, f := range spec.IPFamilies[len(spec.ClusterIPs):] {
		ip, err := a.cluster[f].take(owner(svc))
		if err != nil {
			return fmt.Errorf("spec.clusterIPs: %w", err)
		}
		spec.ClusterIPs = append(spec.ClusterIPs, ip.String())
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	if err := a.giveNodePorts(svc); err != nil {
		return err
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	if spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && spec.HealthCheckNodePort == 0 {
		port, err := a.nodePorts.take(owner(svc)+" health check", owner(svc))
		if err != nil {
			return fmt.Errorf("spec.healthCheckNodePort: %w", err)
		}
		spec.HealthCheckNodePort = port
	}
	return a.giveIngress(svc)
}

func (a *serviceAllocators) giveNodePorts(svc *corev1.Service) error {
	spec := &svc.Spec
	if !nodePorted(svc) || spec.AllocateLoadBalancerNodePorts != nil && !*spec.AllocateLoadBalancerNodePorts {
		return nil
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.NodePort != 0 {
			continue
		}
		// A port that is served over several protocols has one node port for all of them.
		for j := range spec.Ports[:i] {
			if q := &spec.Ports[j]; q.Port == p.Port && q.Protocol != p.Protocol {
				p.NodePort = q.NodePort
			}
		}
		if p.NodePort != 0 {
			continue
		}
		port, err := a.nodePorts.take(fmt.Sprintf("%s:%s", owner(svc), p.Name), owner(svc))
		if err != nil {
			return fmt.Errorf("spec.ports[%d].nodePort: %w", i, err)
		}
		p.NodePort = port
	}
	return nil
}

// giveIngress does what a cloud's load balancer controller does: one address for each family.
func (a *serviceAllocators) giveIngress(svc *corev1.Service) error {
	if len(svc.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	for _, f := range svc.Spec.IPFamilies {
		pool := a.balancer[f]
		if pool == nil {
			continue
		}
		ip, err := pool.take(owner(svc))
		if err != nil {
			return fmt.Errorf("status.loadBalancer.ingress: %w", err)
		}
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: ip.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)})
	}
	return nil
}
