package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of a bubble's clock

// since is the virtual time since the bubble began.
func since() time.Duration { return time.Since(start) }

// wire is an in-memory network with one server, or none, at its end.
type wire struct {
	mu       sync.Mutex
	listener *bufconn.Listener
	dialed   []time.Duration // when clients tried to connect
	wrap     func(net.Conn) net.Conn
}

func (w *wire) dial(ctx context.Context, _ string) (net.Conn, error) {
	w.mu.Lock()
	w.dialed = append(w.dialed, since())
	l, wrap := w.listener, w.wrap
	w.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	conn, err := l.DialContext(ctx)
	if err == nil && wrap != nil {
		conn = wrap(conn)
	}
	return conn, err
}

// attempts returns when clients have tried to connect.
func (w *wire) attempts() []time.Duration {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dialed)
}

// options are the options of a client on this network, without any randomness.
func (w *wire) options() Options {
	return Options{
		Target:      "unix:///in-memory",
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(w.dial)},
		jitter:      func(pause time.Duration) time.Duration { return pause },
	}
}

// serve puts a server at the end of the wire. The returned function, or the end of the test, removes it abruptly.
func (w *wire) serve(t *testing.T, api localnetv1.EndpointsServer, options ...grpc.ServerOption) (stop func()) {
	l := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(options...)
	localnetv1.RegisterEndpointsServer(srv, api)
	w.mu.Lock()
	w.listener = l
	w.mu.Unlock()
	var done sync.WaitGroup
	done.Go(func() { srv.Serve(l) })
	stop = sync.OnceFunc(func() {
		w.mu.Lock()
		if w.listener == l {
			w.listener = nil
		}
		w.mu.Unlock()
		srv.Stop()
		done.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// script is a server that follows the script of the test, one call after the other.
type script struct {
	localnetv1.UnimplementedEndpointsServer
	watches chan *peer
	nexts   chan *poll
}

func newScript() *script {
	return &script{watches: make(chan *peer), nexts: make(chan *poll)}
}

// peer is the server's end of one Watch.
type peer struct {
	t        *testing.T
	stream   grpc.BidiStreamingServer[localnetv1.WatchRequest, localnetv1.WatchResponse]
	requests chan *localnetv1.WatchRequest
	ended    chan error
}

func (s *script) Watch(stream grpc.BidiStreamingServer[localnetv1.WatchRequest, localnetv1.WatchResponse]) error {
	p := &peer{stream: stream, requests: make(chan *localnetv1.WatchRequest, 100), ended: make(chan error)}
	select {
	case s.watches <- p:
	case <-stream.Context().Done():
		return nil
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			p.requests <- r
		}
	}()
	select {
	case err := <-p.ended:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// watch waits for the next client.
func (s *script) watch(t *testing.T) *peer {
	t.Helper()
	select {
	case p := <-s.watches:
		p.t = t
		return p
	case <-time.After(time.Hour):
		t.Fatal("no client has come within an hour")
		return nil
	}
}

// request waits for the client's next request.
func (p *peer) request() *localnetv1.WatchRequest {
	p.t.Helper()
	select {
	case r := <-p.requests:
		return r
	case <-time.After(time.Hour):
		p.t.Fatal("the client has said nothing within an hour")
		return nil
	}
}

// silent makes sure that the client has nothing to say.
func (p *peer) silent() {
	p.t.Helper()
	synctest.Wait()
	select {
	case r := <-p.requests:
		p.t.Fatalf("the client says %v, want nothing", r)
	default:
	}
}

func (p *peer) send(parts ...*localnetv1.WatchResponse) {
	p.t.Helper()
	for _, part := range parts {
		if err := p.stream.Send(part); err != nil {
			p.t.Fatalf("send: %v", err)
		}
	}
}

func (p *peer) end(err error) { p.ended <- err }

// poll is the server's end of one Next.
type poll struct {
	filter *localnetv1.NextFilter
	stream grpc.ServerStreamingServer[localnetv1.NextItem]
	ended  chan error
}

func (s *script) Next(filter *localnetv1.NextFilter, stream grpc.ServerStreamingServer[localnetv1.NextItem]) error {
	p := &poll{filter, stream, make(chan error)}
	select {
	case s.nexts <- p:
	case <-stream.Context().Done():
		return nil
	}
	select {
	case err := <-p.ended:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// answer sends items and ends the call.
func (p *poll) answer(t *testing.T, err error, items ...*localnetv1.NextItem) {
	t.Helper()
	for _, item := range items {
		if err := p.stream.Send(item); err != nil {
			t.Fatalf("send: %v", err)
		}
	}
	p.ended <- err
}

// consumer runs a loop over updates; the loop goes on when the test asks for the next one.
type consumer struct {
	t      *testing.T
	asks   chan struct{}
	takes  chan *Update
	cancel context.CancelFunc
	ended  chan struct{}
}

func consume(t *testing.T, w *Watcher) *consumer {
	ctx, cancel := context.WithCancel(t.Context())
	c := &consumer{t, make(chan struct{}), make(chan *Update, 1), cancel, make(chan struct{})}
	go func() {
		defer close(c.ended)
		select {
		case <-c.asks:
		case <-ctx.Done():
			return
		}
		for u := range w.Updates(ctx) {
			c.takes <- u
			select {
			case <-c.asks:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-c.ended })
	return c
}

// ask lets the loop ask for the next update.
func (c *consumer) ask() { c.asks <- struct{}{} }

// got waits for the update.
func (c *consumer) got() *Update {
	c.t.Helper()
	select {
	case u := <-c.takes:
		return u
	case <-time.After(time.Hour):
		c.t.Fatal("no update has come within an hour")
		return nil
	}
}

// nothing makes sure that no update has come.
func (c *consumer) nothing() {
	c.t.Helper()
	synctest.Wait()
	select {
	case u := <-c.takes:
		c.t.Fatalf("got %+v, want nothing", u)
	default:
	}
}

func watcher(t *testing.T, o Options) *Watcher {
	t.Helper()
	w, err := NewWatcher(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// service is one that can be programmed: a cluster IP with n endpoints, made from its name and version.
func service(name string, version, n int) *localnetv1.ServiceEndpoints {
	port := &localnetv1.Port{
		Name:     "http",
		Protocol: localnetv1.Protocol_PROTOCOL_TCP,
		Family:   localnetv1.Family_FAMILY_IPV4,
		Frontends: []*localnetv1.Frontend{{
			Kind: localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP, Address: []byte{10, 96, byte(version >> 8), byte(version)}, Port: 80,
		}},
	}
	route := &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_REJECT}
	for i := range n {
		port.Endpoints = append(port.Endpoints, &localnetv1.Endpoint{Address: []byte{10, 1, byte(i >> 8), byte(i)}, Port: 8080, Local: i%2 == 0})
		route.Verdict = localnetv1.Verdict_VERDICT_FORWARD
		route.Endpoints = append(route.Endpoints, uint32(i))
	}
	port.Internal = &localnetv1.Traffic{Inside: route, Outside: route, Masquerade: localnetv1.Masquerade_MASQUERADE_UNLESS_POD}
	return &localnetv1.ServiceEndpoints{Namespace: "shop", Name: name, Ports: []*localnetv1.Port{port}}
}

func node(name string) *localnetv1.Node {
	return &localnetv1.Node{Name: name, Addresses: [][]byte{{192, 0, 2, 1}}}
}

func at(instance, rev uint64) *localnetv1.Position {
	return &localnetv1.Position{InstanceId: instance, Rev: rev}
}

// whole is a full update in one part.
func whole(p *localnetv1.Position, services ...*localnetv1.ServiceEndpoints) *localnetv1.WatchResponse {
	return &localnetv1.WatchResponse{Full: true, Node: node("a"), Changed: services, Position: p}
}

var errDown = status.Error(codes.Unavailable, "shutting down")

// memory is a server that keeps the protocol: it has a state with a history, and serves updates from there.
type memory struct {
	localnetv1.UnimplementedEndpointsServer
	instance uint64
	partSize int // services in a part; 0: all
	// interrupt is asked before each part is sent, and may break the stream off. It may be nil.
	interrupt func() bool

	mu       sync.Mutex
	rev      uint64
	oldest   uint64 // the earliest revision that can be resumed from
	services map[ServiceName]*localnetv1.ServiceEndpoints
	touched  map[ServiceName]uint64 // the revision that last changed or removed it
	news     chan struct{}          // closed with the next revision
	statuses []*localnetv1.Status
	updates  int // sent
	sent     int // services sent
}

func newMemory(instance uint64, services ...*localnetv1.ServiceEndpoints) *memory {
	m := &memory{instance: instance, rev: 1, oldest: 1, services: make(map[ServiceName]*localnetv1.ServiceEndpoints),
		touched: make(map[ServiceName]uint64), news: make(chan struct{})}
	for _, s := range services {
		m.services[NameOf(s)], m.touched[NameOf(s)] = s, 1
	}
	return m
}

// set changes or adds a service; remove removes one.
func (m *memory) set(s *localnetv1.ServiceEndpoints) { m.change(NameOf(s), s) }
func (m *memory) remove(name ServiceName)            { m.change(name, nil) }

func (m *memory) change(name ServiceName, s *localnetv1.ServiceEndpoints) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rev++
	m.touched[name] = m.rev
	if s == nil {
		delete(m.services, name)
	} else {
		m.services[name] = s
	}
	close(m.news)
	m.news = make(chan struct{})
}

func (m *memory) Watch(stream grpc.BidiStreamingServer[localnetv1.WatchRequest, localnetv1.WatchResponse]) error {
	ready := make(chan struct{}, 1)
	first := make(chan *localnetv1.Subscribe, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			if r.Subscribe != nil {
				first <- r.Subscribe
			}
			if r.Status != nil {
				m.mu.Lock()
				m.statuses = append(m.statuses, r.Status)
				m.mu.Unlock()
			}
			if r.Ready {
				select {
				case ready <- struct{}{}:
				default:
				}
			}
		}
	}()
	var after uint64
	select {
	case sub := <-first:
		if sub.Resume.GetInstanceId() == m.instance {
			after = sub.Resume.GetRev()
		}
	case <-stream.Context().Done():
		return nil
	}
	for {
		select {
		case <-ready:
		case <-stream.Context().Done():
			return nil
		}
		parts, rev := m.since(stream.Context(), after)
		for _, part := range parts {
			if m.interrupt != nil && m.interrupt() {
				return errDown
			}
			if err := stream.Send(part); err != nil {
				return err
			}
		}
		after = rev
	}
}

// since waits for a state newer than after and returns how to get there.
func (m *memory) since(ctx context.Context, after uint64) ([]*localnetv1.WatchResponse, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.rev == after {
		news := m.news
		m.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
		}
		m.mu.Lock()
		if ctx.Err() != nil {
			return nil, after
		}
	}
	full := after < m.oldest || after > m.rev
	all := &localnetv1.WatchResponse{Full: full}
	if full {
		all.Node = node("a")
	}
	for name, rev := range m.touched {
		if s, ok := m.services[name]; ok && (full || rev > after) {
			all.Changed = append(all.Changed, s)
		} else if !ok && !full && rev > after {
			all.Removed = append(all.Removed, &localnetv1.ServiceName{Namespace: name.Namespace, Name: name.Name})
		}
	}
	m.updates++
	m.sent += len(all.Changed)
	var parts []*localnetv1.WatchResponse
	for m.partSize > 0 && len(all.Changed) > m.partSize {
		parts = append(parts, &localnetv1.WatchResponse{Full: full, Node: all.Node, Changed: all.Changed[:m.partSize]})
		all.Changed, all.Node = all.Changed[m.partSize:], nil
	}
	all.Position = at(m.instance, m.rev)
	return append(parts, all), m.rev
}

func (m *memory) lastStatus() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.statuses) == 0 {
		return "none"
	}
	s := m.statuses[len(m.statuses)-1]
	return fmt.Sprintf("applied %d, %d failed", s.Applied.GetRev(), s.FailedTotal)
}
