package kubeconv

import (
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// proxyNameLabel hands a Service to the proxy that it names.
const proxyNameLabel = "service.kubernetes.io/service-proxy-name"

// maxAffinitySeconds is the longest timeout that the API server accepts: one day.
const maxAffinitySeconds = 86400

// Service converts a Service. Its status counts as far as load balancer addresses go.
func Service(s *corev1.Service) (*model.Service, error) {
	if s == nil {
		return nil, errNil
	}
	var f faults
	m := &model.Service{
		Name:                state.ServiceName{Namespace: f.text("metadata.namespace", s.Namespace, maxLabel), Name: f.name(s.Name)},
		Created:             created(s),
		Type:                f.serviceType(s.Spec.Type),
		ExternalIPs:         f.externalIPs(s.Spec.ExternalIPs),
		SourceRanges:        f.prefixes("spec.loadBalancerSourceRanges", s.Spec.LoadBalancerSourceRanges),
		HealthCheckNodePort: f.port("spec.healthCheckNodePort", s.Spec.HealthCheckNodePort, 0),
		ExternalLocal:       f.isLocal("spec.externalTrafficPolicy", string(s.Spec.ExternalTrafficPolicy)),
		Affinity:            f.affinity(&s.Spec),
		Annotations:         serviceAnnotations(s.Annotations),
	}
	if m.Type == model.TypeExternalName && len(s.Spec.ExternalName) <= maxName { // a longer one is no name in DNS
		m.ExternalName = intern(s.Spec.ExternalName)
	}
	m.ProxyName = f.label(s.Labels, proxyNameLabel)
	_, m.HasProxyName = s.Labels[proxyNameLabel]
	if p := s.Spec.InternalTrafficPolicy; p != nil {
		m.InternalLocal = f.isLocal("spec.internalTrafficPolicy", string(*p))
	}
	f.clusterIPs(m, &s.Spec)
	for i, p := range s.Spec.Ports {
		path := index("spec.ports", i)
		m.Ports = append(m.Ports, model.ServicePort{
			Name:     f.text(path+".name", p.Name, maxLabel),
			Protocol: f.protocol(path+".protocol", p.Protocol),
			Port:     f.port(path+".port", p.Port, 1),
			NodePort: f.port(path+".nodePort", p.NodePort, 0),
		})
	}
	for i, ingress := range s.Status.LoadBalancer.Ingress {
		isVIP := ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP
		if !isVIP || ingress.IP == "" {
			continue
		}
		if a := f.addr(index("status.loadBalancer.ingress", i)+".ip", ingress.IP); a.IsValid() {
			m.LoadBalancerIPs = append(m.LoadBalancerIPs, a)
		}
	}
	if len(f) > 0 {
		return nil, f.err()
	}
	return m, nil
}

// created returns the creationTimestamp. The decoders of k8s.io/api leave it in the local time zone, which would make equal times
// different values.
func created(s *corev1.Service) time.Time {
	if s.CreationTimestamp.IsZero() {
		return time.Time{}
	}
	return s.CreationTimestamp.UTC().Truncate(time.Second)
}

// externalIPs reads spec.externalIPs.
func (f *faults) externalIPs(list []string) []netip.Addr {
	const path = "spec.externalIPs"
	addrs := f.addrs(path, list)
	if len(addrs) == len(list) { // or there are faults already
		for i, a := range addrs {
			if problem := specialProblem(a); problem != "" {
				f.add(index(path, i), list[i], problem)
			}
		}
	}
	return addrs
}

// clusterIPs reads spec.clusterIPs, or spec.clusterIP if there are none.
func (f *faults) clusterIPs(m *model.Service, spec *corev1.ServiceSpec) {
	path, list := "spec.clusterIPs", spec.ClusterIPs
	if len(list) == 0 {
		if spec.ClusterIP == "" {
			return
		}
		list = []string{spec.ClusterIP}
	} else if spec.ClusterIP != "" && spec.ClusterIP != list[0] {
		f.add(path+"[0]", list[0], "must be the same as spec.clusterIP, "+strconv.Quote(shorten(spec.ClusterIP)))
		return
	}
	if list[0] == corev1.ClusterIPNone {
		m.Headless = true
		return
	}
	if len(spec.ClusterIPs) == 0 {
		if a := f.addr("spec.clusterIP", spec.ClusterIP); a.IsValid() {
			m.ClusterIPs = append(m.ClusterIPs, a)
		}
		return
	}
	m.ClusterIPs = f.addrs(path, list)
}

func (f *faults) serviceType(t corev1.ServiceType) model.ServiceType {
	switch t {
	case "", corev1.ServiceTypeClusterIP:
		return model.TypeClusterIP
	case corev1.ServiceTypeNodePort:
		return model.TypeNodePort
	case corev1.ServiceTypeLoadBalancer:
		return model.TypeLoadBalancer
	case corev1.ServiceTypeExternalName:
		return model.TypeExternalName
	}
	f.add("spec.type", string(t), "must be ClusterIP, NodePort, LoadBalancer or ExternalName")
	return 0
}

// isLocal reads a traffic policy, Cluster by default.
func (f *faults) isLocal(path, policy string) bool {
	switch policy {
	case "", "Cluster":
		return false
	case "Local":
		return true
	}
	f.add(path, policy, "must be Cluster or Local")
	return false
}

// affinity returns the timeout of session affinity, 0 for none.
func (f *faults) affinity(spec *corev1.ServiceSpec) time.Duration {
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return 0
	case corev1.ServiceAffinityClientIP:
	default:
		f.add("spec.sessionAffinity", string(spec.SessionAffinity), "must be ClientIP or None")
		return 0
	}
	seconds := int32(corev1.DefaultClientIPServiceAffinitySeconds)
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > maxAffinitySeconds {
		f.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, "must be a number from 1 to 86400")
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// index returns the path of an item of the list at path.
func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
