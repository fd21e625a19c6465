package userspace

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/field"
	"github.com/switchyard-net/switchyard/state"
)

// Config is the dataplane's section of the configuration.
type Config struct {
	// Policy is how an endpoint is chosen: Random, LeastConnections or PowerOfTwoChoices.
	Policy string `json:"policy"`
	// DialTimeout is how long an endpoint may take to accept a TCP connection before another one is tried.
	DialTimeout field.Duration `json:"dialTimeout"`
	// DialAttempts is how many endpoints are tried for a TCP connection.
	DialAttempts int32 `json:"dialAttempts"`
	// EjectAfterFailures is how many times in a row an endpoint must not have accepted a connection to get none for EjectionTime; 0 is never.
	EjectAfterFailures int32          `json:"ejectAfterFailures"`
	EjectionTime       field.Duration `json:"ejectionTime"`
	// ProxyProtocol is whether each TCP connection begins with a header of the PROXY protocol, version 2, which endpoints must expect.
	ProxyProtocol bool `json:"proxyProtocol"`
	// UDPIdleTimeout is how long a UDP flow is kept after its last packet.
	UDPIdleTimeout field.Duration `json:"udpIdleTimeout"`
	// MaxConnections and MaxUDPFlows are how many are relayed at a time.
	MaxConnections int32 `json:"maxConnections"`
	MaxUDPFlows    int32 `json:"maxUDPFlows"`
	// MaxAffinityClients is how many clients are remembered for session affinity.
	MaxAffinityClients int32 `json:"maxAffinityClients"`
	// DrainTimeout is how long a process that ends goes on with what is open, and waits for a next one that takes it over.
	DrainTimeout field.Duration `json:"drainTimeout"`
	// Listen are frontends on addresses of the host, as ParseListen reads them. If there are any, nothing else is served, and no rights are needed.
	Listen []string `json:"listen"`
}

// DefaultConfig returns the section as it is when nothing is configured.
func DefaultConfig() Config {
	return Config{
		Policy: string(Random), DialTimeout: field.Duration{Duration: defaultDialTimeout}, DialAttempts: defaultDialAttempts,
		EjectionTime: field.Duration{Duration: 10 * time.Second}, UDPIdleTimeout: field.Duration{Duration: defaultUDPIdleTimeout},
		MaxConnections: defaultMaxConnections, MaxUDPFlows: defaultMaxConnections, MaxAffinityClients: defaultMaxAffinityClients,
		DrainTimeout: field.Duration{Duration: 5 * time.Second},
	}
}

// Kind is the kind of a file that holds the section alone.
func (Config) Kind() string { return "UserspaceConfiguration" }

// Validate returns all faults of c, a section at path.
func (c Config) Validate(path string) []*field.Error {
	var errs field.Errors
	switch Policy(c.Policy) {
	case Random, LeastConnections, PowerOfTwoChoices:
	default:
		errs.Add(field.Join(path, "policy"), "must be %s, %s or %s, got %q", Random, LeastConnections, PowerOfTwoChoices, c.Policy)
	}
	for _, f := range []struct {
		name  string
		value field.Duration
	}{{"dialTimeout", c.DialTimeout}, {"ejectionTime", c.EjectionTime}, {"udpIdleTimeout", c.UDPIdleTimeout}} {
		if f.value.Duration <= 0 {
			errs.Add(field.Join(path, f.name), "must be greater than 0, got %v", f.value)
		}
	}
	errs.NotNegative(field.Join(path, "drainTimeout"), c.DrainTimeout)
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"dialAttempts", c.DialAttempts}, {"maxConnections", c.MaxConnections}, {"maxUDPFlows", c.MaxUDPFlows},
		{"maxAffinityClients", c.MaxAffinityClients},
	} {
		if f.value < 1 {
			errs.Add(field.Join(path, f.name), "must be greater than 0, got %d", f.value)
		}
	}
	if c.EjectAfterFailures < 0 {
		errs.Add(field.Join(path, "ejectAfterFailures"), "must not be negative, got %d", c.EjectAfterFailures)
	}
	for i, text := range c.Listen {
		if _, err := ParseListen(text); err != nil {
			errs.Add(field.Index(field.Join(path, "listen"), i), "%v", err)
		}
	}
	return errs
}

// Options returns the settings that c stands for, which is valid.
func (c Config) Options() Options {
	o := Options{
		Policy: Policy(c.Policy), DialTimeout: c.DialTimeout.Duration, DialAttempts: int(c.DialAttempts),
		Ejection: Ejection{Failures: int(c.EjectAfterFailures), Time: c.EjectionTime.Duration}, ProxyProtocol: c.ProxyProtocol,
		UDPIdleTimeout: c.UDPIdleTimeout.Duration, MaxConnections: int(c.MaxConnections), MaxUDPFlows: int(c.MaxUDPFlows),
		MaxAffinityClients: int(c.MaxAffinityClients),
	}
	for _, text := range c.Listen {
		if l, err := ParseListen(text); err == nil {
			o.Listen = append(o.Listen, l)
		}
	}
	return o
}

// ParseListen reads a frontend on an address of the host, such as 127.0.0.1:8080=10.96.0.10:80/tcp. The address 0.0.0.0 or [::] in the place of the
// frontend's stands for a NodePort.
func ParseListen(text string) (Listen, error) {
	at, rest, _ := strings.Cut(text, "=")
	frontend, protocol, _ := strings.Cut(rest, "/")
	var l Listen
	var errAt, errFrontend error
	l.At, errAt = netip.ParseAddrPort(at)
	l.Frontend, errFrontend = netip.ParseAddrPort(frontend)
	l.Protocol = map[string]state.Protocol{"tcp": state.TCP, "udp": state.UDP}[protocol]
	if errAt != nil || errFrontend != nil || l.Protocol == 0 {
		return l, fmt.Errorf("must be like 127.0.0.1:8080=10.96.0.10:80/tcp, or /udp, got %q", text)
	}
	return l, l.check()
}
