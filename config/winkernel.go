package config

import (
	"net/netip"
)

// Winkernel is the section winkernel of the configuration.
type Winkernel struct {
	// The HNS network whose endpoints are served. Empty: the one in the environment variable `KUBE_NETWORK`.
	NetworkName string `json:"networkName"`
	// The address from which packets to remote endpoints come in overlay networks.
	SourceVIP netip.Addr `json:"sourceVip"`
	// Lets answers go to clients directly, past this node.
	EnableDSR bool `json:"enableDSR"`
	// The HNS endpoint of the root network namespace in L2 bridge networks.
	RootHNSEndpointName string `json:"rootHnsEndpointName"`
	// Also serves health check ports on load balancer addresses.
	ForwardHealthCheckVIP bool `json:"forwardHealthCheckVip"`
}

// defaultWinkernel is the section when nothing is configured.
func defaultWinkernel() Winkernel { return Winkernel{RootHNSEndpointName: "cbr0"} }

// validate returns all faults of c, a section at path.
func (c Winkernel) validate(path string) []*FieldError {
	var errs FieldErrors
	if c.RootHNSEndpointName == "" {
		errs.Add(JoinPath(path, "rootHnsEndpointName"), "must not be empty: name the endpoint, or leave the field out for cbr0")
	}
	return errs
}
