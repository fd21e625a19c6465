// Package nftables programs the services of a node as set elements of nf_tables. The tables have a fixed skeleton of rules, and a few
// elements for each service and endpoint. So a change costs the same with a hundred services as with a hundred thousand.
//
// A frontend is an element with its number of endpoints, and one numbered slot for each endpoint. The rule for that number draws a slot and
// translates the destination to its endpoint. An internal package without side effects works out the changes, and [Backend] carries them out.
// README.md follows one packet and one change. This package owns the tables "switchyard" in the families ip and ip6. It never touches other
// tables.
//
// A map remembers clients with affinity by the number of an endpoint. Rules fill the map, and it is never read.
package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/internal/kernel/localnet"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// Backend is the nftables dataplane of one network namespace. It implements [backend.Backend].
type Backend struct {
	// o are the options. LocalDetector is the detector in use: the node's if it has one, else detector, as it was configured.
	o        Options
	detector state.LocalDetector
	log      *slog.Logger
	kernel   kernel
	lock     *nodelock.Lock // nil if the caller has it
	// finders are kernel, and more sockets to ask at the same time.
	finders []finder
	// inspector has a socket of its own.
	inspector inspector
	flows     *conntrack.Conn
	addrs     *ifaddr.Watcher
	cutter    *conntrack.Cutter
	guard     *guard
	batch     nft.Batch
	local     *localnet.Sysctl
	// flags are the flags of our tables. If they are owned, no other program can change them while this process runs.
	flags nft.TableFlags
	// features are the features of records that it can program, without the edge.
	features state.Features
	// problems are the services whose balance is not as it should be. It is nil until there is one.
	problems atomic.Pointer[problems]

	// mu is held by each method that reads or changes what follows, because shares of endpoints also move between them.
	mu       sync.Mutex
	counting leastLoaded
	// selected is the last result of selectNodePorts.
	selected selection
	// peers is the last result of peerAddrs.
	peers peerAddrs

	// limits are the limits of comparisons, except the number of lookups at a time.
	limits ruleset.Limits

	mirror *ruleset.Mirror
	// whole are the complete records of Services that a dataplane above this one serves in part. They are kept if
	// connections to that part are counted.
	whole map[state.ServiceName]*state.Service
	// listeners are the listeners of a relay above this dataplane.
	listeners []ruleset.Listener
	// ejector is nil unless a port ejects silent endpoints. inside is the network namespace of the dataplane.
	ejector atomic.Pointer[ejector]
	inside  *namespace.Namespace
	// resets is nil if connections to endpoints that are gone are not reset.
	resets *resets
	// known is set if the mirror shows what the kernel holds. It is not before the first Apply, and after a failure that
	// leaves doubts; then the next Apply reads the tables back.
	known bool
	// applied is set if there was an Apply, without which there is nothing to verify.
	applied bool
}

var (
	_ backend.FlowKeeper = (*Backend)(nil)
	_ backend.Featured   = (*Backend)(nil)
	_ backend.Reporter   = (*Backend)(nil)
)

// New makes the dataplane of the calling thread's network namespace; it can be used from any thread afterwards. Connections go where
// they went before, until the first Apply. It needs CAP_NET_ADMIN and Linux 5.13 or later. The caller must Close it.
//
// There is one dataplane for each network namespace. If another process has one, New waits for its end (Options.TakeOver), or
// until ctx ends, and then returns an error that is [syscall.EBUSY] to [errors.Is].
func New(ctx context.Context, o Options) (*Backend, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	conn, err := nft.Dial()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	var more []finder
	for range min(runtime.GOMAXPROCS(0), maxFinders) - 1 {
		f, err := nft.Dial()
		if err != nil {
			for _, f := range more {
				err = errors.Join(err, f.Close())
			}
			return nil, errors.Join(fmt.Errorf("nftables: %w", err), conn.Close())
		}
		more = append(more, f)
	}
	b, err := open(ctx, o, conn, more...)
	if err != nil {
		return nil, err
	}
	inspects, err := nft.Dial()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: %w", err), b.Close())
	}
	b.inspector.finder = inspects
	return b, nil
}

// maxFinders is how many sockets are asked at the same time. The comparison cannot keep up with more.
const maxFinders = 4

// open takes over k, and more sockets to read with.
func open(ctx context.Context, o Options, k kernel, more ...finder) (*Backend, error) {
	b := &Backend{
		o: o, detector: o.LocalDetector, log: o.Logger, kernel: k, finders: append([]finder{k}, more...), mirror: ruleset.NewMirror(), local: localnet.Open(),
		limits: usualLimits,
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if err := retried(ctx, b.log, b.own); err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: %w", err), b.Close())
	}
	var err error
	if b.inside, err = namespace.Current(); err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: %w", err), b.Close())
	}
	if b.flows, err = conntrack.Open(); err == nil {
		if b.addrs, err = ifaddr.Open(ifaddr.Options{Logger: b.log}); err == nil {
			b.guard, err = newGuard(b.addrs.Changed(), b.log, b.flags&nft.Owned != 0)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: %w", err), b.Close())
	}
	b.cutter = conntrack.NewCutter(b.flows, conntrack.CutterOptions{Logger: b.log, OnCut: o.OnFlowsCut, Elsewhere: o.Elsewhere, Scheduled: o.Scheduled})
	b.cutter.Start()
	return b, nil
}

const (
	// openAttempts is how often the kernel may refuse to make this process the one that programs, with a pause in between that doubles.
	openAttempts   = 6
	firstOpenPause = 10 * time.Millisecond
)

// retried calls f again if it fails, unless it fails because of another process. A start must not end because the kernel refuses f for
// a moment, when memory is short or another commit runs.
func retried(ctx context.Context, log *slog.Logger, f func(context.Context) error) error {
	for attempt, pause := 1, firstOpenPause; ; attempt, pause = attempt+1, 2*pause {
		err := f(ctx)
		_, inUse := errors.AsType[*nodelock.InUseError](err)
		if err == nil || inUse || attempt == openAttempts {
			return err
		}
		log.Warn("cannot open the tables, trying again", "pause", pause, "error", err)
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// own makes this process the only one that programs the network namespace. Tables that it finds become its own, if the kernel can
// keep others from changing them.
func (b *Backend) own(ctx context.Context) error {
	if b.lock == nil && !b.o.Locked {
		var err error
		if b.lock, err = nodelock.Acquire(ctx, nodelock.Options{Logger: b.log, Program: b.o.Program, Wait: b.o.TakeOver}); err != nil {
			return err
		}
	}
	persistent, err := b.kernel.Has(nft.PersistentTables)
	if err != nil {
		return err
	}
	if persistent {
		b.flags = nft.Owned | nft.Persistent
	} else {
		b.log.Info("this kernel cannot keep others from changing tables; changes of ours are found and repaired",
			"lacks", nft.PersistentTables.Name, "since", nft.PersistentTables.Since)
	}
	b.features = state.Weights | state.Ranges | state.Ping | state.Ejection | state.DrainDeadline
	if hashes, err := b.kernel.Has(nft.Hashing); hashes {
		b.features |= state.Balances
	} else {
		b.log.Info("this kernel cannot hash connections; endpoints are drawn at random instead", "lacks", nft.Hashing.Name, "since", nft.Hashing.Since,
			"error", err)
	}
	b.batch.Reset()
	for _, t := range slices.Concat(ruleset.Tables(), ruleset.ResetTables()) {
		info, err := b.kernel.Table(t)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return err
		case info.Flags&nft.Owned != 0:
			err := nodelock.OwnedBy(b.kernel, info)
			if inUse, ok := errors.AsType[*nodelock.InUseError](err); ok {
				inUse.Holder = fmt.Sprintf("that which owns table %v, %s", t, inUse.Holder)
			}
			if err != nil {
				return err
			}
			continue
		case !persistent || info.Flags&nft.Persistent == 0:
			continue // of a version or kernel that left it to everybody
		}
		b.batch.AddTableAs(t, b.flags)
	}
	if b.batch.Len() == 0 {
		return nil
	}
	if err := b.kernel.Commit(&b.batch); err != nil {
		return fmt.Errorf("taking over tables %s: %w", ruleset.TableName, err)
	}
	return nil
}

// intact reports whether our tables are still there and ours.
func (b *Backend) intact() (bool, error) {
	tables := ruleset.Tables()
	if b.resets != nil {
		for _, f := range b.resets.Exists() {
			tables = append(tables, resetTable(f))
		}
	}
	for _, t := range tables {
		info, err := b.kernel.Table(t)
		if errors.Is(err, os.ErrNotExist) || err == nil && info.Flags != b.flags {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// Reconfigure replaces the options, except for Logger, Locked, TakeOver, Program and the callbacks. Nothing in the kernel changes before the next
// Apply, which must be of a full update. No other method may be called until Reconfigure returns.
func (b *Backend) Reconfigure(o Options) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o.Logger, o.Locked, o.TakeOver, o.Program, o.OnFlowsCut = b.o.Logger, b.o.Locked, b.o.TakeOver, b.o.Program, b.o.OnFlowsCut
	o.OnGone, o.OnResets, o.Elsewhere, o.Scheduled, o.Schedules = b.o.OnGone, b.o.OnResets, b.o.Elsewhere, b.o.Scheduled, b.o.Schedules
	o.OnProbe, o.OnEjections = b.o.OnProbe, b.o.OnEjections
	b.o, b.detector, b.known = o, o.LocalDetector, false
	if e := b.ejector.Load(); e != nil {
		e.setTimeout(o.probeTimeout())
	}
	if !o.Counters {
		b.whole = nil
	}
	return nil
}

// ServesLoopback reports whether NodePorts are served on loopback addresses, since the last Apply or Verify.
func (b *Backend) ServesLoopback() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mirror.ServesLoopback()
}

// LeaveFlows stops the deletion of flows until the next Apply, also by Close. Call it before another dataplane takes over and begins flows
// to endpoints that this one does not know, such as a relay. No other method may be called until LeaveFlows returns. It waits for a deletion of flows to
// silent endpoints that has begun.
func (b *Backend) LeaveFlows() {
	b.cutter.Suspend()
	b.ejector.Load().leaveFlows()
}

// Close releases the sockets. Programmed state stays.
func (b *Backend) Close() error {
	b.counting.close()
	errs := []error{b.ejector.Swap(nil).end(true)}
	if b.cutter != nil {
		b.cutter.Close()
	}
	if b.guard != nil {
		errs = append(errs, b.guard.close())
	}
	if b.addrs != nil {
		errs = append(errs, b.addrs.Close())
	}
	if b.flows != nil {
		errs = append(errs, b.flows.Close())
	}
	for _, f := range b.finders {
		errs = append(errs, f.Close())
	}
	errs = append(errs, b.inspector.close())
	if b.inside != nil {
		errs = append(errs, b.inside.Close())
	}
	return errors.Join(append(errs, b.local.Close(), b.lock.Close())...) // the lock last: until here, the tables are ours
}

// Commit runs fn, which commits one batch of changes to tables of another part of this process or fails. So the guard does not take the
// commit for a change by another program, and does not compare all tables. Any goroutine may call Commit.
func (b *Backend) Commit(fn func() error) error { return b.guard.commit(fn) }

// Disturbed gets a value when addresses of the node have changed, or when something else changed the kernel's rules.
func (b *Backend) Disturbed() <-chan struct{} { return b.guard.disturbed }

// Apply makes the tables show u. See [backend.Backend].
func (b *Backend) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.o.LocalDetector
	b.detectBy(u.Node)
	result, err := b.applyServices(u)
	if err != nil {
		b.use(before)
	}
	result.Written += b.addResets()
	return result, err
}

// detectBy makes the tables take those clients for pods that a node says are.
func (b *Backend) detectBy(n *state.Node) {
	if n.LocalDetector != nil {
		b.use(*n.LocalDetector)
	} else {
		b.use(b.detector)
	}
}

// use changes the detector. Rules and elements depend on it, so that the tables have to be compared.
func (b *Backend) use(d state.LocalDetector) {
	if !d.Equal(b.o.LocalDetector) {
		b.o.LocalDetector, b.known = d, false
	}
}

// applyServices is Apply with the detector of u.
func (b *Backend) applyServices(u *state.Update) (backend.Result, error) {
	refused := map[state.ServiceName]error{}
	for _, s := range u.Changed {
		if err := ruleset.Check(s); err != nil {
			refused[s.Name] = err
		}
	}
	if len(refused) > 0 {
		return backend.Result{}, &backend.RefusedError{Services: refused}
	}
	lost := map[state.ServiceName]error{}
	for written := 0; ; {
		result, err := b.applyWithout(u, lost)
		written += result.Written
		if refused := refusedBy(err, u); len(refused) > 0 {
			return backend.Result{Written: written}, &backend.RefusedError{Services: refused}
		}
		if leaveOut(err, lost) {
			continue // without them, so that the deletions at the end are made
		}
		if len(lost) > 0 {
			b.guard.raise(quiet) // u may not be about them: a Verify tries them again
		}
		return backend.Result{Written: written, Failed: maps.Clone(b.mirror.Preserved.Lost)}, err
	}
}

// refusedBy returns the services of u that have no room by err, unless u has their last good records.
func refusedBy(err error, u *state.Update) map[state.ServiceName]error {
	tooLarge, ok := errors.AsType[*tooLargeError](err)
	if !ok {
		return nil
	}
	refused := map[state.ServiceName]error{}
	for _, s := range u.Changed {
		if err := tooLarge.services[s.Name]; err != nil {
			refused[s.Name] = err
		}
	}
	for _, s := range u.Refused { // u has their last good records
		delete(refused, s.Name)
	}
	return refused
}

// leaveOut adds the services that have no room by err to lost, and reports whether it has added any. A lost service has no room for its last good record.
func leaveOut(err error, lost map[state.ServiceName]error) (more bool) {
	tooLarge, ok := errors.AsType[*tooLargeError](err)
	if !ok {
		return false
	}
	for name, err := range tooLarge.services {
		if lost[name] == nil {
			lost[name], more = err, true
		}
	}
	return more
}

// applyWithout makes the tables show u, but for services that are lost.
func (b *Backend) applyWithout(u *state.Update, lost map[state.ServiceName]error) (backend.Result, error) {
	unknown := records{} // services without a good record, whose entries in the kernel stay
	for _, s := range u.Refused {
		_, known := slices.BinarySearchFunc(u.Changed, s.Name, func(s *state.Service, name state.ServiceName) int { return s.Name.Compare(name) })
		if !known && (u.Full || b.mirror.Record(s.Name) == nil) {
			unknown[s.Name] = s
		}
	}
	compared := b.compares(u)
	result, err := b.apply(u, unknown, lost)
	if err != nil && compared && refused(err) {
		// Not even a comparison with the kernel's own state made a batch that it takes.
		isolated, isolatedErr := b.isolate(u, lost, unknown)
		isolated.Written += result.Written
		return isolated, isolatedErr
	}
	return result, err
}

// compares reports whether an update takes a comparison with what the kernel holds.
func (b *Backend) compares(u *state.Update) bool {
	return u.Full || !b.known || b.mirror.Preserved.Concerns(u)
}

// records are services by name.
type records = map[state.ServiceName]*state.Service

// apply makes the tables show u. The kernel's elements of unknown and lost services stay.
func (b *Backend) apply(u *state.Update, unknown records, lost map[state.ServiceName]error) (backend.Result, error) {
	if b.compares(u) {
		want := b.mirror.After(u)
		want.Lose(lost)
		maps.Copy(want.Preserved.Services, unknown)
		return b.applyAll(want)
	}
	nodePorts := b.selectNodePorts(u.Node)
	p := b.mirror.Change(b.settings(), u, nodePorts)
	written, err := b.commitNoted(p, nil, nodePorts, func(int) []conntrack.Note { return nil })
	if err != nil {
		return backend.Result{Written: written}, err
	}
	b.mirror = p.Commit()
	b.finish()
	return backend.Result{Written: written}, nil
}

// applyAll reads the tables and makes them show the desired content.
func (b *Backend) applyAll(want ruleset.Desired) (backend.Result, error) {
	b.guard.arm() // before the reading: whatever changes after it is drift
	if err := b.useResets(); err != nil {
		return backend.Result{}, err
	}
	want.NodePorts = b.selectNodePorts(want.Node)
	p, err := b.compareAll(want)
	if err != nil {
		return backend.Result{}, fmt.Errorf("nftables: %w", err)
	}
	written, err := b.commitNoted(p, &want, want.NodePorts, func(written int) []conntrack.Note {
		wrote := written > 0 || b.cutter.IsDoubtful()
		if b.applied && !wrote {
			return nil
		}
		return []conntrack.Note{{All: want.All(), Gap: wrote}}
	})
	if err != nil {
		return backend.Result{Written: written}, err
	}
	if p.ForgetsClients() { // everything else in a replaced table is as before
		b.log.Info("the tables were replaced, because their layout or options have changed: clients with affinity may get other endpoints")
	}
	b.mirror = p.Commit()
	b.known, b.applied = true, true
	b.finish()
	return backend.Result{Written: written}, nil
}

// compareAll plans the difference between the tables and the desired contents.
func (b *Backend) compareAll(want ruleset.Desired) (*ruleset.Plan, error) {
	r := newTableReader(b.kernel, b.finders)
	defer r.close()
	limits := b.limits
	limits.Ahead = lookupsAhead * len(b.finders)
	return b.mirror.Compare(b.settings(), want, r, limits)
}

// Verify compares the tables with the last applied state and repairs them. See [backend.Backend].
func (b *Backend) Verify(context.Context) (backend.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.applied {
		return backend.Result{}, nil
	}
	alarm, owing := b.guard.take(), b.resets != nil && b.resets.doubtful
	if b.known && b.flags&nft.Owned != 0 {
		intact, err := b.intact()
		if err != nil {
			b.guard.raise(alarm)
			return backend.Result{}, fmt.Errorf("nftables: %w", err)
		}
		if !intact {
			alarm = foreignChange
		}
	}
	same := &state.Update{Node: b.mirror.Node()}
	sure := b.known && len(b.mirror.Preserved.Lost) == 0
	if err := b.tendResets(); err != nil {
		b.log.Warn("cannot read how many connections were reset; will try again", "error", err)
	}
	if sure && alarm != foreignChange {
		return b.apply(same, nil, nil) // a no-op, unless addresses changed
	}
	began := time.Now()
	moved := !slices.Equal(b.selectNodePorts(b.mirror.Node()), b.mirror.NodePorts()) || b.ejector.Load().ejected() != b.mirror.Ejected()
	result, err := b.repair(same)
	b.guard.spent(time.Since(began))
	if err != nil {
		b.guard.raise(alarm)
		return result, err
	}
	if sure && !moved && !owing { // else it may be what we ourselves left undone
		result.Repaired = result.Written
	}
	return result, nil
}

// repair makes the tables show the last applied state, except services that do not fit.
func (b *Backend) repair(same *state.Update) (total backend.Result, err error) {
	lost := map[state.ServiceName]error{}
	for {
		want := b.mirror.After(same)
		want.Lose(lost)
		result, err := b.applyAll(want)
		total.Written += result.Written
		if !leaveOut(err, lost) {
			total.Failed = lost
			return total, err
		}
	}
}

// selection is which addresses serve NodePorts, and what that follows from.
type selection struct {
	on    state.NodePortAddresses
	local []netip.Addr
	node  *state.Node
	addrs []netip.Addr
}

// selectNodePorts returns the addresses that serve NodePorts now: the same memory as before if they are the same. A node may have many, which a
// change of a Service must not go through.
func (b *Backend) selectNodePorts(node *state.Node) []netip.Addr {
	now := selection{on: b.o.NodePortAddresses, local: b.addrs.Addrs(), node: node}
	if node.NodePorts != nil {
		now.on = *node.NodePorts
	}
	was := &b.selected
	if was.node == node && ruleset.SameMemory(was.local, now.local) && was.on.Equal(now.on) {
		return was.addrs
	}
	if now.addrs = now.on.Select(now.local, node); slices.Equal(was.addrs, now.addrs) {
		now.addrs = was.addrs
	}
	b.selected = now
	return now.addrs
}

// translating returns the NodePort addresses, which are sorted, without ::1. The kernel cannot translate connections to ::1, because IPv6 has no
// counterpart to route_localnet.
func translating(nodePorts []netip.Addr) []netip.Addr {
	i, served := slices.BinarySearchFunc(nodePorts, netip.IPv6Loopback(), netip.Addr.Compare)
	if !served {
		return nodePorts
	}
	return slices.Concat(nodePorts[:i], nodePorts[i+1:])
}

// commitNoted carries out a plan, after which NodePorts are served on nodePorts. It takes down the effects on flows: the services that the
// plan changes, and the notes that more returns after it. want is the desired content of a comparison, nil for a change. The effects do not
// depend on the number of written objects. After a commit whose answer was lost, nothing is left to write, but its changes count.
func (b *Backend) commitNoted(p *ruleset.Plan, want *ruleset.Desired, nodePorts []netip.Addr, more func(written int) []conntrack.Note) (int, error) {
	serving, cleared, err := b.clearResets(p, want)
	if err != nil {
		return 0, err
	}
	var notes []conntrack.Note
	for was, is := range p.Changed() {
		notes = append(notes, conntrack.Note{Old: was, New: is})
	}
	b.cutter.Begin(notes...)
	written, err := b.commit(p)
	if err != nil {
		b.cutter.Failed()
		return cleared + written, err
	}
	b.cutter.SetPeerAddrs(b.peerAddrs(p.Node()))
	b.cutter.Committed(translating(nodePorts), append(notes, more(written)...)...)
	if serving != nil {
		serving.Commit()
	}
	b.noteEjection(want, p)
	return cleared + written, nil
}

// commit carries out a plan, and returns how many elements, chains and sets it wrote.
func (b *Backend) commit(p *ruleset.Plan) (int, error) {
	ahead, err := b.commitBatch(p.WriteAhead)
	if err != nil {
		return 0, err
	}
	filled, err := b.fillNew(p)
	if err != nil {
		return 0, err
	}
	ahead += filled
	known := b.known
	n, err := b.commitBatch(p.Write)
	switch {
	case !errors.Is(err, nft.ErrNoRoom):
	case !p.Divisible():
		err = fmt.Errorf("replacing tables %s or sets in them, which takes one transaction: %s: %w", ruleset.TableName, moreRoom, err)
	default:
		n, err = b.commitParts(p)
		_, tooLarge := errors.AsType[*tooLargeError](err)
		refused := tooLarge || errors.Is(err, nft.ErrNoRoom) // else a part may be there whose answer was lost
		b.known = known && (err == nil || refused && ahead+n == 0)
	}
	return ahead + n, err
}

// partBytes is how large the transactions are that fill new tables. A socket has room for it whose buffer has the size that Linux lets anybody have.
const partBytes = 256 << 10

// fillNew fills the tables that are new, before the transaction that makes packets meet them, unless there is little to fill. It returns how many
// objects it wrote. If the kernel has no room, it writes nothing, and the plan is to be carried out without it.
func (b *Backend) fillNew(p *ruleset.Plan) (written int, err error) {
	if p.NewSize() <= partBytes {
		return 0, nil
	}
	b.batch.Reset()
	b.batch.Grow(partBytes + partBytes/4)
	err = p.FillNew(&b.batch, partBytes, func() error {
		n := b.batch.Len()
		if err := b.guard.commit(func() error { return b.kernel.Commit(&b.batch) }); err != nil {
			return err
		}
		written += n
		b.batch.Reset()
		return nil
	})
	if err == nil {
		return written, nil
	}
	if _, dropErr := b.commitBatch(p.DropNew); dropErr != nil || !errors.Is(err, nft.ErrNoRoom) {
		b.known = false
		return 0, errors.Join(fmt.Errorf("nftables: %w", err), dropErr)
	}
	return 0, nil
}

// commitBatch commits what fill puts into a batch, and returns how many objects that are.
func (b *Backend) commitBatch(fill func(*nft.Batch)) (int, error) {
	b.batch.Reset()
	fill(&b.batch)
	n := b.batch.Len()
	if n == 0 {
		return 0, nil
	}
	err := b.guard.commit(func() error { return b.kernel.Commit(&b.batch) })
	if b.batch.Cap() > keepBatch {
		b.batch = nft.Batch{}
	}
	if err != nil {
		b.known = false
		return 0, fmt.Errorf("nftables: %w", err)
	}
	return n, nil
}

// keepBatch is how many bytes a batch may keep for the next one.
const keepBatch = 1 << 20

// finish does the work after a commit, and in each Verify. A failed step is tried again later.
func (b *Backend) finish() {
	b.follow()
	b.noteProblems()
	if b.mirror.ServesLoopback() {
		b.local.Keep(b.log)
	}
}
