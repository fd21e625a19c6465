// Package model holds the cluster objects that decide the routing of a node, as small plain values.
//
// The objects are Kubernetes' Service, EndpointSlice, Node, Namespace and ServiceCIDR. They have only the fields that
// matter to a service proxy, with addresses parsed. Values are validated for form only (an address is an address).
// Package brain decides their meaning. An object must not be modified once it has been handed over.
//
// A [Source] only delivers objects to the store. It does not decide their meaning.
package model

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Object is a *Service, *EndpointSlice, *Node, *Namespace or *ServiceCIDR.
type Object interface {
	// Ref names the object.
	Ref() Ref
}

// Kind is a kind of object.
type Kind uint8

// The kinds of object.
const (
	KindService Kind = iota + 1
	KindEndpointSlice
	KindNode
	KindNamespace
	KindServiceCIDR
)

func (k Kind) String() string {
	switch k {
	case KindService:
		return "Service"
	case KindEndpointSlice:
		return "EndpointSlice"
	case KindNode:
		return "Node"
	case KindNamespace:
		return "Namespace"
	case KindServiceCIDR:
		return "ServiceCIDR"
	}
	return "Kind?"
}

// Ref identifies an object. Namespace is empty for cluster-wide kinds.
type Ref struct {
	Kind      Kind
	Namespace string
	Name      string
}

// Compare orders by kind, then by namespace, then by name.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name))
}

func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind.String() + " " + r.Name
	}
	return r.Kind.String() + " " + r.Namespace + "/" + r.Name
}

// Service is a Kubernetes Service.
type Service struct {
	Name state.ServiceName
	// Created is metadata.creationTimestamp, in UTC and whole seconds, zero if it is not known. It decides between Services that
	// want the same address.
	Created time.Time
	// ProxyName is the value of the label service.kubernetes.io/service-proxy-name; HasProxyName reports whether it is there.
	ProxyName    string
	HasProxyName bool
	Type         ServiceType
	// Headless is spec.clusterIP: None.
	Headless bool
	// ClusterIPs are spec.clusterIPs (or clusterIP) that are addresses.
	ClusterIPs  []netip.Addr
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are the addresses of status.loadBalancer.ingress whose ipMode is absent or VIP.
	LoadBalancerIPs []netip.Addr
	// SourceRanges are spec.loadBalancerSourceRanges.
	SourceRanges []netip.Prefix
	Ports        []ServicePort
	// InternalLocal is internalTrafficPolicy: Local, ExternalLocal is externalTrafficPolicy: Local.
	InternalLocal bool
	ExternalLocal bool
	// Affinity is the timeout of sessionAffinity: ClientIP, 0 for no affinity.
	Affinity            time.Duration
	HealthCheckNodePort uint16
	// ExternalName is spec.externalName of a Service of that type.
	ExternalName string
	// Annotations are the [ServiceAnnotations] that the Service has, sorted by name. Most Services have none.
	Annotations []Annotation
}

// ServiceType is the type of a Service.
type ServiceType uint8

// The service types.
const (
	TypeClusterIP ServiceType = iota
	TypeNodePort
	TypeLoadBalancer
	TypeExternalName
)

// ServicePort is one item of a Service's spec.ports.
type ServicePort struct {
	Name     string
	Protocol state.Protocol
	Port     uint16
	// NodePort is 0 if the port has none.
	NodePort uint16
}

// The annotations of an EndpointSlice with the weight of each of its endpoints, from 0 to 65535. The first one wins, also with a bad value.
const (
	WeightAnnotation       = "switchyard.net/weight"
	CiliumWeightAnnotation = "service.cilium.io/weight"
)

// The annotations of Services with settings. A bad value counts as absent, and never takes the Service down.
const (
	// BalanceAnnotation is how new connections are shared between endpoints: random, hash, hash-connection or least-connections.
	BalanceAnnotation = "switchyard.net/balance"
	// DrainAnnotation is how long TCP connections to an endpoint may stay after it has ceased to get new ones, such as "30s".
	DrainAnnotation = "switchyard.net/drain-timeout"
	// EdgeAnnotation is whether nodes hand connections from outside over to each other: true or false. See also [Node.Edge].
	EdgeAnnotation = "switchyard.net/edge"
	// EjectAnnotation is whether endpoints that do not answer get no new connections: true or false.
	EjectAnnotation = "switchyard.net/eject"
	// PingAnnotation is whether the node answers echo requests to the addresses of the Service: true or false.
	PingAnnotation = "switchyard.net/ping"
	// PortRangesAnnotation is a list of ranges of ports that the Service has in addition to its ports, such as "rtp=10000-19999/UDP, all=*".
	PortRangesAnnotation = "switchyard.net/port-ranges"
	// SlowStartAnnotation is how long it takes until a new endpoint has its full weight, such as "30s".
	SlowStartAnnotation = "switchyard.net/slow-start"
	// ZoneWeightsAnnotation has the weights of endpoints in the zone of the node and in other zones, such as "same=4,other=1".
	ZoneWeightsAnnotation = "switchyard.net/zone-weights"
)

// The annotations of other projects that count as [BalanceAnnotation] where the configuration accepts them.
const (
	CiliumAlgorithmAnnotation = "service.cilium.io/lb-algorithm"
	KubeRouterSchedAnnotation = "kube-router.io/service.scheduler"
	KubeRouterFlagsAnnotation = "kube-router.io/service.schedflags"
	LoxilbSelectAnnotation    = "loxilb.io/epselect"
	CalicoStrategyAnnotation  = "lb.projectcalico.org/external-traffic-strategy"
)

// ServiceAnnotations are the names of all annotations of Services that count or may count, sorted.
var ServiceAnnotations = [...]string{
	KubeRouterFlagsAnnotation, KubeRouterSchedAnnotation, CalicoStrategyAnnotation, LoxilbSelectAnnotation, CiliumAlgorithmAnnotation, BalanceAnnotation,
	DrainAnnotation, EdgeAnnotation, EjectAnnotation, PingAnnotation, PortRangesAnnotation, SlowStartAnnotation, ZoneWeightsAnnotation,
}

// AnnotationBytes returns how many bytes of an annotation's value count: more for a list.
func AnnotationBytes(name string) int {
	if name == PortRangesAnnotation {
		return 2560 // 64 ranges of 40 bytes
	}
	return 256
}

// Annotation is an annotation of a Service.
type Annotation struct {
	Name string
	// Value is the value as it stands, up to [AnnotationBytes]. A longer one is cut and ends with "…", which is valid for no annotation.
	Value string
}

// Annotation returns the value of one of the [ServiceAnnotations], empty if it is absent.
func (s *Service) Annotation(name string) string {
	for _, a := range s.Annotations {
		if a.Name == name {
			return a.Value
		}
	}
	return ""
}

// EndpointSlice is a Kubernetes EndpointSlice.
type EndpointSlice struct {
	Namespace string
	Name      string
	// Service is the value of the label kubernetes.io/service-name, in the slice's namespace. It may be empty.
	Service string
	// ProxyName is the value of the label service.kubernetes.io/service-proxy-name; HasProxyName reports whether it is there.
	ProxyName    string
	HasProxyName bool
	// Headless reports whether the label service.kubernetes.io/headless is there.
	Headless bool
	// CiliumWeight reports whether Weight is [CiliumWeightAnnotation], because the slice has no [WeightAnnotation].
	CiliumWeight bool
	// Family is 0 for address types that are not IP (FQDN).
	Family state.Family
	// Ports whose name or number was absent or 0 are left out: they join with nothing.
	Ports     []EndpointPort
	Endpoints []Endpoint
	// Hostnames are the hostnames of Endpoints, one for each, empty where an endpoint has none. It is nil if no
	// endpoint has one, as in most slices. A separate list saves the memory for a hostname in each endpoint.
	Hostnames []string
	// Pods are the names of the pods of Endpoints. They decide nothing about routing.
	Pods PodNames
	// TriggerTime is the time of the event in the cluster that led to the slice's latest change, zero if unknown
	// (annotation endpoints.kubernetes.io/last-change-trigger-time). It measures programming latency.
	TriggerTime time.Time
	// Weight is [WeightAnnotation] or [CiliumWeightAnnotation], cut as [Annotation.Value] is. It is empty if both are absent.
	Weight string
}

// WeightName is the name of the annotation that Weight is from.
func (s *EndpointSlice) WeightName() string {
	if s.CiliumWeight {
		return CiliumWeightAnnotation
	}
	return WeightAnnotation
}

// ServiceName names the service that the slice belongs to.
func (s *EndpointSlice) ServiceName() state.ServiceName {
	return state.ServiceName{Namespace: s.Namespace, Name: s.Service}
}

// EndpointPort is one item of an EndpointSlice's ports.
type EndpointPort struct {
	Name     string
	Protocol state.Protocol
	Port     uint16
}

// Endpoint is one item of an EndpointSlice's endpoints, by the first of its addresses.
type Endpoint struct {
	Addr netip.Addr
	// Ready, Serving and Terminating are the conditions with Kubernetes' defaults filled in.
	Ready       bool
	Serving     bool
	Terminating bool
	// NodeUnready reports that the endpoint comes last, because of the health of its Node. Package store sets it in copies of its own; sources
	// leave it false.
	NodeUnready bool
	// NodeApart reports that no connection can be handed over to the Node of the endpoint, because the Node does not take part. Package store sets it in
	// copies of its own, if the edge is on; sources leave it false.
	NodeApart bool
	NodeName  string
	// Zone is the zone of the endpoint, empty if it is not known.
	Zone string
	// ZoneHints and NodeHints are hints.forZones and hints.forNodes.
	ZoneHints []string
	NodeHints []string
}

// Node is a Kubernetes Node.
type Node struct {
	Name string
	// Zone is the label topology.kubernetes.io/zone, empty if absent.
	Zone string
	// Addresses are the node's internal addresses, then its external ones, in the object's order.
	Addresses []netip.Addr
	// Internal is the number of internal addresses in Addresses. It is also 0 if that is unknown.
	Internal int
	PodCIDRs []netip.Prefix
	// Health is the condition Ready. HealthSince is its lastTransitionTime, in UTC and whole seconds, zero if it is not known or Health is
	// [NodeReady].
	Health      NodeHealth
	HealthSince time.Time
	// Edge is [EdgeAnnotation] of the Node, cut as [Annotation.Value] is, empty if it is absent. By "v1,7635", the Node takes packets that others hand over,
	// in the first version of their form and at that UDP port. Package brain reads it.
	Edge string
}

// MostOfNode is how many addresses, and how many PodCIDRs, of a Node count for the edge of other nodes: the first ones.
const MostOfNode = 64

// NodeHealth is what the condition Ready of a Node says.
type NodeHealth uint8

// The healths of Nodes.
const (
	// NodeReady: Ready is True, or the Node has no such condition.
	NodeReady NodeHealth = iota
	// NodeNotReady: Ready is False.
	NodeNotReady
	// NodeShuttingDown: Ready is False, and the kubelet names the shutdown of the machine as a reason.
	NodeShuttingDown
	// NodeSilent: Ready is Unknown, because the kubelet posts no status.
	NodeSilent
)

// Namespace is a Kubernetes Namespace.
type Namespace struct {
	Name string
	// ProxyDisabled is the label networking.k8s.io/kube-proxy=disabled.
	ProxyDisabled bool
}

// ServiceCIDR is a Kubernetes ServiceCIDR.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

// Ref names the service.
func (s *Service) Ref() Ref { return Ref{KindService, s.Name.Namespace, s.Name.Name} }

// Ref names the slice.
func (s *EndpointSlice) Ref() Ref { return Ref{KindEndpointSlice, s.Namespace, s.Name} }

// Ref names the node.
func (n *Node) Ref() Ref { return Ref{KindNode, "", n.Name} }

// Ref names the namespace.
func (n *Namespace) Ref() Ref { return Ref{KindNamespace, "", n.Name} }

// Ref names the service CIDR.
func (c *ServiceCIDR) Ref() Ref { return Ref{KindServiceCIDR, "", c.Name} }
