package minicluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-net/switchyard/internal/apirules"
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

// addServices completes the Services. Numbers that manifests ask for are given out before the others are chosen.
func (b *builder) addServices(services []clusterService) {
	alloc := newServiceAllocators(&b.opts)
	slices.SortStableFunc(services, func(a, c clusterService) int { return byName(a.Service, c.Service) })
	services = slices.DeleteFunc(services, func(svc clusterService) bool {
		faults := alloc.prepare(svc.Service)
		for _, f := range faults {
			b.fail(svc.given, f.Field, f.Err)
		}
		return len(faults) > 0
	})
	for i, svc := range services {
		if i > 0 && byName(services[i-1].Service, svc.Service) == 0 {
			b.fail(svc.given, "", errors.New("exists twice in the manifests; remove one"))
			continue
		}
		if f := alloc.complete(svc.Service); f != nil {
			b.fail(svc.given, f.Field, f.Err)
			continue
		}
		b.checkBalancer(svc)
		b.services = append(b.services, svc)
		b.out.Services = append(b.out.Services, svc.Service)
	}
}

// checkBalancer warns of the address that a Service asks for and has not got.
func (b *builder) checkBalancer(svc clusterService) {
	want := svc.Spec.LoadBalancerIP
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || want == "" || len(svc.given.Status.LoadBalancer.Ingress) > 0 {
		return
	}
	for _, i := range svc.Status.LoadBalancer.Ingress {
		if i.IP == want {
			return
		}
	}
	b.warnf(svc.given, "spec.loadBalancerIP", "%q is no address of its families that is free, so it has another one", want)
}

func owner(svc *corev1.Service) string { return "Service " + svc.Namespace + "/" + svc.Name }

// prepare fills in the defaults, checks what an API server checks and claims what the manifest asks for.
func (a *serviceAllocators) prepare(svc *corev1.Service) []*apirules.Fault {
	spec := &svc.Spec
	apirules.DefaultService(svc)
	if faults := apirules.ValidateService(svc); len(faults) > 0 || spec.Type == corev1.ServiceTypeExternalName {
		return faults
	}
	for _, claim := range []func(*corev1.Service) *apirules.Fault{a.setFamilies, a.claimAddresses, a.claimNodePorts} {
		if f := claim(svc); f != nil {
			return []*apirules.Fault{f}
		}
	}
	return nil
}

func faultf(field, format string, args ...any) *apirules.Fault {
	return &apirules.Fault{Field: field, Err: fmt.Errorf(format, args...)}
}

func (a *serviceAllocators) claimNodePorts(svc *corev1.Service) *apirules.Fault {
	if !apirules.NodePorted(svc) {
		return nil
	}
	for i, p := range svc.Spec.Ports {
		if p.NodePort == 0 {
			continue
		}
		if err := a.nodePorts.claim(p.NodePort, owner(svc)); err != nil {
			return faultf(fmt.Sprintf("spec.ports[%d].nodePort", i), "%w", err)
		}
	}
	if n := svc.Spec.HealthCheckNodePort; n != 0 {
		if err := a.nodePorts.claim(n, owner(svc)); err != nil {
			return faultf("spec.healthCheckNodePort", "%w", err)
		}
	}
	return nil
}

// setFamilies completes ipFamilyPolicy and ipFamilies. Addresses and families that the manifest gives decide.
func (a *serviceAllocators) setFamilies(svc *corev1.Service) *apirules.Fault {
	spec := &svc.Spec
	var given []corev1.IPFamily
	if !apirules.Headless(svc) {
		for _, s := range spec.ClusterIPs {
			given = append(given, familyOf(netip.MustParseAddr(s))) // validated
		}
	}
	for i, f := range spec.IPFamilies {
		if i < len(given) && given[i] != f {
			return faultf(fmt.Sprintf("spec.ipFamilies[%d]", i), "%s does not fit the address %s", f, spec.ClusterIPs[i])
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
		return faultf("spec.ipFamilyPolicy", "SingleStack allows one family, but two are given")
	case len(given) > 2 || len(given) == 2 && given[0] == given[1]:
		return faultf("spec.ipFamilies", "at most one IPv4 and one IPv6 are allowed")
	}
	for i, f := range given {
		if a.cluster[f] != nil {
			continue
		}
		if i == 1 && policy == corev1.IPFamilyPolicyPreferDualStack {
			given = given[:1]
			break
		}
		return faultf("spec.ipFamilies", "the cluster has no service range for %q", f)
	}
	spec.IPFamilyPolicy, spec.IPFamilies = &policy, given
	return nil
}

func (a *serviceAllocators) claimAddresses(svc *corev1.Service) *apirules.Fault {
	if apirules.Headless(svc) {
		return nil
	}
	for i, s := range svc.Spec.ClusterIPs {
		ip := netip.MustParseAddr(s) // checked by setFamilies
		if err := a.cluster[familyOf(ip)].claim(ip, owner(svc)); err != nil {
			return faultf(fmt.Sprintf("spec.clusterIPs[%d]", i), "%w", err)
		}
	}
	for i, in := range svc.Status.LoadBalancer.Ingress {
		ip, err := netip.ParseAddr(in.IP)
		if err != nil {
			continue // a host name
		}
		if pool := a.balancer[familyOf(ip)]; pool != nil {
			if err := pool.claim(ip, owner(svc)); err != nil {
				return faultf(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), "%w", err)
			}
		}
	}
	return nil
}

// complete sets the missing fields of a prepared Service.
func (a *serviceAllocators) complete(svc *corev1.Service) *apirules.Fault {
	spec := &svc.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if apirules.Headless(svc) {
		spec.ClusterIPs = []string{corev1.ClusterIPNone}
		return nil
	}
	for _, f := range spec.IPFamilies[len(spec.ClusterIPs):] {
		ip, err := a.cluster[f].take(owner(svc))
		if err != nil {
			return faultf("spec.clusterIPs", "%w", err)
		}
		spec.ClusterIPs = append(spec.ClusterIPs, ip.String())
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	if f := a.giveNodePorts(svc); f != nil {
		return f
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	if spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && spec.HealthCheckNodePort == 0 {
		port, err := a.nodePorts.take(owner(svc)+" health check", owner(svc))
		if err != nil {
			return faultf("spec.healthCheckNodePort", "%w", err)
		}
		spec.HealthCheckNodePort = port
	}
	return a.giveIngress(svc)
}

func (a *serviceAllocators) giveNodePorts(svc *corev1.Service) *apirules.Fault {
	spec := &svc.Spec
	if !apirules.NodePorted(svc) || spec.AllocateLoadBalancerNodePorts != nil && !*spec.AllocateLoadBalancerNodePorts {
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
			return faultf(fmt.Sprintf("spec.ports[%d].nodePort", i), "%w", err)
		}
		p.NodePort = port
	}
	return nil
}

// wantedAddress is the spec.loadBalancerIP of a Service if it is of the family and free, else the pool's next.
func wantedAddress(svc *corev1.Service, f corev1.IPFamily, pool *addrAllocator) (netip.Addr, error) {
	ip, err := netip.ParseAddr(svc.Spec.LoadBalancerIP)
	if err == nil && familyOf(ip) == f && pool.claim(ip, owner(svc)) == nil {
		return ip, nil
	}
	return pool.take(owner(svc))
}

// giveIngress does what a cloud's load balancer controller does: one address for each family.
func (a *serviceAllocators) giveIngress(svc *corev1.Service) *apirules.Fault {
	if len(svc.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	for _, f := range svc.Spec.IPFamilies {
		pool := a.balancer[f]
		if pool == nil {
			continue
		}
		ip, err := wantedAddress(svc, f, pool)
		if err != nil {
			return faultf("status.loadBalancer.ingress", "%w", err)
		}
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: ip.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)})
	}
	return nil
}
