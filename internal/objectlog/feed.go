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
	"slices"
	"sync"
	"weak"

	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// ErrClosed is what [Feed.Next] returns once the feed is closed.
var ErrClosed = errors.New("object feed is closed")

// Update leads from one set of objects to a newer one. It is immutable and shared by all consumers that need the same one, and so
// are its objects.
type Update struct {
	// Revision is the revision of the set after this update. It grows by one with each set that differs from the one before.
	Revision state.Revision
	// Full reports whether Set is the whole set: objects that are not in it do not exist.
	Full bool
	// Set are new and changed objects, each once and ordered. If the update merges several revisions, an object may
	// equal the consumer's object.
	Set []model.Object
	// Deleted are objects that no longer exist, each once and ordered; always empty in a full update. It may name an object
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
	log   *revlog.Log[objects, model.Ref]
	ready chan struct{} // closed with the first revision

	mu     sync.Mutex // held while objects are taken in
	intake revlog.Intake
	// given is guarded by a mutex of its own, so that consumers do not wait for objects to be taken in.
	given given
}

// objects are a set of objects.
type objects = revlog.Map[model.Ref, model.Object]

// New returns an empty feed. It hands out nothing before it has a source and all its sources are complete.
func New(o Options) *Feed {
	f := &Feed{
		log: revlog.NewLog[objects, model.Ref](objects{}, ErrClosed), ready: make(chan struct{}), given: given{deltas: make(map[state.Revision]*Update)},
	}
	f.intake = revlog.Intake{
		Mutex: &f.mu, Update: f.update, Completed: f.completed, Logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
	}
	return f
}

// Source registers a source and returns the sink that it delivers to. Sources are registered before any of them runs: as
// long as one is not complete, nothing is handed out. name is for the log only.
//
// Sources share one set of objects. If two of them deliver the same object, the last one to do so wins, and it is gone as
// soon as either deletes it.
func (f *Feed) Source(name string) model.Sink { return f.intake.Source(name) }

// Close ends all calls of Next. Objects that sources deliver afterwards are ignored.
func (f *Feed) Close() { f.log.Close() }

// Closed returns a channel that is closed together with the feed.
func (f *Feed) Closed() <-chan struct{} { return f.log.Closed() }

// Ready returns a channel that is closed once all sources are complete, so that there is a set to hand out.
func (f *Feed) Ready() <-chan struct{} { return f.ready }

// Next blocks until there is a set newer than after, and returns the update from after to it. With after = 0, or an
// after that the feed does not remember, the update is full. It fails with ErrClosed once the feed is closed, even if
// there is a newer set. If ctx ends first, it fails with the error of ctx.
func (f *Feed) Next(ctx context.Context, after state.Revision) (*Update, error) {
	news, err := f.log.Next(ctx, after)
	if err != nil {
		return nil, err
	}
	return f.given.update(after, news), nil
}

// given are the updates that consumers have been given in a revision, for others that need the same one.
type given struct {
	mu       sync.Mutex // guards all below
	revision state.Revision
	// A full update takes a lot of memory, and is kept by those that are busy with it.
	full weak.Pointer[Update]
	// deltas are by the revision that they lead on from.
	deltas map[state.Revision]*Update
}

// maxDeltas is how many updates are kept for consumers that come with the same revision as others.
const maxDeltas = 64

// update returns the update of a consumer that has revision after.
func (g *given) update(after state.Revision, news revlog.News[objects, model.Ref]) *Update {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.revision < news.Revision {
		g.revision = news.Revision
		clear(g.deltas)
	}
	isLatest := g.revision == news.Revision
	u := &Update{Revision: news.Revision, Full: news.Changes == nil}
	switch {
	case u.Full:
		if same := g.full.Value(); same != nil && same.Revision == u.Revision {
			return same
		}
		u.Set = news.State.All()
		if isLatest {
			g.full = weak.Make(u)
		}
		return u
	case isLatest && g.deltas[after] != nil:
		return g.deltas[after]
	}
	u.Set, u.Deleted = revlog.Outcome(slices.Collect(news.Changes), news.State.Get)
	if isLatest {
		if len(g.deltas) == maxDeltas {
			clear(g.deltas)
		}
		g.deltas[after] = u
	}
	return u
}

// update takes in objects of a source. An object that is both deleted and set is set; of two with the same ref the later
// wins. An object that equals the existing one in all fields replaces it, and is no change. The caller holds mu.
func (f *Feed) update(set []model.Object, deleted []model.Ref) {
	_, before := f.log.Latest()
	next := before.Clone()
	for _, ref := range deleted {
		next.Delete(ref)
	}
	for _, obj := range set {
		next.Set(obj.Ref(), obj)
	}
	var changed []model.Ref
	if f.intake.Complete() { // before that no consumer has anything, so that it does not matter what changes
		changed = changes(before, next, set, deleted)
	}
	if len(changed) == 0 {
		f.log.Replace(next)
	} else {
		f.log.Publish(next, changed)
	}
}

// changes returns which of some objects differ in two sets, each once.
func changes(before, next objects, set []model.Object, deleted []model.Ref) []model.Ref {
	refs := slices.Clone(deleted)
	for _, obj := range set {
		refs = append(refs, obj.Ref())
	}
	slices.SortFunc(refs, model.Ref.Compare)
	return slices.DeleteFunc(slices.Compact(refs), func(ref model.Ref) bool { return equal(before.Get(ref), next.Get(ref)) })
}

// completed publishes the first set once all sources are complete: it is always news. The caller holds mu.
func (f *Feed) completed() {
	if revision, first := f.log.Latest(); revision == 0 && f.intake.Complete() && !f.log.IsClosed() {
		f.log.Publish(first, nil)
		close(f.ready)
	}
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
