package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// recorder is a sink that records its calls, and behaves as the test demands.
type recorder struct {
	mu    sync.Mutex
	calls []string
	shows map[ServiceName]*localnetv1.ServiceEndpoints
	// apply decides about a change; nil: it succeeds.
	apply func(c *Change) (map[ServiceName]error, error)
}

func (r *recorder) Apply(_ context.Context, c *Change) (map[ServiceName]error, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%v", since())
	if c.First {
		b.WriteString(" first")
	}
	for _, s := range c.Changed {
		b.WriteString(" +" + s.Name)
	}
	for _, name := range c.Removed {
		b.WriteString(" -" + name.Name)
	}
	r.calls = append(r.calls, b.String())
	var failed map[ServiceName]error
	if r.apply != nil {
		var err error
		if failed, err = r.apply(c); err != nil {
			return nil, err
		}
	}
	if r.shows == nil {
		r.shows = make(map[ServiceName]*localnetv1.ServiceEndpoints)
	}
	for _, s := range c.Changed {
		if failed[NameOf(s)] == nil {
			r.shows[NameOf(s)] = s
		}
	}
	for _, name := range c.Removed {
		if failed[name] == nil {
			delete(r.shows, name)
		}
	}
	return failed, nil
}

// when changes what apply sees.
func (r *recorder) when(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// taken returns the sink's calls since the last call of taken.
func (r *recorder) taken() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := strings.Join(r.calls, "; ")
	r.calls = nil
	return calls
}

func wantTold(t *testing.T, r *recorder, want string) {
	t.Helper()
	if got := r.taken(); got != want {
		t.Errorf("the sink gets %q, want %q", got, want)
	}
}

func wantStatus(t *testing.T, m *memory, want string) {
	t.Helper()
	synctest.Wait()
	if got := m.lastStatus(); got != want {
		t.Errorf("the server has the status %q, want %q", got, want)
	}
}

func runSink(t *testing.T, o Options, sink Sink) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := RunSink(ctx, o, sink); err != nil {
			t.Errorf("RunSink: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

func TestASinkIsToldOnlyWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		m := newMemory(1, service("a", 1, 1), service("b", 1, 1), service("c", 1, 1), service("e", 1, 1))
		stop := net.serve(t, m)
		var sink recorder
		runSink(t, net.options(), &sink)
		wantTold(t, &sink, "0s first +a +b +c +e")
		wantStatus(t, m, "applied 1, 0 failed")
		m.set(service("b", 2, 1))
		wantTold(t, &sink, "0s +b")
		m.remove(ServiceName{"shop", "a"})
		wantTold(t, &sink, "0s -a")
		m.set(service("b", 2, 1)) // the same as before
		wantTold(t, &sink, "")
		wantStatus(t, m, "applied 4, 0 failed")

		// A new server never empties the sink, and does not repeat the sink's records.
		stop()
		m = newMemory(2, service("b", 2, 1), service("c", 7, 1), service("d", 1, 1))
		time.Sleep(time.Minute)
		net.serve(t, m)
		time.Sleep(time.Minute)
		if got := sink.taken(); !strings.HasSuffix(got, "s +c +d -e") || strings.Contains(got, ";") {
			t.Errorf("after a restart of the server the sink gets %q", got)
		}
		wantStatus(t, m, "applied 1, 0 failed")
	})
}

func TestAnEmptyStateIsAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		m := newMemory(1)
		net.serve(t, m)
		var sink recorder
		runSink(t, net.options(), &sink)
		wantTold(t, &sink, "0s first")
		wantStatus(t, m, "applied 1, 0 failed")
	})
}

func TestAChangeOfTheNodeIsAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		var nodes []string
		sink := &recorder{apply: func(c *Change) (map[ServiceName]error, error) {
			nodes = append(nodes, c.Node.Name)
			return nil, nil
		}}
		runSink(t, net.options(), sink)
		p := srv.watch(t)
		for i, name := range []string{"a", "a", "b"} {
			synctest.Wait() // until the update is asked for
			p.send(&localnetv1.WatchResponse{Full: i == 0, Node: node(name), Position: at(1, uint64(i+1))})
		}
		synctest.Wait()
		if !slices.Equal(nodes, []string{"a", "b"}) {
			t.Errorf("the sink gets the nodes %q", nodes)
		}
	})
}

func TestABusySinkGetsOneChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		m := newMemory(1, service("a", 1, 1))
		net.serve(t, m)
		sink := &recorder{apply: func(*Change) (map[ServiceName]error, error) {
			time.Sleep(time.Second)
			return nil, nil
		}}
		runSink(t, net.options(), sink)
		for i := range 100 {
			time.Sleep(time.Millisecond)
			m.set(service("b", i, 1))
			m.set(service("c", i, 1))
		}
		time.Sleep(10 * time.Second)
		wantTold(t, sink, "0s first +a; 1s +b +c")
		if m.updates != 2 || m.sent != 3 {
			t.Errorf("the server has sent %d services in %d updates, want 3 in 2", m.sent, m.updates)
		}
	})
}

func TestASinkThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		m := newMemory(1, service("a", 1, 1), service("b", 1, 1))
		net.serve(t, m)
		broken := true
		sink := &recorder{apply: func(*Change) (map[ServiceName]error, error) {
			if broken {
				return nil, errors.New("the kernel is busy")
			}
			return nil, nil
		}}
		runSink(t, net.options(), sink)
		time.Sleep(150 * time.Millisecond)
		wantTold(t, sink, "0s first +a +b; 100ms first +a +b")
		// Changes during the pause are merged in; a service that was added and removed may have reached the kernel.
		m.remove(ServiceName{"shop", "a"})
		m.set(service("c", 1, 1))
		time.Sleep(250 * time.Millisecond)
		wantTold(t, sink, "300ms first +b +c -a")
		wantStatus(t, m, "none")
		sink.when(func() { broken = false })
		time.Sleep(time.Second)
		wantTold(t, sink, "700ms first +b +c -a")
		wantStatus(t, m, "applied 3, 0 failed")

		// The next series of failures begins with the shortest pause. Withdrawn failures are also reported.
		sink.when(func() { broken = true })
		m.set(service("b", 2, 1))
		wantTold(t, sink, "1.4s +b")
		m.set(service("b", 1, 1))
		sink.when(func() { broken = false })
		time.Sleep(time.Second)
		wantTold(t, sink, "1.5s +b")
		time.Sleep(time.Hour)
		wantTold(t, sink, "")
	})
}

func TestFailedServicesAreReportedAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		m := newMemory(1, service("a", 1, 1), service("bad", 1, 1))
		net.serve(t, m)
		bad := true
		sink := &recorder{apply: func(c *Change) (map[ServiceName]error, error) {
			failed := make(map[ServiceName]error)
			for _, s := range c.Changed {
				if s.Name == "bad" && bad {
					failed[NameOf(s)] = errors.New("no room")
				}
			}
			return failed, nil
		}}
		var log strings.Builder
		o := net.options()
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		runSink(t, o, sink)
		time.Sleep(350 * time.Millisecond)
		wantTold(t, sink, "0s first +a +bad; 100ms +bad; 300ms +bad")
		wantStatus(t, m, "applied 1, 1 failed")
		// Others do not wait for it.
		m.set(service("c", 1, 1))
		wantTold(t, sink, "350ms +bad +c")
		wantStatus(t, m, "applied 2, 1 failed")
		m.set(service("c", 1, 1))
		wantTold(t, sink, "")
		wantStatus(t, m, "applied 3, 1 failed")
		sink.when(func() { bad = false })
		time.Sleep(time.Minute)
		wantTold(t, sink, "1.15s +bad")
		wantStatus(t, m, "applied 3, 0 failed")
		if n := strings.Count(log.String(), "no room"); n != 1 {
			t.Errorf("the log reports the failure %d times, want once:\n%s", n, log.String())
		}
	})
}

func TestRunSinkRefusesWrongOptions(t *testing.T) {
	err := RunSink(t.Context(), Options{Target: "192.0.2.1:80"}, &recorder{})
	if err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("error %v", err)
	}
}

// TestFollowsThroughEverything starts and stops servers, breaks streams and fails sinks at random. In the end each sink
// shows the server's state. At all times it has received a whole and ordered state.
func TestFollowsThroughEverything(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { followThroughEverything(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func followThroughEverything(t *testing.T, random *rand.Rand) {
	var dice sync.Mutex
	calm := false
	roll := func(n int) bool {
		dice.Lock()
		defer dice.Unlock()
		return !calm && random.IntN(n) == 0
	}
	pick := func(n int) int {
		dice.Lock()
		defer dice.Unlock()
		return random.IntN(n)
	}
	var net wire
	var m *memory
	stop := func() {}
	restart := func(instance int) {
		stop()
		old := m
		m = newMemory(uint64(instance))
		if old != nil {
			m.services = old.services
			for name := range m.services {
				m.touched[name] = 1
			}
		}
		m.partSize = 1 + pick(5)
		m.interrupt = func() bool { return roll(10) }
		stop = net.serve(t, m)
	}
	restart(1)

	sink := &recorder{apply: func(c *Change) (map[ServiceName]error, error) {
		if all := c.Services(); !slices.IsSortedFunc(all, func(a, b *localnetv1.ServiceEndpoints) int { return NameOf(a).Compare(NameOf(b)) }) {
			t.Errorf("the state is not in order: %v", result{items: all}.names())
		}
		time.Sleep(time.Duration(pick(50)) * time.Millisecond)
		if roll(4) {
			return nil, errors.New("bad luck")
		}
		failed := make(map[ServiceName]error)
		for _, s := range c.Changed {
			if roll(10) {
				failed[NameOf(s)] = errors.New("bad luck")
			}
		}
		return failed, nil
	}}
	var whole []*localnetv1.ServiceEndpoints // as a sink of whole states sees it
	runSink(t, net.options(), sink)
	runSink(t, net.options(), SinkFunc(func(_ context.Context, c *Change) (map[ServiceName]error, error) {
		whole = c.Services()
		return nil, nil
	}))

	for step := range 300 {
		name := fmt.Sprint("s", pick(20))
		switch {
		case roll(20):
			restart(step + 2)
		case roll(20):
			m.mu.Lock()
			m.oldest = m.rev // forgets
			m.mu.Unlock()
		case roll(3):
			m.remove(ServiceName{"shop", name})
		default:
			m.set(service(name, pick(3), pick(3)))
		}
		time.Sleep(time.Duration(pick(100)) * time.Millisecond)
	}
	dice.Lock()
	calm = true
	dice.Unlock()
	time.Sleep(time.Minute)
	synctest.Wait()
	wantStatus(t, m, fmt.Sprintf("applied %d, 0 failed", m.rev))
	if len(sink.shows) != len(m.services) || len(whole) != len(m.services) {
		t.Fatalf("the sinks show %d and %d services, the server has %d", len(sink.shows), len(whole), len(m.services))
	}
	for _, s := range whole {
		if has := m.services[NameOf(s)]; !proto.Equal(s, has) || !proto.Equal(sink.shows[NameOf(s)], has) {
			t.Errorf("%s: the server has\n%v, the sinks show\n%v and\n%v", NameOf(s), has, sink.shows[NameOf(s)], s)
		}
	}
}
