package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/client/peeruser"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

// ErrNoNode is what Options.Feed returns, wrapped or not, for a node that it has no feed for. Clients get NOT_FOUND.
var ErrNoNode = errors.New("there is no such node")

// Only returns an Options.Feed for a server that has the feed of one node.
func Only(node string, feed state.Feed) func(string) (state.Feed, error) {
	return func(asked string) (state.Feed, error) {
		if asked != node {
			return nil, fmt.Errorf("%w here; this server has node %q only", ErrNoNode, node)
		}
		return feed, nil
	}
}

// DefaultMaxClients is what [Options.MaxClients] is by default: enough for the nodes of the largest clusters.
const DefaultMaxClients = 10_000

// defaultMaxAge is the time between two looks at a certificate, after which several servers also share their clients again. The price
// is a whole state for each client that comes to another server (ADR 12).
const defaultMaxAge = time.Hour

// Options has the options of a [Server].
type Options struct {
	// Feed returns the feed of a node, or ErrNoNode. It is called for each request, and must be quick: a feed without a state
	// yet makes its callers wait in Next. Over the life of the server, a node's feeds must never give one revision to two
	// different states. Required.
	Feed func(node string) (state.Feed, error)
	// Names are the names of all services, for DNS servers. Nil: NextNames fails with UNIMPLEMENTED. Default: nil.
	Names state.NamesFeed
	// Node is the node that clients get who name none. If it is empty, they must name one, or have a node's certificate.
	Node string
	// Ready is closed once all feeds have a state. Until then grpc.health.v1 reports NOT_SERVING, and clients that
	// watch without requesting an update yet get no header.
	//
	// Default: health reports SERVING once Node has a state, or at once if Node is empty. A watching client gets the
	// header once its node has a state, which costs a full update without Ready.
	Ready <-chan struct{}
	// InstanceID names the life of the server, in which revisions count. Default: a random number.
	InstanceID uint64
	// MaxClients limits the clients' connections on each listener; further connections are refused. One remote IPv4
	// address or IPv6 /64 may have a quarter of them, or 64 if that is more. The same limit applies to a user over a
	// unix socket, other than root and the user of this process. These two users have 8 further connections, which no
	// other user can take. Connections over loopback have no such limit.
	//
	// A connection counts separately until it has shown a certificate or a user with any permission. The limit for
	// these is a quarter of MaxClients, or 64 if that is more, but at most four times MaxClients. At the limit, a new
	// connection replaces a waiting one of the address or /64 with the most of them. They are closed after 10 s.
	// Default: 10,000.
	MaxClients int
	// MaxAge is the lifetime of a connection over TLS. Afterwards a client shows its certificate again, and may reach
	// another one of several servers. Its calls end with OK between two updates. The time is random in the last fifth,
	// so that clients that connected together do not leave together. A connection that the client has not left by then
	// is closed within another quarter of MaxAge plus five minutes. Negative: no limit. Default: an hour.
	MaxAge time.Duration
	// SocketUsers are users whose processes may use unix sockets, by name or number, in addition to root and the user
	// of this process. Other users may connect if the permissions of the socket allow it, but may call nothing. Users
	// can be checked on Linux only. On other systems, a list is an error that wraps [errors.ErrUnsupported], and
	// without a list nothing is checked. Default: none.
	SocketUsers []string
	// OnStatus is called with how the dataplane of a watching client is doing, whenever the client reports it. It must not block; for one
	// client it is called by one goroutine at a time. Default: no callback is called.
	OnStatus func(Client, Status)
	// OnOpen is called when a client begins to watch, before the first OnStatus for it. It must not block. Default: no callback is called.
	OnOpen func(Client)
	// OnSend is called before a watching client is sent the update that leads to a revision. At the end of a client it
	// may be called after OnClose. It must not block. Default: no callback is called.
	OnSend func(Client, state.Revision)
	// OnClose is called when a watching client is gone, after the last OnStatus for it. It must not block. Default: no callback is called.
	OnClose func(Client)
	// SentBytes counts the bytes written to the connections of clients, including TLS and HTTP/2. Default: they are not counted.
	SentBytes *atomic.Uint64
	// Register adds other services. Over TLS they are for relays only. The contexts of their handlers end when the server shuts down. Default: none.
	Register func(grpc.ServiceRegistrar)
	// Logger gets faults of clients and certificates. Default: nothing is logged.
	Logger *slog.Logger
}

// Client is who watches.
type Client struct {
	// ID is different for each Watch in the life of the server.
	ID uint64
	// Name is the client's name for itself, at most 63 bytes. It may be empty.
	Name string
	// Node is the node whose state it gets.
	Node string
	// Address is where it connects from. For unix sockets it is meaningless.
	Address string
}

// Status is how a client's dataplane is doing.
type Status struct {
	// Applied is the revision that the dataplane shows, but for the services in Failed; 0 if it shows none of this server.
	Applied state.Revision
	// Failed are services that cannot be programmed, at most ten, with reasons of at most 256 bytes. A status has less
	// than 4 KiB in total, regardless of the client's input.
	Failed map[state.ServiceName]string
	// FailedTotal is how many services cannot be programmed.
	FailedTotal int
}

// Server serves states. Its methods may be called concurrently.
type Server struct {
	o       Options
	log     *slog.Logger
	encoder protoconv.Encoder
	forms   forms
	users   peeruser.Users
	clients atomic.Int64  // connections of all listeners
	watches atomic.Uint64 // counts them, for Client.ID

	nodeConns, nodeStreams newest // by node, of clients with a node's certificate
}

// New returns a server that serves nowhere yet.
func New(o Options) (*Server, error) {
	if o.Feed == nil {
		return nil, errors.New("server: Options.Feed is nil; it is required")
	}
	if o.MaxClients < 0 {
		return nil, errors.New("server: Options.MaxClients is negative; it must be positive, or 0 for the default")
	}
	if o.MaxClients == 0 {
		o.MaxClients = DefaultMaxClients
	}
	o.MaxAge = cmp.Or(o.MaxAge, defaultMaxAge)
	users, err := peeruser.Parse(o.SocketUsers)
	if err != nil {
		return nil, fmt.Errorf("server: Options.SocketUsers: %w", err)
	}
	for o.InstanceID == 0 {
		o.InstanceID = rand.Uint64()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{o: o, log: o.Logger, users: users, nodeConns: newest{most: maxPerNode}, nodeStreams: newest{most: maxPerNode}}, nil
}

// Serve serves clients that connect to l until ctx ends, and then returns nil. It closes l. Several listeners may be
// served at once, each by its own call.
//
// With t nil, everybody who can connect is trusted. Then l must not be reachable from other machines: TCP must be on a
// loopback address.
//
// When ctx ends, streams end with UNAVAILABLE, and clients connect again. Calls that have not ended after 2 s are
// aborted.
func (s *Server) Serve(ctx context.Context, l net.Listener, t *TLS) error {
	return s.serve(ctx, l, t)
}
