package apifollower_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/apifollower"
	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

const after = 10 * time.Second

var errClosed = errors.New("closed")

// fallbackWorld has a relay that comes and goes, and a node that follows it or helps itself.
type fallbackWorld struct {
	remote

	// All below but node is guarded by mu.
	reported  []string
	instances map[*revlog.States]uint64

	backups int // started
	running int
	own     *revlog.States // the backup's states
	broken  error          // why the backup cannot work

	node *apifollower.Follower
}

func newFallbackWorld(t *testing.T) *fallbackWorld {
	w := &fallbackWorld{remote: remote{t: t}, own: revlog.NewStates(&state.Node{Name: "here"}, errClosed), instances: make(map[*revlog.States]uint64)}
	var err error
	if w.node, err = apifollower.New(apifollower.Options{Fallback: &apifollower.Fallback{After: after, Start: w.backup}, Client: w.options()}); err != nil {
		t.Fatal(err)
	}
	w.run(w.node)
	return w
}

func (w *fallbackWorld) backup(ctx context.Context) (state.Feed, func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backups++
	if w.broken != nil {
		closed := revlog.NewStates(&state.Node{Name: "here"}, errClosed)
		closed.Close()
		return closed, func() error { return w.broken }
	}
	w.running++
	own := w.own
	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running--
	})
	return own, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.broken
	}
}

// up starts a relay that serves the contents of a feed, and lets the node find it. With the same feed it is the same
// relay.
func (w *fallbackWorld) up(feed *revlog.States) {
	defer time.Sleep(2 * time.Second)
	w.mu.Lock()
	if w.instances[feed] == 0 {
		w.instances[feed] = uint64(len(w.instances)) + 1
	}
	instance := w.instances[feed]
	w.mu.Unlock()
	s, err := server.New(server.Options{
		InstanceID: instance,
		Feed:       func(string) (state.Feed, error) { return slow{feed}, nil },
		OnStatus: func(_ server.Client, s server.Status) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reported = append(w.reported, fmt.Sprintf("%d %v", s.Applied, s.Failed))
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.listen(func(ctx context.Context, l net.Listener) error { return s.Serve(ctx, l, nil) })
}

// shows expects the services that the node shows, once everything has settled.
func (w *fallbackWorld) shows(want string) {
	w.t.Helper()
	synctest.Wait()
	var names []string
	for s := range w.node.Snapshot().Services() {
		names = append(names, s.Name.Name)
	}
	if got := strings.Join(names, " "); got != want {
		w.t.Errorf("the node shows %q, want %q", got, want)
	}
}

// expectReport checks the last report that a relay has received.
func (w *fallbackWorld) expectReport(want string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.reported) == 0 || w.reported[len(w.reported)-1] != want {
		w.t.Errorf("the relay was sent %q, want %q at last", w.reported, want)
	}
}

// backedUp expects how often the backup was started, and whether it runs.
func (w *fallbackWorld) backedUp(times, running int) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.backups != times || w.running != running {
		w.t.Errorf("the backup was started %d times and %d run, want %d and %d", w.backups, w.running, times, running)
	}
}

// slow is a feed that reports changes with a delay.
type slow struct{ state.Feed }

func (s slow) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	if after > 0 {
		time.Sleep(100 * time.Millisecond)
	}
	return s.Feed.Next(ctx, after)
}

func service(name string) *state.Service {
	addr := netip.MustParseAddr("10.96.0.1")
	return &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}, Ports: []state.Port{{
		Name: "http", Protocol: state.TCP, Family: state.IPv4,
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: 80}},
		Internal: state.Traffic{
			Inside: state.Route{Verdict: state.Reject}, Outside: state.Route{Verdict: state.Reject}, Masquerade: state.MasqueradeNever,
		},
	}}}
}

// has makes a feed hold exactly these services.
func has(r *revlog.States, names ...string) {
	u := &state.Update{Full: true, Node: &state.Node{Name: "here"}}
	for _, n := range names {
		u.Changed = append(u.Changed, service(n))
	}
	r.Apply(u)
}

func TestANodeHelpsItselfWhileNoRelayAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, relay := newFallbackWorld(t), revlog.NewStates(&state.Node{Name: "here"}, errClosed)
		has(relay, "a")
		w.up(relay)
		w.shows("a")

		// A relay that is gone for a moment makes no difference, even if the state changes during that time.
		w.down()
		time.Sleep(after - 2*time.Second)
		has(relay, "a", "b")
		w.up(relay)
		w.shows("a b")
		w.backedUp(0, 0)

		// One that is gone for longer is replaced. Until the backup has a state, the last one stays.
		w.down()
		time.Sleep(after - time.Millisecond)
		w.backedUp(0, 0)
		time.Sleep(2 * time.Millisecond)
		w.backedUp(1, 1)
		w.shows("a b")
		has(w.own, "b", "c")
		w.shows("b c")
		has(w.own, "c")
		w.shows("c")

		// A relay that answers, but has no state yet, is no relay.
		empty := revlog.NewStates(&state.Node{Name: "here"}, errClosed)
		w.up(empty)
		time.Sleep(time.Minute)
		w.backedUp(1, 1)
		w.shows("c")
		has(empty, "d")
		w.shows("d")
		w.backedUp(1, 0)
		has(empty, "e")
		time.Sleep(time.Second)
		w.shows("e")
	})
}

// The relay of before answers again. The node had its state once, and must not show that again on the way to the latest one.
func TestANodeReturnsToTheRelayOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, relay := newFallbackWorld(t), revlog.NewStates(&state.Node{Name: "here"}, errClosed)
		has(relay, "old")
		w.up(relay)
		w.shows("old")
		w.down()
		time.Sleep(after + time.Second)
		has(w.own, "new")
		w.shows("new")
		has(relay, "new", "newer")
		go func() {
			for after := w.node.Snapshot().Revision(); ; {
				u, err := w.node.Next(t.Context(), after)
				if err != nil {
					return
				}
				after = u.Revision
				if w.node.Snapshot().Get(service("old").Name) != nil {
					t.Error("the node shows again what it had from the relay before")
				}
			}
		}()
		w.up(relay)
		w.shows("new newer")
		w.backedUp(1, 0)
	})
}

func TestANodeStartsWithoutARelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFallbackWorld(t)
		has(w.own, "a")
		time.Sleep(after - time.Millisecond)
		w.shows("")
		time.Sleep(2 * time.Millisecond)
		w.shows("a")
	})
}

func TestABackupThatCannotWorkIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, relay := newFallbackWorld(t), revlog.NewStates(&state.Node{Name: "here"}, errClosed)
		has(relay, "a")
		w.up(relay)
		w.shows("a")
		w.down()
		w.mu.Lock()
		w.broken = errors.New("no such file")
		w.mu.Unlock()
		time.Sleep(3*after + time.Second)
		w.backedUp(3, 0)
		w.shows("a")

		// A backup that ends after it has worked leaves the node with the backup's last state, not with the relay's.
		w.mu.Lock()
		w.broken = nil
		w.mu.Unlock()
		has(w.own, "z")
		time.Sleep(after)
		w.shows("z")
		w.mu.Lock()
		w.broken = errors.New("no such file")
		w.mu.Unlock()
		w.own.Close()
		time.Sleep(after / 2)
		w.shows("z")
		w.up(relay)
		has(relay, "b")
		time.Sleep(time.Second)
		w.shows("b")
	})
}

// The dataplane's reports about its revisions reach the relay under its own revisions.
func TestTheRelayLearnsWhatTheDataplaneShows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, relay := newFallbackWorld(t), revlog.NewStates(&state.Node{Name: "here"}, errClosed)
		for _, names := range [][]string{{"a"}, {"b"}, {"c"}} {
			has(relay, names...)
		}
		w.up(relay)
		w.shows("c")
		name := state.ServiceName{Namespace: "default", Name: "c"}
		w.node.Report(w.node.Snapshot().Revision(), map[state.ServiceName]error{name: errors.New("no room")})
		synctest.Wait()
		w.expectReport("3 map[default/c:no room]")

		// Another relay, after a while without any, has the node's current state, and learns that the node shows it.
		w.down()
		time.Sleep(after + time.Second)
		has(w.own, "d")
		w.shows("d")
		w.node.Report(w.node.Snapshot().Revision(), nil)
		other := revlog.NewStates(&state.Node{Name: "here"}, errClosed)
		has(other, "b")
		has(other, "d")
		w.up(other)
		w.expectReport("2 map[]")
	})
}

// A fallback goes by the settings of the relay's node. Its own states do not change these.
func TestTheNodeOfTheRelayIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, relay := newFallbackWorld(t), revlog.NewStates(&state.Node{Name: "here"}, errClosed)
		w.serverNode("here 0")
		node := &state.Node{Name: "here", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
		relay.Apply(&state.Update{Full: true, Node: node})
		w.up(relay)
		w.serverNode("here 1")
		w.down()
		time.Sleep(after + time.Second)
		has(w.own, "a")
		w.shows("a")
		if n := w.node.Snapshot().Node(); len(n.Addresses) > 0 {
			t.Errorf("the node is %+v, which is not the fallback's", n)
		}
		w.serverNode("here 1")
	})
}

// serverNode expects the node of the relay: its name, and how many addresses it has.
func (w *fallbackWorld) serverNode(want string) {
	w.t.Helper()
	synctest.Wait()
	if n := w.node.ServerNode(); fmt.Sprint(n.Name, " ", len(n.Addresses)) != want {
		w.t.Errorf("the relay's node is %+v, want %q", n, want)
	}
}
