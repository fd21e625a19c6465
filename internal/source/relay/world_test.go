package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/internal/clusterserver"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/await"
)

// network connects relays and their followers in memory.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	conns     []*conn
	// allowance returns how many bytes the next connection carries before it breaks. Default: any number.
	allowance func() int
}

func newNetwork() *network { return &network{listeners: make(map[string]*bufconn.Listener)} }

// conn is a follower's end of a connection.
type conn struct {
	net.Conn
	to string

	mu   sync.Mutex
	left int
	deaf bool // nothing arrives at the other end
}

var errBroken = errors.New("connection is broken")

func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	left := c.left
	c.mu.Unlock()
	if left <= 0 {
		c.Close()
		return 0, errBroken
	}
	n, err := c.Conn.Read(b[:min(left, len(b))])
	c.mu.Lock()
	c.left -= n
	c.mu.Unlock()
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	deaf := c.deaf
	c.mu.Unlock()
	if deaf {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (n *network) dial(ctx context.Context, to string) (net.Conn, error) {
	n.mu.Lock()
	l, allowance := n.listeners[to], math.MaxInt
	if n.allowance != nil {
		allowance = n.allowance()
	}
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("nobody listens at " + to)
	}
	raw, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, to: to, left: allowance}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, c)
	return c, nil
}

// cut breaks all connections to a relay.
func (n *network) cut(to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = slices.DeleteFunc(n.conns, func(c *conn) bool {
		if c.to != to {
			return false
		}
		c.Close()
		return true
	})
}

// listen has a gRPC server at an address until stop is called, which the end of the test does too.
func (n *network) listen(t testing.TB, at string, register func(*grpc.Server), options ...grpc.ServerOption) (stop func()) {
	l := bufconn.Listen(64 << 10)
	server := grpc.NewServer(append(options, grpc.ForceServerCodecV2(protoconv.Codec()),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 15 * time.Second}))...)
	register(server)
	n.mu.Lock()
	n.listeners[at] = l
	n.mu.Unlock()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	stop = sync.OnceFunc(func() {
		n.mu.Lock()
		if n.listeners[at] == l {
			delete(n.listeners, at)
		}
		n.mu.Unlock()
		server.Stop()
		<-served
	})
	t.Cleanup(stop)
	return stop
}

// serve hands out a feed at an address.
func (n *network) serve(t testing.TB, at string, feed *objectlog.Feed) (stop func()) {
	return n.listen(t, at, func(s *grpc.Server) { clusterserver.Register(s, clusterserver.Options{Feed: feed}) })
}

// certificates are the certificates of a client that shows none.
func certificates(t testing.TB) *client.Certificates {
	t.Helper()
	c, err := client.NewCertificates(client.TLSFiles{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// source returns a source that follows the relays at some addresses.
func (n *network) source(t testing.TB, log *slog.Logger, at ...string) *Source {
	o := Options{
		// They are elsewhere, but there is nobody on the way.
		Certificates: certificates(t),
		DialOptions:  []grpc.DialOption{grpc.WithContextDialer(n.dial), grpc.WithTransportCredentials(insecure.NewCredentials())},
		Logger:       log,
	}
	for _, a := range at {
		o.Targets = append(o.Targets, "passthrough:///"+a)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a source until stop is called, which the end of the test does too.
func run(t testing.TB, s model.Source, sink model.Sink) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, sink) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("Run ended with", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// recorder is a sink that holds the delivered objects.
type recorder struct {
	t  testing.TB
	mu sync.Mutex
	// told are the updates since it was last asked, and "complete".
	told     []string
	objects  map[model.Ref]model.Object
	complete bool
	// busy makes Update wait for it, unless it is nil.
	busy chan struct{}
}

func (r *recorder) Update(set []model.Object, deleted []model.Ref) {
	if r.busy != nil {
		<-r.busy
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.objects == nil {
		r.objects = make(map[model.Ref]model.Object)
	}
	var words []string
	for _, ref := range deleted {
		words = append(words, "-"+ref.Name)
		delete(r.objects, ref)
	}
	for _, obj := range set {
		word := obj.Ref().Name
		if n, ok := obj.(*model.Namespace); ok && n.ProxyDisabled {
			word += "!"
		}
		words = append(words, word)
		r.objects[obj.Ref()] = obj
	}
	slices.Sort(words)
	if len(words) > 10 {
		words = []string{fmt.Sprint(len(words))}
	}
	r.told = append(r.told, strings.Join(words, " "))
}

func (r *recorder) Complete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.complete {
		r.t.Error("complete twice")
	}
	r.complete = true
	r.told = append(r.told, "complete")
}

// expect wants exactly these updates since it was last called, once all is quiet.
func (r *recorder) expect(want ...string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.told, want) {
		r.t.Errorf("the sink was told %q, want %q", r.told, want)
	}
	r.told = nil
}

// logs collects the log of a source, from level Info.
type logs struct{ await.Log }

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// take returns the lines since it was last called.
func (l *logs) take() []string {
	text := strings.TrimSpace(l.Take())
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// settle lets a source wait for as long as it ever does.
func settle() {
	time.Sleep(2 * longest)
	synctest.Wait()
}

func namespaces(names ...string) (list []model.Object) {
	for _, name := range names {
		name, disabled := strings.CutSuffix(name, "!")
		list = append(list, &model.Namespace{Name: name, ProxyDisabled: disabled})
	}
	return list
}

func refs(names ...string) (list []model.Ref) {
	for _, name := range names {
		list = append(list, model.Ref{Kind: model.KindNamespace, Name: name})
	}
	return list
}
