package nftables

import (
	"fmt"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/least"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// countPeriod is the least time between two counts of connections. countCost bounds the share of time that counting takes.
	countPeriod = time.Second
	countCost   = 50
	// mostFlows is how many flows the node may have for connections to be counted. With more, shares are even until there are at most fewFlows: a listing
	// takes long and holds off packets.
	mostFlows, fewFlows = 100_000, 80_000
	// mostMoved is how many elements are added and deleted at a time, up to the last service of these. mostShared is how many services are looked at. In
	// between, changes of the state have their turn.
	mostMoved, mostShared = 8192, 64
)

// leastLoaded has the shares of endpoints follow from how many connections they have, for the services that ask for it. A goroutine counts and moves the
// shares, as long as there are such services.
type leastLoaded struct {
	// controller is nil while there are no such services.
	controller *least.Controller
	// services are the ones that ask, in the order in which they came.
	services []state.ServiceName
	// crowd is how many flows there were when shares became even, 0 while they are not.
	crowd int
	// failing is set after a failure to count or to move, until both have worked again.
	failing bool
	// stop ends the goroutine. It is nil while there is none.
	stop    chan struct{}
	running sync.WaitGroup
}

// evenShares are the shares before connections are counted.
var evenShares = (&least.Controller{}).Shares

// shares returns what ruleset.Settings have as Shares.
func (c *leastLoaded) shares() func(*state.Service) *state.Service {
	if c.controller == nil {
		return evenShares
	}
	return c.controller.Shares
}

// follow begins or ends to count, as the services need it. The caller holds b.mu.
func (b *Backend) follow() {
	c := &b.counting
	if ruleset.SameMemory(c.services, b.mirror.Counting()) {
		return
	}
	c.services = b.mirror.Counting()
	switch {
	case len(c.services) > 0 && c.stop == nil:
		c.stop, c.controller = make(chan struct{}), &least.Controller{}
		stop := c.stop
		c.running.Go(func() { b.balance(stop) })
	case len(c.services) == 0 && c.stop != nil:
		close(c.stop)
		c.stop, c.controller, c.crowd, c.failing = nil, nil, 0, false
	}
}

// close waits until nothing is counted.
func (c *leastLoaded) close() {
	if c.stop != nil {
		close(c.stop)
	}
	c.running.Wait()
}

// balance moves shares from time to time.
func (b *Backend) balance(stop <-chan struct{}) {
	timer := time.NewTimer(countPeriod)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			return
		case <-timer.C:
		}
		timer.Reset(max(countPeriod, countCost*b.step(stop, b.countFlows)))
	}
}

// step counts connections and moves shares, unless it is to stop. It returns how long that took, without waiting for others.
func (b *Backend) step(stop <-chan struct{}, count func(least.Counts) (flows int, err error)) (took time.Duration) {
	var controller *least.Controller
	var records []*state.Service
	locked := func(do func()) (goesOn bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		select {
		case <-stop:
			return false
		default:
		}
		began := time.Now()
		do()
		took += time.Since(began)
		return true
	}
	if !locked(func() { controller, records = b.counting.controller, b.counted() }) {
		return took
	}
	began := time.Now()
	counts := least.Counts{}
	for _, s := range records {
		least.Targets(counts, s)
	}
	flows, err := count(counts)
	if err == nil && flows <= mostFlows {
		controller = controller.Step(records, counts)
	}
	took += time.Since(began)
	goesOn := locked(func() {
		if err == nil {
			b.useShares(controller, flows)
		}
	})
	for next, more := 0, true; goesOn && more && err == nil; {
		goesOn = locked(func() { next, more, err = b.share(next) })
	}
	locked(func() { b.noteCounting(err) })
	return took
}

// counted returns the services that ask. The caller holds b.mu.
func (b *Backend) counted() []*state.Service {
	records := make([]*state.Service, len(b.counting.services))
	for i, name := range b.counting.services {
		records[i] = b.mirror.Record(name)
	}
	return records
}

// countFlows counts the open connections of endpoints: of all that this node translates to them, by a rule or by IPVS. The kernel can leave out the flows
// without a rule, but not those without either. crowd is how many flows there are if they are too many to count.
func (b *Backend) countFlows(counts least.Counts) (crowd int, err error) {
	n, err := b.flows.Len()
	if err != nil || n > mostFlows {
		return n, err
	}
	b.mu.Lock()
	schedules := b.o.Schedules
	b.mu.Unlock()
	byIPVS := schedules != nil && schedules()
	err = b.flows.Flows(conntrack.Filter{Translated: !byIPVS}, func(flows []conntrack.Flow) error {
		for i := range flows {
			of := least.Endpoint{Protocol: flows[i].Protocol, Addr: flows[i].Reply.Src}
			if n, counted := counts[of]; counted && !flows[i].Ended && of.Addr != flows[i].Orig.Dst {
				counts[of] = n + 1
			}
		}
		return nil
	})
	return n, err
}

// useShares has shares follow from a controller, or be even while there are too many flows. The caller holds b.mu.
func (b *Backend) useShares(next *least.Controller, flows int) {
	c := &b.counting
	switch {
	case flows > mostFlows || c.crowd > 0 && flows > fewFlows:
		if c.crowd == 0 {
			c.crowd = flows
			b.log.Warn("too many flows to count connections: endpoints share them evenly, until there are fewer flows", "flows", flows, "most", mostFlows)
		}
		next = next.Even()
	case c.crowd > 0:
		c.crowd = 0
		b.log.Info("connections are counted again", "flows", flows)
	}
	c.controller = next
	b.noteProblems()
}

// share commits the shares of now, of some services from an index on. It returns where to go on, and whether there are more. The caller holds b.mu.
func (b *Backend) share(from int) (next int, more bool, err error) {
	services := b.counting.services
	if !b.known || from >= len(services) {
		return 0, false, nil // if not known, the next Apply or Verify compares everything, also the shares
	}
	p, done := b.mirror.Share(b.settings(), services[from:min(from+mostShared, len(services))], mostMoved)
	left := p.Left()
	if _, err := b.commit(p); err != nil {
		b.guard.raise(quiet)
		return 0, false, err
	}
	b.mirror = p.Commit()
	b.ejector.Load().free(left)
	return from + done, true, nil
}

// noteCounting says when connections cannot be counted, or shares not moved. The caller holds b.mu.
func (b *Backend) noteCounting(err error) {
	c := &b.counting
	if err != nil && !c.failing {
		b.log.Warn("cannot move connections to endpoints with fewer of them; trying again", "error", err)
	}
	c.failing = err != nil
}

// problem returns why shares are even, nil if they are not.
func (c *leastLoaded) problem() error {
	if c.crowd == 0 {
		return nil
	}
	return fmt.Errorf("%d services, the first is %v, share new connections evenly instead of by the connections of their endpoints: the node has more than %d "+
		"flows, and counting them would hold off packets", len(c.services), c.services[0], fewFlows)
}
