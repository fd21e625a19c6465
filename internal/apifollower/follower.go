// Package apifollower follows the state of a node over the node-local API and keeps it in a replica. A dataplane in
// this process is programmed from the replica as if its brain were also here.
package apifollower

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/internal/statecopy"
	"github.com/switchyard-net/switchyard/state"
)

// Options specifies which server to follow.
type Options struct {
	// Client specifies where the server is. Its OnError and OnConnect are the Follower's own.
	Client client.Options
	// Logger gets services and parts of the node state that cannot be read. Default: nothing is logged.
	Logger *slog.Logger
}

// Follower follows a server. All methods may be called concurrently.
type Follower struct {
	client  client.Options
	replica *statecopy.Replica
	ledger  statecopy.Ledger[client.Position]
	log     *slog.Logger
	changed chan struct{} // has a value when lost has changed

	mu         sync.Mutex
	watcher    *client.Watcher
	restart    context.CancelFunc // ends the loop over the watcher's updates, nil before Run
	forgotten  bool               // Forget was called and no state has come since
	lost       time.Time          // since when there is no server, zero if there is one
	lastErr    error              // why, nil if there is a server or none has been tried yet
	unreadable map[state.ServiceName]error
	nodeFault  error          // of what cannot be read of the node, nil if all can
	applied    state.Revision // as reported last, with failed
	failed     map[state.ServiceName]error
}

// New returns a Follower. It does not connect yet. An error means that the options are wrong.
func New(o Options) (*Follower, error) {
	f := &Follower{
		replica: statecopy.New(o.Client.Node), log: o.Logger, changed: make(chan struct{}, 1), lost: time.Now(),
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	o.Client.OnError = f.disconnected
	o.Client.OnConnect = f.connected
	f.client = o.Client
	var err error
	f.watcher, err = client.NewWatcher(o.Client)
	return f, err
}

// Replica holds the state. It keeps it while there is no server.
func (f *Follower) Replica() *statecopy.Replica { return f.replica }

// Lost returns since when there has been no server that has a state of the node, and why; the zero time if there is one. It
// is the time of [New] as long as there has never been one.
func (f *Follower) Lost() (since time.Time, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost, f.lastErr
}

// Changed gets a value when Lost may have changed.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// Forget makes the Follower start over: it counts as lost until the whole state has arrived again. Until then, the
// replica keeps its state. It is for callers that follow another server for a while and must not return to an older
// state.
func (f *Follower) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	watcher, err := client.NewWatcher(f.client)
	if err != nil {
		f.log.Error("cannot restart the watch", "error", err) // the same options were right before
		return
	}
	f.watcher, f.forgotten = watcher, true
	f.setLost(time.Now(), f.lastErr)
	if f.restart != nil {
		f.restart()
	}
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
	defer f.replica.Close()
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

// take brings the replica to the state after u. An unreadable service keeps its last state, unless another service has
// one of its frontends now. The rest of u is always applied, because later updates continue from u.
func (f *Follower) take(from *client.Watcher, u *client.Update) {
	held := f.replica.Snapshot()
	update := &state.Update{Full: u.Full, Triggers: u.Triggers}
	n, nodeFault := protoconv.ParseNode(u.Node)
	if update.Node = n; n == nil {
		update.Node = held.Node()
	}
	unreadable := make(map[state.ServiceName]error)
	if !u.Full {
		f.mu.Lock()
		maps.Copy(unreadable, f.unreadable)
		f.mu.Unlock()
	}
	for _, m := range u.Changed {
		name := state.ServiceName(client.NameOf(m))
		delete(unreadable, name)
		record, err := protoconv.ParseService(m)
		if err != nil {
			unreadable[name] = err
			f.log.Error("ignoring invalid service; keeping its last known good state", "service", name.String(), "error", err)
			continue
		}
		update.Changed = append(update.Changed, record)
	}
	for _, name := range u.Removed {
		delete(unreadable, state.ServiceName(name))
		update.Removed = append(update.Removed, state.ServiceName(name))
	}
	update = update.Keep(maps.Keys(unreadable), held.Get)
	for _, left := range update.Changed {
		if unreadable[left.Name] != nil && left != held.Get(left.Name) {
			f.log.Error("invalid service loses frontends that belong to other services now", "service", left.Name.String())
		}
	}
	f.mu.Lock()
	if from != f.watcher { // the next update is whole and newer
		f.mu.Unlock()
		return
	}
	f.replica.Apply(update)
	f.ledger.Note(f.replica.Snapshot().Revision(), u.Position)
	f.forgotten = false
	f.setLost(time.Time{}, nil)
	// The dataplane reports nothing about unchanged services, but the server must learn that they are shown.
	noNews := f.replica.Snapshot().Revision() == held.Revision()
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
	if noNews || changed {
		f.sendReport()
	}
}

// Report sends the server which revision of the replica the dataplane shows, and which services cannot be programmed.
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
	s := client.Status{Applied: f.ledger.At(f.applied), Failed: make(map[client.ServiceName]error, len(f.failed)+len(f.unreadable))}
	for name, err := range f.failed {
		s.Failed[client.ServiceName(name)] = err
	}
	for name, err := range f.unreadable {
		s.Failed[client.ServiceName(name)] = err
	}
	f.watcher.Report(s)
}

// Problems returns why the node may lack a part of its state: no server, or a part of the node or of services that
// cannot be read.
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
