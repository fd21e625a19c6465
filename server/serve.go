package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/client/tlsfiles"
	"github.com/switchyard-net/switchyard/internal/connlimit"
	"github.com/switchyard-net/switchyard/internal/protoconv"
)

const (
	// drainTimeout is how long streams may take to end when the server shuts down.
	drainTimeout = 2 * time.Second
	// window is how much a client may send on a stream before it is read; setting it turns off its growth.
	window = 64 << 10
	// writeBuffer is the size of one write, and equals a record of TLS. Each connection has one buffer while it is
	// written to.
	writeBuffer = 16 << 10
	// maxRequest is the largest request: a status with a hundred services and reasons.
	maxRequest = 128 << 10
	// maxStreams is how many requests a connection may have under way.
	maxStreams = 32
	// maxPerNode limits the connections with a node's certificate, and the streams on all of them together. It exceeds
	// the number of the node's dataplanes, and leaves room for some connections whose end was not noticed yet.
	maxPerNode = 8
	// connectTimeout is for the handshakes of TLS and HTTP/2.
	connectTimeout = 10 * time.Second
	// ageGrace is how long after its age a connection may take for an update that is on its way.
	ageGrace = 5 * time.Minute
	// readyPause is the time between two attempts to get at the first state.
	readyPause = time.Second
	// minShare is how many connections a client may have however low the limit is, if the limit is not lower yet. Many clients
	// may share an address: those on one node, or behind one gateway.
	minShare = 64
)

var (
	// errTooMany is why they end when a node has opened more than it may have.
	errTooMany = status.Errorf(codes.ResourceExhausted, "this node has more than %d calls under way, and this was the oldest", maxPerNode)
	// errShutdown is why contexts of handlers end when the server shuts down.
	errShutdown = status.Error(codes.Unavailable, "the server is shutting down; come back")
	// errAged is why they end when the connection is old. The client gets OK.
	errAged = errors.New("the connection has lasted long enough")
)

// listening is one listener that is served.
type listening struct {
	*Server
	ctx        context.Context
	address    string           // for people
	files      *tlsfiles.Config // nil if it is served in plain
	handshakes *handshakes      // likewise
	rooms      rooms
	receivers  sync.WaitGroup // goroutines other than the handlers
}

func (s *Server) serve(caller context.Context, l net.Listener, t *TLS) error {
	ctx, cancel := context.WithCancel(caller) // also ends if the listener fails
	defer cancel()
	v := &listening{Server: s, ctx: ctx, address: l.Addr().Network() + "://" + l.Addr().String()}
	v.rooms = s.rooms(v.address)
	if t != nil {
		var err error
		if v.files, err = t.follow(s.log); err != nil {
			_ = l.Close()
			return err
		}
		v.handshakes = newHandshakes(v.files.Current)
	} else if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		_ = l.Close()
		return fmt.Errorf("serve on tcp://%v: %w", a, errExposed)
	}
	g := grpc.NewServer(v.options()...)
	localnetv1.RegisterEndpointsServer(g, &endpoints{listening: v})
	if s.o.Register != nil {
		s.o.Register(g)
	}
	h := v.health(g)
	reflection.RegisterV1(g)

	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		h.Shutdown()
		cut := time.AfterFunc(drainTimeout, g.Stop)
		defer cut.Stop()
		g.GracefulStop()
	})
	err := g.Serve(accepting{connlimit.Listen(l, v.room), v.o.SentBytes})
	if !stop() {
		<-drained
	}
	cancel()
	g.Stop()
	v.receivers.Wait()
	if caller.Err() != nil || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve on %v: %w", l.Addr(), err)
}

func (v *listening) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(v.credentials()),
		grpc.ForceServerCodecV2(protoconv.Codec()),
		grpc.ChainUnaryInterceptor(v.unary),
		grpc.ChainStreamInterceptor(v.stream),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(8 << 10),
		grpc.HeaderTableSize(0), // a client has a stream or two: to remember headers for further ones costs more than it saves
		grpc.ConnectionTimeout(connectTimeout),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.WriteBufferSize(writeBuffer),
		grpc.ReadBufferSize(0),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(v.keepalive()),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

func (v *listening) keepalive() keepalive.ServerParameters {
	// A client whose machine is gone is noticed within a minute.
	p := keepalive.ServerParameters{Time: 40 * time.Second, Timeout: 20 * time.Second, MaxConnectionIdle: 10 * time.Minute}
	if v.files != nil && v.o.MaxAge > 0 {
		// gRPC changes it by up to a tenth at random: calls have been ended before.
		p.MaxConnectionAge, p.MaxConnectionAgeGrace = v.o.MaxAge/9*10, ageGrace
	}
	return p
}

// health serves the health of all services of g, which are healthy once there is a state.
func (v *listening) health(g *grpc.Server) *health.Server {
	h := health.NewServer()
	names := append(slices.Collect(maps.Keys(g.GetServiceInfo())), "")
	set := func(s healthv1.HealthCheckResponse_ServingStatus) {
		for _, name := range names {
			h.SetServingStatus(name, s)
		}
	}
	set(healthv1.HealthCheckResponse_NOT_SERVING)
	v.receivers.Go(func() {
		if v.ready() {
			set(healthv1.HealthCheckResponse_SERVING)
		}
	})
	healthv1.RegisterHealthServer(g, h)
	return h
}

// ready waits until there is a state to serve. It returns false if the server shuts down before.
func (v *listening) ready() bool {
	if v.o.Ready != nil {
		select {
		case <-v.o.Ready:
			return true
		case <-v.ctx.Done():
			return false
		}
	}
	for v.o.Node != "" {
		feed, err := v.o.Feed(v.o.Node)
		if err == nil {
			_, err = feed.Next(v.ctx, 0)
		}
		if err == nil {
			return true
		}
		select {
		case <-time.After(readyPause):
		case <-v.ctx.Done():
			return false
		}
	}
	return true
}

func (v *listening) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := identityOf(ctx).mayCall(info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (v *listening) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	id := identityOf(ss.Context())
	if err := id.mayCall(info.FullMethod); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(v.ctx, func() { cancel(errShutdown) })()
	// A call that begins later is by a client that does not know that it should connect again. gRPC sends a GOAWAY, and ends the connection.
	if left := time.Until(id.until); left > 0 {
		defer time.AfterFunc(left, func() { cancel(errAged) }).Stop()
	}
	if id.node != "" && !id.relay {
		defer v.nodeStreams.enter(id.node, func() {
			cancel(errTooMany)
			// If its client does not read, the handler does not learn of it.
			cut := time.AfterFunc(drainTimeout, func() { _ = id.conn.Close() })
			context.AfterFunc(ss.Context(), func() { cut.Stop() })
		})()
	}
	err := handler(srv, &endingStream{ss, ctx})
	switch cause := context.Cause(ctx); {
	case err == nil, cause == errAged:
		return nil
	case cause == errShutdown, cause == errTooMany:
		return cause
	}
	return err
}

// endingStream is a stream whose context also ends when the server shuts down.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *endingStream) Context() context.Context { return s.ctx }
