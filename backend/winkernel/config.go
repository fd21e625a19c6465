package winkernel

import (
	"net/netip"

	"github.com/switchyard-net/switchyard/field"
)

// Config is the dataplane's section of the configuration.
type Config struct {
	// NetworkName is the HNS network whose endpoints are served. Empty takes it from the environment KUBE_NETWORK.
	NetworkName string `json:"networkName"`
	// SourceVIP is the address from which packets to remote endpoints come in overlay networks.
	SourceVIP netip.Addr `json:"sourceVip"`
	// EnableDSR lets answers go to clients directly, past this node.
	EnableDSR bool `json:"enableDSR"`
	// RootHNSEndpointName is the HNS endpoint of the root network namespace in L2 bridge networks.
	RootHNSEndpointName string `json:"rootHnsEndpointName"`
	// ForwardHealthCheckVIP serves health check ports on load balancer addresses, too.
	ForwardHealthCheckVIP bool `json:"forwardHealthCheckVip"`
}

// DefaultConfig returns the section as it is when nothing is configured.
func DefaultConfig() Config { return Config{RootHNSEndpointName: "cbr0"} }

// Kind is the kind of a file that holds the section alone.
func (Config) Kind() string { return "WinkernelConfiguration" }

// Validate returns all faults of c, a section at path.
func (c Config) Validate(path string) []*field.Error {
	var errs field.Errors
	if c.RootHNSEndpointName == "" {
		errs.Add(field.Join(path, "rootHnsEndpointName"), "must not be empty: name the endpoint, or leave the field out for cbr0")
	}
	return errs
}
