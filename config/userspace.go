package config

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Userspace is the section userspace of the configuration.
type Userspace struct {
	// How an endpoint is chosen for a new connection: `Random`, `LeastConnections` or `PowerOfTwoChoices`. The last two
	// count the connections through this node.
	Policy string `json:"policy"`
	// How long an endpoint may take to accept a TCP connection before another one is tried.
	DialTimeout Duration `json:"dialTimeout"`
	// How many endpoints are tried for a TCP connection.
	DialAttempts int32 `json:"dialAttempts"`
	// How many times in a row an endpoint must not have accepted a TCP connection to get no new ones for `ejectionTime`.
	// 0: never.
	EjectAfterFailures int32 `json:"ejectAfterFailures"`
	// How long an endpoint gets no new connections, see `ejectAfterFailures`.
	EjectionTime Duration `json:"ejectionTime"`
	// Begins each TCP connection to an endpoint with a header of the PROXY protocol, version 2, that names the client.
	// All endpoints of all Services must expect it.
	ProxyProtocol bool `json:"proxyProtocol"`
	// How long a UDP flow is kept after its last packet. Flows of one or two packets of the client end after 10 s.
	UDPIdleTimeout Duration `json:"udpIdleTimeout"`
	// How many TCP connections are relayed at a time. Beyond it, a new one ends another one, of those who have the most.
	// Each takes two open files. The limits of open files and of memory may lower it.
	MaxConnections int32 `json:"maxConnections"`
	// How many UDP flows are relayed at a time. Beyond it, a new one ends another one, of those who have the most. Each
	// takes an open file.
	MaxUDPFlows int32 `json:"maxUDPFlows"`
	// How many clients are remembered for session affinity.
	MaxAffinityClients int32 `json:"maxAffinityClients"`
	// How long an ending process keeps its connections open, and waits for a next process that takes them over.
	DrainTimeout Duration `json:"drainTimeout"`
	// Frontends on addresses of the host, such as `127.0.0.1:8080=10.96.0.10:80/tcp`. Give `0.0.0.0` as the frontend's
	// address for a NodePort. If there are any, nothing else is served, and the process needs no rights.
	Listen []string `json:"listen"`
}

// defaultUserspace is the section when nothing is configured.
func defaultUserspace() Userspace {
	return Userspace{
		Policy: "Random", DialTimeout: Duration{Duration: time.Second}, DialAttempts: 3,
		EjectionTime: Duration{Duration: 10 * time.Second}, UDPIdleTimeout: Duration{Duration: time.Minute},
		MaxConnections: 1 << 16, MaxUDPFlows: 1 << 16, MaxAffinityClients: 1 << 18,
		DrainTimeout: Duration{Duration: 5 * time.Second},
	}
}

// validate returns all faults of c, a section at path.
func (c Userspace) validate(path string) []*FieldError {
	var errs FieldErrors
	switch c.Policy {
	case "Random", "LeastConnections", "PowerOfTwoChoices":
	default:
		errs.Add(JoinPath(path, "policy"), "must be Random, LeastConnections or PowerOfTwoChoices, got %q", c.Policy)
	}
	for _, f := range []struct {
		name  string
		value Duration
	}{{"dialTimeout", c.DialTimeout}, {"ejectionTime", c.EjectionTime}, {"udpIdleTimeout", c.UDPIdleTimeout}} {
		if f.value.Duration <= 0 {
			errs.Add(JoinPath(path, f.name), "must be greater than 0, got %v", f.value)
		}
	}
	errs.NotNegative(JoinPath(path, "drainTimeout"), c.DrainTimeout)
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"dialAttempts", c.DialAttempts}, {"maxConnections", c.MaxConnections}, {"maxUDPFlows", c.MaxUDPFlows},
		{"maxAffinityClients", c.MaxAffinityClients},
	} {
		if f.value < 1 {
			errs.Add(JoinPath(path, f.name), "must be greater than 0, got %d", f.value)
		}
	}
	if c.EjectAfterFailures < 0 {
		errs.Add(JoinPath(path, "ejectAfterFailures"), "must not be negative, got %d", c.EjectAfterFailures)
	}
	for i, text := range c.Listen {
		if _, err := ParseListen(text); err != nil {
			errs.Add(IndexPath(JoinPath(path, "listen"), i), "%v", err)
		}
	}
	return errs
}

// Listen is a frontend on an address of the host.
type Listen struct {
	Protocol state.Protocol
	// Frontend is the frontend's address and port. An unspecified address, 0.0.0.0 or ::, stands for a NodePort.
	Frontend netip.AddrPort
	// At is where to listen.
	At netip.AddrPort
}

// ParseListen reads a frontend on an address of the host, such as 127.0.0.1:8080=10.96.0.10:80/tcp. A frontend
// with the address 0.0.0.0 or [::] is a NodePort.
func ParseListen(text string) (Listen, error) {
	at, rest, _ := strings.Cut(text, "=")
	frontend, protocol, _ := strings.Cut(rest, "/")
	var l Listen
	var errAt, errFrontend error
	l.At, errAt = netip.ParseAddrPort(at)
	l.Frontend, errFrontend = netip.ParseAddrPort(frontend)
	l.Protocol = map[string]state.Protocol{"tcp": state.TCP, "udp": state.UDP}[protocol]
	if errAt != nil || errFrontend != nil || l.Protocol == 0 || l.At.Port() == 0 || l.Frontend.Port() == 0 {
		return l, fmt.Errorf("must be like 127.0.0.1:8080=10.96.0.10:80/tcp, or /udp, got %q", text)
	}
	return l, nil
}
