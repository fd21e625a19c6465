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
	// Policy is how an endpoint is chosen: Random, LeastConnections or PowerOfTwoChoices.
	Policy string `json:"policy"`
	// DialTimeout is how long an endpoint may take to accept a TCP connection before another one is tried.
	DialTimeout Duration `json:"dialTimeout"`
	// DialAttempts is how many endpoints are tried for a TCP connection.
	DialAttempts int32 `json:"dialAttempts"`
	// EjectAfterFailures is how many times in a row an endpoint must not have accepted a connection to get none for EjectionTime; 0 is never.
	EjectAfterFailures int32    `json:"ejectAfterFailures"`
	EjectionTime       Duration `json:"ejectionTime"`
	// ProxyProtocol is whether each TCP connection begins with a header of the PROXY protocol, version 2, which endpoints must expect.
	ProxyProtocol bool `json:"proxyProtocol"`
	// UDPIdleTimeout is how long a UDP flow is kept after its last packet.
	UDPIdleTimeout Duration `json:"udpIdleTimeout"`
	// MaxConnections and MaxUDPFlows are how many are relayed at a time.
	MaxConnections int32 `json:"maxConnections"`
	MaxUDPFlows    int32 `json:"maxUDPFlows"`
	// MaxAffinityClients is how many clients are remembered for session affinity.
	MaxAffinityClients int32 `json:"maxAffinityClients"`
	// DrainTimeout is how long a process that ends serves its open connections, and waits for the next process to take
	// them over.
	DrainTimeout Duration `json:"drainTimeout"`
	// Listen are frontends on addresses of the host, as ParseListen reads them. If there are any, nothing else is served, and no rights are needed.
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
