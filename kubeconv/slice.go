package kubeconv

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// EndpointSlice converts an EndpointSlice. Only the first address of an endpoint counts, because the meaning of further
// addresses was never defined. A slice of type FQDN has no endpoints, because none of them has an address. Ports
// without a name or number (nil) are left out. For an object that has not been through an API server, fill in the
// default name, "", first.
func EndpointSlice(s *discoveryv1.EndpointSlice) (*model.EndpointSlice, error) {
	if s == nil {
		return nil, errNil
	}
	var f faults
	_, headless := s.Labels[corev1.IsHeadlessService]
	m := &model.EndpointSlice{
		Namespace: f.text("metadata.namespace", s.Namespace, maxLabel),
		Name:      f.name(s.Name),
		Service:   f.serviceName(s.Labels),
		ProxyName: f.label(s.Labels, proxyNameLabel),
		Headless:  headless,
	}
	_, m.HasProxyName = s.Labels[proxyNameLabel]
	if at := s.Annotations[corev1.EndpointsLastChangeTriggerTime]; at != "" {
		// A controller's slip in a time that only measures is not worth an error.
		m.TriggerTime, _ = time.Parse(time.RFC3339Nano, at)
	}
	if m.Weight = annotation(s.Annotations, model.WeightAnnotation); m.Weight == "" {
		m.Weight = annotation(s.Annotations, model.CiliumWeightAnnotation)
		m.CiliumWeight = m.Weight != ""
	}
	for i, p := range s.Ports {
		if port, ok := f.endpointPort(index("ports", i), p); ok {
			m.Ports = append(m.Ports, port)
		}
	}
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4:
		m.Family = state.IPv4
	case discoveryv1.AddressTypeIPv6:
		m.Family = state.IPv6
	case discoveryv1.AddressTypeFQDN:
	default:
		f.add("addressType", string(s.AddressType), "must be IPv4, IPv6 or FQDN")
	}
	if m.Family != 0 {
		if len(s.Endpoints) > 0 {
			m.Endpoints = make([]model.Endpoint, 0, len(s.Endpoints))
		}
		for i := range s.Endpoints {
			m.Endpoints = append(m.Endpoints, f.endpoint(i, m.Family, &s.Endpoints[i]))
			// A longer one is no label in DNS, which is no reason not to route to the endpoint.
			if h := s.Endpoints[i].Hostname; h != nil && *h != "" && len(*h) <= maxLabel {
				if m.Hostnames == nil {
					m.Hostnames = make([]string, len(s.Endpoints))
				}
				m.Hostnames[i] = intern(*h)
			}
		}
		m.Pods = podNames(s)
	}
	if len(f) > 0 {
		return nil, f.err()
	}
	return m, nil
}

// podNames returns the names of the pods that endpoints refer to. A bad one is left out, which is no reason not to route to the endpoint.
func podNames(s *discoveryv1.EndpointSlice) model.PodNames {
	var names []string
	for i := range s.Endpoints {
		ref := s.Endpoints[i].TargetRef
		if ref == nil || ref.Kind != "Pod" || ref.Namespace != s.Namespace {
			continue
		}
		if names == nil {
			names = make([]string, len(s.Endpoints))
		}
		names[i] = ref.Name
	}
	return model.PackPods("", names)
}

// annotation returns an annotation's value as [model.Annotation] has it. It is judged where it counts: a bad one must not take the object down.
func annotation(annotations map[string]string, name string) string {
	const cut = "…"
	value := annotations[name]
	if most := model.AnnotationBytes(name); len(value) > most {
		value = strings.ToValidUTF8(value[:most-len(cut)], "") + cut
	}
	return strings.ToValidUTF8(strings.Clone(value), "")
}

// serviceAnnotations returns the [model.ServiceAnnotations] that a Service has.
func serviceAnnotations(all map[string]string) (kept []model.Annotation) {
	for _, name := range model.ServiceAnnotations {
		if value := annotation(all, name); value != "" {
			kept = append(kept, model.Annotation{Name: name, Value: value})
		}
	}
	return kept
}

// endpointPort converts a port. It reports false for ports that join with nothing.
func (f *faults) endpointPort(path string, p discoveryv1.EndpointPort) (model.EndpointPort, bool) {
	var protocol corev1.Protocol
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	port := model.EndpointPort{Protocol: f.protocol(path+".protocol", protocol)}
	if p.Port != nil {
		port.Port = f.port(path+".port", *p.Port, 0)
	}
	if p.Name != nil {
		port.Name = f.text(path+".name", *p.Name, maxLabel)
	}
	return port, p.Name != nil && port.Port != 0
}

func (f *faults) endpoint(i int, family state.Family, e *discoveryv1.Endpoint) model.Endpoint {
	m := model.Endpoint{
		Ready:       isTrue(e.Conditions.Ready, true),
		Serving:     isTrue(e.Conditions.Serving, true),
		Terminating: isTrue(e.Conditions.Terminating, false),
	}
	path := "endpoints" // with the index only when it is reported: there are many endpoints
	if e.NodeName != nil {
		if len(*e.NodeName) > maxName {
			f.text(index(path, i)+".nodeName", *e.NodeName, maxName)
		}
		m.NodeName = intern(*e.NodeName)
	}
	if e.Zone != nil && len(*e.Zone) <= maxLabel { // a longer one is no zone of a node
		m.Zone = intern(*e.Zone)
	}
	if e.Hints != nil {
		for _, zone := range e.Hints.ForZones {
			m.ZoneHints = append(m.ZoneHints, intern(zone.Name))
		}
		for _, node := range e.Hints.ForNodes {
			m.NodeHints = append(m.NodeHints, intern(node.Name))
		}
	}
	if len(e.Addresses) == 0 {
		f.add(index(path, i)+".addresses", nil, "must hold an address")
		return m
	}
	a, ok := parseAddr(e.Addresses[0])
	if !ok || state.FamilyOf(a) != family {
		f.add(index(path, i)+".addresses[0]", e.Addresses[0], "must be an "+family.String()+" address, to match addressType")
	}
	if problem := specialProblem(a); problem != "" {
		f.add(index(path, i)+".addresses[0]", e.Addresses[0], problem)
	}
	m.Addr = a
	return m
}

func isTrue(condition *bool, absent bool) bool {
	if condition == nil {
		return absent
	}
	return *condition
}
