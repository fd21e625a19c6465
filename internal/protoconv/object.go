package protoconv

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"

	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
)

// NodeHealthHeader is in the header of Follow if the Nodes there have their health. Relays of earlier versions have no health of Nodes.
const NodeHealthHeader = "node-health"

// NodeEdgeHeader is in the header of Follow if the Nodes there have their annotation for the edge.
const NodeEdgeHeader = "node-edge"

// Object returns the message of an object, empty for an unknown kind.
func Object(o model.Object) *clusterv1.Object {
	switch o := o.(type) {
	case *model.Service:
		return &clusterv1.Object{Object: &clusterv1.Object_Service{Service: clusterService(o)}}
	case *model.EndpointSlice:
		return &clusterv1.Object{Object: &clusterv1.Object_EndpointSlice{EndpointSlice: endpointSlice(o)}}
	case *model.Node:
		return &clusterv1.Object{Object: &clusterv1.Object_Node{Node: &clusterv1.Node{
			Name: text(o.Name), Zone: text(o.Zone), Addresses: addresses(o.Addresses), PodCidrs: messages(o.PodCIDRs, fillRange),
			Internal: uint32(o.Internal), Health: clusterv1.NodeHealth(o.Health), HealthSince: timestamp(o.HealthSince), Edge: text(o.Edge),
		}}}
	case *model.Namespace:
		return &clusterv1.Object{Object: &clusterv1.Object_Namespace{Namespace: &clusterv1.Namespace{
			Name: text(o.Name), ProxyDisabled: o.ProxyDisabled,
		}}}
	case *model.ServiceCIDR:
		return &clusterv1.Object{Object: &clusterv1.Object_ServiceCidr{ServiceCidr: &clusterv1.ServiceCIDR{
			Name: text(o.Name), Cidrs: messages(o.CIDRs, fillRange),
		}}}
	}
	return &clusterv1.Object{}
}

// Ref returns the message of a reference.
func Ref(r model.Ref) *clusterv1.Ref {
	return &clusterv1.Ref{Kind: clusterv1.Kind(r.Kind), Namespace: text(r.Namespace), Name: text(r.Name)}
}

func fillRange(p *netip.Prefix, m *clusterv1.Prefix) {
	m.Address = p.Addr().AsSlice()
	m.Length = uint32(max(p.Bits(), 0))
}

func clusterService(s *model.Service) *clusterv1.Service {
	m := &clusterv1.Service{
		Namespace:       text(s.Name.Namespace),
		Name:            text(s.Name.Name),
		Type:            clusterv1.ServiceType(s.Type) + clusterv1.ServiceType_SERVICE_TYPE_CLUSTER_IP,
		Headless:        s.Headless,
		ClusterIps:      addresses(s.ClusterIPs),
		ExternalIps:     addresses(s.ExternalIPs),
		LoadBalancerIps: addresses(s.LoadBalancerIPs),
		SourceRanges:    messages(s.SourceRanges, fillRange),
		Ports: messages(s.Ports, func(p *model.ServicePort, m *clusterv1.ServicePort) {
			m.Name, m.Protocol, m.Port, m.NodePort = text(p.Name), uint32(p.Protocol), uint32(p.Port), uint32(p.NodePort)
		}),
		InternalLocal:       s.InternalLocal,
		ExternalLocal:       s.ExternalLocal,
		AffinitySeconds:     seconds(s.Affinity),
		HealthCheckNodePort: uint32(s.HealthCheckNodePort),
		Created:             timestamp(s.Created),
		ExternalName:        text(s.ExternalName),
		Annotations: messages(s.Annotations, func(a *model.Annotation, m *clusterv1.Annotation) {
			m.Name, m.Value = text(a.Name), text(a.Value)
		}),
	}
	if s.HasProxyName {
		m.ProxyName = new(text(s.ProxyName))
	}
	return m
}

func endpointSlice(s *model.EndpointSlice) *clusterv1.EndpointSlice {
	m := &clusterv1.EndpointSlice{
		Namespace: text(s.Namespace),
		Name:      text(s.Name),
		Service:   text(s.Service),
		Headless:  s.Headless,
		Family:    uint32(s.Family),
		Ports: messages(s.Ports, func(p *model.EndpointPort, m *clusterv1.EndpointPort) {
			m.Name, m.Protocol, m.Port = text(p.Name), uint32(p.Protocol), uint32(p.Port)
		}),
		Endpoints: messages(s.Endpoints, func(e *model.Endpoint, m *clusterv1.Endpoint) {
			m.Address, m.Ready, m.Serving, m.Terminating = bytesOf(e.Addr), e.Ready, e.Serving, e.Terminating
			m.NodeName, m.Zone, m.ZoneHints, m.NodeHints = text(e.NodeName), text(e.Zone), texts(e.ZoneHints), texts(e.NodeHints)
		}),
		Hostnames:   texts(s.Hostnames),
		TriggerTime: timestamp(s.TriggerTime),
		Pods:        podNames(s.Pods),
	}
	if s.CiliumWeight {
		m.CiliumWeight = text(s.Weight)
	} else {
		m.Weight = text(s.Weight)
	}
	if s.HasProxyName {
		m.ProxyName = new(text(s.ProxyName))
	}
	return m
}

func podNames(p model.PodNames) *clusterv1.PodNames {
	if p == "" {
		return nil
	}
	prefix, rests := p.Split()
	return &clusterv1.PodNames{Prefix: text(prefix), Rests: texts(rests)}
}

func texts(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = text(s)
	}
	return out
}

// ParseObject reads an object of any kind. It checks its form, and fails at the first fault. The first source of an
// object limits the length of names.
func ParseObject(m *clusterv1.Object) (model.Object, error) {
	switch o := m.GetObject().(type) {
	case *clusterv1.Object_Service:
		return parsed(parseClusterService(o.Service))
	case *clusterv1.Object_EndpointSlice:
		return parsed(parseEndpointSlice(o.EndpointSlice))
	case *clusterv1.Object_Node:
		return parsed(parseClusterNode(o.Node))
	case *clusterv1.Object_Namespace:
		return &model.Namespace{Name: o.Namespace.GetName(), ProxyDisabled: o.Namespace.GetProxyDisabled()}, nil
	case *clusterv1.Object_ServiceCidr:
		return parsed(parseServiceCIDR(o.ServiceCidr))
	}
	return nil, fmt.Errorf("object: it is of a kind that is not known here")
}

// parsed names the object in an error.
func parsed[T model.Object](o T, err error) (model.Object, error) {
	if err != nil {
		return nil, fmt.Errorf("%v: %w", o.Ref(), err)
	}
	return o, nil
}

// ParseRef reads a reference.
func ParseRef(m *clusterv1.Ref) (model.Ref, error) {
	r := model.Ref{Kind: model.Kind(m.GetKind()), Namespace: m.GetNamespace(), Name: m.GetName()}
	switch m.GetKind() {
	case clusterv1.Kind_KIND_SERVICE, clusterv1.Kind_KIND_ENDPOINT_SLICE:
	case clusterv1.Kind_KIND_NODE, clusterv1.Kind_KIND_NAMESPACE, clusterv1.Kind_KIND_SERVICE_CIDR:
		if r.Namespace != "" {
			return model.Ref{}, fmt.Errorf("%v: namespace must be empty; the kind has none", r)
		}
	default:
		return model.Ref{}, fmt.Errorf("ref %s: kind is %v, which is not known here", quote(r.Name), m.GetKind())
	}
	return r, nil
}

func parseClusterService(m *clusterv1.Service) (s *model.Service, err error) {
	s = &model.Service{
		Name:          state.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()},
		ProxyName:     m.GetProxyName(),
		HasProxyName:  m != nil && m.ProxyName != nil,
		Headless:      m.GetHeadless(),
		InternalLocal: m.GetInternalLocal(),
		ExternalLocal: m.GetExternalLocal(),
		Affinity:      time.Duration(m.GetAffinitySeconds()) * time.Second,
		ExternalName:  m.GetExternalName(),
	}
	if t := m.GetType(); t < clusterv1.ServiceType_SERVICE_TYPE_CLUSTER_IP || t > clusterv1.ServiceType_SERVICE_TYPE_EXTERNAL_NAME {
		return s, fmt.Errorf("type is %v, which is not known here", t)
	}
	if t := m.GetCreated(); t != nil {
		if err := t.CheckValid(); err != nil {
			return s, fmt.Errorf("created is not a time: %w", err)
		}
		s.Created = t.AsTime()
	}
	s.Type = model.ServiceType(m.GetType() - clusterv1.ServiceType_SERVICE_TYPE_CLUSTER_IP)
	if s.ClusterIPs, err = parseAddresses("cluster_ips", m.GetClusterIps()); err != nil {
		return s, err
	}
	if s.ExternalIPs, err = parseAddresses("external_ips", m.GetExternalIps()); err != nil {
		return s, err
	}
	if s.LoadBalancerIPs, err = parseAddresses("load_balancer_ips", m.GetLoadBalancerIps()); err != nil {
		return s, err
	}
	if s.SourceRanges, err = parse("source_ranges", m.GetSourceRanges(), parseRange); err != nil {
		return s, err
	}
	if s.HealthCheckNodePort, err = parsePortOrNone(m.GetHealthCheckNodePort()); err != nil {
		return s, fmt.Errorf("health_check_node_port %w", err)
	}
	for _, a := range m.GetAnnotations() {
		s.Annotations = append(s.Annotations, model.Annotation{Name: a.GetName(), Value: a.GetValue()})
	}
	s.Ports, err = parse("ports", m.GetPorts(), func(m *clusterv1.ServicePort) (p model.ServicePort, err error) {
		p.Name = m.GetName()
		if p.Protocol, err = parseProtocol(m.GetProtocol()); err != nil {
			return p, err
		}
		if p.Port, err = parsePort(m.GetPort()); err != nil {
			return p, fmt.Errorf(".port %w", err)
		}
		if p.NodePort, err = parsePortOrNone(m.GetNodePort()); err != nil {
			return p, fmt.Errorf(".node_port %w", err)
		}
		return p, nil
	})
	return s, err
}

func parseEndpointSlice(m *clusterv1.EndpointSlice) (s *model.EndpointSlice, err error) {
	s = &model.EndpointSlice{
		Namespace: m.GetNamespace(), Name: m.GetName(), Service: m.GetService(), Headless: m.GetHeadless(), Family: state.Family(m.GetFamily()),
		ProxyName: m.GetProxyName(), HasProxyName: m != nil && m.ProxyName != nil,
	}
	if f := m.GetFamily(); f != 0 && f != uint32(state.IPv4) && f != uint32(state.IPv6) {
		return s, fmt.Errorf("family is %d; it must be 4, 6, or 0 for none", f)
	}
	if s.Family == 0 && len(m.GetEndpoints()) > 0 {
		return s, fmt.Errorf("endpoints is not empty; it must be in a slice without a family")
	}
	if t := m.GetTriggerTime(); t != nil {
		if err := t.CheckValid(); err != nil {
			return s, fmt.Errorf("trigger_time is not a time: %w", err)
		}
		s.TriggerTime = t.AsTime()
	}
	s.Ports, err = parse("ports", m.GetPorts(), func(m *clusterv1.EndpointPort) (p model.EndpointPort, err error) {
		p.Name = m.GetName()
		if p.Protocol, err = parseProtocol(m.GetProtocol()); err != nil {
			return p, err
		}
		if p.Port, err = parsePort(m.GetPort()); err != nil {
			return p, fmt.Errorf(".port %w", err)
		}
		return p, nil
	})
	if err != nil {
		return s, err
	}
	s.Endpoints, err = parse("endpoints", m.GetEndpoints(), func(m *clusterv1.Endpoint) (e model.Endpoint, err error) {
		if e.Addr, err = parseAddressOf(s.Family, m.GetAddress()); err != nil {
			return e, fmt.Errorf(".address %w", err)
		}
		e.Ready, e.Serving, e.Terminating = m.GetReady(), m.GetServing(), m.GetTerminating()
		e.NodeName, e.Zone, e.ZoneHints, e.NodeHints = m.GetNodeName(), m.GetZone(), m.GetZoneHints(), m.GetNodeHints()
		return e, nil
	})
	if err != nil {
		return s, err
	}
	if n := len(m.GetHostnames()); n > 0 && n != len(s.Endpoints) {
		return s, fmt.Errorf("hostnames has %d items; it must have one for each of the %d endpoints, or none", n, len(s.Endpoints))
	}
	s.Hostnames, s.Weight = m.GetHostnames(), m.GetWeight()
	if s.Weight == "" && m.GetCiliumWeight() != "" {
		s.Weight, s.CiliumWeight = m.GetCiliumWeight(), true
	}
	if rests := m.GetPods().GetRests(); len(rests) == len(s.Endpoints) { // others are no reason not to route to the endpoints
		s.Pods = model.PackPods(m.GetPods().GetPrefix(), rests)
	}
	return s, nil
}

func parseClusterNode(m *clusterv1.Node) (n *model.Node, err error) {
	n = &model.Node{Name: m.GetName(), Zone: m.GetZone(), Edge: m.GetEdge()}
	if n.Addresses, err = parseAddresses("addresses", m.GetAddresses()); err != nil {
		return n, err
	}
	if m.GetInternal() > uint32(len(n.Addresses)) {
		return n, fmt.Errorf("internal is %d; it must not be more than the %d addresses", m.GetInternal(), len(n.Addresses))
	}
	n.Internal = int(m.GetInternal())
	if h := m.GetHealth(); h < clusterv1.NodeHealth_NODE_HEALTH_UNSPECIFIED || h > clusterv1.NodeHealth_NODE_HEALTH_SILENT {
		return n, fmt.Errorf("health is %v, which is not known here", h)
	}
	n.Health = model.NodeHealth(m.GetHealth())
	if t := m.GetHealthSince(); t != nil {
		if err := t.CheckValid(); err != nil {
			return n, fmt.Errorf("health_since is not a time: %w", err)
		}
		n.HealthSince = t.AsTime()
	}
	n.PodCIDRs, err = parse("pod_cidrs", m.GetPodCidrs(), parseRange)
	return n, err
}

func parseServiceCIDR(m *clusterv1.ServiceCIDR) (c *model.ServiceCIDR, err error) {
	c = &model.ServiceCIDR{Name: m.GetName()}
	c.CIDRs, err = parse("cidrs", m.GetCidrs(), parseRange)
	return c, err
}

func parseRange(m *clusterv1.Prefix) (netip.Prefix, error) {
	return parsePrefix(m.GetAddress(), m.GetLength())
}

func parseProtocol(n uint32) (state.Protocol, error) {
	switch n {
	case uint32(state.TCP), uint32(state.UDP), uint32(state.SCTP):
		return state.Protocol(n), nil
	}
	return 0, fmt.Errorf(".protocol is %d; it must be 6 (TCP), 17 (UDP) or 132 (SCTP)", n)
}

// parsePortOrNone reads a port, or 0 for none.
func parsePortOrNone(n uint32) (uint16, error) {
	if n == 0 {
		return 0, nil
	}
	return parsePort(n)
}
