// Package apifollower follows the state of a node over the node-local API. A dataplane in this process is programmed from
// the [Follower] as if its brain were also here. Optionally, a local fallback makes the states while no server is reachable.
package apifollower

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/state"
)

// Options specifies which server to follow.
type Options struct {
	// Client specifies where the server is. Its OnError and OnConnect are the Follower's own.
	Client client.Options
	// Fallback makes states while no server is reachable. It may be nil.
	Fallback *Fallback
	// Logger gets services and parts of the node state that cannot be read. Default: nothing is logged.
	Logger *slog.Logger
}

// ErrClosed is what [Follower.Next] returns once [Follower.Run] has returned.
var ErrClosed = errors.New("follower is closed")

// Follower follows a server, and keeps the last state while there is none. It numbers revisions itself, because another
// server may replace the current one. It implements [state.Feed]. All methods may be called concurrently.
type Follower struct {
	client   client.Options
	fallback *Fallback
	states   *revlog.States
	log      *slog.Logger
	changed  chan struct{} // has a value when lost has changed

	mu         sync.Mutex // guards all below, and changes of states
	ledger     ledger
	watcher    *client.Watcher
	restart    context.CancelFunc // ends the loop over the watcher's updates, nil before Run
	forgotten  bool               // forget was called and no state has come since
	found      context.CancelFunc // ends the fallback, nil before the first one
	lost       time.Time          // since when there is no server, zero if there is one
	lastErr    error              // why, nil if there is a server or none has been tried yet
	node       *state.Node        // as the server had it last, nothing but its name before
	unreadable map[state.ServiceName]error
	nodeFault  error          // of what cannot be read of the node, nil if all can
	applied    state.Revision // as reported last, with failed
	failed     map[state.ServiceName]error
}

var _ state.Feed = (*Follower)(nil)

// New returns a Follower. It does not connect yet. An error means that the options are wrong.
func New(o Options) (*Follower, error) {
	node := &state.Node{Name: o.Client.Node}
	f := &Follower{
		fallback: o.Fallback, states: revlog.NewStates(node, ErrClosed), node: node,
		log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), changed: make(chan struct{}, 1), lost: time.Now(),
	}
	o.Client.OnError = f.disconnected
	o.Client.Accepts = protoconv.Features(state.AllFeatures) // dataplanes say what they can themselves: see backend.Featured
	o.Client.OnConnect = f.connected
	f.client = o.Client
	var err error
	f.watcher, err = client.NewWatcher(o.Client)
	return f, err
}

// Next implements [state.Feed].
func (f *Follower) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	return f.states.Next(ctx, after)
}

// Snapshot returns the last state. Before the first one it is an empty snapshot with revision 0.
func (f *Follower) Snapshot() *revlog.Snapshot { return f.states.Snapshot() }

// Latest returns the newest revision, 0 before there is a state, and how many services it has.
func (f *Follower) Latest() (revision state.Revision, services int) {
	snapshot := f.states.Snapshot()
	return snapshot.Revision(), snapshot.Len()
}

// Name returns the name of the node, empty as long as it is not known.
func (f *Follower) Name() string { return f.states.Snapshot().Node().Name }

// ServerNode returns the node as the server had it last, nothing but its name before.
func (f *Follower) ServerNode() *state.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node
}

// Lost returns since when there has been no server that has a state of the node, and why; the zero time if there is one. It
// is the time of [New] as long as there has never been one.
func (f *Follower) Lost() (since time.Time, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost, f.lastErr
}

func (f *Follower) connected() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.forgotten {
		f.setLost(time.Time{}, nil)
	}
}

func (f *Follower) disconnected(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.setLost(time.Now(), err)
}

// setLost notes that there is a server, or none. The caller holds mu.
func (f *Follower) setLost(at time.Time, why error) {
	f.lastErr = why
	if f.lost.IsZero() == at.IsZero() {
		return // still the same error, or none
	}
	f.lost = at
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Run follows the server until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	defer f.states.Close()
	var helping sync.WaitGroup
	defer helping.Wait()
	if f.fallback != nil {
		helping.Go(func() { f.runFallback(ctx) })
	}
	for ctx.Err() == nil {
		f.mu.Lock()
		loop, cancel := context.WithCancel(ctx)
		f.restart = cancel
		watcher := f.watcher
		f.mu.Unlock()
		for u := range watcher.Updates(loop) {
			f.take(watcher, u)
		}
		cancel()
	}
	return nil
}

// take continues from the state with u. An unreadable service keeps its last state, unless another service has one of its
// frontends now. The rest of u is always applied, because later updates continue from u.
func (f *Follower) take(from *client.Watcher, u *client.Update) {
	n, nodeFault := protoconv.ParseNode(u.Node)
	update := &state.Update{Full: u.Full, Node: n, Triggers: u.Triggers}
	faults := make(map[state.ServiceName]error) // nil for services that can be read
	for _, m := range u.Changed {
		name := state.ServiceName(client.NameOf(m))
		record, err := protoconv.ParseService(m)
		faults[name] = err
		if err != nil {
			f.log.Error("ignoring invalid service; keeping its last known good state", "service", name.String(), "error", err)
			continue
		}
		update.Changed = append(update.Changed, record)
	}
	for _, name := range u.Removed {
		faults[state.ServiceName(name)] = nil
		update.Removed = append(update.Removed, state.ServiceName(name))
	}
	f.mu.Lock()
	if from != f.watcher { // the next update is whole and newer
		f.mu.Unlock()
		return
	}
	held := f.states.Snapshot()
	if update.Node == nil {
		update.Node = f.node
	}
	f.node = update.Node
	unreadable := make(map[state.ServiceName]error)
	if !u.Full {
		maps.Copy(unreadable, f.unreadable)
	}
	maps.Copy(unreadable, faults)
	maps.DeleteFunc(unreadable, func(_ state.ServiceName, err error) bool { return err == nil })
	update = update.Keep(maps.Keys(unreadable), held.Get)
	var narrowed []state.ServiceName
	for _, left := range update.Changed {
		if unreadable[left.Name] != nil && left != held.Get(left.Name) {
			narrowed = append(narrowed, left.Name)
		}
	}
	f.states.Apply(update)
	revision := f.states.Snapshot().Revision()
	f.ledger.note(revision, u.Position)
	f.forgotten = false
	if f.found != nil {
		f.found()
	}
	f.setLost(time.Time{}, nil)
	// The dataplane reports nothing about unchanged services, but the server must learn that they are shown.
	noNews := revision == held.Revision()
	changed := len(unreadable) > 0 || len(f.unreadable) > 0
	isNew := nodeFault != nil && (f.nodeFault == nil || f.nodeFault.Error() != nodeFault.Error())
	f.unreadable, f.nodeFault = unreadable, nodeFault
	f.mu.Unlock()
	switch {
	case isNew && n == nil:
		f.log.Error("ignoring invalid node; keeping its last known good state", "error", nodeFault)
	case isNew:
		f.log.Error("ignoring invalid settings of the node; going on without them", "error", nodeFault)
	}
	for _, name := range narrowed {
		f.log.Error("invalid service loses frontends that belong to other services now", "service", name.String())
	}
	if noNews || changed {
		f.sendReport()
	}
}

// Report sends the server which revision the dataplane shows, and which services cannot be programmed.
// It returns at once. The caller must not modify failed afterwards.
func (f *Follower) Report(applied state.Revision, failed map[state.ServiceName]error) {
	f.mu.Lock()
	f.applied, f.failed = applied, failed
	f.mu.Unlock()
	f.sendReport()
}

// sendReport sends the server the last report, and the services that cannot be read.
func (f *Follower) sendReport() {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := client.Status{Applied: f.ledger.at(f.applied), Failed: make(map[client.ServiceName]error, len(f.failed)+len(f.unreadable))}
	for name, err := range f.failed {
		s.Failed[client.ServiceName(name)] = err
	}
	for name, err := range f.unreadable {
		s.Failed[client.ServiceName(name)] = err
	}
	f.watcher.Report(s)
}

// Problems returns why the node may lack a part of its state. There may be no server, or the node or a service may have
// an unreadable part.
func (f *Follower) Problems() (problems []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.lost.IsZero() {
		why := f.lastErr
		if why == nil {
			why = fmt.Errorf("%s has none yet", cmp.Or(f.client.Target, client.DefaultTarget))
		}
		problems = append(problems, fmt.Errorf("no state from the API since %s: %w", f.lost.UTC().Format(time.RFC3339), why))
	}
	if f.nodeFault != nil {
		problems = append(problems, f.nodeFault)
	}
	for name, err := range f.unreadable {
		problems = append(problems, fmt.Errorf("service %s: %w", name, err))
	}
	return problems
}
