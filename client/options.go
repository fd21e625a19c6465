package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/client/namedpipe"
	"github.com/switchyard-net/switchyard/client/peeruser"
)

// Options specifies which server to follow, and how. The zero value follows the server on this node.
type Options struct {
	// Target is the address of the server: unix:///run/switchyard/api.sock, npipe:////./pipe/switchyard on Windows,
	// tcp://127.0.0.1:12345, 127.0.0.1:12345 or a target of gRPC, such as dns:///relay.example:8443. Default:
	// [DefaultTarget].
	Target string
	// TLS is required for a server on another host, because a process that can impersonate the server decides where the
	// connections of all pods go. Without TLS or Certificates, the target must be a unix socket, a named pipe or a
	// loopback address.
	TLS *tls.Config
	// Certificates are TLS by files that may be replaced while the client runs. They count if TLS is nil.
	Certificates *Certificates
	// SocketUsers are users whose processes may serve a unix socket, by name or number, in addition to root and the
	// user of this process. They keep a user who can replace a socket at a path from deciding where connections go.
	// With TLS, certificates decide instead.
	//
	// Users can be checked on Linux only. On other systems, a list is an error that wraps [errors.ErrUnsupported], and
	// without a list nothing is checked. A dialer in DialOptions that wraps connections of unix sockets must give them
	// a method NetConn() net.Conn.
	SocketUsers []string
	// Node is the node whose state is wanted. Default: the server's node, or the node that the client's certificate
	// names.
	Node string
	// Name identifies the client to the operators of the server, such as "dns-balancer"; at most 63 bytes are kept.
	Name string
	// Accepts are the features that the caller knows. The server converts services that use others: see [localnetv1.Feature]. A caller that
	// accepts other features than when it got the position of Resume gets a full update. [RunNames] ignores it. Default: none, as for a
	// program that was written before there were features.
	Accepts []localnetv1.Feature
	// Resume is the position of an [Update] that the caller still has, with the state at that position. Default: start
	// with a full update.
	Resume Position
	// MinBackoff and MaxBackoff bound the pause after a failure of the connection or of a [Sink]. The pause starts at
	// the minimum and doubles with each further failure in a row. A random part of up to half is left off, so that
	// clients that failed together do not return together. Defaults: 100 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// Logger gets what goes wrong, and its end. Default: nothing is logged.
	Logger *slog.Logger
	// OnError gets each failure to get updates from the server, with a gRPC status (status.Code(err)). The client retries
	// after any of them; who would rather give up ends the context here. It is called by another goroutine and must return
	// soon. It may be nil.
	OnError func(error)
	// OnConnect is called when a server that has a state of the node has accepted the subscription, before the first
	// update if one follows. It is called by another goroutine and must return soon. It may be nil.
	OnConnect func()
	// Control is called with the socket of each connection before it connects, like the Control of [net.Dialer]. Named
	// pipes do not call it. Default: no callback is called.
	Control func(network, address string, c syscall.RawConn) error
	// DialOptions come after all others, such as a stats handler or the dialer of a test.
	DialOptions []grpc.DialOption

	jitter func(pause time.Duration) time.Duration
}

func (o Options) withDefaults() Options {
	o.Target = cmp.Or(o.Target, DefaultTarget)
	o.MinBackoff = cmp.Or(o.MinBackoff, 100*time.Millisecond)
	o.MaxBackoff = max(o.MinBackoff, cmp.Or(o.MaxBackoff, 5*time.Second))
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.jitter == nil {
		o.jitter = func(pause time.Duration) time.Duration { return pause - rand.N(pause/2+1) }
	}
	return o
}

const (
	// A window takes a whole state of some thousand services, so that the server need not wait for the client while it sends.
	// It is fixed, because the estimate that would replace it starts at 64 KiB on each connection, when the state is largest.
	window = 8 << 20
	// A part of an update is small, but a single service is never split: this is one with a million endpoints.
	maxMessage   = 64 << 20
	dialTimeout  = 10 * time.Second
	pingInterval = 30 * time.Second
	pingTimeout  = 10 * time.Second
)

// dialer returns how gRPC connects to a TCP address, or to a unix socket by its URL, with control.
func dialer(control func(network, address string, c syscall.RawConn) error) func(context.Context, string) (net.Conn, error) {
	d := &net.Dialer{Control: control}
	return func(ctx context.Context, address string) (net.Conn, error) {
		if path, ok := strings.CutPrefix(address, "unix://"); ok {
			return d.DialContext(ctx, "unix", path)
		}
		return d.DialContext(ctx, "tcp", address)
	}
}

// anyAddress makes gRPC try the addresses of a name in random order. Servers behind one name then get about equal
// numbers of clients, regardless of the order from the name server and the resolver.
const anyAddress = `{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}`

// Dial prepares a connection to the server for callers of the API by [localnetv1.NewEndpointsClient]. It understands
// the targets, requires TLS for remote servers, and sets limits and windows for large states. It uses only Target, TLS,
// Certificates, SocketUsers, Control and DialOptions. It connects with the first call. An error means that the options
// are invalid.
//
// [localnetv1.NewEndpointsClient]:
// https://pkg.go.dev/github.com/switchyard-net/switchyard/client/localnet/v1#NewEndpointsClient
func Dial(o Options) (*grpc.ClientConn, error) {
	t, err := parseTarget(cmp.Or(o.Target, DefaultTarget))
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	switch err := t.mayBePlain(); {
	case o.TLS != nil:
		creds = credentials.NewTLS(o.TLS)
	case o.Certificates != nil:
		creds = o.Certificates.credentials()
	case err != nil:
		return nil, err
	case t.socket:
		users, err := peeruser.Parse(o.SocketUsers)
		if err != nil {
			return nil, fmt.Errorf("target %q: SocketUsers: %w", t.text, err)
		}
		creds = socketCredentials{creds, t.text, users}
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		// The state of a node does not belong into the hands of a proxy for the web.
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultServiceConfig(anyAddress),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(2 * window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: dialTimeout}),
		// A long poll is quiet for hours, and must not be taken for idle.
		grpc.WithIdleTimeout(0),
	}
	if t.pipe != "" {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return namedpipe.Dial(ctx, t.pipe) }))
	}
	if o.Control != nil && t.pipe == "" {
		options = append(options, grpc.WithContextDialer(dialer(o.Control)))
	}
	if !t.local {
		// Nothing else reports that a host has vanished; the own kernel does for a server on this one.
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout}))
	}
	conn, err := grpc.NewClient(t.grpc, append(options, o.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("target %q: %w", t.text, err)
	}
	return conn, nil
}
