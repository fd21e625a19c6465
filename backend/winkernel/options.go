package winkernel

import (
	"cmp"
	"errors"
	"log/slog"
	"os"

	"github.com/switchyard-net/switchyard/backend/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

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

// Operation is what was to be done to a load balancer.
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

// network returns the name of the HNS network, empty if nothing names one.
func (c *Config) network() string { return cmp.Or(c.NetworkName, os.Getenv(networkEnv)) }

// complete fills in what the environment has.
func (o Options) complete() (Options, error) {
	o.Config.NetworkName = o.Config.network()
	if o.Config.NetworkName == "" {
		return o, errors.New("winkernel.networkName is empty, and so is the environment variable " + networkEnv +
			": name the HNS network of the pods (hnsdiag list networks)")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}
