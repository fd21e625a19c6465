// Package brain turns a Service and its EndpointSlices into the finished record for one node.
//
// It is pure: no I/O, no clock, no log, no state. The rules are Kubernetes' own, as implemented by kube-proxy (k8s.io/kubernetes
// pkg/proxy); each function names the rule that it implements.
package brain

import (
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Config is what the operator decides about routing on this node.
type Config struct {
	// NodeName is this node's name. Required.
	NodeName string
	// ServiceProxyName makes this instance handle exactly the services whose label
	// service.kubernetes.io/service-proxy-name has this value. Empty: the services without that label.
	ServiceProxyName string
	// DetectLocal says that the dataplane can tell pods from other clients (a cluster CIDR or the like is configured).
	DetectLocal bool
	// MasqueradeAll masquerades all connections to cluster IPs.
	MasqueradeAll bool
}

// Compute returns the record of svc on this node, or nil if the service is not to be routed by this instance. node is this
// node's object, nil if there is none. slices are all EndpointSlices in the service's namespace whose ServiceName is svc's, in any
// order. The arguments are not modified; the record shares no memory that anyone modifies.
func Compute(cfg *Config, node *model.Node, svc *model.Service, slices []*model.EndpointSlice) *state.Service {
	return nil
}
