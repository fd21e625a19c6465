package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/wire"
)

const (
	// drainTimeout is how long streams may take to end when the server shuts down.
	drainTimeout = 2 * time.Second
	// window is how much a client may send on a stream before it is read; to say how large it is turns off its growth.
	window = 64 << 10
	// maxRequest is the largest request: a status with a hundred services and reasons.
	maxRequest = 128 << 10
	// maxStreams is how many requests a connection may have under way.
	maxStreams = 32
	// connectTimeout is for the handshakes of TLS and HTTP/2.
	connectTimeout = 10 * time.Second
	// readyPause is the time between two attempts to get at the first state.
	readyPause = time.Second
)

// errShutdown is why contexts of handlers end when the server shuts down.
var errShutdown = status.Error(codes.Unavailable, "the server is shutting down; come back")

// listening is one listener that is served.
type listening struct {
	*Server
	ctx       context.Context
	withTLS   bool
	receivers sync.WaitGroup // goroutines beside the handlers
}

func (s *Server) serve(caller context.Context, l net.Listener, t *TLS) error {
	ctx, cancel := context.WithCancel(caller) // also ends if the listener fails
	defer cancel()
	v := &listening{Server: s, ctx: ctx, withTLS: t != nil}
	options := v.options()
	if t != nil {
		files, err := t.follow(s.log)
		if err != nil {
			_ = l.Close()
			return err
		}
		config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
		config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.Current(), nil }
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	} else if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		_ = l.Close()
		return fmt.Errorf("serve on tcp://%v: %w", a, errExposed)
	}
	g := grpc.NewServer(options...)
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
	err := g.Serve(limit(l, s))
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
		grpc.ForceServerCodecV2(wire.Codec()),
		grpc.ChainUnaryInterceptor(v.unary),
		grpc.ChainStreamInterceptor(v.stream),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(8 << 10),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.WriteBufferSize(32 << 10),
		grpc.ReadBufferSize(0),
		grpc.WaitForHandlers(true),
		// A client whose machine is gone is noticed within a minute.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 40 * time.Second, Timeout: 20 * time.Second, MaxConnectionIdle: 10 * time.Minute}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
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
	if err := callerOf(ctx, v.withTLS).mayCall(info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (v *listening) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := callerOf(ss.Context(), v.withTLS).mayCall(info.FullMethod); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(v.ctx, func() { cancel(errShutdown) })()
	err := handler(srv, &endingStream{ss, ctx})
	if err != nil && context.Cause(ctx) == errShutdown {
		return errShutdown
	}
	return err
}

// endingStream is a stream whose context also ends when the server shuts down.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *endingStream) Context() context.Context { return s.ctx }
