package kube

import (
	"context"
	"iter"
	"time"

	"k8s.io/client-go/rest"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source"
)

// delivery brings what watchers say to the sink. All of it belongs to one goroutine.
type delivery struct {
	source *Source
	sink   source.Sink
	events chan event

	resources []*resource
	watchers  map[model.Kind]*watcher
	held      map[model.Kind]*held
	// missing are the kinds that are neither listed yet nor known to be denied.
	missing map[model.Kind]bool
	optOut  optOut
	pending pending
	next    *rest.Config // another way to the API server, which has not been gone over to yet
	refused string       // the last error of renew that was logged
}

// backlog is how many events may wait while the sink is busy. They then reach it as one.
const backlog = 1024

func newDelivery(s *Source, sink source.Sink) *delivery {
	d := &delivery{
		source:    s,
		sink:      sink,
		events:    make(chan event, backlog),
		resources: resources(s.options.NodeName, s.options.ServiceProxyName),
		watchers:  make(map[model.Kind]*watcher),
		held:      make(map[model.Kind]*held),
		missing:   make(map[model.Kind]bool),
		optOut:    newOptOut(s.log),
		pending:   newPending(),
	}
	for _, r := range d.resources {
		d.held[r.kind] = newHeld(r.kind)
		d.missing[r.kind] = true
	}
	return d
}

// run delivers until ctx ends.
//
// It does not wait for its watchers to end: client-go sleeps through the end of its context while it backs off, for up to a
// minute. They have nobody to talk to then.
func (d *delivery) run(ctx context.Context) {
	for _, r := range d.resources {
		if !r.namespaced {
			d.watch(ctx, r, r.fields)
		}
	}
	var renewal <-chan time.Time
	if d.source.options.Renew != nil {
		ticker := time.NewTicker(renewPeriod)
		defer ticker.Stop()
		renewal = ticker.C
	}
	for complete := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-renewal:
			d.renew(ctx)
			continue
		case <-d.optOut.settled.C:
			d.watchNamespaced(ctx)
			continue
		case e := <-d.events:
			d.take(&e)
		}
		d.takeWaiting()
		d.flush()
		if !d.missing[model.KindNamespace] && d.watchers[model.KindService] == nil {
			d.watchNamespaced(ctx)
		}
		if !complete && len(d.missing) == 0 {
			complete = true
			d.source.log.Info("all objects of the cluster have been delivered", "services", d.held[model.KindService].len(),
				"endpointSlices", d.held[model.KindEndpointSlice].len(), "disabledNamespaces", len(d.optOut.disabled))
			d.sink.Complete()
		}
	}
}

// renewPeriod is how often it is asked whether the API server is to be reached in another way.
const renewPeriod = 5 * time.Second

// renew goes over to another way to the API server, if there is one. What the sink has stays there until the first lists say
// otherwise. They are not older than what it has, as long as it is the same cluster's: an API server that does not know the
// version is asked for the latest list.
func (d *delivery) renew(ctx context.Context) {
	config, err := d.source.options.Renew()
	if config != nil {
		d.next = config
	}
	if err == nil && d.next != nil {
		err = d.source.connect(d.next) // again and again: it may name a file that is mended later
	}
	if err != nil {
		if text := err.Error(); text != d.refused {
			d.refused = text
			d.source.log.Error("the new way to the API server cannot be used; going on with the last one", "error", err)
		}
		return
	}
	d.refused = ""
	if d.next == nil {
		return
	}
	config, d.next = d.next, nil
	d.source.log.Info("going over to another way to the API server", "host", config.Host)
	for _, r := range d.resources {
		if w := d.watchers[r.kind]; w != nil {
			d.held[r.kind].distrust()
			d.watch(ctx, r, w.fields)
		}
	}
}

// takeWaiting takes the events that have arrived in the meantime.
func (d *delivery) takeWaiting() {
	for range len(d.events) {
		e := <-d.events
		d.take(&e)
	}
}

// watchNamespaced watches the Services and EndpointSlices of all namespaces but the disabled ones, from now on. What the
// sink has stays there until the first list of the new watch says otherwise.
func (d *delivery) watchNamespaced(ctx context.Context) {
	fields := d.optOut.selector()
	for _, r := range d.resources {
		if r.namespaced {
			d.watch(ctx, r, fields)
		}
	}
}

// watch starts a watcher, in place of the one before.
func (d *delivery) watch(ctx context.Context, r *resource, fields string) {
	if before := d.watchers[r.kind]; before != nil {
		before.stop()
	}
	ctx, stop := context.WithCancel(ctx)
	w := &watcher{
		resource: r,
		client:   (*d.source.clients.Load())[r.version],
		decoder:  d.source.decoder,
		fields:   fields,
		least:    d.held[r.kind].latest,
		lasts:    d.source.options.ResyncPeriod,
		events:   d.events,
		health:   &d.source.health,
		stop:     stop,
		done:     ctx.Done(),
	}
	d.watchers[r.kind] = w
	go w.run(ctx)
}

// take works in one event. What it means for the sink is pending or has been delivered afterwards.
func (d *delivery) take(e *event) {
	kind := e.from.resource.kind
	if d.watchers[kind] != e.from {
		return // said before it was stopped
	}
	held := d.held[kind]
	switch e.what {
	case denied:
		delete(d.missing, kind)
	case refused:
		d.optOut.refuse(e.from.fields)
	case list:
		held.latest = e.version
		d.takeList(kind, e.items)
		delete(d.missing, kind)
	case put:
		held.latest = e.version
		for i := range d.wanted(e.items) {
			if held.put(i) {
				d.put(i)
			}
		}
	case deleted:
		held.latest = e.version
		for _, i := range e.items {
			if held.remove(i.ref) {
				d.delete(i.ref)
			}
		}
	}
}

// takeList works in the list of all objects of a kind.
func (d *delivery) takeList(kind model.Kind, items []item) {
	news, gone := d.held[kind].replace(d.wanted(items))
	for _, i := range news {
		d.put(i)
	}
	for _, ref := range gone {
		d.delete(ref)
	}
	if kind == model.KindNode && len(items) == 0 {
		d.source.eligible.Store(false)
	}
}

// wanted are the items that are not in a disabled namespace: such as a watch brings that was begun before it was, or one
// whose selector would be too long.
func (d *delivery) wanted(items []item) iter.Seq[*item] {
	return func(yield func(*item) bool) {
		for n := range items {
			if i := &items[n]; !d.optOut.disabled[i.ref.Namespace] && !yield(i) {
				return
			}
		}
	}
}

// put has an object delivered. One with a fault leaves its last good version in force.
func (d *delivery) put(i *item) {
	if i.fault != nil {
		d.source.log.Error("object cannot be used; what it said last stays in force", "object", i.ref.String(), "error", i.fault)
		return
	}
	switch object := i.object.(type) {
	case *model.Node:
		d.source.eligible.Store(!i.ineligible)
	case *model.Namespace:
		d.setDisabled(object.Name, object.ProxyDisabled)
	}
	d.pending.add(i.ref, i.object)
}

// delete has an object forgotten. The own Node is not: that it was deleted makes it no candidate for load balancers, but as
// long as this runs it is where it was, with the addresses and pods that it had.
func (d *delivery) delete(ref model.Ref) {
	switch ref.Kind {
	case model.KindNode:
		d.source.eligible.Store(false)
		if !d.source.options.AllNodes {
			return
		}
	case model.KindNamespace:
		d.setDisabled(ref.Name, false)
	}
	d.pending.add(ref, nil)
}

// setDisabled takes a namespace from the proxy, at once, or gives it back, with the next list.
func (d *delivery) setDisabled(namespace string, disabled bool) {
	if !d.optOut.set(namespace, disabled, time.Now()) || !disabled {
		return
	}
	for _, r := range d.resources {
		if r.namespaced {
			for _, ref := range d.held[r.kind].removeNamespace(namespace) {
				d.pending.add(ref, nil)
			}
		}
	}
}

// flush hands over what is pending.
func (d *delivery) flush() {
	if set, deleted := d.pending.take(); len(set)+len(deleted) > 0 {
		d.sink.Update(set, deleted)
	}
}

// pending collects what the sink gets next. Of several changes of an object the last one counts.
type pending struct {
	objects []change
	index   map[model.Ref]int // in objects
}

// change is an object's new version, nil if it has been deleted.
type change struct {
	ref    model.Ref
	object model.Object
}

func newPending() pending { return pending{index: make(map[model.Ref]int)} }

func (p *pending) add(ref model.Ref, object model.Object) {
	if i, ok := p.index[ref]; ok {
		p.objects[i].object = object
		return
	}
	p.index[ref] = len(p.objects)
	p.objects = append(p.objects, change{ref, object})
}

// take returns what has been added since it was last called.
func (p *pending) take() (set []model.Object, deleted []model.Ref) {
	for _, c := range p.objects {
		if c.object == nil {
			deleted = append(deleted, c.ref)
		} else {
			set = append(set, c.object)
		}
	}
	*p = newPending()
	return set, deleted
}
