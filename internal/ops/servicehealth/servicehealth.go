// Package servicehealth answers load balancers on health check node ports.
//
// A Service of type LoadBalancer with externalTrafficPolicy: Local has such a port. Each node reports on it how many
// ready endpoints of the service it has, so that load balancers send connections only to nodes with endpoints. A
// [Server] learns of services and of the node's addresses by calls that never wait, and does the rest, binding above
// all, by itself. It retries and reports ports that it cannot bind.
package servicehealth

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/switchyard-net/switchyard/internal/connlimit"
	"github.com/switchyard-net/switchyard/state"
)

// Options are the settings of a [Server].
type Options struct {
	// Logger gets ports that cannot be served, and those that can be again. Default: discard.
	Logger *slog.Logger
	// Healthy reports whether the dataplane keeps up; if not, all answers are 503. It is called for each request, concurrently.
	// Required.
	Healthy func() bool
	// OnProblem is called when something begins to be wrong with a service's port, for an event about the Service (kube-proxy's
	// has the reason FailedToStartServiceHealthcheck). It is called by the goroutine of Run and must return soon. It may be nil.
	OnProblem func(Problem)
	// MaxConnections bounds the connections to all ports together. One port may have a quarter of them, or 8 if that
	// is more, and one client an eighth of the port's share. So a flood at the port of one service leaves room at the
	// others. Default: 512.
	MaxConnections int
	// OpenConnections counts the open connections, and ClosedConnections the connections that were closed because
	// there was no room. They may be nil.
	OpenConnections, ClosedConnections *atomic.Int64
	// MaxSockets bounds on how many addresses and ports to listen, because each takes a file descriptor. A port
	// beyond the bound is a problem of its service, and other ports keep being served. Default: 16384.
	MaxSockets int
}

// Problem is a health check node port that is not served as it should be.
type Problem struct {
	Service state.ServiceName
	Port    uint16
	// Err is the fault, with its remedy.
	Err error
}

func (p Problem) Error() string {
	return fmt.Sprintf("healthCheckNodePort %d of service %v: %v", p.Port, p.Service, p.Err)
}

func (p Problem) Unwrap() error { return p.Err }

// Server serves the health check node ports of all services. Its methods may be called concurrently.
type Server struct {
	o      Options
	listen func(ctx context.Context, network, address string) (net.Listener, error)
	// connections are those to all ports.
	connections *connlimit.Pool
	// wake has a value if there is something for Run to do.
	wake chan struct{}

	mu       sync.Mutex // guards all below
	services map[state.ServiceName]state.HealthCheck
	ports    map[uint16]*port
	addrs    []netip.Addr
	problems []Problem
}

// port is a port that services want, or wanted until just now. It is guarded by Server.mu.
type port struct {
	// owner answers on the port. It is kept after the service has gone, for requests that are under way.
	owner state.ServiceName
	// claimants are all services with this port. The API server gives a port to one service only; manifests may not.
	claimants map[state.ServiceName]bool
	// connections are those to the port.
	connections *connlimit.Pool
}

const (
	defaultConnections = 512
	defaultSockets     = 16384
)

// New returns a server without services and addresses. It serves while [Server.Run] runs.
func New(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.MaxConnections = cmp.Or(o.MaxConnections, defaultConnections)
	o.MaxSockets = cmp.Or(o.MaxSockets, defaultSockets)
	return &Server{
		o:      o,
		listen: (&net.ListenConfig{}).Listen,
		connections: connlimit.New(connlimit.Options{
			Name: "health check node ports", Max: o.MaxConnections, Replace: true, Logger: o.Logger,
			Open: o.OpenConnections, Closed: o.ClosedConnections,
		}),
		wake:     make(chan struct{}, 1),
		services: map[state.ServiceName]state.HealthCheck{},
		ports:    map[uint16]*port{},
	}
}

// newPort returns a port that nobody wants yet.
func (s *Server) newPort(number uint16) *port {
	most := max(s.o.MaxConnections/4, 8)
	return &port{
		claimants: map[state.ServiceName]bool{},
		connections: s.connections.Part(connlimit.Options{
			Name: fmt.Sprintf("health check node port %d", number), Max: most, PerClient: most / 8, Replace: true, Logger: s.o.Logger,
		}),
	}
}

// AllAddresses returns the addresses that stand for all addresses of the families.
func AllAddresses(families ...state.Family) []netip.Addr {
	var all []netip.Addr
	for _, f := range families {
		if f == state.IPv4 {
			all = append(all, netip.IPv4Unspecified())
		} else {
			all = append(all, netip.IPv6Unspecified())
		}
	}
	return all
}

// SetAddresses says on which addresses of the node to serve; they replace those given before. On IPv4 addresses the answers
// count a service's IPv4 endpoints, on IPv6 addresses its IPv6 endpoints. An unspecified address (0.0.0.0, ::) stands for all
// of its family. addrs is not kept.
func (s *Server) SetAddresses(addrs []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs = slices.Clone(addrs)
	s.wakeUp()
}

// Update applies the health checks of an update. It is called after the update was applied, so that no load
// balancer sends connections that the dataplane does not forward yet. It costs O(update).
func (s *Server) Update(u *state.Update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	set := func(name state.ServiceName, check state.HealthCheck) {
		changed = s.set(name, check) || changed
	}
	if u.Full {
		gone := maps.Clone(s.services)
		for _, record := range u.Changed {
			delete(gone, record.Name)
		}
		for name := range gone {
			set(name, state.HealthCheck{})
		}
	}
	for _, name := range u.Removed {
		set(name, state.HealthCheck{})
	}
	for _, record := range u.Changed {
		set(record.Name, record.HealthCheck)
	}
	if changed {
		s.wakeUp()
	}
}

// set takes over one service's health check and reports whether anybody's port changed. The caller holds mu.
func (s *Server) set(name state.ServiceName, check state.HealthCheck) bool {
	old := s.services[name]
	if check.Port == 0 {
		delete(s.services, name)
	} else {
		s.services[name] = check
	}
	if old.Port == check.Port {
		return false
	}
	if old.Port != 0 {
		p := s.ports[old.Port]
		delete(p.claimants, name)
		if p.owner == name && len(p.claimants) > 0 {
			p.owner = first(p.claimants)
		}
	}
	if check.Port != 0 {
		p := s.ports[check.Port]
		if p == nil {
			p = s.newPort(check.Port)
			s.ports[check.Port] = p
		}
		// The owner of a port keeps it. Of two services in one update, the updates' order by name decides.
		if len(p.claimants) == 0 {
			p.owner = name
		}
		p.claimants[name] = true
	}
	return true
}

func first(claimants map[state.ServiceName]bool) state.ServiceName {
	return slices.MinFunc(slices.Collect(maps.Keys(claimants)), state.ServiceName.Compare)
}

// wakeUp lets Run look for work. It does not wait.
func (s *Server) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Problems returns the current problems, ordered by port: ports that cannot be bound, and ports that several services
// want.
func (s *Server) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

// local returns what to answer on a port and family: whose port it is and how many ready endpoints this node has.
func (s *Server) local(p *port, family state.Family) (owner state.ServiceName, endpoints int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.claimants[p.owner] {
		return p.owner, 0
	}
	check := s.services[p.owner]
	if family == state.IPv4 {
		return p.owner, check.LocalIPv4
	}
	return p.owner, check.LocalIPv6
}

func compareProblems(a, b Problem) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), a.Service.Compare(b.Service), cmp.Compare(a.Err.Error(), b.Err.Error()))
}
