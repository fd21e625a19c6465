package revlog

import (
	"context"
	"iter"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Snapshot is one published state of a node. It is immutable and costs nothing to keep but the records that have changed since.
type Snapshot struct {
	revision state.Revision
	contents
}

type contents struct {
	node    *state.Node
	records Map[state.ServiceName, *state.Service]
}

// Revision is the revision of the state, 0 if nothing has been published yet.
func (s *Snapshot) Revision() state.Revision { return s.revision }

// Node is this node, never nil.
func (s *Snapshot) Node() *state.Node { return s.node }

// Len is the number of services.
func (s *Snapshot) Len() int { return s.records.Len() }

// Get returns a service's record, or nil if there is none.
func (s *Snapshot) Get(name state.ServiceName) *state.Service { return s.records.Get(name) }

// Services are all records, ordered by name.
func (s *Snapshot) Services() iter.Seq[*state.Service] { return s.records.Values() }

// Change is a service's new record, nil if the service no longer exists.
type Change struct {
	Name   state.ServiceName
	Record *state.Service
	// Trigger is when what led to it happened in the cluster, zero if not known.
	Trigger time.Time
}

// States is the log of a node's states, of a store or of a copy of another process's states. It implements [state.Feed].
// Publish and Apply are called by one goroutine at a time.
type States struct {
	log *Log[contents, triggered]
}

var _ state.Feed = (*States)(nil)

// triggered is a change of a service. The name is empty if only the trigger is announced.
type triggered struct {
	name state.ServiceName
	at   time.Time
}

// NewStates returns a log that has published nothing yet. Once it is closed, its Next fails with closed.
func NewStates(node *state.Node, closed error) *States {
	return &States{NewLog[contents, triggered](contents{node: node}, closed)}
}

// SetLimit bounds how many changes are remembered, for tests. It is called before the first one.
func (s *States) SetLimit(changes int) { s.log.SetLimit(changes) }

// Publish makes a new revision of changes and node, if they are any news. The first state is always news. triggers are those
// that belong to no change in particular.
func (s *States) Publish(node *state.Node, changes []Change, triggers ...time.Time) {
	last := s.Snapshot()
	if last.revision > 0 && len(changes) == 0 && node == last.node {
		return
	}
	next := contents{node, last.records.Clone()}
	logged := make([]triggered, 0, len(changes)+len(triggers))
	for _, c := range changes {
		if c.Record == nil {
			next.records.Delete(c.Name)
		} else {
			next.records.Set(c.Name, c.Record)
		}
		logged = append(logged, triggered{c.Name, c.Trigger})
	}
	for _, at := range triggers {
		logged = append(logged, triggered{at: at})
	}
	s.log.Publish(next, logged)
}

// Apply publishes the state after an update of another feed. The update must follow the last one, or be Full: that feed may
// have been restarted, or replaced by another one. Records that equal those that are held are left out; if nothing remains, there
// is no new revision. Before the first update, an update that is not Full is ignored. The update's triggers are passed on.
// Apply takes ownership of the records; the update is not modified.
func (s *States) Apply(u *state.Update) {
	held := s.Snapshot()
	if held.revision == 0 && !u.Full {
		return
	}
	var changes []Change
	for _, record := range u.Changed {
		if previous := held.Get(record.Name); previous == nil || !previous.Equal(record) {
			changes = append(changes, Change{Name: record.Name, Record: record})
		}
	}
	names := func(yield func(state.ServiceName) bool) {
		for record := range held.Services() {
			if !yield(record.Name) {
				return
			}
		}
	}
	for _, name := range u.Gone(names) {
		if held.Get(name) != nil {
			changes = append(changes, Change{Name: name})
		}
	}
	node := u.Node
	if node.Equal(held.node) {
		node = held.node
	}
	s.Publish(node, changes, u.Triggers...)
}

// Snapshot returns the latest state. Before the first one it is an empty snapshot with revision 0.
func (s *States) Snapshot() *Snapshot {
	revision, latest := s.log.Latest()
	return &Snapshot{revision, latest}
}

// IsClosed reports whether the log is closed.
func (s *States) IsClosed() bool { return s.log.IsClosed() }

// Close ends all calls of Next. Later updates are ignored.
func (s *States) Close() { s.log.Close() }

// Next implements [state.Feed]. It fails once the log is closed, even if there is a newer state.
func (s *States) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	news, err := s.log.Next(ctx, after)
	if err != nil {
		return nil, err
	}
	u := &state.Update{Revision: news.Revision, Node: news.State.node, Full: news.Changes == nil}
	if u.Full {
		u.Changed = news.State.records.All()
		return u, nil
	}
	var names []state.ServiceName
	for c := range news.Changes {
		if c.name != (state.ServiceName{}) {
			names = append(names, c.name)
		}
		if !c.at.IsZero() {
			u.Triggers = append(u.Triggers, c.at)
		}
	}
	u.Changed, u.Removed = Outcome(names, news.State.records.Get)
	return u, nil
}
