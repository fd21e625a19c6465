// Package objectlog keeps the cluster's objects and publishes them under revisions, to any number of consumers, each at
// its own pace.
//
// It is the counterpart of package store, which publishes a node's state, and receives objects from sources in the same
// way. [Tee] gives both the same objects, which they share. Nothing is queued for consumers: each consumer asks for
// updates newer than its own revision.
package objectlog

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"weak"

	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// ErrClosed is what [Feed.Next] returns once the feed is closed.
var ErrClosed = errors.New("object feed is closed")

// Revision numbers the sets of objects of a [Feed]. It grows by one with each set that differs from the one before. 0 stands
// for knowing nothing.
type Revision uint64

// Update leads from one set of objects to a newer one. It is immutable and shared by all consumers that need the same one, and so
// are its objects.
type Update struct {
	// Revision is the revision of the set after this update.
	Revision Revision
	// Full reports whether Set is the whole set: objects that are not in it do not exist.
	Full bool
	// Set are new and changed objects, each once and in no order. If the update merges several revisions, an object may
	// equal the consumer's object.
	Set []model.Object
	// Deleted are objects that no longer exist, each once and in no order; always empty in a full update. It may name an object
	// that the consumer never saw.
	Deleted []model.Ref

	once sync.Once
	memo any
}

// Memo returns the result of calling of with the update. of is called once, for the first consumer.
func (u *Update) Memo(of func(*Update) any) any {
	u.once.Do(func() { u.memo = of(u) })
	return u.memo
}

// Options has the options of a [Feed]. The zero value is valid.
type Options struct {
	// Logger gets the progress of sources, for debugging. Default: nothing is logged.
	Logger *slog.Logger
}

// Feed holds the latest set of objects, and which objects changed in the revisions before it. All methods may be called
// concurrently.
type Feed struct {
	log    *slog.Logger
	closed chan struct{}
	ready  chan struct{} // closed with the first revision

	mu         sync.Mutex // guards all below
	incomplete int        // sources that are not complete
	revision   Revision   // 0 before all sources are complete
	objects    map[model.Ref]model.Object
	changes    revlog.Ring[logged]
	wake       chan struct{} // closed and replaced with each revision
	// full and deltas are what consumers have been given in this revision, deltas by the revision that they lead on from. A full
	// update takes a lot of memory, and is kept by those that are busy with it.
	full   weak.Pointer[Update]
	deltas map[Revision]*Update
}

// maxDeltas is how many updates are kept for consumers that come with the same revision as others.
const maxDeltas = 64

// New returns an empty feed. It hands out nothing before it has a source and all its sources are complete.
func New(o Options) *Feed {
	return &Feed{
		log:     cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		closed:  make(chan struct{}),
		ready:   make(chan struct{}),
		objects: make(map[model.Ref]model.Object),
		changes: revlog.Ring[logged]{Max: revlog.Limit},
		wake:    make(chan struct{}),
		deltas:  make(map[Revision]*Update),
	}
}

// Source registers a source and returns the sink that it delivers to. Sources are registered before any of them runs: as
// long as one is not complete, nothing is handed out. name is for the log only.
//
// Sources share one set of objects. If two of them deliver the same object, the last one to do so wins, and it is gone as
// soon as either deletes it.
func (f *Feed) Source(name string) model.Sink {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.incomplete++
	return &sink{feed: f, name: name}
}

// Close ends all calls of Next. Objects that sources deliver afterwards are ignored.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isClosed() {
		close(f.closed)
	}
}

// Closed returns a channel that is closed together with the feed.
func (f *Feed) Closed() <-chan struct{} { return f.closed }

// Ready returns a channel that is closed once all sources are complete, so that there is a set to hand out.
func (f *Feed) Ready() <-chan struct{} { return f.ready }

func (f *Feed) isClosed() bool {
	select {
	case <-f.closed:
		return true
	default:
		return false
	}
}

// Next blocks until there is a set newer than after, and returns the update from after to it. With after = 0, or an
// after that the feed does not remember, the update is full. It fails with ErrClosed once the feed is closed, even if
// there is a newer set, and with the error of ctx if that ends first.
func (f *Feed) Next(ctx context.Context, after Revision) (*Update, error) {
	for {
		if f.isClosed() {
			return nil, ErrClosed
		}
		update, wake := f.newer(after)
		if update != nil {
			return update, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-f.closed:
		case <-wake:
		}
	}
}

// newer returns the update that leads on from after, or what to wait for if there is none.
func (f *Feed) newer(after Revision) (*Update, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.revision == 0 || f.revision == after {
		return nil, f.wake
	}
	changes, ok := f.changes.Since(state.Revision(after))
	if after == 0 || after > f.revision || !ok {
		return f.everything(), nil
	}
	if u := f.deltas[after]; u != nil {
		return u, nil
	}
	u := &Update{Revision: f.revision}
	var refs []model.Ref
	for change := range changes {
		refs = append(refs, change.ref)
	}
	slices.SortFunc(refs, compareRefs)
	for _, ref := range slices.Compact(refs) {
		if obj := f.objects[ref]; obj != nil {
			u.Set = append(u.Set, obj)
		} else {
			u.Deleted = append(u.Deleted, ref)
		}
	}
	if len(f.deltas) == maxDeltas {
		clear(f.deltas)
	}
	f.deltas[after] = u
	return u, nil
}

// everything returns the full update. The caller holds mu.
func (f *Feed) everything() *Update {
	if u := f.full.Value(); u != nil && u.Revision == f.revision {
		return u
	}
	u := &Update{Revision: f.revision, Full: true, Set: slices.AppendSeq(make([]model.Object, 0, len(f.objects)), maps.Values(f.objects))}
	f.full = weak.Make(u)
	return u
}

func compareRefs(a, b model.Ref) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// publish makes a new revision of the objects if refs, which have changed, are any. The first set is always news. The caller
// holds mu.
func (f *Feed) publish(refs []model.Ref) {
	if f.incomplete > 0 || (f.revision > 0 && len(refs) == 0) {
		return
	}
	f.revision++
	clear(f.deltas)
	if f.revision == 1 {
		close(f.ready)
		f.changes.Forget(state.Revision(f.revision)) // a consumer that has nothing gets everything: no need to log it
	} else {
		for _, ref := range refs {
			f.changes.Add(logged{f.revision, ref})
		}
	}
	close(f.wake)
	f.wake = make(chan struct{})
}

// sink takes the objects of one source.
type sink struct {
	feed     *Feed
	name     string
	complete bool // guarded by feed.mu
}

// Update implements [model.Sink]. An object that is both deleted and set is set; of two with the same ref the later
// wins. An object that equals the existing one in all fields is no change.
func (k *sink) Update(set []model.Object, deleted []model.Ref) {
	f := k.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isClosed() {
		return
	}
	if f.incomplete > 0 { // no consumer has anything yet, so that it does not matter what changes
		if len(f.objects) == 0 {
			f.objects = make(map[model.Ref]model.Object, len(set)) // most likely all there are; growing to that takes half as long again
		}
		for _, ref := range deleted {
			delete(f.objects, ref)
		}
		for _, obj := range set {
			f.objects[obj.Ref()] = obj
		}
		return
	}
	before := make(map[model.Ref]model.Object, len(set)+len(deleted))
	note := func(ref model.Ref) {
		if _, noted := before[ref]; !noted {
			before[ref] = f.objects[ref]
		}
	}
	for _, ref := range deleted {
		note(ref)
		delete(f.objects, ref)
	}
	for _, obj := range set {
		ref := obj.Ref()
		note(ref)
		f.objects[ref] = obj
	}
	var changed []model.Ref
	for ref, old := range before {
		if !equal(old, f.objects[ref]) {
			changed = append(changed, ref)
		}
	}
	f.publish(changed)
}

// Complete implements [model.Sink].
func (k *sink) Complete() {
	f := k.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.complete || f.isClosed() {
		return
	}
	k.complete = true
	f.incomplete--
	f.log.Debug("source synced", "source", k.name, "waitingFor", f.incomplete)
	f.publish(nil)
}

// Tee returns a sink that forwards all updates to each of sinks, in their order. They share the objects and the slices
// that hold them, so none of sinks may modify either.
func Tee(sinks ...model.Sink) model.Sink { return tee(slices.Clone(sinks)) }

type tee []model.Sink

// Update implements [model.Sink].
func (t tee) Update(set []model.Object, deleted []model.Ref) {
	for _, s := range t {
		s.Update(set, deleted)
	}
}

// Complete implements [model.Sink].
func (t tee) Complete() {
	for _, s := range t {
		s.Complete()
	}
}
