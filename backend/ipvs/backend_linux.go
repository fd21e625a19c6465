package ipvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/internal/kernel/ipvs"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// Backend is IPVS above another dataplane. It implements [backend.Backend].
type Backend struct {
	base    backend.Backend
	retired bool // IPVS is to serve nothing
	o       Options
	log     *slog.Logger
	addrs   *ifaddr.Watcher
	handle  *netlink.Handle
	sysctls *sysctls
	flows   *conntrack.Conn
	// inspector has a socket of its own.
	inspector inspector
	// cutter deletes tracked flows of virtual servers that lead to the wrong place. IPVS itself drops a flow with the first packet after its
	// endpoint was deleted. But a flow that was tracked before the virtual server existed would never be masqueraded.
	cutter *conntrack.Cutter
	// linkEvents are changes of devices, until endLinks is closed.
	linkEvents chan netlink.LinkUpdate
	endLinks   chan struct{}

	disturbed chan struct{}
	stop      context.CancelFunc
	running   sync.WaitGroup

	// mu is held by Apply and Verify, and while endpoints go whose connections have ended.
	mu     sync.Mutex
	device *device
	// saved are the previous values of changed settings, as in the device's alias.
	saved   settingValues
	servers *servers
	tables  *tables
	// divisions are the services that were applied.
	divisions map[state.ServiceName]*plan.Division
	// clusterIPs are the records whose cluster IPs the tables know.
	clusterIPs map[state.ServiceName]*state.Service
	// counts is whether the kernel has the scheduler for least connections.
	counts answer
	// refused are virtual servers that the kernel has refused. The base serves them until a Verify tries again.
	refused map[plan.Key]error
	// deadlines is set once a service has had a deadline.
	deadlines bool
	// settings are the settings of all divisions.
	settings plan.Settings
	// known is set if held is the content of the kernel. It is not set before the first Apply, and after a failure.
	known bool
	// node and revision are of the last update; node is nil before the first one.
	node     *state.Node
	revision state.Revision

	// serves are the frontends of virtual servers that take new connections.
	serves frontends
}

// frontends is a set of frontends, for any goroutine.
type frontends struct {
	mu  sync.Mutex
	set map[state.FrontendKey]bool
	// unknown is set as long as any may be in it.
	unknown bool
}

func (f *frontends) has(k state.FrontendKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unknown || f.set[k]
}

// any reports whether there may be some.
func (f *frontends) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unknown || len(f.set) > 0
}

func (f *frontends) put(k plan.Key, has bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if has {
		f.set[frontendOf(k)] = true
	} else {
		delete(f.set, frontendOf(k))
	}
}

// replace makes f the set of these.
func (f *frontends) replace(keys iter.Seq[plan.Key]) {
	set := map[state.FrontendKey]bool{}
	for k := range keys {
		set[frontendOf(k)] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set, f.unknown = set, false
}

func frontendOf(k plan.Key) state.FrontendKey {
	return state.FrontendKey{Family: k.Family(), Protocol: k.Protocol, Addr: k.Addr.Addr(), Port: k.Addr.Port()}
}

var _ backend.Drainer = (*Backend)(nil)

// New puts IPVS above base, which remains the caller's, in the calling thread's network namespace. It needs CAP_NET_ADMIN, and a kernel with
// IPVS, the scheduler, nf_tables and dummy devices. The caller must Close the Backend before base.
func New(base backend.Backend, o Options) (*Backend, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	b := newBackend(base, o)
	if err := b.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("ipvs: %w", err), b.Close())
	}
	b.start()
	return b, nil
}

// Available returns why this kernel has no IPVS, nil if it has it. The kernel loads its module ip_vs for that.
func Available() error {
	conn, err := ipvs.Dial()
	if err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	return conn.Close()
}

func newBackend(base backend.Backend, o Options) *Backend {
	b := &Backend{
		base: base, o: o, log: o.Logger, disturbed: make(chan struct{}, 1), stop: func() {},
		divisions: map[state.ServiceName]*plan.Division{}, refused: map[plan.Key]error{},
		clusterIPs: map[state.ServiceName]*state.Service{},
		serves:     frontends{set: map[state.FrontendKey]bool{}},
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	return b
}

// open opens what the backend needs of the kernel.
func (b *Backend) open() error {
	conn, err := ipvs.Dial()
	if err != nil {
		return err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return errors.Join(fmt.Errorf("opening a socket to rtnetlink: %w", err), conn.Close())
	}
	b.handle = handle
	inspects, err := ipvs.Dial()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	b.inspector.kernel = inspects
	return b.openAbove(conn, handle, openSysctls)
}

// openAbove opens the rest, given what few kernels have.
func (b *Backend) openAbove(k kernelServers, l links, sysctls func() (*sysctls, error)) (err error) {
	b.servers, b.device = newServers(k), newDevice(l)
	if err := checkScheduler(k, b.o.Scheduler); err != nil {
		return err
	}
	tables, err := nft.Dial()
	if err != nil {
		return err
	}
	if b.tables, err = newTables(tables, b.o.Commit); err != nil {
		return errors.Join(err, tables.Close())
	}
	if b.sysctls, err = sysctls(); err != nil {
		return err
	}
	if b.flows, err = conntrack.Open(); err != nil {
		return err
	}
	b.cutter = conntrack.NewCutter(b.flows, conntrack.CutterOptions{Logger: b.log, Scheduled: func(k state.FrontendKey) bool {
		return b.Scheduled(k) && !b.Serves(k) // otherwise IPVS gets the next packet, and replaces the flow's connection itself
	}})
	if b.addrs, err = ifaddr.Open(ifaddr.Options{Logger: b.log}); err != nil {
		return err
	}
	b.linkEvents, b.endLinks = make(chan netlink.LinkUpdate), make(chan struct{})
	if err := netlink.LinkSubscribe(b.linkEvents, b.endLinks); err != nil {
		b.endLinks = nil
		return fmt.Errorf("watching devices: %w", err)
	}
	return nil
}

// start begins to watch and to drain.
func (b *Backend) start() {
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	base := b.base.Disturbed()
	b.running.Go(func() { b.watch(ctx, base) })
	b.running.Go(func() { b.drain(ctx) })
	b.cutter.Start()
}

// Close releases the sockets. Programmed state and connections stay.
func (b *Backend) Close() error {
	b.stop()
	b.running.Wait()
	var errs []error
	if b.endLinks != nil {
		close(b.endLinks)
		for range b.linkEvents { // its sender ends with it
		}
	}
	if b.addrs != nil {
		errs = append(errs, b.addrs.Close())
	}
	if b.cutter != nil {
		b.cutter.Close()
		errs = append(errs, b.flows.Close())
	}
	if b.sysctls != nil {
		errs = append(errs, b.sysctls.close())
	}
	if b.handle != nil {
		b.handle.Close()
	}
	if b.tables != nil {
		errs = append(errs, b.tables.kernel.Close())
	}
	if b.servers != nil {
		errs = append(errs, b.servers.kernel.Close())
	}
	if b.inspector.kernel != nil {
		errs = append(errs, b.inspector.kernel.Close())
	}
	return errors.Join(errs...)
}

// Disturbed gets a value when the base's does, when the node's addresses have changed, or when something is left to do.
func (b *Backend) Disturbed() <-chan struct{} { return b.disturbed }

// watch hands on what disturbs the first base, changes of the node's addresses, and the loss of the device.
func (b *Backend) watch(ctx context.Context, base <-chan struct{}) {
	links := b.linkEvents
	for {
		select {
		case <-ctx.Done():
			return
		case <-base:
		case <-b.addrs.Changed():
		case l, ok := <-links:
			if !ok {
				b.log.Warn("stopped watching devices: the next verification finds a lost device", "device", ifaddr.ServiceDevice)
				links = nil
				continue
			}
			// Without the device, nothing reaches IPVS.
			if l.Attrs().Name != ifaddr.ServiceDevice || l.Header.Type != unix.RTM_DELLINK && l.Attrs().Flags&net.FlagUp != 0 {
				continue
			}
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

// Serves reports whether IPVS serves a frontend, which the base does not have then. The base's flows to it are not to be deleted. It may be
// called at any time.
func (b *Backend) Serves(k state.FrontendKey) bool { return b.serves.has(k) }

// Scheduled reports whether the kernel has a virtual server for a frontend, if only one that takes no new connections. The flows that it has
// scheduled are not to be deleted by another dataplane, as [conntrack.CutterOptions] has it. It may be called at any time.
func (b *Backend) Scheduled(k state.FrontendKey) bool { return b.servers.holding.has(k) }

// Schedules reports whether the kernel may have any virtual server. It may be called at any time.
func (b *Backend) Schedules() bool { return b.servers.holding.any() }

// Reconfigure replaces the options, except for Logger and Commit. Nothing in the kernel changes before the next Apply, which must be of a full update. No
// other method may be called until Reconfigure returns. The base is configured by its owner.
func (b *Backend) Reconfigure(o Options) error {
	if err := o.complete(); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := checkScheduler(b.servers.kernel, o.Scheduler); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	o.Logger, o.Commit = b.o.Logger, b.o.Commit
	b.o, b.known = o, false
	return nil
}

// Features implements [backend.Featured]. Weights that the scheduler does not know are left to the base, and so are hashes and deadlines. Services
// with least connections have a scheduler of their own. Both answer echo requests at the addresses that they serve.
func (b *Backend) Features() state.Features {
	return backend.FeaturesOf(b.base) & (state.Weights | state.Balances | state.Ping | state.DrainDeadline)
}

// Apply makes IPVS and the base show u. See [backend.Backend].
//
// What IPVS takes on it gets first, and the base lets go of it then; what IPVS lets go of the base has by then. So there is a dataplane for
// every new connection at all times.
func (b *Backend) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.apply(ctx, u)
}

func (b *Backend) apply(ctx context.Context, u *state.Update) (result backend.Result, err error) {
	before := b.written()
	changes := make([]conntrack.Note, len(u.Changed))
	for i, s := range u.Changed {
		changes[i].New = s
	}
	b.cutter.Begin(changes...)
	c, err := b.begin(u)
	if err == nil {
		b.countAbove(c.next, c.whole)
		result, err = b.base.Apply(ctx, c.base())
	}
	if err == nil {
		err = b.finish(c, &result)
	}
	result.Written += b.written() - before
	b.end(c, err == nil && len(result.Failed) == 0)
	return result, err
}

// end notes whether the kernel's contents are known after a change.
func (b *Backend) end(c *change, known bool) {
	if b.known = known; known {
		b.cutter.Committed(nil, c.notes...)
	} else {
		b.cutter.Failed()
	}
}

func (b *Backend) written() int { return b.device.written + b.servers.written + b.tables.written }

// Verify compares the base, and this backend's own objects, with the last applied state. See [backend.Backend].
func (b *Backend) Verify(ctx context.Context) (result backend.Result, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.node == nil {
		return b.base.Verify(ctx)
	}
	before, sure := b.written(), b.known && len(b.refused) == 0
	b.known = false
	was := b.settings
	b.cutter.Begin()
	c, err := b.begin(&state.Update{Revision: b.revision, Node: b.node})
	if err == nil && len(c.redivided) > 0 {
		b.countAbove(c.next, c.whole)
		result, err = b.base.Apply(ctx, c.base())
	}
	if err == nil {
		var verified backend.Result
		verified, err = b.base.Verify(ctx)
		if result.Failed == nil {
			result.Failed = verified.Failed
		} else {
			maps.Copy(result.Failed, verified.Failed)
		}
		result.Written += verified.Written
		result.Repaired += verified.Repaired
	}
	c.repair = sure && was.Equal(&b.settings)
	if err == nil {
		err = b.finish(c, &result)
	}
	n := b.written() - before
	result.Written += n
	if c.repair {
		result.Repaired += n
	}
	b.end(c, err == nil && len(result.Failed) == 0)
	return result, err
}
