package userspace

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Policy is how an endpoint is chosen for a new connection.
type Policy string

// The policies.
const (
	Random            = Policy(balance.Random)
	LeastConnections  = Policy(balance.LeastConnections)
	PowerOfTwoChoices = Policy(balance.PowerOfTwoChoices)
)

// Ejection is when an endpoint gets no new connections for a while.
type Ejection struct {
	// Failures is how many connects to it must have failed one after the other. 0: it gets them always.
	Failures int
	// Time is for how long. After it, the next failure ejects again.
	Time time.Duration
}

// Options are the settings of the relay. The zero value is useful.
type Options struct {
	// Logger takes what an operator may want to know. Nothing is logged if it is nil.
	Logger *slog.Logger
	// Policy is how endpoints are chosen. Default: [Random].
	Policy Policy
	// DialTimeout is how long an endpoint may take to accept a connection before another one is tried. Default: 1 s.
	DialTimeout time.Duration
	// DialAttempts is how many endpoints are tried for a connection. Default: 3.
	DialAttempts int
	// Ejection is when endpoints get no new connections. Default: never.
	Ejection Ejection
	// ProxyProtocol begins each TCP connection to an endpoint with a header that names the client (PROXY protocol, version 2). Endpoints must expect it.
	ProxyProtocol bool
	// UDPIdleTimeout is how long a flow of UDP is kept after its last datagram. Default: 1 min.
	UDPIdleTimeout time.Duration
	// MaxConnections is how many TCP connections are relayed at a time. Beyond it, each new connection ends another one. The relay takes the
	// namespace with the most connections, its largest Service and that Service's largest client. It ends the least recently used connection
	// of this client. Default: 65,536. It is lower if Files or Memory is.
	MaxConnections int
	// MaxUDPFlows is how many flows of UDP are relayed at a time, and then it is as with MaxConnections. Default: as MaxConnections.
	MaxUDPFlows int
	// Files is how many file descriptors the relay may have open. Default: the limit of the process less a quarter for the rest of the
	// process. That quarter is at least 64 and at most 1,024.
	Files int
	// Memory is how many bytes the process may use, including kernel memory that is charged to its container. A
	// connection with a slow reader holds buffers of the kernel. All connections together hold less than three quarters
	// of Memory. Default: not known, and not bounded.
	Memory int64
	// MaxAffinityClients is how many clients are remembered for affinity: a client counts once for each Service port that it uses. Further
	// clients get no affinity until others time out. Each takes about 300 bytes. Default: 262,144.
	MaxAffinityClients int
	// ResetRemoved ends TCP connections by a reset when their endpoint has left the Service. The records must have lingering endpoints of TCP
	// ports, or connections are reset to endpoints that terminate and still serve.
	ResetRemoved bool
	// Listen has the relay serve these frontends on addresses of the host, and nothing else. It then needs neither a base nor any rights, for
	// sandboxes and rootless containers. All clients count as being on this node. Connections that the record refuses are reset. Connections
	// that it drops get no answer.
	Listen []Listen
	// Addresses are those that the relay listens on, one of each family at most. They are added to the loopback interface. Default:
	// [DefaultAddresses].
	Addresses []netip.Addr
}

// Listen is a frontend on an address of the host.
type Listen struct {
	Protocol state.Protocol
	// Frontend is the frontend's address and port. An unspecified address, 0.0.0.0 or ::, stands for a NodePort.
	Frontend netip.AddrPort
	// At is where to listen.
	At netip.AddrPort
}

// kind returns the kind of the frontend.
func (l *Listen) kind() plan.Kind {
	return plan.Kind{Family: state.FamilyOf(l.Frontend.Addr()), Protocol: l.Protocol}
}

func (l *Listen) check() error {
	switch {
	case l.Protocol != state.TCP && l.Protocol != state.UDP:
		return fmt.Errorf("listen on %v: protocol %v cannot be relayed, only TCP and UDP can", l.At, l.Protocol)
	case !l.Frontend.IsValid() || l.Frontend.Port() == 0 || !l.At.IsValid() || l.At.Port() == 0:
		return fmt.Errorf("listen on %v for %v: both need an address and a port", l.At, l.Frontend)
	}
	return nil
}

// DefaultAddresses are link-local for IPv4 and unique local for IPv6, so that no router forwards them.
func DefaultAddresses() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 's', 'w'}), netip.MustParseAddr("fd73:7769:7463:6879::1")}
}

// The defaults.
const (
	defaultDialTimeout        = time.Second
	defaultDialAttempts       = 3
	defaultUDPIdleTimeout     = time.Minute
	defaultMaxConnections     = 1 << 16
	defaultMaxAffinityClients = 1 << 18
)

// withDefaults returns o with all fields set, or an error if they are invalid.
func (o Options) withDefaults() (Options, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	setDefault(&o.Policy, Random)
	setDefault(&o.DialTimeout, defaultDialTimeout)
	setDefault(&o.DialAttempts, defaultDialAttempts)
	setDefault(&o.UDPIdleTimeout, defaultUDPIdleTimeout)
	setDefault(&o.MaxConnections, defaultMaxConnections)
	setDefault(&o.MaxUDPFlows, o.MaxConnections)
	setDefault(&o.MaxAffinityClients, defaultMaxAffinityClients)
	if len(o.Addresses) == 0 {
		o.Addresses = DefaultAddresses()
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"DialTimeout", int64(o.DialTimeout)}, {"DialAttempts", int64(o.DialAttempts)}, {"UDPIdleTimeout", int64(o.UDPIdleTimeout)},
		{"MaxConnections", int64(o.MaxConnections)}, {"MaxUDPFlows", int64(o.MaxUDPFlows)}, {"MaxAffinityClients", int64(o.MaxAffinityClients)},
		{"Files", int64(o.Files)}, {"Memory", o.Memory},
	} {
		if f.value < 0 {
			return o, fmt.Errorf("%s is %d, must be greater than 0, or 0 for the default", f.name, f.value)
		}
	}
	if o.Policy != Random && o.Policy != LeastConnections && o.Policy != PowerOfTwoChoices {
		return o, fmt.Errorf("Policy is %q, must be %s, %s or %s", o.Policy, Random, LeastConnections, PowerOfTwoChoices)
	}
	for i := range o.Listen {
		if err := o.Listen[i].check(); err != nil {
			return o, err
		}
	}
	return o, nil
}

// within lowers the greatest numbers to what so many descriptors allow, and returns how many pipes there may be. A connection takes two, a flow one, and a
// pipe two.
func (o Options) within(files int) (_ Options, pipes int) {
	pipes = max(min(files/16, mostPipes), 1)
	room := max(files-2*pipes-ownFiles, 8) / 2 // for connections, and again for flows
	o.MaxConnections = min(o.MaxConnections, room/2)
	o.MaxUDPFlows = min(o.MaxUDPFlows, room)
	return o, pipes
}

const (
	// mostPipes is how many pipes there may be at most.
	mostPipes = 256
	// ownFiles are the files for waiting, listening, and connections that are accepted while another one makes room.
	ownFiles = 64
)

// Amount is how much of a kind a relay carries.
type Amount struct {
	// Open is how many there are, and Most how many there may be.
	Open, Most int
	// Ended is how many had to make room for others since the start.
	Ended uint64
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
