package client

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// Sink is a dataplane, or whatever else follows the state of a node. Its method is called by one goroutine at a time.
type Sink interface {
	// Apply makes the sink show c. It names services that it cannot show in failed, each with the reason. These do not
	// keep other services from being shown, and are part of each further change until they succeed. The sink should
	// keep its last state of a failed service, except for frontends that the newer state gives to another service.
	//
	// If Apply returns an error, nothing of c counts as shown. After a pause, the same services come again in their
	// current state, together with the changes since then.
	Apply(ctx context.Context, c *Change) (failed map[ServiceName]error, err error)
}

// SinkFunc is a function as a [Sink].
type SinkFunc func(ctx context.Context, c *Change) (failed map[ServiceName]error, err error)

// Apply calls f.
func (f SinkFunc) Apply(ctx context.Context, c *Change) (failed map[ServiceName]error, err error) {
	return f(ctx, c)
}

// Change has the differences that a [Sink] must apply to show a newer state. A sink that works with differences reads
// Changed and Removed. A sink that works with whole states calls [Change.Services]. Records are shared and must not be
// modified.
type Change struct {
	// Position is the position of the state after this change.
	Position Position
	// First reports whether the sink has not shown anything in this run yet. Services of an earlier run that are not in
	// Changed no longer exist.
	First bool
	// Node is the node after this change, never nil. It says which clients are pods, and which addresses serve
	// NodePorts. Servers of an earlier version leave these two unset.
	Node *localnetv1.Node
	// Changed are new and changed services, ordered by name. Also if the server has been restarted, services that are the
	// same as before are not in it, unless they failed.
	Changed []*localnetv1.ServiceEndpoints
	// Removed are services that no longer exist, ordered by name. Of one that failed the sink may have nothing.
	Removed []ServiceName
	// Triggers are as in [Update]; of more than 1,024, the first.
	Triggers []time.Time

	state *replica
}

// Services returns all services after this change, ordered by name. The slice is shared and does not change. Services
// may be called only before Apply returns. In a Change that a test has made, it returns Changed.
func (c *Change) Services() []*localnetv1.ServiceEndpoints {
	if c.state == nil {
		return c.Changed
	}
	return c.state.snapshot()
}

// RunSink keeps a sink in step with the node's state until ctx ends, and then returns nil; the sink keeps its state. It
// reports to the server which state the sink shows and which services failed. Changes while the sink is busy come in
// one change. An error means that the options are invalid; for failures of the server see [Watcher.Updates].
// [Options.Resume] is ignored.
func RunSink(ctx context.Context, o Options, sink Sink) error {
	o.Resume = Position{}
	w, err := NewWatcher(o)
	if err != nil {
		return err
	}
	s := w.start(ctx)
	defer s.stop()
	r := &runner{
		sink: sink, report: w.Report, log: w.options.Logger, pace: newPacer(&w.options),
		state: newReplica(), first: true, dirty: make(map[ServiceName]bool), known: make(map[ServiceName]bool),
	}
	for ctx.Err() == nil {
		u := r.wait(ctx, s)
		if ctx.Err() != nil {
			break
		}
		if u != nil {
			r.take(u)
		}
		if r.isDue() {
			r.apply(ctx)
		}
	}
	return nil
}

// runner is one call of [RunSink].
type runner struct {
	sink   Sink
	report func(Status)
	log    *slog.Logger
	state  *replica

	// The changes that the sink does not show yet. dirty are names of services that are new, changed, removed or
	// failed.
	first       bool
	node        *localnetv1.Node
	nodeChanged bool
	dirty       map[ServiceName]bool
	// known are the services that the sink may show, in whole or in part: it was called with them, whatever the result.
	known    map[ServiceName]bool
	triggers []time.Time
	position Position

	failed map[ServiceName]error // by the last Apply
	broken bool                  // it returned an error
	pace   *pacer
	// retryAt is when to retry, zero if nothing has failed.
	retryAt time.Time
}

// wait returns the next update, or nil when it is time to retry.
func (r *runner) wait(ctx context.Context, s *session) *Update {
	if !r.retryAt.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, r.retryAt)
		defer cancel()
	}
	return s.next(ctx)
}

// take merges an update into the changes that the sink does not show yet.
func (r *runner) take(u *Update) {
	r.position = u.Position
	if r.node == nil || !proto.Equal(r.node, u.Node) {
		r.node, r.nodeChanged = u.Node, true
	}
	for _, name := range r.state.update(u) {
		if r.state.services[name] == nil && !r.known[name] {
			delete(r.dirty, name) // it has come and gone, and the sink never heard of it
			continue
		}
		r.dirty[name] = true
	}
	r.triggers = append(r.triggers, u.Triggers[:min(len(u.Triggers), maxTriggers-len(r.triggers))]...)
}

// maxTriggers is how many triggers a sink gets at most. The oldest show how far it is behind.
const maxTriggers = 1024

// isDue reports whether to call the sink now. If there is nothing to do for it, it shows the newer state already.
func (r *runner) isDue() bool {
	if !r.retryAt.IsZero() && !time.Now().Before(r.retryAt) {
		return true
	}
	if r.broken {
		return false
	}
	if r.first || r.nodeChanged || r.state.changed {
		return true
	}
	r.triggers = nil
	r.report(Status{Applied: r.position, Failed: r.failed})
	return false
}

func (r *runner) apply(ctx context.Context) {
	c := &Change{Position: r.position, First: r.first, Node: r.node, Triggers: r.triggers, state: r.state}
	for _, name := range slices.SortedFunc(maps.Keys(r.dirty), ServiceName.Compare) {
		if s, ok := r.state.services[name]; ok {
			c.Changed = append(c.Changed, s)
			r.known[name] = true
		} else {
			c.Removed = append(c.Removed, name)
		}
	}
	r.state.changed = false
	failed, err := r.sink.Apply(ctx, c)
	if err != nil {
		r.broken = true
		pause := r.pace.failed()
		r.retryAt = time.Now().Add(pause)
		if ctx.Err() == nil {
			r.log.Warn("cannot apply, trying again", "revision", c.Position.Rev, "pause", pause, "error", err)
		}
		return
	}
	r.broken, r.first, r.nodeChanged, r.triggers = false, false, false, nil
	for _, name := range c.Removed {
		if _, again := failed[name]; !again {
			delete(r.known, name)
		}
	}
	r.noteFailed(failed)
	r.report(Status{Applied: r.position, Failed: failed})
}

// noteFailed keeps failed services for the next change, and ensures that a next change follows.
func (r *runner) noteFailed(failed map[ServiceName]error) {
	clear(r.dirty)
	for name, err := range failed {
		r.dirty[name] = true
		if was := r.failed[name]; was == nil || err == nil || was.Error() != err.Error() {
			r.log.Warn("cannot program a service, trying again", "service", name.String(), "error", err)
		}
	}
	r.failed = maps.Clone(failed)
	if len(failed) == 0 {
		r.pace.succeeded()
		r.retryAt = time.Time{}
		return
	}
	r.retryAt = time.Now().Add(r.pace.failed())
}

// replica is the state that the server has sent.
type replica struct {
	services map[ServiceName]*localnetv1.ServiceEndpoints
	// changed reports that a service has changed since its last reset.
	changed bool
	// sorted are the services as of the last snapshot, never modified, and stale the names of those that changed since.
	sorted []*localnetv1.ServiceEndpoints
	stale  map[ServiceName]bool
}

func newReplica() *replica {
	return &replica{services: make(map[ServiceName]*localnetv1.ServiceEndpoints), stale: make(map[ServiceName]bool)}
}

// update takes an update and returns the names of the services that it changes.
func (r *replica) update(u *Update) []ServiceName {
	var names []ServiceName
	for _, s := range u.Changed {
		name := NameOf(s)
		if was, ok := r.services[name]; !ok || !proto.Equal(was, s) {
			r.services[name] = s
			names = append(names, name)
		}
	}
	removed := u.Removed
	if u.Full {
		removed = r.missing(u.Changed)
	}
	for _, name := range removed {
		if _, ok := r.services[name]; ok {
			delete(r.services, name)
			names = append(names, name)
		}
	}
	for _, name := range names {
		r.stale[name] = true
	}
	r.changed = r.changed || len(names) > 0
	return names
}

// missing returns the names of the services that are not in all.
func (r *replica) missing(all []*localnetv1.ServiceEndpoints) []ServiceName {
	there := make(map[ServiceName]bool, len(all))
	for _, s := range all {
		there[NameOf(s)] = true
	}
	var names []ServiceName
	for name := range r.services {
		if !there[name] {
			names = append(names, name)
		}
	}
	return names
}

// snapshot returns all services in order. It copies the unchanged services.
func (r *replica) snapshot() []*localnetv1.ServiceEndpoints {
	if len(r.stale) == 0 {
		return r.sorted
	}
	all := make([]*localnetv1.ServiceEndpoints, 0, len(r.services))
	rest := r.sorted
	for _, name := range slices.SortedFunc(maps.Keys(r.stale), ServiceName.Compare) {
		i, found := slices.BinarySearchFunc(rest, name, func(s *localnetv1.ServiceEndpoints, name ServiceName) int {
			return NameOf(s).Compare(name)
		})
		all = append(all, rest[:i]...)
		rest = rest[i:]
		if found {
			rest = rest[1:]
		}
		if s, ok := r.services[name]; ok {
			all = append(all, s)
		}
	}
	clear(r.stale)
	r.sorted = append(all, rest...)
	return r.sorted
}
