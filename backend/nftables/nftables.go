// Package nftables programs the services of a node with nf_tables, by set elements alone: one fixed skeleton of rules, and a few
// elements for each service and endpoint, so that a change costs the same with a hundred services as with a hundred thousand.
//
// A frontend is an element that says how many endpoints it has, and one numbered slot for each of them. The rule for so many
// endpoints draws a number and translates the destination to what stands in that slot. layout.go names the sets, skeleton.go has
// the rules, render.go turns a record into elements, plan.go and resync.go work out what to change; all of these are pure.
// Only [Backend] talks to the kernel. The tables belong to this package: "switchyard" in the families ip and ip6. Other
// tables are never touched.
//
// Client affinity is per frontend address and port.
package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/conntrack"
	"github.com/switchyard-net/switchyard/internal/ifaddr"
	"github.com/switchyard-net/switchyard/internal/nft"
	"github.com/switchyard-net/switchyard/state"
)

// Backend is the nftables dataplane of one network namespace. It implements [backend.Backend].
type Backend struct {
	o      Options
	log    *slog.Logger
	kernel kernel
	flows  *conntrack.Conn
	addrs  *ifaddr.Watcher
	cutter *flowCutter
	guard  *guard
	batch  nft.Batch
	local  *routeLocalnet
	// destroys says that clients can be forgotten within a transaction (DestroyElem).
	destroys bool

	mirror *mirror
	// known says that the mirror shows what the kernel holds. It is not before the first Apply, and after a failure that
	// leaves doubts; then the next Apply reads the tables back.
	known bool
	// applied says that there was an Apply, without which there is nothing to verify.
	applied bool
}

var _ backend.Backend = (*Backend)(nil)

// New makes the dataplane of the calling thread's network namespace; it can be used from any thread afterwards. Nothing in the
// kernel changes before the first Apply. It needs CAP_NET_ADMIN and Linux 5.13 or later. The caller must Close it.
func New(o Options) (*Backend, error) {
	if o.MasqueradeBit != nil && (*o.MasqueradeBit < 0 || *o.MasqueradeBit > 31) {
		return nil, fmt.Errorf("nftables: MasqueradeBit is %d, must be from 0 to 31", *o.MasqueradeBit)
	}
	conn, err := nft.Dial()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return open(o, conn)
}

// open takes over k.
func open(o Options, k kernel) (*Backend, error) {
	b := &Backend{o: o, log: o.Logger, kernel: k, mirror: newMirror(), local: openRouteLocalnet()}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if b.destroys, err = k.HasDestroy(); err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: asking the kernel for its features: %w", err), b.Close())
	}
	if b.flows, err = conntrack.Open(); err == nil {
		if b.addrs, err = ifaddr.Open(ifaddr.Options{Logger: b.log}); err == nil {
			b.guard, err = newGuard(b.addrs.Changed(), b.log)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: %w", err), b.Close())
	}
	b.cutter = newFlowCutter(b.flows, b.log)
	b.cutter.onCut = o.OnFlowsCut
	b.cutter.start()
	return b, nil
}

// Close releases the sockets. What is programmed stays.
func (b *Backend) Close() error {
	var errs []error
	if b.cutter != nil {
		b.cutter.close()
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
	return errors.Join(append(errs, b.local.close(), b.kernel.Close())...)
}

// Disturbed gets a value when addresses of the node have changed, or when something else changed the kernel's rules.
func (b *Backend) Disturbed() <-chan struct{} { return b.guard.disturbed }

// Apply makes the tables show u. See [backend.Backend].
func (b *Backend) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	u, failed, unknown := programmable(u, b.mirror)
	compared := b.compares(u)
	result, err := b.apply(u, unknown)
	if err != nil && compared && refused(err) {
		// Not even a comparison with the kernel's own state made a batch that it takes.
		result, err = b.isolate(u, failed, unknown)
	}
	result.Failed = failed
	return result, err
}

// compares says whether an update takes a comparison with what the kernel holds.
func (b *Backend) compares(u *state.Update) bool {
	return u.Full || !b.known || b.mirror.spared.concerns(u)
}

// programmable returns u without the records that cannot be programmed, and these. In a full update, what a service had
// before takes its place; unknown are records of which the mirror does not know what they had.
func programmable(u *state.Update, m *mirror) (good *state.Update, failed map[state.ServiceName]error, unknown records) {
	failed, unknown = map[state.ServiceName]error{}, records{}
	for _, s := range u.Changed {
		if err := checkService(s); err != nil {
			failed[s.Name] = err
		}
	}
	if len(failed) == 0 {
		return u, failed, unknown
	}
	good = &state.Update{}
	*good = *u
	good.Changed = nil
	for _, s := range u.Changed {
		old := m.services[s.Name].record
		switch {
		case failed[s.Name] == nil:
			good.Changed = append(good.Changed, s)
		case old == nil:
			unknown[s.Name] = s
		case u.Full:
			good.Changed = append(good.Changed, old)
		}
	}
	return good, failed, unknown
}

// apply makes the tables show u. What the kernel holds of unknown stays.
func (b *Backend) apply(u *state.Update, unknown records) (backend.Result, error) {
	if b.compares(u) {
		want := b.mirror.after(u)
		maps.Copy(want.spared.services, unknown)
		return b.applyAll(want)
	}
	p := newPlan(&b.o, b.mirror)
	p.update(u)
	p.settle(b.selectNodePorts(u.Node))
	p.grow()
	if b.destroys {
		if err := b.forgetDead(p); err != nil {
			return backend.Result{}, err
		}
	}
	written, err := b.commitNoted(p, func(int) []flowNote {
		notes := make([]flowNote, 0, len(p.services))
		for name, a := range p.services {
			notes = append(notes, flowNote{old: b.mirror.services[name].record, new: a.record})
		}
		return notes
	})
	if err != nil {
		return backend.Result{}, err
	}
	p.commit()
	b.finish(p)
	return backend.Result{Written: written}, nil
}

// applyAll makes the tables show what is desired, whatever they show now.
func (b *Backend) applyAll(want desired) (backend.Result, error) {
	b.guard.arm() // before the reading: whatever changes after it is drift
	ks, err := readKernel(b.kernel)
	if err != nil {
		return backend.Result{}, fmt.Errorf("nftables: %w", err)
	}
	p := resync(&b.o, b.mirror, ks, want, b.selectNodePorts(want.node))
	written, err := b.commitNoted(p, func(written int) (notes []flowNote) {
		// Whatever was written: after a commit whose answer was lost nothing is left to write, but its changes count.
		for name, a := range b.mirror.services {
			if now := p.services[name].record; now != a.record {
				notes = append(notes, flowNote{old: a.record, new: now})
			}
		}
		wrote := written > 0 || b.cutter.isDoubtful()
		if !b.applied || wrote {
			notes = append(notes, flowNote{all: want.services, gap: wrote})
		}
		return notes
	})
	if err != nil {
		return backend.Result{}, err
	}
	b.mirror = p.m
	p.commit()
	b.known, b.applied = true, true
	b.finish(p)
	return backend.Result{Written: written}, nil
}

// Verify compares the tables with what was applied last and repairs them. See [backend.Backend].
func (b *Backend) Verify(context.Context) (backend.Result, error) {
	if !b.applied {
		return backend.Result{}, nil
	}
	alarm := b.guard.take()
	same := &state.Update{Node: b.mirror.node}
	if b.known && alarm != foreignChange {
		return b.apply(same, nil) // a no-op, unless addresses changed
	}
	began, sure := time.Now(), b.known
	moved := !slices.Equal(b.selectNodePorts(b.mirror.node), b.mirror.nodePorts)
	result, err := b.applyAll(b.mirror.after(same))
	b.guard.spent(time.Since(began))
	if err != nil {
		b.guard.raise(alarm)
		return result, err
	}
	if sure && !moved { // else it may be what we ourselves left undone
		result.Repaired = result.Written
	}
	return result, nil
}

// selectNodePorts returns the addresses that serve NodePorts now. IPv6 has no counterpart to route_localnet: connections from
// ::1 cannot be translated.
func (b *Backend) selectNodePorts(node *state.Node) []netip.Addr {
	return slices.DeleteFunc(ifaddr.Select(b.addrs.Addrs(), b.o.NodePortAddresses, node), func(a netip.Addr) bool {
		return a.Is6() && a.IsLoopback()
	})
}

// forgetDead plans that clients of endpoints that go are forgotten in the same transaction.
func (b *Backend) forgetDead(p *plan) error {
	type affinity struct {
		family state.Family
		view   view
	}
	concerned := map[affinity]bool{}
	for k := range p.dead {
		concerned[affinity{k.family, k.set.view}] = true
	}
	for _, f := range families {
		for _, v := range affinityViews {
			if !concerned[affinity{f, v}] {
				continue
			}
			clients, err := b.kernel.Elems(table(f), affinitySet(v))
			if err != nil {
				b.known = false
				return fmt.Errorf("nftables: reading remembered clients: %w", err)
			}
			for _, e := range clients {
				if c := (client{f, v, e}); p.forgets(c) {
					p.forgotten = append(p.forgotten, c)
				}
			}
		}
	}
	return nil
}

// forgetEach forgets clients one by one, for kernels that cannot leave it to the batch whether they are still there.
func (b *Backend) forgetEach(clients []client) error {
	for _, c := range clients {
		b.batch.Reset()
		b.batch.DeleteElem(table(c.family), affinitySet(c.view), c.elem)
		err := b.guard.commit(func() error { return b.kernel.Commit(&b.batch) })
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("nftables: forgetting a client: %w", err)
		}
	}
	return nil
}

// commitNoted carries out a plan, and takes down what it means for flows.
func (b *Backend) commitNoted(p *plan, notes func(written int) []flowNote) (int, error) {
	b.cutter.begin()
	written, err := b.commit(p)
	if err != nil {
		b.cutter.failed()
		return 0, err
	}
	b.cutter.committed(p.nodePorts, notes(written)...)
	return written, nil
}

// commit carries out a plan, and returns how many elements, chains and sets it wrote.
func (b *Backend) commit(p *plan) (int, error) {
	b.batch.Reset()
	p.write(&b.batch)
	if b.destroys {
		p.forget(&b.batch)
	}
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

// finish does what comes after a commit, and in each Verify. What fails here is tried again later.
func (b *Backend) finish(p *plan) {
	if b.mirror.shape.loopback {
		again, err := b.local.enable()
		if err != nil {
			b.log.Warn("NodePorts do not work on loopback addresses", "error", err,
				"remedy", "set net.ipv4.conf.all.route_localnet to 1, or leave loopback ranges out of the node port addresses")
		}
		if again {
			b.log.Warn("somebody has switched off net.ipv4.conf.all.route_localnet; it is on again, for NodePorts on loopback addresses")
		}
	}
	if err := b.forgetRest(p); err != nil {
		b.log.Warn("clients of deleted endpoints could not be forgotten; will try again", "error", err)
		b.guard.raise(foreignChange)
	}
}

// forgetRest forgets, after the commit of p, the clients that could not be forgotten in it: those that rules remembered
// between the reading and the commit, or all of them if the kernel is too old.
func (b *Backend) forgetRest(p *plan) error {
	rest := newPlan(&b.o, b.mirror)
	rest.dead = p.dead
	if err := b.forgetDead(rest); err != nil {
		return err
	}
	if !b.destroys {
		return b.forgetEach(append(p.forgotten, rest.forgotten...))
	}
	_, err := b.commit(rest)
	return err
}
