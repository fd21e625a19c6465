package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/internal/protoconv/protoconvtest"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// watcher is a client's end of a Watch.
type watcher struct {
	t        testing.TB
	stream   localnetv1.Endpoints_WatchClient
	assembly protoconvtest.Assembly
	// parts counts the messages of the last update, and nodes those that had a node.
	parts, nodes int
	// ended has why the stream has ended, once open was called.
	ended chan error
}

// watch opens a Watch with a first request.
func watch(t testing.TB, ctx context.Context, c localnetv1.EndpointsClient, first *localnetv1.WatchRequest) *watcher {
	t.Helper()
	stream, err := c.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{t: t, stream: stream}
	w.send(first)
	return w
}

func (w *watcher) send(m *localnetv1.WatchRequest) {
	w.t.Helper()
	if err := w.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		w.t.Fatal(err)
	}
}

func (w *watcher) ready() { w.t.Helper(); w.send(&localnetv1.WatchRequest{Ready: true}) }

// receive returns the next update, or the error that ends the stream.
func (w *watcher) receive() (*protoconvtest.Received, error) {
	w.t.Helper()
	for w.parts, w.nodes = 0, 0; ; {
		m, err := w.stream.Recv()
		if err != nil {
			return nil, err
		}
		w.parts++
		if m.GetNode() != nil {
			w.nodes++
		}
		r, err := w.assembly.Add(m)
		if err != nil {
			w.t.Fatal(err)
		}
		if r != nil {
			return r, nil
		}
	}
}

// update returns the next update in words: its revision, "full" if it is, "node" if the node came along, and the services.
func (w *watcher) update() string {
	w.t.Helper()
	r, err := w.receive()
	if err != nil {
		w.t.Fatal(err)
	}
	if len(r.Failed) > 0 || r.Position.Revision != r.Update.Revision {
		w.t.Fatalf("got %+v", r)
	}
	words := []string{fmt.Sprint(r.Update.Revision)}
	if r.Update.Full {
		words = append(words, "full")
	}
	if w.nodes > 0 {
		words = append(words, "node")
	}
	for _, s := range r.Update.Changed {
		words = append(words, "+"+s.Name.Name)
	}
	for _, n := range r.Update.Removed {
		words = append(words, "-"+n.Name)
	}
	return strings.Join(words, " ")
}

// expect fails unless the next update is want.
func (w *watcher) expect(want string) {
	w.t.Helper()
	if got := w.update(); got != want {
		w.t.Errorf("the update is %q, want %q", got, want)
	}
}

// ends fails unless the stream has ended with a code, and a word in its message.
func (w *watcher) ends(code codes.Code, word string) {
	w.t.Helper()
	r, err := w.receive()
	if status.Code(err) != code || !strings.Contains(fmt.Sprint(err), word) {
		w.t.Errorf("the stream goes on with %+v and %v; want it to end with %v and %q", r, err, code, word)
	}
}

var subscribe = &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{Client: "test"}, Ready: true}

// bubble runs a test in time that passes only while nothing happens, with a world that has ended after it.
func bubble(t *testing.T, change func(*server.Options), story func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, change)
		story(t, w)
	})
}

// TestWatchIsPaced: the server sends nothing without a request, and merges the changes between requests.
func TestWatchIsPaced(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		c := watch(t, t.Context(), w.client(), subscribe)
		received := make(chan string, 10)
		take := func() {
			go func() { received <- c.update() }()
			synctest.Wait()
		}
		nothing := func(when string) {
			t.Helper()
			synctest.Wait()
			if len(received) > 0 {
				t.Fatalf("%s: got %q", when, <-received)
			}
		}
		something := func(want string) {
			t.Helper()
			synctest.Wait()
			select {
			case got := <-received:
				if got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
			default:
				t.Fatalf("got nothing, want %q", want)
			}
		}
		w.sink.Update(service("a", 1, 2), nil)
		take()
		nothing("the source is not complete")
		w.sink.Complete()
		something("1 full node +a")

		take()
		w.sink.Update(service("b", 2, 2), nil)
		nothing("it was not asked for")
		w.sink.Update(service("c", 3, 2), []model.Ref{{Kind: model.KindService, Namespace: "ns", Name: "a"}})
		w.sink.Update(nil, []model.Ref{{Kind: model.KindService, Namespace: "ns", Name: "b"}})
		c.ready()
		something("4 +c -a -b")

		take()
		c.ready()
		c.ready()
		nothing("nothing has changed")
		w.sink.Update(service("d", 4, 2), nil)
		something("5 +d")
		take()
		w.sink.Update(service("e", 5, 2), nil)
		nothing("it was asked for twice before the answer, which counts once")

		w.sink.Update([]model.Object{&model.Node{Name: nodeName, Addresses: services(1, 1)[0].(*model.Service).ClusterIPs}}, nil)
		c.ready()
		something("7 node +e")
	})
}

// TestWatchResumes from a position of this server, and begins again from any other.
func TestWatchResumes(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.Update(service("a", 1, 2), nil)
	w.sink.Complete()
	w.sink.Update(service("b", 2, 2), nil)
	for _, c := range []struct {
		from protoconv.Position
		want string
	}{
		{protoconv.Position{}, "2 full node +a +b"},
		{protoconv.Position{Instance: 7, Revision: 1}, "2 node +b"},
		{protoconv.Position{Instance: 8, Revision: 1}, "2 full node +a +b"},
		{protoconv.Position{Instance: 7, Revision: 9}, "2 full node +a +b"},
	} {
		first := &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{Resume: c.from.Message()}, Ready: true}
		watch(t, soon(t), w.client(), first).expect(c.want)
	}
}

// TestWatchSplitsLargeUpdates into parts, each of them small.
func TestWatchSplitsLargeUpdates(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.Update(services(4000, 5), nil)
	w.sink.Complete()
	c := watch(t, soon(t), w.client(), subscribe)
	r, err := c.receive()
	if err != nil || len(r.Update.Changed) != 4000 || !r.Update.Full || c.nodes != 1 || c.parts < 5 || c.parts > 12 {
		t.Fatalf("got %d services and %d nodes in %d parts, %v", len(r.Update.Changed), c.nodes, c.parts, err)
	}
	var gone []model.Ref
	for _, o := range services(4000, 5) {
		gone = append(gone, o.Ref())
	}
	w.sink.Update(nil, gone)
	c.ready()
	if r, err = c.receive(); err != nil || len(r.Update.Removed) != 4000 || r.Update.Full || c.parts < 2 {
		t.Fatalf("got %d removed services in %d parts, %v", len(r.Update.Removed), c.parts, err)
	}
}

// TestWatchRefuses checks that violations of the protocol are refused, with a reason.
func TestWatchRefuses(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.Complete()
	sub := subscribe.GetSubscribe()
	long := &localnetv1.Status{Failed: make([]*localnetv1.ServiceError, 101)}
	for i := range long.Failed {
		long.Failed[i] = &localnetv1.ServiceError{Service: &localnetv1.ServiceName{Name: fmt.Sprint(i)}}
	}
	for _, c := range []struct {
		name     string
		requests []*localnetv1.WatchRequest
		code     codes.Code
		word     string
	}{
		{"no subscribe", []*localnetv1.WatchRequest{{Ready: true}}, codes.InvalidArgument, "subscribe is not set"},
		{"subscribe twice", []*localnetv1.WatchRequest{{Subscribe: sub}, {Subscribe: sub}}, codes.InvalidArgument, "after the first"},
		{"no such node", []*localnetv1.WatchRequest{{Subscribe: &localnetv1.Subscribe{Node: "other"}}}, codes.NotFound, `this server has node "node-a" only`},
		{"long status", []*localnetv1.WatchRequest{{Subscribe: sub, Status: long}}, codes.InvalidArgument, "names 101 services"},
		{"large request", []*localnetv1.WatchRequest{{Subscribe: &localnetv1.Subscribe{Client: strings.Repeat("x", 200<<10)}}}, codes.ResourceExhausted, "larger"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := watch(t, soon(t), w.client(), c.requests[0])
			for _, m := range c.requests[1:] {
				s.send(m)
			}
			s.ends(c.code, c.word)
		})
	}
	t.Run("nothing", func(t *testing.T) {
		stream, err := w.client().Watch(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.CloseSend()
		(&watcher{t: t, stream: stream}).ends(codes.InvalidArgument, "ended before")
	})
	t.Run("the end", func(t *testing.T) {
		s := watch(t, soon(t), w.client(), subscribe)
		_ = s.stream.CloseSend()
		s.expect("1 full node")
		if _, err := s.receive(); !errors.Is(err, io.EOF) {
			t.Errorf("after its last request and the answer, the stream ends with %v", err)
		}
	})
}

// TestStatus is handed on as it comes, after the client itself and before its end.
func TestStatus(t *testing.T) {
	var mu sync.Mutex
	var reported []string
	report := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, fmt.Sprintf(format, args...))
	}
	bubble(t, func(o *server.Options) {
		o.OnOpen = func(c server.Client) { report("%d watches for %s", c.ID, c.Node) }
		o.OnStatus = func(c server.Client, s server.Status) { report("%d %s %s: %+v", c.ID, c.Name, c.Node, s) }
		o.OnClose = func(c server.Client) { report("%d is gone", c.ID) }
	}, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		name := strings.Repeat("n", 62) + "é"
		c := watch(t, ctx, w.client(), &localnetv1.WatchRequest{
			Subscribe: &localnetv1.Subscribe{Client: name}, Status: &localnetv1.Status{Applied: &localnetv1.Position{InstanceId: 7, Rev: 3}},
		})
		c.send(&localnetv1.WatchRequest{Status: &localnetv1.Status{Applied: &localnetv1.Position{InstanceId: 6, Rev: 9}, FailedTotal: 1, Failed: []*localnetv1.ServiceError{{
			Service: protoconv.ServiceName(state.ServiceName{Namespace: "ns", Name: "a"}), Message: "no room",
		}}}})
		synctest.Wait()
		cancel()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		want := []string{
			"1 watches for node-a",
			"1 " + name[:62] + " node-a: {Applied:3 Failed:map[] FailedTotal:0}",
			"1 " + name[:62] + " node-a: {Applied:0 Failed:map[ns/a:no room] FailedTotal:1}",
			"1 is gone",
		}
		if fmt.Sprint(reported) != fmt.Sprint(want) {
			t.Errorf("reported %q\nwant %q", reported, want)
		}
	})
}

// TestSentUpdatesAreReported: each update that a watching client is sent is reported, and nothing that others are handed.
func TestSentUpdatesAreReported(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	var bytes atomic.Uint64
	bubble(t, func(o *server.Options) {
		o.SentBytes = &bytes
		o.OnSend = func(c server.Client, revision state.Revision) {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, fmt.Sprintf("%d of %s to %d", revision, c.Node, c.ID))
		}
	}, func(t *testing.T, w *world) {
		w.sink.Complete()
		c := watch(t, t.Context(), w.client(), subscribe)
		c.expect("1 full node")
		watch(t, t.Context(), w.client(), &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{}}) // asks for no update
		c.ready()
		w.sink.Update(service("a", 1, 1), nil)
		c.expect("2 +a")
		if _, names, err := next(t, t.Context(), w.client(), &localnetv1.NextFilter{}); names != "a" || err != nil {
			t.Errorf("a client that polls gets %q, %v", names, err)
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"1 of node-a to 1", "2 of node-a to 1"}; !slices.Equal(sent, want) {
			t.Errorf("%q were sent, want %q", sent, want)
		}
		if n := bytes.Load(); n < 100 || n > 10_000 {
			t.Errorf("%d bytes were sent", n)
		}
	})
}

// TestShutdownSendsClientsAway at once with UNAVAILABLE, whatever they wait for.
func TestShutdownSendsClientsAway(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		waiting := watch(t, t.Context(), w.client(), subscribe)
		w.sink.Complete()
		waiting.expect("1 full node")
		waiting.ready()
		idle := watch(t, t.Context(), w.client(), &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{}})
		mute, err := w.client().Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		polled := make(chan error, 1)
		go func() {
			_, _, err := next(t, t.Context(), w.client(), &localnetv1.NextFilter{InstanceId: 7, Rev: 1})
			polled <- err
		}()
		synctest.Wait()
		start := time.Now()
		w.stop()
		waiting.ends(codes.Unavailable, "shutting down")
		idle.ends(codes.Unavailable, "shutting down")
		(&watcher{t: t, stream: mute}).ends(codes.Unavailable, "shutting down")
		if err := <-polled; status.Code(err) != codes.Unavailable {
			t.Errorf("Next: %v", err)
		}
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
	})
}

// TestShutdownCutsStuckClients after two seconds.
func TestShutdownCutsStuckClients(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		w.sink.Update(services(3000, 5), nil)
		w.sink.Complete()
		stuck := watch(t, t.Context(), w.client(), subscribe)
		synctest.Wait() // until the transport takes no more
		start := time.Now()
		w.stop()
		if d := time.Since(start); d < time.Second || d > 3*time.Second {
			t.Errorf("it took %v, want 2 s", d)
		}
		for err := error(nil); err == nil; {
			_, err = stuck.stream.Recv()
		}
	})
}

// TestHeaderSaysThatThereIsAState: clients get it once there is one, however little they ask for, and not before.
func TestHeaderSaysThatThereIsAState(t *testing.T) {
	var ready chan struct{}
	for name, change := range map[string]func(*server.Options){
		"with Ready":    func(o *server.Options) { o.Ready = ready },
		"without Ready": nil,
	} {
		for asks, first := range map[string]*localnetv1.WatchRequest{
			"only subscribes":    {Subscribe: &localnetv1.Subscribe{}},
			"asks for an update": {Subscribe: &localnetv1.Subscribe{}, Ready: true},
			"resumes elsewhere's": {Subscribe: &localnetv1.Subscribe{
				Resume: &localnetv1.Position{InstanceId: 99, Rev: 3},
			}},
		} {
			t.Run(name+", "+asks, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ready = make(chan struct{})
					w := newWorld(t, change)
					c := watch(t, t.Context(), w.client(), first)
					came := make(chan error, 1)
					go func() {
						_, err := c.stream.Header()
						came <- err
					}()
					time.Sleep(time.Hour)
					if len(came) > 0 {
						t.Fatal("it came before there was a state")
					}
					w.sink.Complete()
					close(ready)
					synctest.Wait()
					if len(came) == 0 {
						t.Fatal("it has not come")
					}
					if err := <-came; err != nil {
						t.Fatal(err)
					}
					if !first.GetReady() {
						c.ready()
					}
					c.expect("1 full node")
				})
			})
		}
	}
}
