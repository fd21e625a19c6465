package adminserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-net/switchyard/brain"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// process is a source with a store.
type process struct {
	store *store.Store
	sink  model.Sink
	// counted is what Traffic returns for a selection; nil for a process that does not count.
	counted func(view.Selection) *view.Traffic
}

func newProcess(objects ...model.Object) *process {
	s := store.New(store.Options{Brain: brain.Config{NodeName: "node-a"}})
	p := &process{store: s, sink: s.Source("test")}
	p.sink.Update(objects, nil)
	p.sink.Complete()
	return p
}

func (p *process) Status() *view.Status {
	return &view.Status{Program: "switchyard", Node: "node-a", Revision: uint64(p.store.Snapshot().Revision())}
}

func (p *process) View() *view.View { return &view.View{Store: p.store} }

func (p *process) Explain(ctx context.Context, from explain.From, to explain.To) ([]*explain.Answer, error) {
	return explain.New(explain.Options{Store: p.store}).Ask(ctx, from, to)
}

func (p *process) Traffic(s view.Selection) (*view.Traffic, error) {
	if p.counted == nil {
		return nil, errors.New("nothing is counted: turn it on")
	}
	return p.counted(s), nil
}

func service(name string) *model.Service {
	return &model.Service{
		Name: state.ServiceName{Namespace: "shop", Name: name}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(len(name))})},
		Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
	}
}

func slice(service string, endpoints int) *model.EndpointSlice {
	s := &model.EndpointSlice{Namespace: "shop", Name: service + "-1", Service: service, Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), Ready: true, Serving: true})
	}
	return s
}

// served is a server, and a client of it.
type served struct {
	adminv1.AdminClient
	l *bufconn.Listener
}

// serve serves a process over connections in memory, which wrap may change.
func serve(t *testing.T, p *process, wrap func(net.Conn) net.Conn) (s *served, stop func()) {
	t.Helper()
	s = &served{l: bufconn.Listen(64 << 10)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, wrapping{s.l, wrap}, p, slog.New(slog.DiscardHandler)) }()
	var end func()
	s.AdminClient, end = s.connect(t)
	return s, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
		end()
	}
}

func (s *served) connect(t *testing.T) (adminv1.AdminClient, func()) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10),
		grpc.WithStaticConnWindowSize(64<<10), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	return adminv1.NewAdminClient(conn), func() { _ = conn.Close() }
}

// dial returns another client.
func (s *served) dial(t *testing.T) adminv1.AdminClient {
	t.Helper()
	client, end := s.connect(t)
	t.Cleanup(end)
	return client
}

type wrapping struct {
	net.Listener
	wrap func(net.Conn) net.Conn
}

func (l wrapping) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.wrap != nil {
		c = l.wrap(c)
	}
	return c, err
}

// list returns the keys of a list, in how many parts it came, and whether there is more.
func list(t *testing.T, c adminv1.AdminClient, r *adminv1.ListRequest) (keys []string, parts int, more bool) {
	t.Helper()
	stream, err := c.List(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return keys, parts, more
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range m.GetRows() {
			keys = append(keys, row.GetKey())
		}
		parts++
		more = m.GetMore()
	}
}

// TestList: rows are selected, bounded, and sent in parts that a client can take.
func TestList(t *testing.T) {
	c, stop := serve(t, newProcess(service("db"), service("web"), service("cart"), slice("web", 5000)), nil)
	defer stop()
	services := func(namespace string, names ...string) *adminv1.Selection {
		return &adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE, Namespace: namespace, Names: names}
	}
	for _, tt := range []struct {
		selection *adminv1.Selection
		limit     uint32
		want      string
		more      bool
	}{
		{services(""), 0, "shop/cart shop/db shop/web", false},
		{services("shop", "c*", "db"), 0, "shop/cart shop/db", false},
		{services("shop", "?"), 0, "", false},
		{services("other"), 0, "", false},
		{services(""), 2, "shop/cart shop/db", true},
		{services(""), 3, "shop/cart shop/db shop/web", false},
	} {
		keys, _, more := list(t, c, &adminv1.ListRequest{Selection: tt.selection, Limit: tt.limit})
		if got := strings.Join(keys, " "); got != tt.want || more != tt.more {
			t.Errorf("%v, limit %d: %q, more: %v; want %q, %v", tt.selection, tt.limit, got, more, tt.want, tt.more)
		}
	}
	keys, parts, _ := list(t, c, &adminv1.ListRequest{Selection: &adminv1.Selection{Kind: adminv1.Kind_KIND_ENDPOINT}})
	if len(keys) != 5000 || parts < 2 {
		t.Errorf("%d endpoints in %d parts, want 5000 in several", len(keys), parts)
	}
	for _, bad := range []*adminv1.Selection{nil, {Kind: 9}, services("", "["), services("", make([]string, 101)...), services("", strings.Repeat("a", 254))} {
		stream, err := c.List(t.Context(), &adminv1.ListRequest{Selection: bad})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%.60v: %v, want InvalidArgument", bad, err)
		}
	}
}

// TestSlowReaders: lists that nobody reads keep no other client waiting, and do not keep the server from its end.
func TestSlowReaders(t *testing.T) {
	c, stop := serve(t, newProcess(service("web"), slice("web", 5000)), nil)
	defer stop()
	for range maxAtOnce + 1 {
		// Its windows are full long before the end.
		if _, err := c.dial(t).List(t.Context(), &adminv1.ListRequest{Selection: &adminv1.Selection{Kind: adminv1.Kind_KIND_ENDPOINT}}); err != nil {
			t.Fatal(err)
		}
	}
	if keys, _, _ := list(t, c, &adminv1.ListRequest{Selection: &adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE}}); len(keys) != 1 {
		t.Errorf("rows: %v", keys)
	}
}

// TestWatch: what changes is sent, and nothing else.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(service("db"), service("web"))
		c, stop := serve(t, p, nil)
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := c.Watch(ctx, &adminv1.WatchRequest{Selection: &adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE}})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(want string) {
			t.Helper()
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, row := range m.GetSet() {
				got = append(got, fmt.Sprintf("%s=%d", row.GetKey(), row.GetService().GetEndpoints().GetAll()))
			}
			for _, key := range m.GetDeleted() {
				got = append(got, "-"+key)
			}
			if text := strings.Join(got, " "); text != want {
				t.Errorf("changes %q, want %q", text, want)
			}
		}
		expect("shop/db=0 shop/web=0")
		time.Sleep(10 * watchPause) // in which nothing changes
		p.sink.Update([]model.Object{slice("web", 3)}, nil)
		began := time.Now()
		expect("shop/web=3")
		if took := time.Since(began); took > watchPause {
			t.Errorf("a change took %v", took)
		}
		p.sink.Update([]model.Object{service("newer")}, []model.Ref{{Kind: model.KindService, Namespace: "shop", Name: "db"}})
		expect("shop/newer=0 -shop/db")
	})
}

// TestWatchIsBounded: a watch of too much is refused with the remedy.
func TestWatchIsBounded(t *testing.T) {
	c, stop := serve(t, newProcess(service("web"), slice("web", maxWatched+1)), nil)
	defer stop()
	stream, err := c.Watch(t.Context(), &adminv1.WatchRequest{Selection: &adminv1.Selection{Kind: adminv1.Kind_KIND_ENDPOINT}})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "name a namespace or fewer names") {
		t.Errorf("Watch = %v", err)
	}
}

// TestExplain answers in the form of explain -o json, and names what is wrong with a question.
func TestExplain(t *testing.T) {
	c, stop := serve(t, newProcess(service("web"), slice("web", 1)), nil)
	defer stop()
	m, err := c.Explain(t.Context(), &adminv1.ExplainRequest{From: "node", To: "svc/shop/web"})
	if err != nil || len(m.GetAnswers()) != 1 || !strings.Contains(m.GetAnswers()[0], `"verdict":"forwarded"`) {
		t.Errorf("Explain = %v, %v", m, err)
	}
	for to, want := range map[string]codes.Code{"web:": codes.InvalidArgument, "web": codes.NotFound, "svc/shop/db": codes.NotFound} {
		if _, err := c.Explain(t.Context(), &adminv1.ExplainRequest{From: "node", To: to}); status.Code(err) != want {
			t.Errorf("%s: %v, want %v", to, err, want)
		}
	}
}

// TestLargeAnswer: the answer to a question fits into a message, whatever the Service has.
func TestLargeAnswer(t *testing.T) {
	large := slice("web", 30_000)
	for i := range large.Endpoints {
		large.Endpoints[i].NodeName = strings.Repeat("n", 200)
	}
	c, stop := serve(t, newProcess(service("web"), large), nil)
	defer stop()
	m, err := c.Explain(t.Context(), &adminv1.ExplainRequest{From: "node", To: "svc/shop/web"})
	if err != nil || len(m.GetAnswers()) != 1 || !strings.Contains(m.GetAnswers()[0], "of 30000 endpoints, 500 are listed") {
		t.Errorf("%d answers, %v", len(m.GetAnswers()), err)
	}
}

// TestTraffic: a reading is sent at once, and one each period, with the time since the one before.
func TestTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := newProcess(), time.Now()
		p.counted = func(s view.Selection) *view.Traffic {
			// Another one has read half a second before each reading but the first.
			at := time.Now()
			if at.After(began) {
				at = at.Add(-time.Second / 2)
			}
			return &view.Traffic{At: at, LeftOut: 7, Ports: []view.PortTraffic{{
				Namespace: s.Namespace, Service: s.Names[0], Port: "http", Counts: view.Counts{Connections: uint64(at.Sub(began) / time.Millisecond)},
			}}}
		}
		c, stop := serve(t, p, nil)
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := c.Traffic(ctx, &adminv1.TrafficRequest{
			Selection: &adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE, Namespace: "shop", Names: []string{"web"}}, Period: durationpb.New(2 * time.Second),
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"0s: shop/web:http 0", "1.5s: shop/web:http 1500", "1.5s: shop/web:http 3000"} {
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			row := m.GetPorts()[0]
			got := fmt.Sprintf("%v: %s/%s:%s %d", m.GetElapsed().AsDuration(), row.GetNamespace(), row.GetService(), row.GetPort(), row.GetConnections())
			if got != want || m.GetLeftOut() != 7 {
				t.Errorf("reading %d: %s, %d left out; want %s", i, got, m.GetLeftOut(), want)
			}
		}
	})
}

// TestTrafficIsRefused: a process that does not count has the reason, and a request that cannot be answered has what is wrong with it.
func TestTrafficIsRefused(t *testing.T) {
	c, stop := serve(t, newProcess(), nil)
	defer stop()
	services := &adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE}
	for _, tt := range []struct {
		selection *adminv1.Selection
		period    time.Duration
		code      codes.Code
		text      string
	}{
		{services, time.Second, codes.FailedPrecondition, "nothing is counted: turn it on"},
		{services, time.Second - 1, codes.InvalidArgument, "give 1s at least"},
		{services, 0, codes.InvalidArgument, "period 0s is too short"},
		{&adminv1.Selection{Kind: adminv1.Kind_KIND_NODE}, time.Second, codes.InvalidArgument, "selection.kind is KIND_NODE"},
		{&adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE, Names: []string{"["}}, time.Second, codes.InvalidArgument, "syntax error in pattern"},
	} {
		stream, err := c.Traffic(t.Context(), &adminv1.TrafficRequest{Selection: tt.selection, Period: durationpb.New(tt.period)})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != tt.code || !strings.Contains(status.Convert(err).Message(), tt.text) {
			t.Errorf("%v, %v: %v, want %v with %q", tt.selection, tt.period, err, tt.code, tt.text)
		}
	}
}
