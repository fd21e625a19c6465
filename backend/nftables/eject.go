package nftables

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ejection"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// ejector probes endpoints that are suspected, and decides which of them are ejected. It runs only while a port ejects. Package ejection decides. The
// goroutine of Apply programs what is decided, as a part of its plans, and so commits it together with changes of records.
type ejector struct {
	log   *slog.Logger
	world ejectorWorld
	// ask has the goroutine of Apply carry out a plan soon.
	ask     func()
	observe func(result ProbeResult)
	// report is called with how many endpoints were ejected in addition, and how many are.
	report func(added, now int)
	wake   chan struct{}
	stop   context.CancelFunc
	done   sync.WaitGroup
	// freeing has a value while flows are deleted. leaves is set while they are to be left alone.
	freeing chan struct{}
	leaves  atomic.Bool

	mu sync.Mutex
	// timeout is how long a probe waits.
	timeout time.Duration
	// services are those with a port that ejects, and ports how many there are of each family. services is cloned for the loop if it has changed.
	services map[state.ServiceName]*state.Service
	families [2]int
	changed  bool
	// wanted is what is to be ejected, and list is about that. left are endpoints that have left routes, and whose flows are to be deleted.
	wanted *ruleset.Ejected
	list   []ejection.Status
	left   []netip.AddrPort
}

// ejectorWorld is what the ejector needs of the kernel and the network. Only the ejector's goroutine uses it, except that probes run at the same time.
type ejectorWorld interface {
	// Suspects reads the suspects of some families. It makes what that takes, and removes it for the other families.
	Suspects(families [2]bool) ([]ruleset.Suspect, error)
	// Forget takes endpoints off the suspects.
	Forget([]netip.AddrPort) error
	// Probe asks an endpoint, and waits for an answer until ctx ends.
	Probe(ctx context.Context, endpoint netip.AddrPort) ejection.Outcome
	// Free deletes translated flows to endpoints that have no answer yet, so that the next packet draws again.
	Free([]netip.AddrPort) error
	// Close removes what Suspects has made, unless it is to stay for another process.
	Close(stays bool) error
}

func startEjector(e *ejector) *ejector {
	e.services, e.wake, e.freeing = map[state.ServiceName]*state.Service{}, make(chan struct{}, 1), make(chan struct{}, 1)
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.done.Go(func() { e.run(ctx) })
	return e
}

// end stops the ejector. stays is set if another process goes on.
func (e *ejector) end(stays bool) error {
	if e == nil {
		return nil
	}
	e.stop()
	e.done.Wait()
	e.report(0, 0)
	return e.world.Close(stays)
}

// set takes down that a service is programmed as in s, or not at all if s is nil.
func (e *ejector) set(name state.ServiceName, s *state.Service) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.services[name]
	for i, f := range []state.Family{state.IPv4, state.IPv6} {
		if ejection.Ejects(was, f) {
			e.families[i]--
		}
		if ejection.Ejects(s, f) {
			e.families[i]++
		}
	}
	e.changed = e.changed || was != s
	if s == nil {
		delete(e.services, name)
	} else {
		e.services[name] = s
	}
}

func (e *ejector) setTimeout(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.timeout = d
}

// isIdle reports whether no port ejects.
func (e *ejector) isIdle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.families == [2]int{}
}

// ejected returns what is to be ejected. It is nil for a nil ejector.
func (e *ejector) ejected() *ruleset.Ejected {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted
}

// free has the flows deleted to endpoints that have left routes by a commit.
func (e *ejector) free(left []netip.AddrPort) {
	if len(left) == 0 {
		return
	}
	e.mu.Lock()
	e.left = append(e.left, left...)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// leaveFlows has no flows deleted until resumeFlows. It waits for a deletion that has begun. It does nothing for a nil ejector.
func (e *ejector) leaveFlows() {
	if e == nil {
		return
	}
	e.freeing <- struct{}{}
	defer func() { <-e.freeing }()
	e.leaves.Store(true)
}

// resumeFlows undoes leaveFlows. Flows whose deletion waited are deleted with the next ones.
func (e *ejector) resumeFlows() { e.leaves.Store(false) }

// freeShare is how many times the duration of a deletion of flows the ejector does nothing afterwards.
const freeShare = 3

// run is the loop of the ejector.
func (e *ejector) run(ctx context.Context) {
	l := &ejectorLoop{ejector: e, watch: ejection.New(), results: make(chan ejection.Result, ejection.MaxProbes)}
	defer l.probes.Wait()
	tick := time.NewTimer(ejection.Period)
	defer tick.Stop()
	for {
		var found []ejection.Result
		isTick := false
		select {
		case <-ctx.Done():
			return
		case r := <-l.results:
			found = append(found, r)
		case <-e.wake:
		case <-tick.C:
			isTick = true
		}
		for len(l.results) > 0 {
			found = append(found, <-l.results)
		}
		l.step(ctx, found, isTick)
		if spent := l.freeLeft(); spent > 0 || isTick {
			tick.Reset(max(ejection.Period, freeShare*spent))
		}
	}
}

// ejectorLoop is what only the loop of an ejector uses.
type ejectorLoop struct {
	*ejector
	watch   *ejection.Watch
	results chan ejection.Result
	probes  sync.WaitGroup
	// copied are services as the watch sees them.
	copied map[state.ServiceName]*state.Service
	// failing is set after a failure to read.
	failing bool
}

func (l *ejectorLoop) step(ctx context.Context, found []ejection.Result, isTick bool) {
	l.mu.Lock()
	families := [2]bool{l.families[0] > 0, l.families[1] > 0}
	l.mu.Unlock()
	suspects, err := l.world.Suspects(families)
	if err != nil && !l.failing {
		l.log.Warn("cannot read which endpoints are suspected to be silent; until then, none is ejected", "error", err)
	}
	l.failing = err != nil
	if len(suspects)+len(found) == 0 && l.watch.IsIdle() {
		return
	}
	l.mu.Lock()
	if l.changed || l.copied == nil {
		l.copied, l.changed = maps.Clone(l.services), false
	}
	timeout := l.timeout
	l.mu.Unlock()
	out := l.watch.Step(ejection.Input{Now: time.Now(), Suspects: suspects, Results: found, Services: l.copied, Probes: isTick})
	for _, endpoint := range out.Probe {
		l.probes.Go(func() { l.probe(ctx, endpoint, timeout) })
	}
	if len(out.Forget) > 0 {
		if err := l.world.Forget(out.Forget); err != nil {
			l.log.Debug("cannot forget suspected endpoints; will try again", "error", err)
		}
	}
	l.decided(&out)
}

// probe asks an endpoint. The channel has room for all probes, so that this does not wait.
func (l *ejectorLoop) probe(ctx context.Context, endpoint netip.AddrPort, timeout time.Duration) {
	inTime, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	outcome := l.world.Probe(inTime, endpoint)
	if ctx.Err() != nil {
		return
	}
	l.observe(ProbeResult(outcome))
	l.results <- ejection.Result{Endpoint: endpoint, Outcome: outcome}
}

// decided has what changes programmed.
func (l *ejectorLoop) decided(out *ejection.Output) {
	list := l.watch.Ejected()
	if len(out.Ejected)+len(out.Returned) == 0 {
		l.mu.Lock()
		l.list = list // how many probes were not answered
		l.mu.Unlock()
		return
	}
	for _, of := range out.Ejected {
		l.log.Warn("an endpoint is silent and gets no new connections from this node", "service", of.Service, "port", of.Port, "endpoint", of.Endpoint,
			"remedy", "look at its pod, its node and the network in between; it returns with its first answer")
	}
	for _, of := range out.Returned {
		l.log.Info("an endpoint gets connections again", "service", of.Service, "port", of.Port, "endpoint", of.Endpoint)
	}
	endpoints := make([]ruleset.PortEndpoint, len(list))
	for i := range list {
		endpoints[i] = list[i].PortEndpoint
	}
	l.mu.Lock()
	l.wanted, l.list = ruleset.NewEjected(endpoints...), list
	l.mu.Unlock()
	l.report(len(out.Ejected), len(list))
	l.ask()
}

// freeLeft deletes the unanswered flows to endpoints that have left routes, and returns how long that took.
func (l *ejectorLoop) freeLeft() (spent time.Duration) {
	l.freeing <- struct{}{}
	defer func() { <-l.freeing }()
	if l.leaves.Load() {
		return 0
	}
	l.mu.Lock()
	left := l.left
	l.left = nil
	l.mu.Unlock()
	if len(left) == 0 {
		return 0
	}
	slices.SortFunc(left, netip.AddrPort.Compare)
	left = slices.Compact(left)
	began := time.Now()
	if err := l.world.Free(left); err != nil {
		l.log.Warn("cannot delete flows to endpoints that are silent; their clients wait, will try again", "error", err)
		l.mu.Lock()
		l.left = append(l.left, left...)
		l.mu.Unlock()
	}
	return time.Since(began)
}

// noteEjection takes down which services eject after a commit: those that have changed, or after a comparison all that are wanted.
// The unanswered flows to endpoints that have left routes are deleted.
func (b *Backend) noteEjection(want *ruleset.Desired, p *ruleset.Plan) {
	set := func(name state.ServiceName, s *state.Service) {
		ejects := ejection.Ejects(s, state.IPv4) || ejection.Ejects(s, state.IPv6)
		e := b.ejector.Load()
		switch {
		case ejects && e == nil:
			e = startEjector(&ejector{
				log: b.log, world: b.newWorld(), ask: func() { b.guard.raise(quiet) }, timeout: b.o.probeTimeout(),
				observe: b.o.onProbe(), report: b.o.onEjections(),
			})
			b.ejector.Store(e)
			fallthrough
		case ejects:
			e.set(name, s)
		case e != nil:
			e.set(name, nil)
		}
	}
	if want == nil {
		for was, is := range p.Changed() {
			switch {
			case is != nil:
				set(is.Name, is)
			case was != nil: // else it was removed, and not there
				set(was.Name, nil)
			}
		}
	} else {
		all := map[state.ServiceName]bool{}
		for _, s := range want.All() {
			set(s.Name, s)
			if b.ejector.Load() != nil {
				all[s.Name] = true
			}
		}
		if e := b.ejector.Load(); e != nil {
			for _, name := range e.names() {
				if !all[name] {
					e.set(name, nil)
				}
			}
		}
	}
	if e := b.ejector.Load(); e != nil && e.isIdle() {
		b.ejector.Store(nil)
		if err := e.end(false); err != nil {
			b.log.Warn("cannot remove the tables that notice silent endpoints; the next comparison tries again", "error", err)
		}
	}
	if e := b.ejector.Load(); e != nil {
		e.resumeFlows()
		e.free(p.Left())
	} else if want != nil {
		b.dropSuspects()
	}
}

// names returns the services with a port that ejects.
func (e *ejector) names() []state.ServiceName {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.services))
}

// dropSuspects removes the tables of suspects that another process has left.
func (b *Backend) dropSuspects() {
	_, err := b.commitBatch(func(batch *nft.Batch) {
		for _, t := range ruleset.SuspectTables() {
			if found, err := b.kernel.Table(t); err == nil {
				ruleset.DeleteTable(batch, t, found.Flags)
			}
		}
	})
	if err != nil {
		b.log.Warn("cannot remove the tables that notice silent endpoints; the next comparison tries again", "error", err)
	}
}

// ProbeResult is what a probe of an endpoint has found: see [Options].OnProbe.
type ProbeResult uint8

// The results of probes.
const (
	ProbeAnswered = ProbeResult(ejection.Answered)
	ProbeSilent   = ProbeResult(ejection.Silent)
	// ProbeFailed: the probe could not be sent.
	ProbeFailed = ProbeResult(ejection.Failed)
)

var probeResults = [...]string{"answered", "silent", "failed"}

// String returns "answered", "silent" or "failed".
func (r ProbeResult) String() string {
	if int(r) < len(probeResults) {
		return probeResults[r]
	}
	return fmt.Sprintf("ProbeResult(%d)", uint8(r))
}

// silent returns the endpoints of a frontend's port that are ejected.
func (b *Backend) silent(key state.FrontendKey) (list []backend.Silent) {
	e := b.ejector.Load()
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.list {
		for p, f := range e.services[s.Service].Frontends() {
			if p.Name == s.Port && p.Key(f) == key {
				list = append(list, backend.Silent{Endpoint: s.Endpoint, Since: s.Since, Probes: s.Probes})
				break
			}
		}
	}
	return list
}
