package kube

import (
	"cmp"
	"context"
	"iter"
	"time"

	"k8s.io/client-go/rest"

	"github.com/switchyard-net/switchyard/model"
)

// delivery brings the watchers' events to the sink. All of it belongs to one goroutine.
type delivery struct {
	ctx    context.Context // the context of run
	source *Source
	sink   model.Sink
	events chan event

	resources []*resource
	watchers  map[model.Kind]*watcher
	held      map[model.Kind]*held
	// missing are the kinds that are neither listed yet nor known to be denied.
	missing map[model.Kind]bool
	optOut  *optOut
	// asked is the selection of the current watch of a kind, or of the last list if it is later. It has only namespaced
	// kinds.
	asked map[model.Kind]*selection
	// optIns are the namespaces that are no longer disabled, and not listed yet.
	optIns  map[string]*optIn
	spreads spreads
	slots   chan struct{}
	pending pending
	next    *rest.Config // another way to the API server, which has not been gone over to yet
	refused string       // the last error of renew that was logged
	// node is this Node as it was delivered last, nil if there is none, and listedAt is when all kinds were listed, zero before.
	node     *model.Node
	listedAt time.Time
}

// backlog is how many events may wait while the sink is busy. They then reach it as one.
const backlog = 1024

func newDelivery(s *Source, sink model.Sink) *delivery {
	d := &delivery{
		source:    s,
		sink:      sink,
		events:    make(chan event, backlog),
		resources: resources(s.options.watchedNode(), s.options.ServiceProxyName, s.options.Names),
		watchers:  make(map[model.Kind]*watcher),
		held:      make(map[model.Kind]*held),
		missing:   make(map[model.Kind]bool),
		optOut:    newOptOut(s.log),
		asked:     make(map[model.Kind]*selection),
		optIns:    make(map[string]*optIn),
		spreads:   spreads{shortest: cmp.Or(s.options.ListSpread, spread), last: make(map[string]spreadAt)},
		slots:     make(chan struct{}, maxListing),
	}
	for _, r := range d.resources {
		d.held[r.kind] = newHeld(r.kind)
		d.missing[r.kind] = true
	}
	return d
}

// run delivers until ctx ends.
//
// It does not wait for its watchers to end. While client-go backs off, it ignores the end of its context for up to a
// minute. Nothing receives their events then.
func (d *delivery) run(ctx context.Context) {
	d.ctx = ctx
	for _, r := range d.resources {
		if !r.namespaced {
			d.watch(r)
		}
	}
	var renewal <-chan time.Time
	if d.source.options.Renew != nil {
		ticker := time.NewTicker(renewPeriod)
		defer ticker.Stop()
		renewal = ticker.C
	}
	var again <-chan time.Time // when to look at the Node again
	for complete := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-renewal:
			d.renew()
		case e := <-d.events:
			d.take(&e)
			d.takeWaiting()
			d.flush()
		}
		if !d.missing[model.KindNamespace] && d.watchers[model.KindService] == nil {
			d.watchNamespaced()
		}
		if !complete && len(d.missing) == 0 {
			if complete, again = d.isWhole(); !complete {
				continue
			}
			d.source.log.Info("initial sync complete", "services", d.held[model.KindService].len(),
				"endpointSlices", d.held[model.KindEndpointSlice].len(), "disabledNamespaces", len(d.optOut.disabled))
			d.sink.Complete()
		}
	}
}

// renewPeriod is how often it is asked whether the API server is to be reached in another way.
const renewPeriod = 5 * time.Second

// renew switches to another connection to the API server, if there is one. The sink keeps its objects until the first
// lists replace them. In the same cluster, these lists are not older than the sink's objects. If an API server does not
// know the version, it is asked for the latest list.
func (d *delivery) renew() {
	config, err := d.source.options.Renew()
	if config != nil {
		d.next = config
	}
	if err == nil && d.next != nil {
		err = d.source.connect(d.next) // again and again: it may name a file that is fixed later
	}
	if err != nil {
		if text := err.Error(); text != d.refused {
			d.refused = text
			d.source.log.Error("cannot use the new API server connection, keeping the last one", "error", err)
		}
		return
	}
	d.refused = ""
	if d.next == nil {
		return
	}
	config, d.next = d.next, nil
	d.source.log.Info("switching API server connection", "host", config.Host)
	d.startOver()
}

// takeWaiting takes the events that have arrived in the meantime.
func (d *delivery) takeWaiting() {
	for range len(d.events) {
		e := <-d.events
		d.take(&e)
	}
}

// watchNamespaced watches the Services and EndpointSlices of all namespaces but the disabled ones, from now on.
func (d *delivery) watchNamespaced() {
	for _, r := range d.resources {
		if r.namespaced {
			d.watch(r)
		}
	}
}

// watch starts a watcher that replaces the previous one. The sink keeps its objects until the first list replaces them.
func (d *delivery) watch(r *resource) {
	if before := d.watchers[r.kind]; before != nil {
		before.stop()
	}
	delete(d.asked, r.kind)
	ctx, stop := context.WithCancel(d.ctx)
	w := &watcher{
		listReader: listReader{resource: r, client: (*d.source.clients.Load())[r.version], decoder: d.source.decoder},
		least:      d.held[r.kind].latest,
		lasts:      d.source.options.ResyncPeriod,
		events:     d.events,
		health:     &d.source.health,
		stop:       stop,
		done:       ctx.Done(),
	}
	if r.namespaced {
		w.optOut = d.optOut
	}
	d.watchers[r.kind] = w
	go w.run(ctx)
}

// take processes one event. Its changes for the sink are pending or delivered afterwards.
func (d *delivery) take(e *event) {
	if e.optIn != nil {
		d.takeOptIn(e)
		return
	}
	kind := e.from.resource.kind
	if d.watchers[kind] != e.from {
		return // said before it was stopped
	}
	switch e.what {
	case denied:
		delete(d.missing, kind)
		return
	case reverted:
		d.revert()
		return
	}
	held := d.held[kind]
	if e.what == list && versionNumber(e.version) < versionNumber(held.latest) {
		held.invalidate() // of another history, which has other versions
	}
	held.latest = e.version
	switch e.what {
	case list:
		d.takeList(kind, e)
		delete(d.missing, kind)
	case opened:
		if e.from.resource.namespaced {
			d.asks(kind, e.selection)
			for _, o := range d.optIns {
				d.advance(o)
			}
		}
	case put, deleted:
		for _, i := range e.items {
			d.takeItem(kind, e.what, i)
		}
	}
}

// takeItem works in an object that was put or deleted. Watches may bring objects of disabled namespaces: those that were begun
// before, or whose selector would be too long.
func (d *delivery) takeItem(kind model.Kind, what what, i *item) {
	held := d.held[kind]
	if d.optOut.disabled[i.ref.Namespace] {
		return
	}
	if o := d.optIns[i.ref.Namespace]; o != nil && !o.done[kind] {
		d.queue(o, kind, what, i)
		return
	}
	switch {
	case held.past(i):
	case what == put && held.put(i):
		d.put(i)
	case what == deleted && held.remove(i.ref):
		d.delete(i.ref)
	}
}

// takeList works in the list of all objects of a kind.
func (d *delivery) takeList(kind model.Kind, e *event) {
	news, gone := d.held[kind].replace(d.wanted(e.items), e.version, e.selection.excludes)
	d.relisted(news, gone)
	if kind == model.KindNode {
		d.listedNodes(e.items)
	}
	if e.from.resource.namespaced {
		d.listedAll(kind, e.selection)
		d.asks(kind, e.selection)
	}
}

// relisted delivers the changes of a list.
func (d *delivery) relisted(news []*item, gone []model.Ref) {
	d.pending.beginList(len(news) + len(gone))
	defer d.pending.endList()
	for _, i := range news {
		d.put(i)
	}
	for _, ref := range gone {
		d.delete(ref)
	}
}

// wanted are the items that are not in a disabled namespace.
func (d *delivery) wanted(items []*item) iter.Seq[*item] {
	return func(yield func(*item) bool) {
		for _, i := range items {
			if !d.optOut.disabled[i.ref.Namespace] && !yield(i) {
				return
			}
		}
	}
}

// itemsOf are the items of a list.
func itemsOf(l *itemList) iter.Seq[*item] {
	return func(yield func(*item) bool) {
		for _, o := range l.Items {
			if !yield(o.(*item)) {
				return
			}
		}
	}
}

// put has an object delivered. One with a fault leaves its last good version in force.
func (d *delivery) put(i *item) {
	if i.fault != nil {
		d.source.log.Error("ignoring invalid object; keeping last known good configuration", "object", i.ref.String(), "error", i.fault)
		return
	}
	object := i.object
	switch o := object.(type) {
	case *model.Node:
		object = d.putNode(o, !i.ineligible)
	case *model.Namespace:
		d.setDisabled(o.Name, o.ProxyDisabled)
	}
	d.pending.add(i.ref, object)
}

// delete forgets an object. The sink decides what the deletion of this Node means for routing: load balancers should
// not send to it.
func (d *delivery) delete(ref model.Ref) {
	switch ref.Kind {
	case model.KindNode:
		d.deleteNode(ref.Name)
	case model.KindNamespace:
		d.setDisabled(ref.Name, false)
	}
	d.pending.add(ref, nil)
}

// setDisabled takes a namespace from the proxy, at once and without a request, or gives it back when it has been listed.
func (d *delivery) setDisabled(namespace string, disabled bool) {
	if d.source.options.Names || !d.optOut.set(namespace, disabled) {
		return // with names, the sink still gets the objects
	}
	if !disabled {
		d.beginOptIn(namespace)
		return
	}
	if o := d.optIns[namespace]; o != nil {
		d.endOptIn(o)
	}
	for _, r := range d.resources {
		if r.namespaced {
			for _, ref := range d.held[r.kind].removeNamespace(namespace) {
				d.pending.add(ref, nil)
			}
		}
	}
}

// flush delivers the pending changes.
func (d *delivery) flush() {
	if set, deleted := d.pending.take(); len(set)+len(deleted) > 0 {
		d.sink.Update(set, deleted)
	}
}

// pending collects the next changes for the sink. The last of several changes of an object counts.
type pending struct {
	objects []change
	// index has the positions in objects of the first ones, so many. Of a list that is handed over as it is, it is not made.
	index   map[model.Ref]int
	indexed int
	// listing is set while the changes of a list are added, and nothing was there before: its objects differ.
	listing bool
}

// change is an object's new version, nil if it has been deleted.
type change struct {
	ref    model.Ref
	object model.Object
}

// beginList makes room for n changes by a list, of as many objects.
func (p *pending) beginList(n int) {
	if len(p.objects) == 0 {
		p.objects, p.listing = make([]change, 0, n), true
	}
}

func (p *pending) endList() { p.listing = false }

func (p *pending) add(ref model.Ref, object model.Object) {
	if !p.listing {
		if i, ok := p.find(ref); ok {
			p.objects[i].object = object
			return
		}
	}
	p.objects = append(p.objects, change{ref, object})
}

// find returns where the change of an object is.
func (p *pending) find(ref model.Ref) (int, bool) {
	if p.index == nil {
		p.index = make(map[model.Ref]int, len(p.objects))
	}
	for ; p.indexed < len(p.objects); p.indexed++ {
		p.index[p.objects[p.indexed].ref] = p.indexed
	}
	i, ok := p.index[ref]
	return i, ok
}

// take returns the changes since its last call.
func (p *pending) take() (set []model.Object, deleted []model.Ref) {
	if len(p.objects) == 0 {
		return nil, nil
	}
	set = make([]model.Object, 0, len(p.objects))
	for _, c := range p.objects {
		if c.object == nil {
			deleted = append(deleted, c.ref)
		} else {
			set = append(set, c.object)
		}
	}
	*p = pending{}
	return set, deleted
}
