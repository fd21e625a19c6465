package apifollower_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/apifollower"
	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// remote is a server that comes and goes.
type remote struct {
	t *testing.T

	mu       sync.Mutex
	listener *bufconn.Listener // nil while there is no server
	stop     func()
}

// options returns the options of a client of the server.
func (r *remote) options() client.Options {
	return client.Options{
		Target: "unix:///api", Node: "here", MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			r.mu.Lock()
			l := r.listener
			r.mu.Unlock()
			if l == nil {
				return nil, errors.New("connection refused")
			}
			return l.DialContext(ctx)
		})},
	}
}

// run runs a follower of the server until the test ends.
func (r *remote) run(f *apifollower.Follower) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
		r.down()
	})
}

// listen starts a server.
func (r *remote) listen(serve func(context.Context, net.Listener) error) {
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := serve(ctx, l); err != nil {
			r.t.Error(err)
		}
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener, r.stop = l, func() {
		cancel()
		<-done
	}
}

// down ends the server.
func (r *remote) down() {
	r.mu.Lock()
	stop := r.stop
	r.listener, r.stop = nil, nil
	r.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// world is a follower and its server.
type world struct {
	remote
	follower *apifollower.Follower
	reported []string // to the server that is up; guarded by mu
	logged   bytes.Buffer
}

// Write takes a line of the follower's log.
func (w *world) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logged.Write(line)
}

func newWorld(t *testing.T) *world {
	w := &world{remote: remote{t: t}}
	var err error
	if w.follower, err = apifollower.New(apifollower.Options{Logger: slog.New(slog.NewTextHandler(w, nil)), Client: w.options()}); err != nil {
		t.Fatal(err)
	}
	w.run(w.follower)
	return w
}

// up starts a server of an instance, with the states of a feed, and gives the follower time to find it.
func (w *world) up(instance uint64, feed state.Feed) {
	w.t.Helper()
	w.serve(func(ctx context.Context, l net.Listener) error {
		s, err := server.New(server.Options{
			InstanceID: instance, Node: "here", Feed: func(string) (state.Feed, error) { return feed, nil },
			OnStatus: func(_ server.Client, s server.Status) { w.heard(s.Applied, len(s.Failed)) },
		})
		if err != nil {
			return err
		}
		return s.Serve(ctx, l, nil)
	})
}

func (w *world) serve(serve func(context.Context, net.Listener) error) {
	w.mu.Lock()
	w.reported = nil
	w.mu.Unlock()
	w.listen(serve)
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

func (w *world) heard(applied state.Revision, failed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, fmt.Sprintf("%d, %d failed", applied, failed))
}

// reports checks the last report that the server has received.
func (w *world) reports(want string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.reported); n == 0 || w.reported[n-1] != want {
		w.t.Errorf("the server was sent %q, want %q at last", w.reported, want)
	}
}

// shows expects the services, with their health check ports.
func (w *world) shows(want string) {
	w.t.Helper()
	synctest.Wait()
	s := w.follower.Snapshot()
	var got []string
	for r := range s.Services() {
		got = append(got, fmt.Sprintf("%s:%d", r.Name.Name, r.HealthCheck.Port))
	}
	if text := strings.Join(got, " "); text != want {
		w.t.Errorf("the follower has %q, want %q", text, want)
	}
}

func (w *world) applies() {
	w.follower.Report(w.follower.Snapshot().Revision(), nil)
}

// newFeed returns states to serve, which set replaces; nothing is served before.
func newFeed() (feed *revlog.States, set func(ports map[string]uint16)) {
	feed = revlog.NewStates(&state.Node{Name: "here"}, errClosed)
	return feed, func(ports map[string]uint16) {
		u := &state.Update{Full: true, Node: &state.Node{Name: "here"}}
		for _, name := range slices.Sorted(maps.Keys(ports)) {
			u.Changed = append(u.Changed, &state.Service{
				Name: state.ServiceName{Namespace: "ns", Name: name}, HealthCheck: state.HealthCheck{Port: ports[name]},
			})
		}
		feed.Apply(u)
	}
}

// TestServersAreRestarted goes through the lives of three servers. No server removes the state of the previous one,
// regardless of how long it takes to learn the current state. Afterwards only the differences arrive.
func TestServersAreRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first, set := newFeed()
		set(map[string]uint16{"a": 1, "b": 1})
		w.up(1, first)
		w.shows("a:1 b:1")
		w.applies()
		w.reports("1, 0 failed")
		shown := w.follower.Snapshot()
		if problems := w.follower.Problems(); len(problems) > 0 {
			t.Errorf("problems while all is well: %v", problems)
		}

		w.down()
		time.Sleep(time.Hour)
		w.shows("a:1 b:1")
		problems := w.follower.Problems()
		if len(problems) != 1 || !strings.Contains(problems[0].Error(), "no state from the API since") {
			t.Errorf("problems without a server: %v", problems)
		}

		second, set := newFeed()
		w.up(2, second) // has no state yet
		time.Sleep(time.Minute)
		w.shows("a:1 b:1")
		if since, _ := w.follower.Lost(); since.IsZero() {
			t.Error("a server that has no state counts as one")
		}
		w.reports("0, 0 failed")
		set(map[string]uint16{"a": 1, "b": 1})
		w.reports("1, 0 failed")
		w.shows("a:1 b:1")

		w.down()
		third, set := newFeed()
		for port := range uint16(4) {
			set(map[string]uint16{"a": 1, "b": port})
		}
		w.up(3, third)
		w.shows("a:1 b:3")
		u, err := w.follower.Next(t.Context(), shown.Revision())
		if err != nil || u.Full {
			t.Errorf("the state of another server is %+v, %v; want what is different", u, err)
		}
		w.applies()
		w.reports("4, 0 failed")
		if problems := w.follower.Problems(); len(problems) > 0 {
			t.Errorf("problems with the third server: %v", problems)
		}
	})
}

// TestNewServerHearsWhatIsShown: a server with the same state as the one before makes no work for the dataplane, and yet hears
// that its state is shown.
func TestNewServerHearsWhatIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first, set := newFeed()
		set(map[string]uint16{"a": 1})
		w.up(1, first)
		w.applies()
		w.reports("1, 0 failed")
		before := w.follower.Snapshot().Revision()
		w.down()

		second, set := newFeed()
		for port := range uint16(7) {
			set(map[string]uint16{"a": 7 - port})
		}
		w.up(2, second)
		if now := w.follower.Snapshot().Revision(); now != before {
			t.Errorf("the same state is revision %d after %d", now, before)
		}
		w.reports("7, 0 failed")
		// So it does after an update that changes nothing, as of a service that has changed and changed back.
		set(map[string]uint16{"a": 2})
		synctest.Wait()
		w.reports("7, 0 failed") // it is not applied yet
		set(map[string]uint16{"a": 1})
		synctest.Wait()
		w.applies()
		w.reports("9, 0 failed")
	})
}

// scripted is a server that sends the updates of the test.
type scripted struct {
	localnetv1.UnimplementedEndpointsServer
	world *world
	send  chan *localnetv1.WatchResponse
}

func (s *scripted) Watch(stream grpc.BidiStreamingServer[localnetv1.WatchRequest, localnetv1.WatchResponse]) error {
	ready := make(chan struct{}, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if st := m.GetStatus(); st != nil {
				s.world.heard(state.Revision(st.GetApplied().GetRev()), int(st.GetFailedTotal()))
			}
			if m.GetReady() {
				ready <- struct{}{}
			}
		}
	}()
	for {
		select {
		case <-ready:
		case <-stream.Context().Done():
			return nil
		}
		select {
		case m := <-s.send:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// script starts a server. It sends the updates that are passed to the returned function, and each must be reported as
// applied.
func (w *world) script() (send func(full bool, services ...*localnetv1.ServiceEndpoints)) {
	respond, first := w.scriptResponses(), true
	return func(full bool, services ...*localnetv1.ServiceEndpoints) {
		m := &localnetv1.WatchResponse{Full: full, Changed: services}
		if first || full {
			m.Node = &localnetv1.Node{Name: "here"}
		}
		first = false
		respond(m)
	}
}

// scriptResponses is script for whole responses, but for their positions.
func (w *world) scriptResponses() (send func(*localnetv1.WatchResponse)) {
	s := &scripted{world: w, send: make(chan *localnetv1.WatchResponse)}
	w.serve(func(ctx context.Context, l net.Listener) error {
		g := grpc.NewServer()
		localnetv1.RegisterEndpointsServer(g, s)
		context.AfterFunc(ctx, g.Stop)
		return g.Serve(l)
	})
	rev := uint64(0)
	return func(m *localnetv1.WatchResponse) {
		rev++
		m.Position = &localnetv1.Position{InstanceId: 9, Rev: rev}
		s.send <- m
		synctest.Wait()
		w.applies()
	}
}

// TestWhatCannotBeReadStays: a service in words that are not known yet stays as it was, the others go on, and both ends report it.
func TestWhatCannotBeReadStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		send := w.script()
		service := func(name string, port uint32) *localnetv1.ServiceEndpoints {
			return &localnetv1.ServiceEndpoints{Namespace: "ns", Name: name, HealthCheck: &localnetv1.HealthCheck{Port: port}}
		}
		unknown := func(name string) *localnetv1.ServiceEndpoints { return service(name, 1<<20) }

		send(true, service("a", 1), service("b", 1))
		w.shows("a:1 b:1")
		w.reports("1, 0 failed")
		send(false, unknown("a"), service("b", 2), unknown("c"))
		w.shows("a:1 b:2")
		w.reports("2, 2 failed")
		if problems := w.follower.Problems(); len(problems) != 2 || !strings.Contains(fmt.Sprint(problems), "service ns/a: ") {
			t.Errorf("problems: %v", problems)
		}
		send(true, unknown("a"), service("b", 3))
		w.shows("a:1 b:3")
		w.reports("3, 1 failed")
		send(false, service("a", 4))
		w.shows("a:4 b:3")
		w.reports("4, 0 failed")
		if problems := w.follower.Problems(); len(problems) > 0 {
			t.Errorf("problems: %v", problems)
		}
		send(false, unknown("b"))
		send(true, service("a", 4)) // what cannot be read, and is gone
		w.shows("a:4")
		w.reports("6, 0 failed")
	})
}

// TestNodeThatCannotBeRead: a node with faulty settings loses these settings. A node with any other fault stays
// unchanged, and is a problem until the server sends another one.
func TestNodeThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		send := w.scriptResponses()
		address := []byte{192, 0, 2, 1}
		expect := func(nodePorts bool, problems ...string) {
			t.Helper()
			n := w.follower.Snapshot().Node()
			if len(n.Addresses) != 1 || n.LocalDetector != nil || (n.NodePorts != nil) != nodePorts {
				t.Errorf("the node is %+v", n)
			}
			got := w.follower.Problems()
			if len(got) != len(problems) || len(got) == 1 && !strings.Contains(got[0].Error(), problems[0]) {
				t.Errorf("problems %v, want %q", got, problems)
			}
		}
		send(&localnetv1.WatchResponse{Full: true, Node: &localnetv1.Node{
			Name: "here", Addresses: [][]byte{address}, PodDetection: &localnetv1.PodDetection{}, NodePortAddresses: &localnetv1.NodePortAddresses{Primary: true},
		}})
		expect(true, `node "here": pod_detection: mode is not set`)
		send(&localnetv1.WatchResponse{Changed: []*localnetv1.ServiceEndpoints{{Namespace: "ns", Name: "a"}}})
		expect(true, `node "here": pod_detection: mode is not set`)
		send(&localnetv1.WatchResponse{Node: &localnetv1.Node{Name: "here", Addresses: [][]byte{address}}})
		expect(false)
		send(&localnetv1.WatchResponse{Node: &localnetv1.Node{Name: "here", Addresses: [][]byte{{1}}}})
		expect(false, `node "here": addresses[0]`)
	})
}

// TestFrontendsOfWhatCannotBeReadGoToOthers: a service stays as it was, but for the frontends that another one gets.
func TestFrontendsOfWhatCannotBeReadGoToOthers(t *testing.T) {
	for name, full := range map[string]bool{"a full update": true, "an update": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				send := w.script()
				service := func(name string, ports ...uint32) *localnetv1.ServiceEndpoints {
					s := &localnetv1.ServiceEndpoints{Namespace: "ns", Name: name}
					for _, p := range ports {
						route := &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_DROP}
						s.Ports = append(s.Ports, &localnetv1.Port{
							Name: fmt.Sprint(p), Protocol: localnetv1.Protocol_PROTOCOL_TCP, Family: localnetv1.Family_FAMILY_IPV4,
							Frontends: []*localnetv1.Frontend{{Kind: localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP, Address: []byte{10, 0, 0, 1}, Port: p}},
							Internal:  &localnetv1.Traffic{Inside: route, Outside: route, Masquerade: localnetv1.Masquerade_MASQUERADE_NEVER},
						})
					}
					return s
				}
				unknown := func(name string) *localnetv1.ServiceEndpoints {
					return &localnetv1.ServiceEndpoints{Namespace: "ns", Name: name, HealthCheck: &localnetv1.HealthCheck{Port: 1 << 20}}
				}
				send(true, service("a", 80, 81), service("b", 90), service("c", 70))
				w.shows("a:0 b:0 c:0")
				send(full, unknown("a"), service("b", 90, 91), unknown("c"))
				w.shows("a:0 b:0 c:0")
				if full {
					send(true, unknown("a"), service("b", 81), unknown("c"))
				} else {
					send(false, service("b", 81))
				}
				w.shows("a:0 b:0 c:0")
				w.reports("3, 2 failed")
				a := w.follower.Snapshot().Get(state.ServiceName{Namespace: "ns", Name: "a"})
				if len(a.Ports) != 1 || a.Ports[0].Frontends[0].Port != 80 {
					t.Errorf("of a there is %+v", a)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if n := strings.Count(w.logged.String(), `"invalid service loses frontends that belong to other services now" service=ns/a`); n != 1 {
					t.Errorf("the log names the service that loses a frontend %d times, want once:\n%s", n, &w.logged)
				}
			})
		})
	}
}
