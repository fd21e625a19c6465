package winkernel

import "github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"

// hns is the host network service. Objects have lower-case IDs and sorted lists of endpoints.
type hns interface {
	// Network returns the network of a name, or an error that wraps [plan.ErrNoNetwork].
	Network(name string) (*plan.Network, error)
	// Endpoints returns all endpoints, of all networks.
	Endpoints() ([]plan.Endpoint, error)
	// LoadBalancers returns all load balancers.
	LoadBalancers() ([]plan.LoadBalancer, error)
	// Do makes a call, and returns it with its object as HNS has it then. If it fails, it may have had its effect.
	Do(call plan.Call) (plan.Call, error)
}
