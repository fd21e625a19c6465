package kube

import (
	"context"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/switchyard-net/switchyard/model"
)

const (
	// spread is the default of Options.ListSpread. Each other namespace that waits adds pace: at client-go's default of 5 requests a
	// second, two lists take that long.
	spread = 2 * time.Second
	pace   = 400 * time.Millisecond

	// If a namespace was listed less than calm ago, its spread doubles, up to maxSpreads times the first spread. A
	// label that keeps changing then costs one list in half a minute.
	calm       = 10 * time.Minute
	maxSpreads = 32

	// maxListing is how many namespaces are listed at the same time.
	maxListing = 4

	// maxQueued is how many events a namespace may have while it is listed. With more it is listed again.
	maxQueued = 10_000

	// relistShortest and relistLongest bound how long to wait after a list that failed, or up to half as long again.
	relistShortest = time.Second
	relistLongest  = 30 * time.Second
)

// optIn is a namespace that is no longer disabled, until all of its objects have been listed.
//
// The watches of all namespaces must deliver its events before it is listed, and lists must be no older than the start
// of these watches. So no event is missed. The events since then are queued, and events that the lists already include
// are dropped. Services and EndpointSlices reach the sink together, so that a Service does not refuse connections
// because its slices are missing.
type optIn struct {
	namespace string
	// spread is the time within which it is to be listed.
	spread  time.Duration
	readers []listReader
	slots   chan struct{} // one for each namespace that may be listed now
	events  chan<- event
	health  *health
	cancel  context.CancelFunc
	stopped <-chan struct{} // closed by cancel

	// due is set once the delay is over.
	due bool
	// covered is closed when watches bring all events that are newer than least.
	covered chan struct{}
	least   map[model.Kind]string
	// done are the kinds whose objects have already arrived with a list of all namespaces.
	done map[model.Kind]bool
	// queued are the events since covered, in order.
	queued []queuedEvent
}

// queuedEvent is an object that was put or deleted.
type queuedEvent struct {
	kind    model.Kind
	what    what
	changed item
}

// isCovered reports whether events are queued. It is called by the delivery only, which closes covered.
func (o *optIn) isCovered() bool { return o.least != nil }

// run has the namespace listed, until it is or ctx ends.
func (o *optIn) run(ctx context.Context) {
	if !sleep(ctx, rand.N(o.spread)) {
		return
	}
	o.send(event{what: due})
	select {
	case <-ctx.Done():
		return
	case <-o.covered:
	}
	defer func() {
		for _, r := range o.readers {
			o.health.forget(r.resource)
		}
	}()
	for pause := relistShortest; ; pause = min(2*pause, relistLongest) {
		lists, err := o.list(ctx)
		if err == nil {
			o.send(event{what: listed, lists: lists})
			return
		}
		if !sleep(ctx, wait.Jitter(pause, 0.5)) {
			return
		}
	}
}

func (o *optIn) send(e event) {
	e.optIn = o
	select {
	case <-o.stopped:
	case o.events <- e:
	}
}

// list lists the objects of the namespace, when there is a slot.
func (o *optIn) list(ctx context.Context) (map[model.Kind]*itemList, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case o.slots <- struct{}{}:
	}
	defer func() { <-o.slots }()
	lists := make(map[model.Kind]*itemList)
	for _, r := range o.readers {
		kind := r.resource.kind
		options := metav1.ListOptions{ResourceVersion: o.least[kind], ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
		list, err := r.list(ctx, r.request(options, ""))
		switch {
		case err == nil:
			o.health.markHealthy(r.resource)
		case ctx.Err() == nil && !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge): // another API server, which lags behind
			o.health.fail(r.resource, err)
		}
		if err != nil {
			return nil, err
		}
		lists[kind] = list
	}
	return lists, nil
}

// sleep reports whether a time is over before ctx is.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// spreads remembers which namespaces have been opted in of late, and within which time.
type spreads struct {
	shortest time.Duration
	last     map[string]spreadAt
	// prune is how many may be remembered before old ones are forgotten.
	prune int
}

type spreadAt struct {
	at     time.Time
	spread time.Duration
}

// next returns the time within which to list a namespace while other namespaces also wait.
func (s *spreads) next(namespace string, others int, now time.Time) time.Duration {
	within := s.shortest
	if last, ok := s.last[namespace]; ok && now.Sub(last.at) < calm {
		within = min(2*last.spread, maxSpreads*s.shortest)
	}
	return within + time.Duration(others)*pace
}

// note remembers that a namespace is listed now.
func (s *spreads) note(namespace string, within time.Duration, now time.Time) {
	if len(s.last) >= s.prune {
		for name, last := range s.last {
			if now.Sub(last.at) >= calm {
				delete(s.last, name)
			}
		}
		s.prune = max(64, 2*len(s.last))
	}
	s.last[namespace] = spreadAt{now, within}
}

// beginOptIn has a namespace listed that is no longer disabled, or that must be listed again.
func (d *delivery) beginOptIn(namespace string) {
	if o := d.optIns[namespace]; o != nil {
		d.endOptIn(o)
	}
	if d.watchers[model.KindService] == nil {
		return // the first lists will include it
	}
	ctx, cancel := context.WithCancel(d.ctx)
	o := &optIn{
		namespace: namespace, spread: d.spreads.next(namespace, len(d.optIns), time.Now()), slots: d.slots, events: d.events,
		health: &d.source.health, cancel: cancel, stopped: ctx.Done(), covered: make(chan struct{}), done: make(map[model.Kind]bool),
	}
	d.optIns[namespace] = o
	go o.run(ctx)
}

// takeOptIn works in what an optIn reports.
func (d *delivery) takeOptIn(e *event) {
	o := e.optIn
	if d.optIns[o.namespace] != o {
		return // said before it was cancelled
	}
	if e.what == due {
		o.due = true
		d.advance(o)
		return
	}
	for kind, list := range e.lists {
		if o.done[kind] {
			continue
		}
		news, gone := d.held[kind].replaceNamespace(o.namespace, itemsOf(list), list.ResourceVersion)
		d.relisted(news, gone)
	}
	d.endOptIn(o)
	for n := range o.queued {
		if q := &o.queued[n]; !o.done[q.kind] {
			d.takeItem(q.kind, q.what, &q.changed)
		}
	}
}

func (d *delivery) endOptIn(o *optIn) {
	o.cancel()
	delete(d.optIns, o.namespace)
}

// advance lists the namespace if its time has come and the watches deliver all its events. Otherwise it ensures that
// they will.
func (d *delivery) advance(o *optIn) {
	if !o.due || o.isCovered() {
		return
	}
	least, readers := make(map[model.Kind]string), []listReader(nil)
	ready := true
	for _, r := range d.resources {
		if !r.namespaced || o.done[r.kind] {
			continue
		}
		w := d.watchers[r.kind]
		if s := d.asked[r.kind]; s == nil || s.excludes(o.namespace) {
			w.reopen(o.namespace)
			ready = false
		}
		least[r.kind] = d.held[r.kind].least(o.namespace)
		readers = append(readers, listReader{resource: r.in(o.namespace), client: w.client, decoder: w.decoder})
	}
	if ready {
		o.least, o.readers = least, readers
		close(o.covered)
		d.spreads.note(o.namespace, o.spread, time.Now())
	}
}

// asks notes the selection of a list or watch of all namespaces. Namespaces that it left out and that are no longer
// disabled must be listed again, because events may be missing since then.
func (d *delivery) asks(kind model.Kind, s *selection) {
	d.asked[kind] = s
	for namespace := range s.excluded {
		if d.optOut.disabled[namespace] {
			continue
		}
		if o := d.optIns[namespace]; o == nil || o.isCovered() {
			d.beginOptIn(namespace)
		} else {
			delete(o.done, kind)
		}
	}
}

// listedAll notes that a list of all namespaces has brought all objects of a kind.
func (d *delivery) listedAll(kind model.Kind, s *selection) {
	for _, o := range d.optIns {
		if s.excludes(o.namespace) {
			continue
		}
		o.done[kind] = true
		if o.done[model.KindService] && o.done[model.KindEndpointSlice] {
			d.endOptIn(o)
		}
	}
}

// queue keeps an event for when its namespace has been listed.
func (d *delivery) queue(o *optIn, kind model.Kind, what what, i *item) {
	if !o.isCovered() {
		return // the list will not be older
	}
	if len(o.queued) == maxQueued {
		d.beginOptIn(o.namespace)
		return
	}
	o.queued = append(o.queued, queuedEvent{kind, what, *i})
}
