// Package adminserver serves the admin API, by which people and tools on a node look at a process.
package adminserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/client/peeruser"
	"github.com/switchyard-net/switchyard/internal/admin/adminconv"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/connlimit"
	"github.com/switchyard-net/switchyard/internal/explain"
)

// Source is what a server shows. Its methods are called concurrently.
type Source interface {
	// Status returns how the process is doing.
	Status() *view.Status
	// View returns what rows are made from.
	View() *view.View
	// Explain answers a question.
	Explain(ctx context.Context, from explain.From, to explain.To) ([]*explain.Answer, error)
	// Traffic returns the counts of new connections to the selected Services, or why there are none. Its time only
	// advances if minPeriod has passed since the last reading.
	Traffic(view.Selection) (*view.Traffic, error)
}

// The limits for all clients together. All of them are of root or of the user of this process, so the bounds are for
// mistakes: a script that forgets its connections.
const (
	// maxConnections is how many there may be. One more closes the one that was used least recently.
	maxConnections = 32
	maxStreams     = 8
	maxRequest     = 64 << 10
	// maxAtOnce is how many lists, watches, readings and questions are worked on at a time: each takes its turns at the lock of the store.
	maxAtOnce = 8
	// connectTimeout is for the handshake of HTTP/2, sendTimeout for a client that reads nothing.
	connectTimeout = 10 * time.Second
	drainTimeout   = 2 * time.Second
	// partBytes is how large a part of a list is. A client takes 4 MiB.
	partBytes = 256 << 10
	// stepTime is how long a part of a list is worked on, beyond its first row.
	stepTime = 100 * time.Millisecond
	// maxWatched is how many rows can be watched. Each row is made again every watchPause. watchBytes is the limit of
	// their total size.
	maxWatched = 1000
	watchBytes = 16 << 20
	watchPause = time.Second
	// rest is how long a watch rests for the time that it was worked on, if that is longer than its pause.
	rest = 4
	// minPeriod is the least time between two readings of traffic.
	minPeriod = time.Second
)

// Serve serves a source on l, which must be a unix socket, until ctx ends, and then returns nil. It closes l. Only root and the user of
// this process may use it.
func Serve(ctx context.Context, l net.Listener, source Source, log *slog.Logger) error {
	pool := connlimit.New(connlimit.Options{Name: "admin", Max: maxConnections, Replace: true, Logger: log})
	s := &server{source: source, ctx: ctx, turns: make(chan struct{}, maxAtOnce)}
	g := grpc.NewServer(
		grpc.Creds(peerCredentials{insecure.NewCredentials()}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := allowed(ctx); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := allowed(ss.Context()); err != nil {
				return err
			}
			return handler(srv, ss)
		}),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(8<<10), grpc.ConnectionTimeout(connectTimeout),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 10 * time.Minute, Time: 40 * time.Second, Timeout: 20 * time.Second}),
	)
	adminv1.RegisterAdminServer(g, s)
	reflection.RegisterV1(g)
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		cut := time.AfterFunc(drainTimeout, g.Stop)
		defer cut.Stop()
		g.GracefulStop()
	})
	err := g.Serve(pool.Listener(l))
	if !stop() {
		<-drained
	}
	g.Stop()
	if ctx.Err() != nil || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve the admin API on %v: %w", l.Addr(), err)
}

// peerCredentials find out of what user a client is. One that may call nothing gets that as the answer to its calls.
type peerCredentials struct {
	credentials.TransportCredentials
}

// checked is the result of the check of a connection.
type checked struct {
	credentials.AuthInfo
	denied error
}

// ServerHandshake implements [credentials.TransportCredentials].
func (c peerCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return conn, checked{info, peeruser.Users{}.Check(raw)}, nil
}

// Clone implements [credentials.TransportCredentials].
func (c peerCredentials) Clone() credentials.TransportCredentials {
	return peerCredentials{c.TransportCredentials.Clone()}
}

// allowed returns why a call is refused.
func allowed(ctx context.Context) error {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return status.Error(codes.PermissionDenied, "the client is not known")
	}
	info, ok := p.AuthInfo.(checked)
	switch {
	case !ok:
		return status.Error(codes.PermissionDenied, "the user of the client is not known")
	case info.denied != nil:
		return status.Errorf(codes.PermissionDenied, "%v; run the command as root", info.denied)
	}
	return nil
}

type server struct {
	adminv1.UnimplementedAdminServer
	source Source
	ctx    context.Context // of Serve
	turns  chan struct{}
}

// enter waits for a place among those that are worked on, which leave gives up.
func (s *server) enter(ctx context.Context) error {
	select {
	case s.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-s.ctx.Done():
		return errShutdown
	}
}

func (s *server) leave() { <-s.turns }

var errShutdown = status.Error(codes.Unavailable, "the process is shutting down")

// GetStatus implements [adminv1.AdminServer].
func (s *server) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	return &adminv1.GetStatusResponse{Status: adminconv.FromStatus(s.source.Status())}, nil
}

// selectionOf returns what a message selects.
func selectionOf(m *adminv1.Selection) (view.Selection, error) {
	selection := view.Selection{Namespace: m.GetNamespace(), Names: m.GetNames()}
	if err := selection.Check(); err != nil {
		return view.Selection{}, status.Error(codes.InvalidArgument, err.Error())
	}
	return selection, nil
}

// rows returns the rows of a selection.
func (s *server) rows(m *adminv1.Selection) (iter.Seq[*adminv1.Row], error) {
	selection, err := selectionOf(m)
	if err != nil {
		return nil, err
	}
	v := s.source.View()
	switch m.GetKind() {
	case adminv1.Kind_KIND_SERVICE:
		return converted(v.Services(selection), adminconv.FromService), nil
	case adminv1.Kind_KIND_ENDPOINT:
		return converted(v.Endpoints(selection), adminconv.FromEndpoint), nil
	case adminv1.Kind_KIND_NODE:
		return converted(v.Nodes(selection), adminconv.FromNode), nil
	}
	return nil, status.Errorf(codes.InvalidArgument, "kind %v is none of KIND_SERVICE, KIND_ENDPOINT and KIND_NODE", m.GetKind())
}

func converted[T any](rows iter.Seq[T], convert func(T) *adminv1.Row) iter.Seq[*adminv1.Row] {
	return func(yield func(*adminv1.Row) bool) {
		for row := range rows {
			if !yield(convert(row)) {
				return
			}
		}
	}
}

// parts collects rows until they are enough for a message.
type parts struct {
	rows  []*adminv1.Row
	bytes int
	began time.Time // of the first row
	send  func([]*adminv1.Row) error
}

func (p *parts) add(row *adminv1.Row) error {
	if len(p.rows) == 0 {
		p.began = time.Now()
	}
	p.rows, p.bytes = append(p.rows, row), p.bytes+proto.Size(row)
	if p.bytes < partBytes && time.Since(p.began) < stepTime {
		return nil
	}
	return p.flush()
}

func (p *parts) flush() error {
	rows := p.rows
	p.rows, p.bytes = nil, 0
	return p.send(rows)
}

// List implements [adminv1.AdminServer].
func (s *server) List(r *adminv1.ListRequest, stream grpc.ServerStreamingServer[adminv1.ListResponse]) error {
	more, err := s.list(r, stream)
	if err != nil {
		return err
	}
	return stream.Send(&adminv1.ListResponse{More: more})
}

// list sends rows, and reports whether there are more than the limit.
func (s *server) list(r *adminv1.ListRequest, stream grpc.ServerStreamingServer[adminv1.ListResponse]) (more bool, err error) {
	if err := s.enter(stream.Context()); err != nil {
		return false, err
	}
	working := true
	defer func() {
		if working {
			s.leave()
		}
	}()
	rows, err := s.rows(r.GetSelection())
	if err != nil {
		return false, err
	}
	list := parts{send: func(rows []*adminv1.Row) error {
		s.leave() // a client that does not read keeps nobody else waiting
		working = false
		if err := stream.Send(&adminv1.ListResponse{Rows: rows}); err != nil {
			return err
		}
		err := s.enter(stream.Context())
		working = err == nil
		return err
	}}
	sent := uint32(0)
	for row := range rows {
		if limit := r.GetLimit(); limit > 0 && sent == limit {
			return true, list.flush()
		}
		sent++
		if err := stream.Context().Err(); err != nil {
			return false, status.FromContextError(err).Err() // nobody waits for it now
		}
		if err := list.add(row); err != nil {
			return false, err
		}
	}
	return false, list.flush()
}

// Watch implements [adminv1.AdminServer].
func (s *server) Watch(r *adminv1.WatchRequest, stream grpc.ServerStreamingServer[adminv1.WatchResponse]) error {
	known := map[string]*adminv1.Row{}
	for first := true; ; first = false {
		began := time.Now()
		changes, err := s.changes(stream.Context(), r.GetSelection(), known)
		if err != nil {
			return err
		}
		took := time.Since(began)
		if first || len(changes.Set)+len(changes.Deleted) > 0 {
			if err := sendChanges(stream, changes); err != nil {
				return err
			}
		}
		select {
		case <-time.After(max(watchPause, rest*took)):
		case <-stream.Context().Done():
			return nil
		case <-s.ctx.Done():
			return errShutdown
		}
	}
}

// changes returns how the rows of a selection differ from those that are known, and has these known.
func (s *server) changes(ctx context.Context, m *adminv1.Selection, known map[string]*adminv1.Row) (*adminv1.WatchResponse, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	rows, err := s.rows(m)
	if err != nil {
		return nil, err
	}
	changes, seen, size := &adminv1.WatchResponse{}, map[string]bool{}, 0
	for row := range rows {
		if err := ctx.Err(); err != nil {
			return nil, status.FromContextError(err).Err() // nobody waits for it now
		}
		if size += proto.Size(row); size > watchBytes {
			return nil, status.Errorf(codes.ResourceExhausted, "the rows that are selected have more than %d MiB; name a namespace or fewer names", watchBytes>>20)
		}
		if seen[row.Key] = true; len(seen) > maxWatched {
			return nil, status.Errorf(codes.ResourceExhausted, "more than %d rows are selected; name a namespace or fewer names", maxWatched)
		}
		if !proto.Equal(known[row.Key], row) {
			known[row.Key] = row
			changes.Set = append(changes.Set, row)
		}
	}
	for key := range known {
		if !seen[key] {
			delete(known, key)
			changes.Deleted = append(changes.Deleted, key)
		}
	}
	return changes, nil
}

// sendChanges sends changes in as many messages as they take.
func sendChanges(stream grpc.ServerStreamingServer[adminv1.WatchResponse], changes *adminv1.WatchResponse) error {
	deleted := changes.Deleted
	list := parts{send: func(rows []*adminv1.Row) error {
		m := &adminv1.WatchResponse{Set: rows, Deleted: deleted}
		deleted = nil
		return stream.Send(m)
	}}
	for _, row := range changes.Set {
		if err := list.add(row); err != nil {
			return err
		}
	}
	if len(changes.Set) > 0 && len(list.rows)+len(deleted) == 0 {
		return nil // all is sent
	}
	return list.flush()
}

// Explain implements [adminv1.AdminServer].
func (s *server) Explain(ctx context.Context, r *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	from, err := explain.ParseFrom(r.GetFrom())
	to, toErr := explain.ParseTo(r.GetTo())
	if err := errors.Join(err, toErr); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	answers, err := s.source.Explain(ctx, from, to)
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	explain.Limit(answers)
	m := &adminv1.ExplainResponse{}
	for _, a := range answers {
		text, err := json.Marshal(a)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		m.Answers = append(m.Answers, string(text))
	}
	return m, nil
}

// Traffic implements [adminv1.AdminServer].
func (s *server) Traffic(r *adminv1.TrafficRequest, stream grpc.ServerStreamingServer[adminv1.TrafficResponse]) error {
	selection, err := selectionOf(r.GetSelection())
	period := r.GetPeriod().AsDuration()
	switch kind := r.GetSelection().GetKind(); {
	case err != nil:
		return err
	case kind != adminv1.Kind_KIND_SERVICE:
		return status.Errorf(codes.InvalidArgument, "selection.kind is %v: traffic is for KIND_SERVICE only", kind)
	case period < minPeriod:
		return status.Errorf(codes.InvalidArgument, "period %v is too short: give %v at least", period, minPeriod)
	}
	for last := (time.Time{}); ; {
		t, err := s.reading(stream.Context(), selection)
		if err != nil {
			return err
		}
		if !last.IsZero() {
			t.Elapsed = t.At.Sub(last)
		}
		last = t.At
		if err := stream.Send(adminconv.FromTraffic(t)); err != nil {
			return err
		}
		select {
		case <-time.After(time.Until(last.Add(period))):
		case <-stream.Context().Done():
			return nil
		case <-s.ctx.Done():
			return errShutdown
		}
	}
}

// reading returns the current counts.
func (s *server) reading(ctx context.Context, selection view.Selection) (*view.Traffic, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	t, err := s.source.Traffic(selection)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return t, nil
}
