package winkernel

import (
	"cmp"
	"errors"
	"log/slog"
	"net/netip"
	"os"

	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Config names what HNS has, and what load balancers do.
type Config struct {
	// NetworkName is the HNS network whose endpoints are served. Empty takes it from the environment KUBE_NETWORK.
	NetworkName string
	// SourceVIP is the address from which packets to remote endpoints come in overlay networks.
	SourceVIP netip.Addr
	// EnableDSR lets answers go to clients directly, past this node.
	EnableDSR bool
	// RootHNSEndpointName is the HNS endpoint of the root network namespace in L2 bridge networks.
	RootHNSEndpointName string
	// ForwardHealthCheckVIP also serves health check ports on load balancer addresses.
	ForwardHealthCheckVIP bool
}

// Options are the settings of the dataplane.
type Options struct {
	// Config is the section winkernel of the configuration.
	Config Config
	// HealthzPort is the port of /healthz, for the health checks of load balancers (Config.ForwardHealthCheckVIP) whose service has no
	// health check node port. 0: there is none.
	HealthzPort uint16
	// Logger takes what an operator may want to know. Nothing is logged if it is nil.
	Logger *slog.Logger
	// OnFailure is called in Apply and Verify with each call for a load balancer that HNS has refused, for the metrics. It may be nil.
	OnFailure func(Failure)
}

// Failure is a call for a load balancer that HNS has refused.
type Failure struct {
	Operation Operation
	Family    state.Family
	// Kind is the kind of its frontend, 0 for one that no service has.
	Kind state.FrontendKind
	Err  error
}

// LoadBalancerType returns kube-proxy's word for the kind of load balancer, of its metrics.
func (f *Failure) LoadBalancerType() string {
	switch f.Kind {
	case state.ClusterIP:
		return "clusterip"
	case state.NodePort:
		return "nodeport"
	case state.ExternalIP:
		return "externalip"
	case state.LoadBalancer:
		return "ingressip"
	}
	return "other"
}

// Reason returns kube-proxy's word for Err, of its metrics.
func (f *Failure) Reason() string {
	switch {
	case errors.Is(f.Err, plan.ErrNoNetwork):
		return "network_not_found"
	case errors.Is(f.Err, plan.ErrExists):
		return "port_already_exists"
	case errors.Is(f.Err, plan.ErrNotImplemented):
		return "not_implemented"
	}
	return "other"
}

// Operation is an operation on a load balancer.
type Operation int

// The operations.
const (
	Create Operation = iota
	Update
	Delete
)

func (o Operation) String() string { return [...]string{"create", "update", "delete"}[o] }

// networkEnv has the name of the HNS network where the configuration has none, as for kube-proxy.
const networkEnv = "KUBE_NETWORK"

// networkOf returns the name of the HNS network, empty if nothing names one.
func networkOf(c *Config) string { return cmp.Or(c.NetworkName, os.Getenv(networkEnv)) }

// complete fills in what the environment has.
func (o Options) complete() (Options, error) {
	o.Config.NetworkName = networkOf(&o.Config)
	if o.Config.NetworkName == "" {
		return o, errors.New("winkernel.networkName is empty, and so is the environment variable " + networkEnv +
			": name the HNS network of the pods (hnsdiag list networks)")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}
