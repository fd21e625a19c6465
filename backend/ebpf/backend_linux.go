package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/ebpf/maps"
	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/state"
)

// Backend is socket hooks above another dataplane. It implements [backend.Backend].
type Backend struct {
	base   backend.Backend
	o      Options
	log    *slog.Logger
	cookie uint64 // of the node's network namespace
	addrs  *ifaddr.Watcher

	services *services
	// hooks is nil while they are off. The next Apply or Verify tries to attach them again.
	hooks *hooks
	// reconfigured is set if the programs still have the constants of previous options.
	reconfigured bool
	// lacking is why some services are left to the base that the hooks could do.
	lacking error
	// node is the node of the last update, nil before the first one.
	node *state.Node
	// cached are the settings that were made last, of a node and the addresses of its interfaces. A node is never modified.
	cached struct {
		node     *state.Node
		local    []netip.Addr
		settings *plan.Settings
	}
	// logged is set if the log has the state of status. Why hooks are off is worded differently from one attempt to the next: programs and maps
	// are loaded in no order.
	logged bool

	// counters are nil if nothing is counted.
	counters *maps.Counters

	ender *ender
	// gone are the endpoints that the base has named in this Apply.
	gone []netip.AddrPort

	disturbed chan struct{}
	stop      context.CancelFunc
	running   sync.WaitGroup

	// mu guards status, and hooks and counters while they are replaced: others read them at any time.
	mu     sync.Mutex
	status Status
}

var _ backend.Featured = (*Backend)(nil)

// errNoCookie is why hooks are not attached that could not distinguish the node from pods.
var errNoCookie = errors.New("the cookie of the network namespace is not known (Linux 5.14 is needed)")

// New puts hooks above base, which remains the caller's, in the calling thread's network namespace. If they cannot be attached, that is
// logged, base alone goes on, and [Backend.Status] has the reason. Hooks need CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and Linux 5.16. The caller must Close
// the Backend before base.
func New(base backend.Backend, o Options) (*Backend, error) {
	b := &Backend{base: base, o: o, log: o.Logger, services: newServices(), disturbed: make(chan struct{}, 1)}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if b.addrs, err = ifaddr.Open(ifaddr.Options{Logger: b.log}); err != nil {
		return nil, err
	}
	if b.ender, err = newEnder(b.log); err != nil {
		return nil, errors.Join(err, b.addrs.Close())
	}
	if b.cookie, err = NamespaceCookie(); err == nil {
		err = b.load()
	}
	b.note(err)
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.running.Go(func() { b.watch(ctx) })
	b.running.Go(func() { b.ender.run(ctx) })
	return b, nil
}

// Available returns why hooks with these options cannot be attached in the calling thread's network namespace. It has the kernel check
// the programs, and attaches nothing.
func Available(o Options) error {
	cookie, err := NamespaceCookie()
	if err != nil {
		return fmt.Errorf("ebpf: %w", err)
	}
	counters, err := newCounters(&o)
	if err != nil {
		return fmt.Errorf("ebpf: %w", err)
	}
	h, err := newHooks(&o, cookie, maps.Needs{}, nil, counters)
	if err == nil {
		err = h.discard()
	}
	if counters != nil {
		err = errors.Join(err, counters.Close())
	}
	if err != nil {
		return fmt.Errorf("ebpf: %w", err)
	}
	return nil
}

// watch hands on what disturbs the base, and changes of the node's addresses.
func (b *Backend) watch(ctx context.Context) {
	base := b.base.Disturbed()
	for {
		select {
		case <-ctx.Done():
			return
		case <-base:
		case <-b.addrs.Changed():
		}
		b.disturb()
	}
}

func (b *Backend) disturb() {
	select {
	case b.disturbed <- struct{}{}:
	default:
	}
}

// Close detaches the hooks. Connections that they have translated go on.
func (b *Backend) Close() error {
	b.stop()
	b.running.Wait()
	err := errors.Join(b.unload(), b.addrs.Close())
	if b.counters != nil {
		err = errors.Join(err, b.counters.Close())
	}
	return err
}

// Gone names endpoints that no longer belong to a Service. The base calls it in its Apply.
func (b *Backend) Gone(endpoints []netip.AddrPort) { b.gone = append(b.gone, endpoints...) }

// end ends connections to endpoints that are gone, if EndRemoved is set.
func (b *Backend) end() {
	if b.o.EndRemoved && b.hooks != nil && len(b.gone) > 0 {
		b.ender.add(b.gone)
	}
	b.gone = nil
}

// Disturbed gets a value when the base's does, or when the node's addresses have changed.
func (b *Backend) Disturbed() <-chan struct{} { return b.disturbed }

// Reconfigure replaces the options, except for Logger and Namespaces. Nothing changes before the next Apply, which must be of a full update.
// No other method may be called until Reconfigure returns. The base is configured by its owner.
func (b *Backend) Reconfigure(o Options) {
	o.Logger, o.Namespaces = b.o.Logger, b.o.Namespaces
	b.o, b.reconfigured, b.logged = o, true, false
	b.cached.settings = nil
}

// Status returns how the hooks are doing. It may be called at any time.
func (b *Backend) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	if b.hooks != nil {
		s.Memory, s.Translated, s.Mesh = b.hooks.memory, b.hooks.count(countTranslated), b.hooks.count(countMesh)
	}
	return s
}

// note takes down how the hooks are doing now; err is why they do not do all that they can.
func (b *Backend) note(err error) {
	now := Status{State: On, Reason: err}
	if b.hooks == nil {
		now.State = Off
	} else if now.Frontends = b.hooks.tables.Frontends(); err != nil {
		now.State = Degraded
	}
	b.mu.Lock()
	was := b.status
	b.status = now
	b.mu.Unlock()
	if was.State == now.State && b.logged {
		return
	}
	b.logged = true
	switch now.State {
	case On:
		b.log.Info("TCP connections are translated at their sockets", "cgroup", b.hooks.cgroup.Name())
	case Degraded:
		b.log.Warn("some Services are translated by netfilter, and not at sockets", "error", err)
	case Off:
		b.log.Warn("connections are translated by netfilter, and not at sockets", "error", err)
	}
}

// Features implements [backend.Featured]. Hooks draw by weight. The base does so for all other connections. It refuses the share of a route, hashes,
// serves ranges of ports, and answers echo requests. It also serves ports with a deadline, because it can reset their connections. The connections that
// nodes hand over to each other are from outside, so the base serves all of them.
func (b *Backend) Features() state.Features {
	return backend.FeaturesOf(b.base) & (state.Weights | state.Balances | state.Ranges | state.Ping | state.DrainDeadline | state.EdgeShares)
}

// Apply makes the hooks and their base show u. See [backend.Backend].
//
// The hooks always do a part of the base's work: they let go of frontends, clients and endpoints first, and take on last. If the base
// fails, it goes on unchanged, also with the frontends that the hooks have let go of.
func (b *Backend) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	settings := b.settings(u.Node)
	b.ender.keep(u)
	b.try(func(h *hooks) error { return b.withdraw(h, u, settings) })
	result, err := b.base.Apply(ctx, u)
	if err != nil {
		return result, err
	}
	b.node = u.Node
	b.services.applied(u, settings, result.Failed)
	b.fail(result.Failed)
	b.extend(u.Full)
	b.end()
	return result, nil
}

// Verify compares the base and the hooks with the last applied state. See [backend.Backend].
func (b *Backend) Verify(ctx context.Context) (backend.Result, error) {
	if b.node == nil {
		return b.base.Verify(ctx)
	}
	// The base may find other addresses on the node than before, as an Apply may.
	settings, nothing := b.settings(b.node), &state.Update{}
	b.try(func(h *hooks) error { return errors.Join(h.attached.Check(), b.withdraw(h, nothing, settings)) })
	result, err := b.base.Verify(ctx)
	if err != nil {
		return result, err
	}
	b.services.use(settings)
	b.services.repaired(result.Failed)
	b.fail(result.Failed)
	b.try(func(h *hooks) error {
		repaired, err := h.tables.Repair(b.services.placed())
		nodePorts, nodePortErr := h.repairNodePorts()
		result.Written += repaired + nodePorts
		result.Repaired += repaired + nodePorts
		return errors.Join(err, nodePortErr)
	})
	b.extend(true)
	b.end()
	return result, nil
}

// withdraw has the hooks stop serving everything that is wrong after u.
func (b *Backend) withdraw(h *hooks, u *state.Update, settings *plan.Settings) error {
	return errors.Join(h.limitNodePorts(b.services.nodePorts(u, settings)), b.services.withdraw(h.tables, u, settings))
}

// fail removes services from the hooks that are incomplete in the base.
func (b *Backend) fail(failed map[state.ServiceName]error) {
	b.try(func(h *hooks) error { return b.services.letGo(h.tables, failed) })
	b.services.failed(failed)
}

// settings returns what plans depend on now. They are mostly the same as for the last change.
func (b *Backend) settings(n *state.Node) *plan.Settings {
	// Pods come and go with link-local addresses of their devices, which no frontend has and nobody connects to as a NodePort.
	local := slices.DeleteFunc(slices.Clone(b.addrs.Addrs()), func(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() })
	if c := &b.cached; c.settings != nil && c.node == n && slices.Equal(c.local, local) {
		return c.settings
	}
	rule := b.o.NodePortAddresses
	if n.NodePorts != nil {
		rule = *n.NodePorts
	}
	s := &plan.Settings{Detector: b.o.LocalDetector, PodCIDRs: n.PodCIDRs, Local: map[netip.Addr]bool{}, NodePorts: rule.Select(local, n)}
	if n.LocalDetector != nil {
		s.Detector = *n.LocalDetector
	}
	for _, addr := range local {
		s.Local[addr] = true
	}
	b.cached.node, b.cached.local, b.cached.settings = n, local, s
	return s
}

// try runs do on the hooks, if they are on. After an error their state is not certain. They are then removed until they are attached again.
func (b *Backend) try(do func(*hooks) error) {
	if b.hooks == nil {
		return
	}
	if err := do(b.hooks); err != nil {
		b.note(errors.Join(err, b.unload()))
	}
}

// extend has the hooks serve as much of the base's state as they can. If they are off, it attaches them again only if again is set, because
// a kernel mostly repeats a refusal.
func (b *Backend) extend(again bool) {
	if b.hooks == nil && again || b.reconfigured {
		b.reconfigured = false // if they cannot be loaded, none are left that go by previous options
		if err := b.load(); err != nil {
			b.note(errors.Join(err, b.unload()))
			return
		}
	}
	b.try(func(h *hooks) error {
		err := b.services.extend(h.tables)
		if errors.Is(err, maps.ErrFull) {
			if err = b.lacking; err == nil || again { // larger maps were not to be had a moment ago
				err = b.load()
			}
			if err != nil {
				b.lacking = err
				err = b.services.leave(h.tables)
			}
		}
		return errors.Join(err, b.hooks.addNodePorts(b.services.nodePorts(&state.Update{}, b.services.settings)))
	})
	if len(b.services.left) == 0 {
		b.lacking = nil
	}
	if b.hooks != nil {
		b.note(b.lacking)
	}
}

// load makes programs and maps that have room for all that the hooks are to do, fills them, and attaches them. They replace the
// attached ones. After an error these stay as they were.
func (b *Backend) load() error {
	if b.cookie == 0 {
		return errNoCookie
	}
	if err := b.prepareCounters(); err != nil {
		return err
	}
	l := b.services.layout()
	h, err := newHooks(&b.o, b.cookie, l.needs, b.hooks, b.counters)
	if err != nil {
		return err
	}
	err = l.place(h.tables)
	if err == nil {
		err = h.attach(b.hooks)
	}
	if err != nil {
		return errors.Join(err, h.discard())
	}
	b.services.moved(l)
	old := b.hooks
	b.mu.Lock()
	b.hooks = h
	b.mu.Unlock()
	b.ender.use(h.programs.Maps["connections"])
	if old != nil {
		if err := old.close(); err != nil {
			b.log.Warn("cannot close the previous programs", "error", err)
		}
	}
	return nil
}

// unload removes the hooks. The base serves instead.
func (b *Backend) unload() error {
	h := b.hooks
	if h == nil {
		return nil
	}
	b.mu.Lock()
	b.hooks = nil
	b.mu.Unlock()
	b.ender.use(nil)
	b.services.unloaded()
	return h.close()
}
