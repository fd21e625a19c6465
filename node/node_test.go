package node_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
)

// fakeSource delivers a Node and a Service when it is let go, and reports a problem.
type fakeSource struct {
	name string
	goOn chan struct{}
}

func (s *fakeSource) Run(ctx context.Context, sink model.Sink) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.goOn:
	}
	sink.Update([]model.Object{
		&model.Node{Name: s.name, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		&model.Service{
			Name: state.ServiceName{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
		},
	}, nil)
	sink.Complete()
	<-ctx.Done()
	return nil
}

func (s *fakeSource) Problems() []error { return []error{errors.New("the source is a fake")} }

// freeAddress returns an address where nobody listens: a loopback address of this process, as other tests that run at the same time take any
// port of 127.0.0.1 that is free.
func freeAddress(t *testing.T) netip.AddrPort {
	host := "127.0.0.1"
	if pid := os.Getpid(); runtime.GOOS == "linux" && pid < 1<<22 { // it may have any address of 127.0.0.0/8
		host = netip.AddrFrom4([4]byte{127, byte(100 + pid>>16), byte(pid >> 8), byte(pid)}).String()
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

// start runs a node until stop is called. Then Run has to end without an error.
func start(t *testing.T, n *node.Node) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	return ctx, func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	}
}

func get(t *testing.T, address netip.AddrPort, path string) string {
	resp, err := http.Get("http://" + address.String() + path)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.Status + " " + string(text)
}

// TestServer runs a node without a dataplane: it is ready, healthy and measured once the source is complete, serves the API, goes on
// with another configuration, and with another source if the node's name changes.
func TestServer(t *testing.T) {
	c := config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress = "node-a", freeAddress(t), freeAddress(t)
	c.AdminBindAddress = config.AdminNowhere
	socket := "unix://" + filepath.Join(t.TempDir(), "api.sock")
	c.API.Listen = []string{socket}
	goOn, ready := make(chan struct{}), make(chan int, 1)
	var made []string
	n, err := node.New(t.Context(), node.Options{
		Config: c, Role: node.Server, Version: "v1.2.3", OnReady: func(services int) { ready <- services },
		Source: func(_ *config.Config, name string) (model.Source, error) {
			made = append(made, name)
			return &fakeSource{name, goOn}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	if err := n.Reconfigure(c); err != nil { // waits for Run
		t.Error(err)
	}
	if text := get(t, c.HealthzBindAddress, "/healthz"); !strings.HasPrefix(text, "503 ") || !strings.Contains(text, "no state to serve yet") {
		t.Errorf("before the source is complete: %s", text)
	}
	close(goOn)
	if services := <-ready; services != 1 {
		t.Errorf("ready with %d services, want 1", services)
	}
	if text := get(t, c.HealthzBindAddress, "/healthz"); !strings.HasPrefix(text, "200 ") || !strings.Contains(text, "the source is a fake") {
		t.Errorf("after it: %s", text)
	}
	if text := get(t, c.MetricsBindAddress, "/metrics"); !strings.Contains(text, "v1.2.3") {
		t.Error("the metrics do not have the version")
	}

	again := *c
	again.HostnameOverride, again.MetricsBindAddress = "node-b", netip.AddrPort{}
	if err := n.Reconfigure(&again); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(made, " "); got != "node-a node-b" || n.Name() != "node-b" || n.Config() != &again {
		t.Errorf("sources were made for %s, the node is %s", got, n.Name())
	}
	next, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if u, err := n.Feed().Next(next, 0); err != nil || u.Node.Name != "node-b" || len(u.Changed) != 1 {
		t.Errorf("the states are %+v, %v, want those of node-b", u, err)
	}
	conn, err := client.Dial(client.Options{Target: socket})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
	if err := n.Reconfigure(c); err == nil {
		t.Error("a node that has ended was reconfigured")
	}
}

// TestNames: the names of services are served as soon as the configuration says so, while a dataplane runs.
func TestNames(t *testing.T) {
	c := config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress = "node-a", netip.AddrPort{}, netip.AddrPort{}
	c.AdminBindAddress = config.AdminNowhere
	socket := "unix://" + filepath.Join(t.TempDir(), "api.sock")
	c.API.Listen = []string{socket}
	goOn := make(chan struct{})
	close(goOn)
	m := newMemory(2)
	n, err := node.New(t.Context(), node.Options{
		Config:    c,
		Dataplane: func(context.Context, *config.Config, node.DataplaneOptions) (node.Dataplane, error) { return m, nil },
		Source:    func(_ *config.Config, name string) (model.Source, error) { return &fakeSource{name, goOn}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()

	follow, stop := context.WithCancel(ctx)
	defer stop()
	refused, got := make(chan error, 100), make(chan string, 1)
	go client.RunNames(follow, client.Options{Target: socket, OnError: func(err error) { refused <- err }}, func(u *client.NamesUpdate) {
		for _, s := range u.Changed {
			got <- s.Name
		}
		stop()
	})
	for err := range refused {
		if strings.Contains(err.Error(), "does not serve names") {
			break
		}
	}
	with := *c
	with.API.Names = true
	if err := n.Reconfigure(&with); err != nil {
		t.Fatal(err)
	}
	if name := <-got; name != "web" {
		t.Errorf("got the names of %q, want those of web", name)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAddressInUse: an address that cannot be bound ends Run before anything else begins, and the message has the caller's name for it.
func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress = "node-a", netip.MustParseAddrPort(l.Addr().String()), netip.AddrPort{}
	c.AdminBindAddress = config.AdminNowhere
	n, err := node.New(t.Context(), node.Options{
		Config: c, Role: node.Server, FieldName: func(path string) string { return "--" + path },
		Source: func(*config.Config, string) (model.Source, error) { return &fakeSource{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "choose another address with --healthzBindAddress") {
		t.Errorf("Run ended with %v", err)
	}
}

func TestOptions(t *testing.T) {
	src := func(*config.Config, string) (model.Source, error) { return &fakeSource{}, nil }
	kernelspace := config.Default()
	kernelspace.Mode = config.ModeKernelspace
	for _, tt := range []struct {
		o    node.Options
		want string
	}{
		{node.Options{Source: src}, "Config is missing"},
		{node.Options{Config: config.Default()}, "one of Options.Source and Options.States"},
		{node.Options{Config: config.Default(), Source: src, States: &node.States{}}, "one of Options.Source and Options.States"},
		{node.Options{Config: config.Default(), States: &node.States{}}, "States.Feed or States.Latest"},
		{node.Options{Config: kernelspace, Source: src}, "mode kernelspace has no dataplane on"},
	} {
		if _, err := node.New(t.Context(), tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}

// memory is a dataplane in memory.
type memory struct {
	*backendtest.Backend
	bits   chan int32 // gets the bit of each configuration
	closed chan struct{}
}

// newMemory returns one that never fails by itself, and has room for so many bits.
func newMemory(bits int) *memory {
	m := &memory{backendtest.New(1), make(chan int32, bits), make(chan struct{})}
	m.SetFailureRate(0)
	return m
}

func (m *memory) Reconfigure(c *config.Config) error {
	m.bits <- c.MasqueradeBit()
	return nil
}
func (m *memory) Close() error { close(m.closed); return nil }

// TestDataplaneOfOnesOwn runs a node with ready states and a dataplane of the caller's: what is programmed and fails is reported, and
// each Reconfigure reaches the dataplane, which alone knows what it goes by, and what makes the states.
func TestDataplaneOfOnesOwn(t *testing.T) {
	c := config.Default()
	c.HealthzBindAddress, c.MetricsBindAddress = freeAddress(t), netip.AddrPort{}
	m := newMemory(1)
	feed := &backendtest.Feed{}
	feed.Publish([]*state.Service{{Name: state.ServiceName{Namespace: "shop", Name: "web"}}, {Name: state.ServiceName{Namespace: "shop", Name: "bad"}}})
	m.Break(state.ServiceName{Namespace: "shop", Name: "bad"})
	ready, failed, reconfigured := make(chan int, 1), make(chan int, 100), make(chan *config.Config, 2)
	n, err := node.New(t.Context(), node.Options{
		Config: c, StrictHealth: true, OnReady: func(services int) { ready <- services },
		Dataplane: func(context.Context, *config.Config, node.DataplaneOptions) (node.Dataplane, error) { return m, nil },
		States: &node.States{
			Feed: feed, Latest: func() (state.Revision, int) { return feed.Revision(), len(feed.Services()) },
			Report:      func(_ state.Revision, f map[state.ServiceName]error) { failed <- len(f) },
			Reconfigure: func(c *config.Config) { reconfigured <- c },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, stop := start(t, n)
	if services := <-ready; services != 1 {
		t.Errorf("ready with %d services, want 1", services)
	}
	for f := range failed {
		if f == 1 {
			break
		}
	}
	if text := get(t, c.HealthzBindAddress, "/healthz"); !strings.HasPrefix(text, "200 ") || !strings.Contains(text, "shop/bad") {
		t.Errorf("a service that cannot be programmed is no problem: %s", text)
	}
	other := *c
	other.NFTables.MasqueradeBit, other.Edge.Mode = 3, config.EdgeTCX
	for _, next := range []*config.Config{&other, &other} {
		if err := n.Reconfigure(next); err != nil {
			t.Error(err)
		}
		if bit := <-m.bits; bit != 3 {
			t.Errorf("the dataplane got bit %d, want 3", bit)
		}
		select {
		case got := <-reconfigured:
			if got != next {
				t.Error("the states got another configuration")
			}
		default:
			t.Error("the states did not get the configuration")
		}
	}
	if text := get(t, c.HealthzBindAddress, "/healthz"); !strings.Contains(text, "edge.mode is tcx, and this dataplane hands no connections over: set it to none") {
		t.Errorf("an edge that does nothing is no problem: %s", text)
	}
	stop()
	<-m.closed
}
