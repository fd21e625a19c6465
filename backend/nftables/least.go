package nftables

import (
	"fmt"
	"slices"
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
	// mostMoved is how many elements a step adds and deletes, up to the last service of it. The next step goes on with the others.
	mostMoved = 8192
)

// leastLoaded has the shares of endpoints follow from how many connections they have, for the services that ask for it. A goroutine counts and moves the
// shares, as long as there are such services.
type leastLoaded struct {
	controller least.Controller
	// services are those that ask, in the order in which they came. The next step begins with the one at the index next.
	services []state.ServiceName
	next     int
	// crowd is how many flows there were when shares became even, 0 while they are not.
	crowd int
	// failing is set after a failure to count or to move, until both have worked again.
	failing bool
	// stop ends the goroutine. It is nil while there is none.
	stop    chan struct{}
	running sync.WaitGroup
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
		c.stop = make(chan struct{})
		stop := c.stop
		c.running.Go(func() { b.balance(stop) })
	case len(c.services) == 0 && c.stop != nil:
		close(c.stop)
		c.stop, c.crowd, c.controller = nil, 0, least.Controller{}
	}
}

// close waits until nothing is counted any longer.
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
		counts := b.targets()
		began := time.Now()
		crowd, err := b.countFlows(counts)
		took := time.Since(began)
		b.mu.Lock()
		select {
		case <-stop:
			b.mu.Unlock()
			return
		default:
		}
		began = time.Now()
		b.noteCounting(b.step(counts, crowd, err))
		took += time.Since(began)
		b.mu.Unlock()
		timer.Reset(max(countPeriod, countCost*took))
	}
}

// targets returns the endpoints whose connections are to be counted, each with 0.
func (b *Backend) targets() least.Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	counts := least.Counts{}
	for _, name := range b.counting.services {
		least.Targets(counts, b.mirror.Record(name))
	}
	return counts
}

// countFlows counts the open connections of endpoints: of all that this node translates to them. crowd is how many flows there are if they are too many to
// count.
func (b *Backend) countFlows(counts least.Counts) (crowd int, err error) {
	n, err := b.flows.Len()
	if err != nil || n > mostFlows {
		return n, err
	}
	err = b.flows.Flows(conntrack.Filter{Translated: true}, func(flows []conntrack.Flow) error {
		for i := range flows {
			of := least.Endpoint{Protocol: flows[i].Protocol, Addr: flows[i].Reply.Src}
			if n, counted := counts[of]; counted && !flows[i].Ended {
				counts[of] = n + 1
			}
		}
		return nil
	})
	return n, err
}

// step moves shares by the counts, or makes them even if there are too many flows. The caller holds b.mu.
func (b *Backend) step(counts least.Counts, flows int, err error) error {
	c := &b.counting
	switch {
	case err != nil:
		return err
	case flows > mostFlows || c.crowd > 0 && flows > fewFlows:
		if c.crowd == 0 {
			c.crowd = flows
			b.log.Warn("too many flows to count connections: endpoints share them evenly, until there are fewer flows", "flows", flows, "most", mostFlows)
		}
		c.controller.Even()
	default:
		if c.crowd > 0 {
			c.crowd = 0
			b.log.Info("connections are counted again", "flows", flows)
		}
		records := make([]*state.Service, len(c.services))
		for i, name := range c.services {
			records[i] = b.mirror.Record(name)
		}
		c.controller.Step(records, counts)
	}
	b.noteProblems()
	return b.share()
}

// share commits the shares of now, of as many services as one step may move. The caller holds b.mu.
func (b *Backend) share() error {
	c := &b.counting
	if n := len(c.services); !b.known || n == 0 {
		return nil // the next Apply or Verify compares everything, also the shares
	}
	c.next %= len(c.services)
	p, done := b.mirror.Share(b.settings(), slices.Concat(c.services[c.next:], c.services[:c.next]), mostMoved)
	if _, err := b.commit(p); err != nil {
		b.guard.raise(quiet)
		return err
	}
	b.mirror = p.Commit()
	c.next += done
	return nil
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
