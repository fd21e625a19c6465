package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/netns"
)

// largeCase is a tenant whose Services are as large as may be, and change all the time.
type largeCase struct {
	name string
	// services is how many Services there are, of so many ports with so many addresses and endpoints each.
	services, ports, addresses, endpoints int
	// slices is how many EndpointSlices of a Service change each time.
	slices int
	// every is the time between two changes, and affinity the affinity timeout of their clients.
	every, affinity time.Duration
}

// largeCases are what tenants do to others that have to be routed soon all the same.
var largeCases = []largeCase{
	{name: "quiet", every: time.Second},
	{name: "frontends-100x62", services: 1, ports: 100, addresses: 61, every: 300 * time.Millisecond},
	{name: "five-of-frontends-100x62", services: 5, ports: 100, addresses: 61, every: 300 * time.Millisecond},
	{name: "endpoints-20x5000", services: 1, ports: 20, endpoints: 5_000, slices: 50, every: 300 * time.Millisecond},
	{name: "sticky-endpoints-20x5000", services: 1, ports: 20, endpoints: 5_000, slices: 50, every: 300 * time.Millisecond, affinity: time.Hour},
	{name: "one-endpoint-of-38x5000", services: 1, ports: 38, endpoints: 5_000, slices: 1, every: 100 * time.Millisecond},
	{name: "one-endpoint-of-190000", services: 1, ports: 1, endpoints: 190_000, slices: 1, every: 100 * time.Millisecond},
}

const (
	// largeP99 is the name of a figure that has a target: of a case, and of who waits.
	largeP99 = "large-%s-%s-p99"
	// largeMostWait is that target, in milliseconds.
	largeMostWait = 10
	// largeServiceEntries and largeServiceFrontends are the bounds of a Service that the program has with the memory of the manifests.
	largeServiceEntries, largeServiceFrontends = 200_000, 6_250
	// largeTime is how long each case is measured, and victimEvery the time between two changes of a small Service, or of another program.
	largeTime   = 8 * time.Second
	victimEvery = 10 * time.Millisecond
	// sliceEndpoints is how many endpoints an EndpointSlice has, as its controller makes them.
	sliceEndpoints = 100
)

// besideLarge measures two delays while large Services change all the time: until the change of a Service with one
// endpoint is in the kernel, from the source on, and until another program's own commit is done.
func besideLarge(ctx context.Context, report func(name string, services int, value float64, unit string)) error {
	for _, c := range largeCases {
		err := inNewNamespace(func(ns *netns.NS) error { return c.measure(ctx, ns, report) })
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

func (c *largeCase) measure(ctx context.Context, ns *netns.NS, report func(name string, services int, value float64, unit string)) (err error) {
	dataplane, err := openNFTables(ctx, ns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dataplane.Close()) }()
	s := store.New(store.Options{Brain: brain.Config{NodeName: NodeName, MaxEntries: largeServiceEntries, MaxFrontends: largeServiceFrontends}})
	defer s.Close()
	sink := s.Source("bench")
	sink.Update(victim(0), nil)
	for n := range c.services {
		sink.Update(c.objects(n, 0, true), nil)
	}
	sink.Complete()

	w := newWaiter()
	running, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		err = errors.Join(err, backend.Run(running, s, dataplane, backend.RunOptions{OnAttempt: w.attempted}))
	})
	defer all.Wait()
	defer stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.shown: // the first version
	}

	all.Go(func() { c.attack(running, sink.Update) })
	var foreign []time.Duration
	foreignCtx, stopForeign := context.WithTimeout(running, largeTime)
	defer stopForeign()
	var foreignErr error
	all.Go(func() { foreign, foreignErr = commitElsewhere(foreignCtx, ns) })

	waits, err := w.follow(ctx, sink.Update)
	if err != nil {
		return err
	}
	stop()
	all.Wait()
	if foreignErr != nil {
		return foreignErr
	}
	for _, of := range []struct {
		who  string
		took []time.Duration
	}{{"others", waits}, {"other-programs", foreign}} {
		report(fmt.Sprintf("large-%s-%s-p50", c.name, of.who), c.services, Milliseconds(Percentile(of.took, 50)), "ms")
		report(fmt.Sprintf(largeP99, c.name, of.who), c.services, Milliseconds(Percentile(of.took, 99)), "ms")
	}
	return nil
}

// attack changes the large Services until ctx ends, each at its time.
func (c *largeCase) attack(ctx context.Context, update func([]model.Object, []model.Ref)) {
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for version := 1; ; version++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for n := range c.services {
			update(c.objects(n, version, false), nil)
		}
	}
}

// objects returns Service n: of its first version all, or what a later one has others of. All frontends of two versions differ, or
// all endpoints of the slices that change.
func (c *largeCase) objects(n, version int, all bool) (objects []model.Object) {
	name := state.ServiceName{Namespace: fmt.Sprintf("tenant-%d", n), Name: "large"}
	if all || c.slices == 0 {
		svc := &model.Service{Name: name, Affinity: c.affinity, ClusterIPs: []netip.Addr{nth(ranges4.services, 1<<16+n)}}
		for i := range c.addresses {
			svc.ExternalIPs = append(svc.ExternalIPs, nth(ranges4.pods, 1<<20+n<<10+(version%2)<<9+i))
		}
		for i := range c.ports {
			svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprintf("p%04d", i), Protocol: state.TCP, Port: uint16(i + 1)})
		}
		objects = append(objects, svc)
	}
	slices := c.slices
	if all {
		slices = c.endpoints / sliceEndpoints
	}
	for i := range slices {
		slice := &model.EndpointSlice{Namespace: name.Namespace, Name: fmt.Sprintf("large-%03d", i), Service: name.Name, Family: state.IPv4}
		for p := range c.ports {
			slice.Ports = append(slice.Ports, model.EndpointPort{Name: fmt.Sprintf("p%04d", p), Protocol: state.TCP, Port: 8000 + uint16(p)})
		}
		for e := range sliceEndpoints {
			at := 1<<21 + i*sliceEndpoints + e
			if version%2 == 1 && (c.slices > 1 || e == 0) {
				at += 1 << 20
			}
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: nth(ranges4.pods, at), Ready: true, Serving: true})
		}
		objects = append(objects, slice)
	}
	return objects
}

const smallPort = 8000 // of its first version

var smallName = state.ServiceName{Namespace: "victim", Name: "small"}

// victim is a Service of one endpoint, whose port tells the version.
func victim(version int) []model.Object {
	return []model.Object{
		&model.Service{Name: smallName, ClusterIPs: []netip.Addr{nth(ranges4.services, 1)}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}},
		&model.EndpointSlice{
			Namespace: smallName.Namespace, Name: smallName.Name, Service: smallName.Name, Family: state.IPv4,
			Ports:     []model.EndpointPort{{Protocol: state.TCP, Port: uint16(smallPort + version)}},
			Endpoints: []model.Endpoint{{Addr: nth(ranges4.pods, 1), Ready: true, Serving: true}},
		},
	}
}

// waiter notes which version of the victim the dataplane shows.
type waiter struct{ shown chan int }

func newWaiter() *waiter { return &waiter{make(chan int, 10_000)} }

func (w *waiter) attempted(a backend.Attempt) {
	if a.Update == nil || a.Err != nil {
		return
	}
	for _, s := range a.Update.Changed {
		if s.Name == smallName {
			w.shown <- int(s.Ports[0].Internal.Inside.Endpoints[0].Addr.Port()) - smallPort
		}
	}
}

// follow changes the victim at a steady pace, and returns how long each version took until it was shown, or a later one.
func (w *waiter) follow(ctx context.Context, update func([]model.Object, []model.Ref)) (waits []time.Duration, err error) {
	const changes = int(largeTime / victimEvery)
	began := time.Now()
	due := func(version int) time.Time { return began.Add(time.Duration(version) * victimEvery) }
	go func() {
		for i := 1; i <= changes; i++ {
			time.Sleep(time.Until(due(i)))
			update(victim(i), nil)
		}
	}()
	for len(waits) < changes {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case version := <-w.shown:
			for now := time.Now(); len(waits) < version; {
				waits = append(waits, now.Sub(due(len(waits)+1)))
			}
		}
	}
	return waits, nil
}

// commitElsewhere makes commits to a table of another program until ctx ends, and returns how long each took.
func commitElsewhere(ctx context.Context, ns *netns.NS) (took []time.Duration, err error) {
	var conn *nft.Conn
	if err := ns.Do(func() (err error) { conn, err = nft.Dial(); return err }); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for due := time.Now(); ctx.Err() == nil; due = due.Add(victimEvery) {
		time.Sleep(time.Until(due))
		var batch nft.Batch
		batch.AddTable(nft.Table{Family: nft.IPv4, Name: "elsewhere"})
		if err := conn.Commit(&batch); err != nil {
			return nil, err
		}
		took = append(took, time.Since(due))
	}
	return took, nil
}
