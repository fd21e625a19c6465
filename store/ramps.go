package store

import (
	"container/heap"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
)

const (
	// mostFollowed is how many addresses services with a slow start may have in all, and half of them in a namespace. An address takes 32 bytes, and 32
	// more while it is new.
	mostFollowed = 1 << 17
	// A step computes services until they have stepAddresses. The next step begins after stepPause, and other changes come in between.
	stepAddresses = 8192
	stepPause     = 100 * time.Millisecond
)

// ramps follows which endpoints of services with a slow start are new. All services with the same length of it step at the same times. These
// are the multiples of an eighth of that length since the store was made. So a service changes only once for all of its endpoints in each eighth. An endpoint
// has its full weight after the length and at most an eighth more.
type ramps struct {
	begun       time.Time
	followed    int // addresses
	byNamespace map[string]int
	queue       rampQueue // the services with new endpoints
	stepped     time.Time // when the last step began
	timer       *time.Timer
}

// ramp is the readiness of a service's endpoints.
type ramp struct {
	svc    *service
	length time.Duration
	ready  []readySince  // sorted by address
	young  []brain.Young // of them, as of the last time that the service was dirty; immutable
	// noRoom reports whether there is no room to follow the endpoints. They count as old.
	noRoom bool
	next   time.Duration // when an age changes, since ramps.begun
	index  int           // in the queue, -1 if it is not there
}

// readySince is the time at which an address has become ready.
type readySince struct {
	addr  netip.Addr
	since time.Duration // since ramps.begun, longAgo for an endpoint that is not new
}

const longAgo = -1

func newRamps() ramps { return ramps{begun: time.Now(), byNamespace: make(map[string]int)} }

// note takes down which endpoints of a service are ready, and for how long. The ones that are ready when the service is noted with a slow start for the
// first time are not new.
func (r *ramps) note(svc *service, in *inputs) {
	length := brain.SlowStartOf(in.brain, in.object)
	if length == 0 {
		r.forget(svc)
		return
	}
	p, now, since := svc.ramp, time.Since(r.begun), time.Duration(longAgo)
	if p == nil {
		p = &ramp{svc: svc, index: -1}
		svc.ramp = p
	} else if !p.noRoom {
		since = now
	}
	addrs := readyAddrs(in)
	if p.noRoom = !r.takes(svc.name.Namespace, len(addrs)-len(p.ready)); p.noRoom {
		addrs = nil
		r.takes(svc.name.Namespace, -len(p.ready))
	}
	ready := make([]readySince, len(addrs))
	for i, addr := range addrs {
		ready[i] = readySince{addr, since}
		if at, found := slices.BinarySearchFunc(p.ready, addr, func(e readySince, addr netip.Addr) int { return e.addr.Compare(addr) }); found {
			ready[i].since = p.ready[at].since
		}
	}
	p.length, p.ready = length, ready
	r.age(p, now)
}

// takes reports whether so many more addresses of a namespace have room, and if so takes it.
func (r *ramps) takes(namespace string, n int) bool {
	if n > 0 && (r.followed+n > mostFollowed || r.byNamespace[namespace]+n > mostFollowed/2) {
		return false
	}
	r.followed += n
	if r.byNamespace[namespace] += n; r.byNamespace[namespace] == 0 {
		delete(r.byNamespace, namespace)
	}
	return true
}

// readyAddrs returns the addresses of ready endpoints, sorted and distinct.
func readyAddrs(in *inputs) (addrs []netip.Addr) {
	for _, s := range in.slices {
		if !brain.HandlesSlice(in.brain, s) {
			continue
		}
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; e.Ready {
				addrs = append(addrs, e.Addr)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// age makes the list of young endpoints again, and puts the service into the queue if there are any.
func (r *ramps) age(p *ramp, now time.Duration) {
	step := p.length / brain.SlowStartSteps
	p.young = nil
	for i := range p.ready {
		e := &p.ready[i]
		if e.since == longAgo {
			continue
		}
		first := (e.since + step - 1) / step
		age := max(0, now/step-first)
		if age >= brain.SlowStartSteps {
			e.since = longAgo
			continue
		}
		p.young = append(p.young, brain.Young{Addr: e.addr, Age: uint8(age)})
	}
	p.next = (now/step + 1) * step
	switch {
	case len(p.young) == 0:
		r.dequeue(p)
	case p.index < 0:
		heap.Push(&r.queue, p)
	default:
		heap.Fix(&r.queue, p.index)
	}
}

func (r *ramps) dequeue(p *ramp) {
	if p.index >= 0 {
		heap.Remove(&r.queue, p.index)
	}
}

// forget discards what is known about the endpoints of a service.
func (r *ramps) forget(svc *service) {
	if p := svc.ramp; p != nil {
		r.takes(svc.name.Namespace, -len(p.ready))
		r.dequeue(p)
		svc.ramp = nil
	}
}

// due passes the services whose ages have changed to mark, up to the bound of a step.
func (r *ramps) due(mark func(*service)) {
	r.stepped = time.Now()
	now := r.stepped.Sub(r.begun)
	for n := 0; n < stepAddresses && len(r.queue) > 0 && r.queue[0].next <= now; {
		p := r.queue[0]
		r.dequeue(p) // until it is noted again
		n += len(p.ready)
		mark(p.svc)
	}
}

// arm sets the timer to the next step.
func (r *ramps) arm(step func()) {
	if len(r.queue) == 0 {
		r.stop()
		return
	}
	wait := max(time.Until(r.begun.Add(r.queue[0].next)), time.Until(r.stepped.Add(stepPause)), 0)
	if r.timer == nil {
		r.timer = time.AfterFunc(wait, step)
	} else {
		r.timer.Reset(wait)
	}
}

func (r *ramps) stop() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// rampQueue is a heap of ramps by their next step.
type rampQueue []*ramp

func (q rampQueue) Len() int           { return len(q) }
func (q rampQueue) Less(i, j int) bool { return q[i].next < q[j].next }
func (q rampQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *rampQueue) Push(p any) {
	p.(*ramp).index = len(*q)
	*q = append(*q, p.(*ramp))
}

func (q *rampQueue) Pop() any {
	last := len(*q) - 1
	p := (*q)[last]
	(*q)[last] = nil
	*q, p.index = (*q)[:last], -1
	return p
}

// step publishes the new weights of young endpoints.
func (c *core) step() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ramps.due(c.objects.mark)
	c.publish()
}

// withYoung tells the brain about the young endpoints of a service.
func (in *inputs) withYoung(p *ramp) {
	if p != nil && len(p.young) > 0 {
		cfg := *in.brain
		cfg.Young = p.young
		in.brain = &cfg
	}
}

// noSlowStart is the problem of a service without room for its endpoints.
func noSlowStart(svc *service) Problem {
	return Problem{Service: svc.name, Reason: AnnotationIgnored, Field: "metadata.annotations[" + model.SlowStartAnnotation + "]",
		Note:   fmt.Sprintf("slow starts follow up to %d addresses in all and %d of a namespace, so new endpoints have their full weight at once", mostFollowed, mostFollowed/2),
		Remedy: "remove the annotation from services with many endpoints"}
}
