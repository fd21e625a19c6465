package metrics

import (
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// CountChanges returns a sink that hands everything on to next and counts the Services and EndpointSlices in it. newest returns
// the newest revision that next has published; a change is pending until that revision is applied.
func (r *Registry) CountChanges(next model.Sink, newest func() state.Revision) model.Sink {
	return &countingSink{next: next, newest: newest, registry: r}
}

type countingSink struct {
	next     model.Sink
	newest   func() state.Revision
	registry *Registry
}

// Update implements [model.Sink].
func (k *countingSink) Update(set []model.Object, deleted []model.Ref) {
	// next owns the objects afterwards.
	var n changed
	for _, o := range set {
		n.count(o.Ref().Kind)
	}
	for _, ref := range deleted {
		n.count(ref.Kind)
	}
	at, before := time.Now(), k.newest()
	k.next.Update(set, deleted)
	after := k.newest()

	r := k.registry
	r.kube.serviceChanges.Add(float64(n.services))
	r.kube.endpointChanges.Add(float64(n.endpoints))
	r.mu.Lock()
	defer r.mu.Unlock()
	if after != before {
		r.noteQueued(at)
	}
	if after > r.applied || r.applied == 0 {
		r.changes.add(after, n)
		r.showPending()
	}
}

// Complete implements [model.Sink].
func (k *countingSink) Complete() { k.next.Complete() }

// showPending is called with mu held.
func (r *Registry) showPending() {
	var sum changed
	for _, p := range r.changes.pending {
		sum.services += p.services
		sum.endpoints += p.endpoints
	}
	r.kube.servicesPending.Set(float64(sum.services))
	r.kube.endpointsPending.Set(float64(sum.endpoints))
}

// changed are numbers of changes.
type changed struct{ services, endpoints int }

func (n *changed) count(kind model.Kind) {
	switch kind {
	case model.KindService:
		n.services++
	case model.KindEndpointSlice:
		n.endpoints++
	}
}

// changes are those that wait to be applied, by the revision that has them.
type changes struct {
	pending []pending // by growing revision
}

type pending struct {
	revision state.Revision
	changed
}

// maxPending bounds the remembered changes while the dataplane is stuck. Beyond it, changes of different revisions
// count as changes of the newest one.
const maxPending = 256

func (c *changes) add(revision state.Revision, n changed) {
	last := len(c.pending) - 1
	if last >= 0 && (c.pending[last].revision >= revision || len(c.pending) == maxPending) {
		p := &c.pending[last]
		p.revision = max(p.revision, revision)
		p.services += n.services
		p.endpoints += n.endpoints
		return
	}
	c.pending = append(c.pending, pending{revision, n})
}

// applied forgets the changes up to a revision.
func (c *changes) applied(revision state.Revision) {
	i := 0
	for i < len(c.pending) && c.pending[i].revision <= revision {
		i++
	}
	c.pending = append(c.pending[:0], c.pending[i:]...)
}
