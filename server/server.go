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

// Options is what a [Server] needs.
type Options struct {
	// Feed returns the feed of a node, or ErrNoNode. It is called for each request, and must be quick: a feed without a state
	// yet makes its callers wait in Next. Over the life of the server, a node's feeds must never give one revision to two
	// different states. Required.
	Feed func(node string) (state.Feed, error)
	// Names are those of all services, for DNS servers. Nil: NextNames fails with UNIMPLEMENTED. Default: nil.
	Names state.NamesFeed
	// Node is the node that clients get who name none. If it is empty, they must name one, or have a node's certificate.
	Node string
	// Ready is closed once all feeds have a state; until then grpc.health.v1 says NOT_SERVING, and clients that watch without
	// asking for an update yet get no header. Default: for health once Node has a state, at once if Node is empty; for a client
	// that watches once its node has a state, which costs a full update if there is no Ready.
	Ready <-chan struct{}
	// InstanceID names the life of the server, in which revisions count. Default: a random number.
	InstanceID uint64
	// MaxClients is how many clients' connections there may be at once on each listener; further ones are refused. One remote IPv4
	// address or IPv6 /64 may have a quarter of them, or 64 if that is more, and so may a user over a unix socket who is neither
	// root nor the user of this process. These two have 8 further places there, which others cannot take. Connections over loopback are
	// not counted so.
	//
	// Until it has shown a certificate or a user that may call something, a connection counts elsewhere: there may be a quarter of
	// MaxClients more of these, or 64 if that is more and not more than four times MaxClients. When there are as many, a new one
	// takes the place of one that waits: of the address or /64 with most of them. They are closed after 10 s. Default: 10,000.
	MaxClients int
	// MaxAge is how long a connection over TLS lasts: then a client shows its certificate again, and may find another one of several
	// servers. Its calls end with OK between two updates, at a random time in the last fifth, so that clients that have come
	// together do not go together. A connection that is not left by then is closed within a quarter of MaxAge and five minutes
	// more. Negative: for ever. Default: an hour.
	MaxAge time.Duration
	// SocketUsers are users whose processes may use unix sockets, by name or number, beside root and the user of this process. Those of
	// others may connect, if the permissions of the socket let them, and may call nothing. Users can be checked on Linux only:
	// elsewhere a list is an error that wraps [errors.ErrUnsupported], and without a list nothing is checked. Default: none.
	SocketUsers []string
	// OnStatus is called with how the dataplane of a watching client is doing, whenever the client reports it. It must not block; for one
	// client it is called by one goroutine at a time. Default: no callback is called.
	OnStatus func(Client, Status)
	// OnOpen is called when a client begins to watch, before the first OnStatus for it. It must not block. Default: no callback is called.
	OnOpen func(Client)
	// OnSend is called when a watching client is about to be sent the update that leads to a revision, at the end of a client perhaps after OnClose.
	// It must not block. Default: no callback is called.
	OnSend func(Client, state.Revision)
	// OnClose is called when a watching client is gone, after the last OnStatus for it. It must not block. Default: no callback is called.
	OnClose func(Client)
	// Register adds other services. Over TLS they are for relays only. The contexts of their handlers end when the server shuts down. Default: none.
	Register func(grpc.ServiceRegistrar)
	// Logger gets what is wrong with clients and certificates. Default: nothing is logged.
	Logger *slog.Logger
}

// Client is who watches.
type Client struct {
	// ID is different for each Watch in the life of the server.
	ID uint64
	// Name is what the client calls itself, at most 63 bytes. It may be empty.
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
	// Failed are services that cannot be programmed, ten at most, with the reasons, of 256 bytes at most: all of a status together has
	// less than 4 KiB, whatever the client says.
	Failed map[state.ServiceName]string
	// FailedTotal is how many services cannot be programmed.
	FailedTotal int
}

// Server serves states. Its methods may be called concurrently.
type Server struct {
	o       Options
	log     *slog.Logger
	encoder protoconv.Encoder
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

// Serve serves clients that connect to l until ctx ends, and then returns nil. It closes l. Several listeners may be served at
// once, each by a call of its own.
//
// With t nil, everybody who can connect is trusted; l must then be neither TCP on an address that is not loopback, nor anything
// else that is reachable from other machines.
//
// When ctx ends, streams end with UNAVAILABLE, upon which clients connect again. What is not over after 2 s is cut.
func (s *Server) Serve(ctx context.Context, l net.Listener, t *TLS) error {
	return s.serve(ctx, l, t)
}
