package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
	"github.com/switchyard-net/switchyard/state"
)

// switchable is the dataplane of one mode at a time. A switch to another mode has both programmed for a moment, so that at all times
// one of them takes new connections. The connections that the previous one carries itself go on until they end: such a dataplane is
// retired.
type switchable struct {
	o      DataplaneOptions
	log    *slog.Logger
	inside *namespace.Namespace
	local  *localPorts
	lock   *nodelock.Lock // nil if the kernel has none to offer
	// config is that in use.
	config *config.Config
	now    *stack
	// retired and leftovers are used by the goroutine that calls Apply, and changed under mu.
	retired []*retired
	// leftovers are dataplanes that may have left rules in the kernel. The rules are not needed once the dataplane in
	// use has a state.
	leftovers []leftover
	// applied is set if the dataplane in use shows a state.
	applied bool

	disturbed chan struct{}
	stop      context.CancelFunc
	ctx       context.Context // of what runs until Close
	running   sync.WaitGroup

	mu sync.Mutex // guards the above where it says so, and all below
	// base is the nftables dataplane that is open, nil if there is none. top is the dataplane of the mode in use.
	base         *nftablesDataplane
	unfollowBase func()
	top          Dataplane
	// open are all dataplanes that are open, but for base.
	open []Dataplane
}

// stack is the dataplane of one mode, and the nftables dataplane below it.
type stack struct {
	dataplane
	base     *nftablesDataplane // nil if there is none
	top      Dataplane
	unfollow func()
}

// complete returns the dataplane of a stack that can serve every Service by itself.
func (s *stack) complete() Dataplane {
	if s.base != nil {
		return s.base
	}
	return s.top
}

// leftover is a dataplane that is no longer in use, and the configuration that it had.
type leftover struct {
	dataplane
	config *config.Config
}

// retired is a dataplane that takes nothing new.
type retired struct {
	dataplane
	top      drainer
	since    time.Time
	unfollow func()
	// missed is one update with all changes that it has failed to take over.
	missed *state.Update
	// shown is set once it has taken over an update. Before that, it may not know its connections.
	shown atomic.Bool
}

// isOver reports whether it carries nothing, or has gone on for too long.
func (r *retired) isOver(now time.Time) bool {
	age := now.Sub(r.since)
	return age > retirement || age > leastRetirement && r.shown.Load() && r.top.Carried() == 0
}

const (
	// retirement is how long a retired dataplane may go on. Then its connections end.
	retirement = time.Hour
	// leastRetirement is how long it goes on at least: connections may be on their way to it that it does not know yet.
	leastRetirement = 2 * time.Second
	// retiredPeriod is how often retired dataplanes are checked for connections that they still carry.
	retiredPeriod = time.Second
)

// openSwitchable opens the dataplane of a mode in the calling thread's network namespace.
func openSwitchable(ctx context.Context, d dataplane, c *config.Config, o DataplaneOptions) (*switchable, error) {
	s := &switchable{o: o, log: o.Logger, config: c, disturbed: make(chan struct{}, 1)}
	s.o.commit, s.o.scheduled = s.commit, s.scheduled
	s.ctx, s.stop = context.WithCancel(context.Background())
	var err error
	if s.inside, err = namespace.Current(); err == nil {
		s.local = newLocalPorts(s.inside, s.log)
		if err = s.acquire(ctx); err == nil {
			s.findLeftovers(ctx, d)
			s.now, err = s.prepare(ctx, d, c)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.use(s.now)
	s.running.Go(s.watchRetired)
	return s, nil
}

// acquire ensures that no other process programs this network namespace.
func (s *switchable) acquire(ctx context.Context) (err error) {
	s.lock, err = nodelock.Acquire(ctx, nodelock.Options{Logger: s.log, Program: s.o.Program, Wait: s.o.TakeOver})
	if errors.Is(err, errors.ErrUnsupported) {
		s.log.Info("this kernel lacks what it takes to keep a second process from programming this network namespace", "error", err)
		return nil
	}
	return err
}

// findLeftovers finds what earlier processes of other modes have left in the kernel. Connections that it carries go on, as far as they
// can.
func (s *switchable) findLeftovers(ctx context.Context, chosen dataplane) {
	for _, d := range dataplanes(runtime.GOOS) {
		isRetired := slices.ContainsFunc(s.retired, func(r *retired) bool { return r.mode == d.mode })
		if d.programmed == nil || d.mode == chosen.mode || d.mode == config.ModeNFTables && chosen.above || isRetired {
			continue
		}
		held, err := d.programmed(s.config)
		if err != nil {
			s.log.Warn("cannot look for rules that a previous process has left in another mode", "mode", d.mode, "error", err)
		}
		if !held {
			continue
		}
		s.log.Info("a previous process has left its dataplane", "mode", d.mode)
		if err := s.retireLeftover(ctx, d); err != nil {
			s.log.Warn("connections that it carries end", "mode", d.mode, "error", err)
		}
	}
}

// retireLeftover removes a dataplane that an earlier process has left, after its connections have ended.
func (s *switchable) retireLeftover(ctx context.Context, d dataplane) error {
	if !d.above || d.mode == config.ModeNFTables {
		s.leftOver(d, s.config)
		return nil
	}
	top, err := d.open(ctx, s.config, s.o, nil)
	if err != nil {
		s.leftOver(d, s.config)
		return err
	}
	s.opened(top)
	s.retire(d, top.(drainer), s.follow(top))
	return nil
}

// prepare opens the dataplane of a mode. No connection goes there before it has a state.
func (s *switchable) prepare(ctx context.Context, d dataplane, c *config.Config) (_ *stack, err error) {
	next := &stack{dataplane: d}
	if d.above {
		if next.base = s.base; next.base == nil {
			if next.base, err = s.openBase(ctx, c); err != nil {
				return nil, err
			}
		} else if err := next.base.Reconfigure(c); err != nil {
			return nil, err
		}
	}
	if i := slices.IndexFunc(s.retired, func(r *retired) bool { return r.mode == d.mode }); i >= 0 {
		r := s.retired[i]
		if err = r.top.Reconfigure(c); err == nil {
			s.forget(r)
			r.top.Resume(aboveBase(next.base))
			next.top, next.unfollow = r.top, r.unfollow
			return next, nil
		}
	} else if next.top, err = d.open(ctx, c, s.o, next.base); err == nil {
		if next.top != Dataplane(next.base) {
			s.opened(next.top)
		}
		next.unfollow = s.follow(next.top)
		s.need(d.mode)
		return next, nil
	}
	return nil, errors.Join(err, s.leaveBase(next.base))
}

// openBase opens the nftables dataplane.
func (s *switchable) openBase(ctx context.Context, c *config.Config) (*nftablesDataplane, error) {
	options := nftablesOptions(c, s.o)
	options.OnGone, options.Elsewhere, options.Scheduled, options.Schedules = s.gone, s.servedAbove, s.scheduled, s.schedules
	b, err := nftables.New(ctx, options)
	if err != nil {
		return nil, err
	}
	s.need(config.ModeNFTables)
	base := &nftablesDataplane{b, s.o, newEntry(s.o, s.inside)}
	base.entry.reconfigure(c)
	unfollow := s.follow(base)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base, s.unfollowBase = base, unfollow
	return base, nil
}

// leaveBase closes an nftables dataplane, unless that in use is above it: then it is configured for that.
func (s *switchable) leaveBase(base *nftablesDataplane) error {
	if base == nil {
		return nil
	}
	if s.now != nil && s.now.base == base {
		return base.Reconfigure(s.config)
	}
	s.unfollowBase()
	s.mu.Lock()
	s.base = nil
	s.mu.Unlock()
	d, _ := dataplaneOf(config.ModeNFTables, runtime.GOOS)
	s.leftOver(d, s.config)
	return base.Close()
}

// opened and closed keep the list of open dataplanes.
func (s *switchable) opened(d Dataplane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, d)
}

func (s *switchable) closed(d Dataplane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(o Dataplane) bool { return o == d })
}

func (s *switchable) layers() []Dataplane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.open)
}

// use makes a stack that in use.
func (s *switchable) use(now *stack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.top = now, now.top
}

// gone tells the hooks which endpoints no longer belong to a Service. The nftables dataplane calls it, in Apply.
func (s *switchable) gone(endpoints []netip.AddrPort) {
	for _, d := range s.layers() {
		if hooks, ok := d.(ender); ok {
			hooks.Gone(endpoints)
		}
	}
}

// servedAbove reports whether IPVS serves a frontend. The nftables dataplane calls it at any time.
func (s *switchable) servedAbove(k state.FrontendKey) bool {
	return slices.ContainsFunc(s.layers(), func(d Dataplane) bool {
		ipvs, ok := d.(scheduling)
		return ok && ipvs.Serves(k)
	})
}

// scheduled reports whether IPVS has a virtual server for a frontend, in the mode in use or in a retired one. It may be called at any
// time.
func (s *switchable) scheduled(k state.FrontendKey) bool {
	return slices.ContainsFunc(s.layers(), func(d Dataplane) bool {
		ipvs, ok := d.(scheduling)
		return ok && ipvs.Scheduled(k)
	})
}

// schedules reports whether IPVS has any virtual server. It may be called at any time.
func (s *switchable) schedules() bool {
	return slices.ContainsFunc(s.layers(), func(d Dataplane) bool {
		ipvs, ok := d.(scheduling)
		return ok && ipvs.Schedules()
	})
}

// commit runs a layer's change of nf_tables, so that the base does not take it for another program's change.
func (s *switchable) commit(fn func() error) error {
	s.mu.Lock()
	base := s.base
	s.mu.Unlock()
	if base == nil {
		return fn()
	}
	return base.Commit(fn)
}

// follow hands on what disturbs a dataplane, until the function that it returns is called.
func (s *switchable) follow(d backend.Backend) (unfollow func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	disturbed := d.Disturbed()
	s.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-disturbed:
				s.disturb()
			}
		}
	})
	return cancel
}

func (s *switchable) disturb() {
	select {
	case s.disturbed <- struct{}{}:
	default:
	}
}

// watchRetired asks for a Verify when a retired dataplane carries nothing.
func (s *switchable) watchRetired() {
	tick := time.NewTicker(retiredPeriod)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-tick.C:
			s.mu.Lock()
			all := slices.Clone(s.retired)
			s.mu.Unlock()
			if slices.ContainsFunc(all, func(r *retired) bool { return r.isOver(now) }) {
				s.disturb()
			}
		}
	}
}

// Disturbed implements [backend.Backend].
func (s *switchable) Disturbed() <-chan struct{} { return s.disturbed }

// nftables returns the nftables dataplane, nil in modes without it. It may be called at any time.
func (s *switchable) nftables() *nftablesDataplane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base
}

// counters returns the counters of the layers that are in use. nftables sees all connections except the ones that hooks take. iptables
// sees only its own.
func (s *switchable) counters() []backend.Counter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base == nil {
		if top, ok := s.top.(backend.Counter); ok {
			return []backend.Counter{top}
		}
		return nil
	}
	layers := []backend.Counter{s.base}
	if hooks, ok := s.top.(hooked); ok {
		layers = append(layers, hookCounter{hooks})
	}
	return layers
}

func (s *switchable) inUse() Dataplane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.top
}

// Reconfigure implements [Dataplane].
func (s *switchable) Reconfigure(c *config.Config) error {
	if s.now.top != Dataplane(s.now.base) {
		if err := s.now.top.Reconfigure(c); err != nil {
			return err
		}
	}
	if s.now.base != nil {
		if err := s.now.base.Reconfigure(c); err != nil {
			return err
		}
	}
	s.config = c
	return nil
}

// Apply implements [backend.Backend].
func (s *switchable) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	result, err := s.now.top.Apply(ctx, s.lingering(u, nil).For(backend.FeaturesOf(s.now.top)))
	if err != nil {
		return result, err
	}
	s.applied = true
	s.local.apply(u, s.now.mode == config.ModeNFTables)
	s.applyRetired(ctx, u)
	s.removeLeftovers(ctx)
	return result, nil
}

// Features implements [backend.Featured]. Each dataplane gets what it can program, which differs while one takes over from another.
func (s *switchable) Features() state.Features { return state.AllFeatures }

// Verify implements [backend.Backend].
func (s *switchable) Verify(ctx context.Context) (backend.Result, error) {
	result, err := s.now.top.Verify(ctx)
	if err != nil || !s.applied {
		return result, err
	}
	s.local.retry()
	for _, r := range slices.Clone(s.retired) {
		if r.missed != nil {
			s.show(ctx, r, r.missed)
		} else if _, err := r.top.Verify(ctx); err != nil {
			s.log.Warn("cannot verify the dataplane of the previous mode", "mode", r.mode, "error", err)
		}
		s.endRetired(ctx, r)
	}
	s.removeLeftovers(ctx)
	return result, nil
}

// lingering returns u for a dataplane that replaces relays: the retired ones, and one that is about to retire. Flows through them go
// on.
func (s *switchable) lingering(u *state.Update, before Dataplane) *state.Update {
	var relays []relaying
	for _, r := range s.retired {
		if relay, ok := r.top.(relaying); ok {
			relays = append(relays, relay)
		}
	}
	if relay, ok := before.(relaying); ok {
		relays = append(relays, relay)
	}
	if len(relays) == 0 {
		return u
	}
	v := *u
	v.Changed = slices.Clone(u.Changed)
	for _, relay := range relays {
		for i, service := range v.Changed {
			v.Changed[i] = relay.Lingering(service)
		}
	}
	return &v
}

// applyRetired has retired dataplanes know of an update: connections end whose endpoints are gone.
func (s *switchable) applyRetired(ctx context.Context, u *state.Update) {
	u = s.lingering(u, nil) // one of them could delete UDP flows that another one carries
	for _, r := range slices.Clone(s.retired) {
		s.show(ctx, r, u)
		s.endRetired(ctx, r)
	}
}

func (s *switchable) show(ctx context.Context, r *retired, u *state.Update) {
	u = following(r.missed, u)
	if !r.shown.Load() && !u.Full {
		return
	}
	r.missed = nil
	if _, err := r.top.Apply(ctx, u.For(backend.FeaturesOf(r.top))); err != nil {
		s.log.Warn("cannot update the dataplane of the previous mode, trying again", "mode", r.mode, "error", err)
		r.missed = u
		return
	}
	r.shown.Store(true)
}

// following returns u for a dataplane that has missed another update before it, which may be nil.
func following(missed, u *state.Update) *state.Update {
	if missed == nil || u.Full {
		return u
	}
	records := map[state.ServiceName]*state.Service{} // nil for those that are removed
	for _, of := range []*state.Update{missed, u} {
		for _, service := range of.Changed {
			records[service.Name] = service
		}
		for _, name := range of.Removed {
			records[name] = nil
		}
	}
	both := &state.Update{Revision: u.Revision, Full: missed.Full, Node: u.Node}
	for _, name := range slices.SortedFunc(maps.Keys(records), state.ServiceName.Compare) {
		switch {
		case records[name] != nil:
			both.Changed = append(both.Changed, records[name])
		case !both.Full:
			both.Removed = append(both.Removed, name)
		}
	}
	return both
}

// retire has a dataplane take nothing new from its next update on.
func (s *switchable) retire(d dataplane, top drainer, unfollow func()) {
	top.Retire()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = append(s.retired, &retired{dataplane: d, top: top, since: time.Now(), unfollow: unfollow})
}

// forget takes a dataplane off the list of those that are retired.
func (s *switchable) forget(r *retired) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = slices.DeleteFunc(s.retired, func(other *retired) bool { return other == r })
}

// endRetired ends a retired dataplane that carries nothing, or whose time is up.
func (s *switchable) endRetired(ctx context.Context, r *retired) {
	if !r.isOver(time.Now()) {
		return
	}
	if carried := r.top.Carried(); carried > 0 {
		s.log.Warn("the dataplane of the previous mode ends with the connections that it carries", "mode", r.mode, "after", retirement, "carried", carried)
	}
	s.forget(r)
	r.unfollow()
	s.closed(r.top)
	if err := r.top.Close(); err != nil {
		s.log.Warn("cannot close the dataplane of the previous mode", "mode", r.mode, "error", err)
	}
	s.leftOver(r.dataplane, s.config)
	s.removeLeftovers(ctx)
}

// leftOver has what the kernel holds of a dataplane, which had c, removed once that in use shows a state.
func (s *switchable) leftOver(d dataplane, c *config.Config) {
	s.need(d.mode) // it is in the list once
	if d.remove != nil {
		s.leftovers = append(s.leftovers, leftover{d, c})
	}
}

// need undoes leftOver.
func (s *switchable) need(mode config.Mode) {
	s.leftovers = slices.DeleteFunc(s.leftovers, func(l leftover) bool { return l.mode == mode })
}

// removeLeftovers removes from the kernel the dataplanes that are no longer in use. The next Verify retries a removal that fails.
func (s *switchable) removeLeftovers(ctx context.Context) {
	if !s.applied {
		return // it is all that connections go by
	}
	left := s.leftovers
	s.leftovers = nil
	for _, l := range left {
		if err := s.inside.Do(func() error { return l.remove(ctx, l.config, s.servesLoopback()) }); err != nil {
			s.log.Warn("cannot remove the dataplane of the previous mode, trying again", "mode", l.mode, "error", err)
			s.leftovers = append(s.leftovers, l)
			continue
		}
		s.log.Info("removed the rules of the previous mode", "mode", l.mode)
	}
}

// servesLoopback reports whether the dataplane in use serves NodePorts on loopback addresses.
func (s *switchable) servesLoopback() bool {
	on, ok := s.now.complete().(loopback)
	return ok && on.ServesLoopback()
}

// switchTo replaces the dataplane in use with the dataplane of another mode, and applies u to it, a full update. u is nil if there is
// no state yet. failed has
// the Services that failed in the dataplane in use. After an error, that dataplane stays in use and must get a full update.
func (s *switchable) switchTo(ctx context.Context, d dataplane, c *config.Config, u *state.Update, failed map[state.ServiceName]error) error {
	return s.inside.Do(func() error {
		next, err := s.prepare(ctx, d, c)
		if err != nil {
			return fmt.Errorf("switch to mode %s: %w", d.mode, err)
		}
		if u != nil {
			if failed, err = s.program(ctx, next, u, failed); err != nil {
				s.leave(ctx, next, c) // it may have taken connections by now
				if relay, ok := s.now.top.(relaying); ok {
					relay.Resume(aboveBase(s.now.base))
				}
				s.removeLeftovers(ctx)
				return fmt.Errorf("switch to mode %s: %w", d.mode, err)
			}
		}
		before, configBefore := s.now, s.config
		s.config = c
		s.use(next)
		s.log.Info("another dataplane is in use", "mode", d.mode, "before", before.mode)
		if u == nil {
			s.applied = false // the rules in the kernel stay in force until there is a state
		}
		s.leave(ctx, before, configBefore)
		if u != nil {
			s.applied = true
			s.local.apply(u.Keep(maps.Keys(failed), s.local.service), d.mode == config.ModeNFTables)
			s.applyRetired(ctx, u) // first: flows to endpoints that are gone are waiting for it
		}
		s.removeLeftovers(ctx)
		return nil
	})
}

// program applies a state to a stack, and returns the Services that failed. It is an error if one failed that is not in before.
func (s *switchable) program(ctx context.Context, next *stack, u *state.Update, before map[state.ServiceName]error) (map[state.ServiceName]error, error) {
	began := time.Now()
	if keeper, ok := s.now.complete().(backend.FlowKeeper); ok && s.now.complete() != next.complete() {
		keeper.LeaveFlows()
	}
	if relay, ok := s.now.top.(relaying); ok && next.base == s.now.base {
		relay.Retire() // the base's rules that lead to it must go: masqueradeBit may be the relay's bit from now on
	}
	result, err := backend.NewReconciler(next.top).Apply(ctx, s.lingering(u, s.now.top))
	if err != nil {
		return nil, err
	}
	failed := result.Failed
	if result, err = next.top.Verify(ctx); err != nil {
		return nil, fmt.Errorf("read back: %w", err)
	}
	for _, of := range []map[state.ServiceName]error{failed, result.Failed} {
		for name, err := range of {
			if s.applied && before[name] == nil {
				return nil, fmt.Errorf("service %v, which the other dataplane serves: %w", name, err)
			}
		}
	}
	s.log.Debug("the other dataplane shows the state", "mode", next.mode, "took", time.Since(began))
	return failed, nil
}

// leave ends the parts of an unused stack that carry no connections. c was its configuration. removeLeftovers removes
// its rules.
func (s *switchable) leave(ctx context.Context, of *stack, c *config.Config) {
	var err error
	top, drains := of.top.(drainer)
	switch {
	case of.top == Dataplane(of.base):
		of.unfollow()
	case drains:
		s.retire(of.dataplane, top, of.unfollow)
	default:
		of.unfollow()
		s.closed(of.top)
		s.leftOver(of.dataplane, c)
		err = of.top.Close()
	}
	if err = errors.Join(err, s.leaveBase(of.base)); err != nil {
		s.log.Warn("cannot close the dataplane of another mode", "mode", of.mode, "error", err)
	}
}

// Close implements [Dataplane]. Another process may program the kernel while connections of relays end here or go over to it.
func (s *switchable) Close() error {
	s.stop()
	s.running.Wait()
	if s.local != nil {
		s.local.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.config.Userspace.DrainTimeout.Duration)
	defer cancel()
	var errs []error
	var relays []relaying
	for _, d := range s.layers() {
		if relay, ok := d.(relaying); ok {
			errs, relays = append(errs, relay.Release(ctx)), append(relays, relay)
			continue
		}
		errs = append(errs, d.Close())
	}
	if s.base != nil {
		errs = append(errs, s.base.Close())
	}
	errs = append(errs, s.lock.Close())
	for _, relay := range relays {
		errs = append(errs, relay.drain(ctx))
	}
	if s.inside != nil {
		errs = append(errs, s.inside.Close())
	}
	return errors.Join(errs...)
}

// aboveBase returns what a layer is above.
func aboveBase(base *nftablesDataplane) backend.Backend {
	if base == nil {
		return backend.None{}
	}
	return base
}
