package userspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Backend is a relay above another dataplane. It implements [backend.Backend].
type Backend struct {
	base backend.Backend
	// inspector is the base, or nil, if it does not read back single connections.
	inspector atomic.Pointer[backend.Inspector]
	o         Options // as they were for New
	log       *slog.Logger
	addresses *addresses
	relay     *relay
	successor *successor
	// listeners are where the base sends connections.
	listeners plan.Listeners
	// taken are the ports that other processes had when the relay wanted them. The relay's problemsMu guards it.
	taken []takenPort
	// own is set if the relay has a listener that was not handed over.
	own bool
	// overlay is what has the base do that, nil with Options.Listen.
	overlay *overlay
	// leads is set unless another dataplane takes new connections.
	leads bool
	// applied is set once there was an update.
	applied bool
	// next are the options that count from the next full update on, nil if they have not changed.
	next *Options
	// released is when the base took over all new connections, zero before.
	released time.Time
}

var (
	_ backend.Drainer  = (*Backend)(nil)
	_ backend.Reporter = (*Backend)(nil)
	_ backend.Featured = (*Backend)(nil)
)

// New makes a relay above base, which remains the caller's, in the calling thread's network namespace; it can be used from any thread afterwards.
// Connections go where they went before, until the first Apply. If an earlier process has released its relay in this network namespace,
// New takes over
// its listeners, and the connections that it carries. It needs CAP_NET_ADMIN. The caller must Close the Backend before base.
//
// With [Options].Listen, base may be nil, and New needs no rights.
func New(base backend.Backend, o Options) (*Backend, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	if base == nil {
		if len(o.Listen) == 0 {
			return nil, errors.New("userspace: without a base, Options.Listen must name what to serve")
		}
		base = backend.None{}
	}
	b := &Backend{o: o, log: o.Logger, listeners: plan.Listeners{}, base: base}
	if err := b.open(o); err != nil {
		return nil, errors.Join(fmt.Errorf("userspace: %w", err), b.Close())
	}
	b.setBase(base)
	return b, nil
}

func (b *Backend) open(o Options) (err error) {
	if len(o.Listen) > 0 {
		return b.openOn(o)
	}
	if b.addresses, err = openAddresses(o.Addresses); err != nil {
		return err
	}
	if _, err := b.addresses.add(); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN", err)
		}
		b.log.Warn("the relay has not all of its addresses; the Services of a family without one are left to netfilter", "error", err)
	}
	_, has, err := b.addresses.loopback()
	if err != nil {
		return err
	}
	if len(has) == 0 {
		return fmt.Errorf("none of the addresses %v is on the loopback interface", o.Addresses)
	}
	if b.overlay, err = openOverlay(b.commit); err != nil {
		return err
	}
	if err := b.openRelay(o); err != nil {
		return err
	}
	patience := time.Now().Add(bindPatience)
	for _, addr := range has {
		for _, k := range kinds {
			if k.Family != state.FamilyOf(addr) {
				continue
			}
			if err := b.listen(k, addr, patience); err != nil {
				return err
			}
		}
	}
	if err := b.overlay.arrive(listenersOf(b.listeners)); err != nil {
		b.log.Warn("the relay does not get connections yet; the next update tries again", "error", err)
	}
	b.relay.listen()
	return nil
}

// commit runs what changes tables of nf_tables.
func (b *Backend) commit(fn func() error) error {
	if base, ok := b.base.(interface{ Commit(func() error) error }); ok {
		return base.Commit(fn)
	}
	return fn()
}

// openOn opens a relay that listens on addresses of the host.
func (b *Backend) openOn(o Options) error {
	if err := b.openRelay(o); err != nil {
		return err
	}
	for i := range o.Listen {
		if err := b.listenOn(&o.Listen[i]); err != nil {
			return err
		}
	}
	b.relay.listen()
	return nil
}

// openRelay makes a relay that has what an earlier process has left.
func (b *Backend) openRelay(o Options) (err error) {
	if b.relay, err = newRelay(o); err != nil {
		return err
	}
	b.successor, err = newSuccessor()
	if errors.Is(err, fs.ErrPermission) && len(o.Listen) > 0 {
		return nil // it serves without rights, and takes nothing over
	}
	if err != nil {
		return err
	}
	if err := b.takeOver(); err != nil {
		b.log.Warn("connections of the previous process are not taken over", "error", err)
	}
	return nil
}

// Disturbed gets a value when the base's does.
func (b *Backend) Disturbed() <-chan struct{} { return b.base.Disturbed() }

// Reconfigure replaces the options, except for Logger, Addresses, Listen and Files. Nothing changes before the next Apply, which must be of a full update. No other
// method may be called until Reconfigure returns. The base is configured by its owner.
func (b *Backend) Reconfigure(o Options) error {
	o.Logger, o.Addresses, o.Listen, o.Files = b.log, b.o.Addresses, b.o.Listen, b.o.Files
	o, err := o.withDefaults()
	if err != nil {
		return fmt.Errorf("userspace: %w", err)
	}
	b.next = &o
	return nil
}

// Apply makes the relay and its base show u. See [backend.Backend].
//
// The relay learns of changes before the base sends it new connections. If the base fails, the relay restores its
// previous state.
func (b *Backend) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	r := b.relay
	if u.Full && b.next != nil {
		r.use(*b.next)
		b.next = nil
	}
	if b.overlay != nil {
		if err := b.overlay.arrive(listenersOf(b.listeners)); err != nil { // it failed in New
			return backend.Result{}, fmt.Errorf("userspace: %w", err)
		}
	}
	names, before := r.set(u)
	v := *u
	v.Changed = make([]*state.Service, len(u.Changed))
	for i, s := range u.Changed {
		v.Changed[i] = b.listeners.Base(s)
	}
	// The rules of the process that has handed over lead to the listeners of this one. Then its clients come here before the base shows anything new.
	early := b.overlay != nil && b.leads && !b.applied && !b.own
	if early {
		if err := b.overlay.lead(true); err != nil {
			r.restore(before)
			return backend.Result{}, fmt.Errorf("userspace: %w", err)
		}
		r.start()
	}
	result, err := b.base.Apply(ctx, v.For(backend.FeaturesOf(b.base)))
	if err != nil {
		r.restore(before)
		if early {
			err = errors.Join(err, b.overlay.lead(false))
		}
		return result, err
	}
	b.applied = true
	if b.overlay != nil && b.leads {
		if err := b.overlay.lead(true); err != nil {
			return result, fmt.Errorf("userspace: %w", err) // the base serves all alone
		}
	}
	r.start()
	r.settle(names, before)
	return result, nil
}

// set takes over the services of u. It returns the names of all changed services, and their previous records.
func (r *relay) set(u *state.Update) (names []state.ServiceName, before map[state.ServiceName]*state.Service) {
	before = map[state.ServiceName]*state.Service{}
	r.tableMu.Lock()
	for _, name := range u.Gone(r.table.Names()) {
		before[name] = r.table.Get(name)
		r.table.Remove(name)
	}
	for _, s := range u.Changed {
		before[s.Name] = r.table.Get(s.Name)
		r.table.Set(s)
	}
	r.tableMu.Unlock()
	names = slices.Collect(maps.Keys(before))
	for _, name := range names {
		r.clearProblem(name)
	}
	return names, before
}

// restore puts services back as they were.
func (r *relay) restore(before map[state.ServiceName]*state.Service) {
	r.tableMu.Lock()
	defer r.tableMu.Unlock()
	r.table.Restore(before)
}

// use takes over other options.
func (r *relay) use(o Options) {
	o = withinLimit(o)
	r.loads.Visits.SetLimit(o.MaxAffinityClients)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.o = o
}

// Verify compares the base and the relay's addresses with the last applied state. See [backend.Backend].
func (b *Backend) Verify(ctx context.Context) (backend.Result, error) {
	result, err := b.base.Verify(ctx)
	if !b.applied || b.addresses == nil || err != nil {
		return result, err
	}
	added, err := b.addresses.add()
	result.Written += added
	result.Repaired += added
	if err != nil {
		b.log.Warn("the relay has not all of its addresses", "error", err)
	}
	b.checkTaken()
	return result, nil
}

// Release has the base take all new connections itself. The relay carries on with those that it has, and keeps them ready for a next process: its New takes
// them over. Neither Apply nor Verify may be called after it. The base may be closed.
func (b *Backend) Release(ctx context.Context) error {
	if err := b.successor.listen(); err != nil {
		level := slog.LevelWarn
		if errors.Is(err, fs.ErrPermission) { // a relay without rights cannot prove its identity to another process
			level = slog.LevelInfo
		}
		b.log.Log(ctx, level, "no other process can take over the connections of this one", "error", err)
	}
	b.released = time.Now()
	err := b.leave()
	b.setBase(backend.None{})
	return err
}

// leave has the base take new connections itself.
func (b *Backend) leave() error {
	b.leads = false
	if b.overlay == nil {
		return nil
	}
	if err := b.overlay.lead(false); err != nil {
		return fmt.Errorf("userspace: leave new connections to the base: %w", err)
	}
	return nil
}

// Retire stops the relay from accepting new connections. By now, another dataplane takes all connections, and the base
// no longer belongs to this one. Apply and Verify go on, and open connections end when their endpoints have gone. The
// other dataplane needs records with [Backend.Lingering]. Its next Apply removes the rules that lead to the relay from
// the base, because open connections do not need them.
func (b *Backend) Retire() {
	if err := b.leave(); err != nil {
		b.log.Warn("the relay goes on taking new connections", "error", err)
	}
	if leader, ok := b.base.(backend.Leader); ok {
		leader.LeadTo(nil)
	}
	b.setBase(backend.None{})
}

// Resume undoes Retire, above a base that may be another one than before. Nothing changes before the next Apply, which must be of a full update.
func (b *Backend) Resume(base backend.Backend) { b.setBase(base) }

func (b *Backend) setBase(base backend.Backend) {
	b.base = base
	leader, leads := base.(backend.Leader)
	if b.leads = leads; leads {
		leader.LeadTo(listenersOf(b.listeners))
	}
	inspector, _ := base.(backend.Inspector)
	b.inspector.Store(&inspector)
}

// Lingering returns s for another dataplane that takes new connections after this one is retired. Its record lists the relay among the
// endpoints whose connections go on.
func (b *Backend) Lingering(s *state.Service) *state.Service { return b.listeners.Base(s) }

// Carried returns how many connections and flows the relay carries. It may be called at any time.
func (b *Backend) Carried() int { return b.relay.carried() }

const (
	// drainPeriod is how often Drain counts the remaining connections and flows.
	drainPeriod = 20 * time.Millisecond
	// leastDrain is how long it goes on at least after Release: the base may have sent connections here before it that have not arrived yet. A
	// packet waits in the queue of a processor, on a busy machine until that gets to it.
	leastDrain = 250 * time.Millisecond
)

// Drain returns when the relay's connections and flows have ended or moved to another process, or with ctx's error when ctx ends. New
// connections have to go elsewhere by then. After Release, Drain waits at least a quarter of a second for connections that are on their
// way. It then also waits for another process while there are clients with affinity to remember.
func (b *Backend) Drain(ctx context.Context) error {
	for b.left() > 0 || time.Since(b.released) < leastDrain {
		select {
		case <-ctx.Done():
			if b.left() == 0 {
				return nil
			}
			return fmt.Errorf("userspace: %d connections and flows are still open: %w", b.relay.carried(), context.Cause(ctx))
		case <-time.After(drainPeriod):
		}
		conn, err := b.successor.look()
		if conn != nil {
			err = b.relay.handOver(conn)
		}
		if err != nil {
			b.log.Warn("connections could not be handed over", "error", err)
		}
	}
	return nil
}

// left is how much would be lost if the process ended now.
func (b *Backend) left() int {
	n := b.relay.carried()
	if b.successor.waits() {
		n += b.relay.remembered()
	}
	return n
}

// Close ends all relayed connections. The programmed state of the base stays.
func (b *Backend) Close() (err error) {
	if b.overlay != nil { // before the ports are free: who takes them gets nothing
		err = b.overlay.close()
	}
	if b.relay != nil {
		b.relay.close()
	}
	if b.addresses != nil {
		b.addresses.close()
	}
	if b.successor != nil { // after the ports are free: the next process binds them once it sees nobody
		_ = b.successor.close()
	}
	return err
}
