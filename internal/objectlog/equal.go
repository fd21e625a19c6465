package objectlog

import (
	"slices"

	"github.com/switchyard-net/switchyard/model"
)

// equal reports whether two objects agree in all their fields; either may be nil. A slice that is nil and one that is empty
// agree, and so do times at which it is the same moment. A trigger time and names of pods count although they decide nothing about
// routing. Later receivers of the object must not take them for another one's.
func equal(a, b model.Object) bool {
	if a == nil || b == nil {
		return a == b
	}
	switch a := a.(type) {
	case *model.Service:
		b, ok := b.(*model.Service)
		return ok && (a == b || equalServices(a, b))
	case *model.EndpointSlice:
		b, ok := b.(*model.EndpointSlice)
		return ok && (a == b || equalSlices(a, b))
	case *model.Node:
		b, ok := b.(*model.Node)
		return ok && a.Name == b.Name && a.Zone == b.Zone && slices.Equal(a.Addresses, b.Addresses) && a.Internal == b.Internal &&
			slices.Equal(a.PodCIDRs, b.PodCIDRs) && a.Health == b.Health && a.HealthSince.Equal(b.HealthSince) && a.Edge == b.Edge
	case *model.Namespace:
		b, ok := b.(*model.Namespace)
		return ok && *a == *b
	case *model.ServiceCIDR:
		b, ok := b.(*model.ServiceCIDR)
		return ok && a.Name == b.Name && slices.Equal(a.CIDRs, b.CIDRs)
	}
	return false
}

func equalServices(a, b *model.Service) bool {
	return a.Name == b.Name && a.Created.Equal(b.Created) && a.ProxyName == b.ProxyName && a.HasProxyName == b.HasProxyName && a.Type == b.Type &&
		a.Headless == b.Headless && slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) && slices.Equal(a.SourceRanges, b.SourceRanges) &&
		slices.Equal(a.Ports, b.Ports) && a.InternalLocal == b.InternalLocal && a.ExternalLocal == b.ExternalLocal &&
		a.Affinity == b.Affinity && a.HealthCheckNodePort == b.HealthCheckNodePort && a.ExternalName == b.ExternalName && slices.Equal(a.Annotations, b.Annotations)
}

func equalSlices(a, b *model.EndpointSlice) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && a.Service == b.Service && a.ProxyName == b.ProxyName && a.HasProxyName == b.HasProxyName && a.Headless == b.Headless &&
		a.Family == b.Family && slices.Equal(a.Ports, b.Ports) && slices.EqualFunc(a.Endpoints, b.Endpoints, equalEndpoints) &&
		slices.Equal(a.Hostnames, b.Hostnames) && a.Pods == b.Pods && a.TriggerTime.Equal(b.TriggerTime) && a.Weight == b.Weight && a.CiliumWeight == b.CiliumWeight
}

func equalEndpoints(a, b model.Endpoint) bool {
	return a.Addr == b.Addr && a.Ready == b.Ready && a.Serving == b.Serving && a.Terminating == b.Terminating &&
		a.NodeUnready == b.NodeUnready && a.NodeApart == b.NodeApart && a.NodeName == b.NodeName && a.Zone == b.Zone && slices.Equal(a.ZoneHints, b.ZoneHints) && slices.Equal(a.NodeHints, b.NodeHints)
}
