package iptables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/internal/kernel/localnet"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// Backend is the iptables dataplane of one network namespace. It implements [backend.Backend].
type Backend struct {
	o       Options // as they were given
	log     *slog.Logger
	inside  *namespace.Namespace
	tool    *tool
	sets    sets
	flows   *conntrack.Conn
	addrs   *ifaddr.Watcher
	local   *localnet.Sysctl
	liberal *os.File       // the sysctl by which connection tracking takes no packet of a connection for invalid; nil if it cannot be read
	lock    *nodelock.Lock // nil if the caller has it
	cutter  *conntrack.Cutter
	watcher *watcher

	inspector inspector
	// features are the features of records that it can program.
	features state.Features

	// node is the node of the last update, nil before the first.
	node *state.Node
	// tables are nil before the first update.
	tables map[state.Family]*rules.Tables
	// known is set if the tables show what the kernel holds.
	known bool
	// inherited is set if the kernel held something of ours at the start.
	inherited bool
}

var (
	_ backend.FlowKeeper = (*Backend)(nil)
	_ backend.Featured   = (*Backend)(nil)
)

// sets is what the dataplane needs of an [ipset.Conn].
type sets interface {
	Sets(prefix string) ([]ipset.Set, error)
	Read(ipset.Set) ([]ipset.Element, error)
	Counts(ipset.Set) ([]ipset.Counted, error)
	Create(ipset.Set) error
	Destroy(name string) error
	Empty(name string) error
	Add(ipset.Set, []ipset.Element) error
	Delete(ipset.Set, []ipset.Element) error
	Close()
}

// New makes the dataplane of the calling thread's network namespace; it can be used from any thread afterwards. Connections go where
// they went before, until the first Apply. It needs CAP_NET_ADMIN and CAP_NET_RAW, IP sets in the kernel, and the programs of iptables. The caller must Close it.
func New(ctx context.Context, o Options) (_ *Backend, err error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	b := &Backend{
		o: o, log: o.Logger, local: localnet.Open(),
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if err := b.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("iptables: %w", err), b.Close())
	}
	return b, nil
}

func (b *Backend) open(ctx context.Context) (err error) {
	if b.inside, err = namespace.Current(); err != nil {
		return err
	}
	if !b.o.Locked {
		b.lock, err = nodelock.Acquire(ctx, nodelock.Options{Logger: b.log, Program: b.o.Program, Wait: b.o.TakeOver})
		if errors.Is(err, errors.ErrUnsupported) {
			b.log.Info("this kernel has no nf_tables, which would keep a second process from programming this network namespace", "error", err)
		} else if err != nil {
			return err
		}
	}
	if b.tool, err = pick(ctx, b.o.Variant, b.inside); err != nil {
		return err
	}
	b.tool.onProgress = b.o.OnProgress
	conn, err := ipset.Open()
	if err != nil {
		return err
	}
	b.sets = conn
	if err := conn.Check(); err != nil {
		return err
	}
	b.features = state.Weights
	if err := conn.Has(ipset.IPPortNet); err == nil {
		b.features |= state.Ping
	} else {
		b.log.Info("addresses of Services cannot answer echo requests", "error", err)
	}
	if conn, err = ipset.Open(); err != nil {
		return err
	}
	b.inspector.sets = conn
	if b.flows, err = conntrack.Open(); err != nil {
		return err
	}
	if b.liberal, err = os.Open("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"); err != nil {
		b.log.Warn("cannot find out whether connection tracking is liberal; dropping invalid packets", "error", err)
	}
	if b.addrs, err = ifaddr.Open(ifaddr.Options{Logger: b.log}); err != nil {
		return err
	}
	b.cutter = conntrack.NewCutter(b.flows, conntrack.CutterOptions{Logger: b.log, OnCut: b.o.OnFlowsCut, Scheduled: b.o.Scheduled})
	b.cutter.Start()
	b.log.Info("programming services with iptables", "variant", b.tool.variant)
	b.watcher, err = newWatcher(b.tool.variant, func(f state.Family) *rules.Tables { return b.tables[f] }, b.addrs, b.log)
	return err
}

// ServesLoopback reports whether NodePorts are served on loopback addresses, since the last Apply or Verify.
func (b *Backend) ServesLoopback() bool {
	return b.tables != nil && b.tables[state.IPv4].Settings().ServesLoopback()
}

// LeaveFlows has no flows deleted until the next Apply, also by Close. Another dataplane is about to take over. It begins flows to
// endpoints that this one does not know: the endpoints of a newer state, or a relay. No other method may be called until LeaveFlows
// returns.
func (b *Backend) LeaveFlows() { b.cutter.Suspend() }

// Close releases what the dataplane has open. The programmed rules stay.
func (b *Backend) Close() error {
	var errs []error
	if b.watcher != nil {
		errs = append(errs, b.watcher.close())
	}
	if b.cutter != nil {
		b.cutter.Close()
	}
	if b.addrs != nil {
		errs = append(errs, b.addrs.Close())
	}
	if b.flows != nil {
		errs = append(errs, b.flows.Close())
	}
	if b.sets != nil {
		b.sets.Close()
	}
	b.inspector.close()
	if b.liberal != nil {
		errs = append(errs, b.liberal.Close())
	}
	if b.inside != nil {
		errs = append(errs, b.inside.Close())
	}
	return errors.Join(append(errs, b.local.Close(), b.lock.Close())...) // the lock last: until here, the tables are ours
}

// Disturbed gets a value when addresses of the node have changed, or when something else seems to have changed the tables.
func (b *Backend) Disturbed() <-chan struct{} { return b.watcher.disturbed }

// Reconfigure replaces the options, except for Logger, Variant, Locked, TakeOver, Program and the callbacks. Nothing in the kernel changes before the next Apply, which
// must be of a full update. No other method may be called until Reconfigure returns.
func (b *Backend) Reconfigure(o Options) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	o.Logger, o.Variant, o.OnFlowsCut, o.OnRules, o.OnProgress, o.Scheduled = b.o.Logger, b.o.Variant, b.o.OnFlowsCut, b.o.OnRules, b.o.OnProgress, b.o.Scheduled
	o.Locked, o.TakeOver, o.Program = b.o.Locked, b.o.TakeOver, b.o.Program
	b.o, b.known = o, false
	return nil
}

// settings returns what the tables depend on in addition to the Services.
func (b *Backend) settings(n *state.Node) *rules.Settings {
	s := &rules.Settings{
		Detector: b.o.LocalDetector, PodCIDRs: n.PodCIDRs, ServiceCIDRs: n.ServiceCIDRs, NodePorts: b.nodePorts(n),
		MasqueradeMark: 1 << defaultMasqueradeBit, MaxAffinityClients: defaultMaxAffinityClients, Counters: b.o.Counters, UpstreamMark: b.o.UpstreamMark,
		DropInvalid: !b.isLiberal(),
	}
	for _, f := range families {
		if i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return state.FamilyOf(a) == f }); i >= 0 {
			s.Answerers = append(s.Answerers, n.Addresses[i])
		}
	}
	if n.LocalDetector != nil {
		s.Detector = *n.LocalDetector
	}
	if b.o.MasqueradeBit != nil {
		s.MasqueradeMark = 1 << *b.o.MasqueradeBit
	}
	if b.o.MaxAffinityClients > 0 {
		s.MaxAffinityClients = uint32(b.o.MaxAffinityClients)
	}
	return s
}

// isLiberal reports whether connection tracking takes packets outside of the TCP window for valid ones, and translates them.
func (b *Backend) isLiberal() bool {
	var value [1]byte
	if b.liberal == nil {
		return false
	}
	_, err := b.liberal.ReadAt(value[:], 0)
	return err == nil && value[0] != '0'
}

// nodePorts returns the addresses that serve NodePorts now. IPv6 has no counterpart to route_localnet: connections from
// ::1 cannot be translated.
func (b *Backend) nodePorts(n *state.Node) []netip.Addr {
	on := b.o.NodePortAddresses
	if n.NodePorts != nil {
		on = *n.NodePorts
	}
	return slices.DeleteFunc(on.Select(b.addrs.Addrs(), n), func(a netip.Addr) bool { return a.Is6() && a.IsLoopback() })
}

// Features implements [backend.Featured].
func (b *Backend) Features() state.Features { return b.features }

// Apply makes the tables show u. See [backend.Backend].
func (b *Backend) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	refused := map[state.ServiceName]error{}
	for _, s := range u.Changed {
		if err := rules.Check(s); err != nil {
			refused[s.Name] = err
		}
	}
	if len(refused) > 0 {
		return backend.Result{}, &backend.RefusedError{Services: refused}
	}
	next := map[state.ServiceName]*state.Service{}
	for _, name := range u.Gone(b.names()) {
		next[name] = nil
	}
	for _, s := range u.Changed {
		next[s.Name] = s
	}
	result, err := b.change(ctx, u.Node, next)
	if full, ok := errors.AsType[*noRoomError](err); ok {
		if refused := b.using(u.Changed, full); len(refused) > 0 {
			return result, &backend.RefusedError{Services: refused}
		}
	}
	if err != nil {
		return result, fmt.Errorf("iptables: %w", err)
	}
	return result, nil
}

// noRoomError reports that the kernel has no room for a set.
type noRoomError struct {
	family state.Family
	set    string
	err    error
}

func (e *noRoomError) Error() string { return e.err.Error() }
func (e *noRoomError) Unwrap() error { return e.err }

// using returns the services that need a set which there is no room for.
func (b *Backend) using(services []*state.Service, full *noRoomError) map[state.ServiceName]error {
	need := map[state.ServiceName]error{}
	for _, s := range services {
		if b.tables[full.family].Uses(s, full.set) {
			need[s.Name] = fmt.Errorf("%w: set sessionAffinity of some Services to None, or give them fewer endpoints", full)
		}
	}
	return need
}

// Verify compares the tables with the last applied state and repairs them. See [backend.Backend].
func (b *Backend) Verify(ctx context.Context) (backend.Result, error) {
	if b.node == nil {
		return backend.Result{}, nil
	}
	sure, settings := b.known, b.tables[state.IPv4].Settings()
	b.known = false // so that everything is read
	result, err := b.change(ctx, b.node, nil)
	if err != nil {
		return result, fmt.Errorf("iptables: %w", err)
	}
	if sure && settings.Equal(b.tables[state.IPv4].Settings()) { // else it may be what we ourselves left undone
		result.Repaired = result.Written
	}
	return result, nil
}

// service returns the record that the tables show of a Service.
func (b *Backend) service(name state.ServiceName) *state.Service {
	if b.tables == nil {
		return nil
	}
	return b.tables[state.IPv4].Service(name)
}

// names yields the Services that the tables show.
func (b *Backend) names() iter.Seq[state.ServiceName] {
	if b.tables == nil {
		return func(func(state.ServiceName) bool) {}
	}
	return b.tables[state.IPv4].Names()
}

// change makes the tables show a node and the next records of Services. If that fails, they are as before.
func (b *Backend) change(ctx context.Context, n *state.Node, next map[state.ServiceName]*state.Service) (result backend.Result, err error) {
	settings := b.settings(n)
	if err := settings.Check(); err != nil {
		return result, err
	}
	if b.tables == nil {
		b.tables = map[state.Family]*rules.Tables{state.IPv4: rules.New(state.IPv4, settings), state.IPv6: rules.New(state.IPv6, settings)}
	}
	before, settingsBefore := map[state.ServiceName]*state.Service{}, b.tables[state.IPv4].Settings()
	if settingsBefore.ServesLoopback() && !settings.ServesLoopback() {
		if err := b.local.Disable(); err != nil { // before the rules go that guard it
			b.log.Warn("NodePorts are on loopback addresses no longer, and nothing keeps other hosts away from these", "error", err,
				"remedy", "set net.ipv4.conf.all.route_localnet to 0")
		}
	}
	var notes []conntrack.Note
	for name, svc := range next {
		before[name] = b.service(name)
		notes = append(notes, conntrack.Note{Old: before[name], New: svc})
	}
	b.cutter.Begin(notes...)
	doubtful := b.cutter.IsDoubtful()
	b.desire(settings, next)
	err = b.watcher.during(!b.known, func() (written int, err error) {
		result.Written, err = b.write(ctx)
		return result.Written, err
	})
	if err != nil {
		b.cutter.Failed()
		if _, ok := errors.AsType[*noRoomError](err); !ok {
			b.known = false
		}
		b.desire(settingsBefore, before)
		return result, err
	}
	if wrote := result.Written > 0 || doubtful; b.node == nil || wrote && (!b.known || next == nil) {
		notes = append(notes, conntrack.Note{All: slices.Collect(b.tables[state.IPv4].Services()), Gap: wrote})
	}
	b.cutter.Committed(settings.NodePorts, notes...)
	if b.node == nil {
		b.leaveOther(ctx)
		if b.inherited {
			// A program that a killed process had started may have been at work still, after we have read.
			b.watcher.disturb()
		}
	}
	b.known, b.node = true, n
	if settings.ServesLoopback() {
		b.local.Keep(b.log)
	}
	return result, nil
}

// leaveOther removes what an earlier process has put into the other variant of iptables, now that all is in this one.
func (b *Backend) leaveOther(ctx context.Context) {
	other := Legacy
	if b.tool.variant == Legacy {
		other = NFT
	}
	t, err := newTool(other, b.inside)
	if err != nil {
		return // it is not there, and so it was not used
	}
	removed, err := b.clear(ctx, t, func() error { return nil })
	if err != nil {
		b.log.Warn("cannot look for rules of this program in the other variant of iptables", "variant", other, "error", err)
	}
	if removed {
		b.log.Info("removed the rules of this program from the other variant of iptables", "variant", other)
	}
}

// desire changes what the tables are to show.
func (b *Backend) desire(s *rules.Settings, next map[state.ServiceName]*state.Service) {
	for _, f := range families {
		b.tables[f].Configure(s)
		b.tables[f].Change(next)
	}
}

// write makes the kernel hold the desired content. It reads the content of the kernel first if it is not known.
func (b *Backend) write(ctx context.Context) (written int, err error) {
	for _, f := range families {
		if !b.known {
			if err := b.read(ctx, f); err != nil {
				return written, err
			}
		}
		n, err := b.writeFamily(ctx, f)
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// read takes what the kernel holds of a family.
func (b *Backend) read(ctx context.Context, f state.Family) error {
	held, err := readBack(ctx, f, b.tool, b.sets, b.tables[f].Tables())
	if err != nil {
		return err
	}
	b.inherited = b.inherited || b.node == nil && !held.IsEmpty()
	b.tables[f].Read(held)
	if have, want, ok := b.tables[f].Misfit(); ok {
		return fmt.Errorf("ipset %s is of type %s, must be of type %s: somebody else has made it; destroy it", have.Name, have.Type, want.Type)
	}
	return nil
}

// readBack returns what the kernel holds of a family in these tables.
func readBack(ctx context.Context, f state.Family, t *tool, sets sets, tables []rules.Table) (*rules.Held, error) {
	held := rules.NewHeld()
	for _, table := range tables {
		save, err := t.save(ctx, f, table)
		if err != nil {
			return nil, err
		}
		if err := held.AddTable(table, save); err != nil {
			return nil, err
		}
	}
	all, err := sets.Sets(rules.SetPrefix(f))
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		var elements []ipset.Element
		if s.Timeout == 0 {
			if elements, err = sets.Read(s); err != nil {
				return nil, err
			}
		}
		held.AddSet(s, elements)
	}
	return held, nil
}

// writeFamily carries out the changes of a family. Sets get new elements before the rules that use them, and lose old elements after the
// rules have changed.
func (b *Backend) writeFamily(ctx context.Context, f state.Family) (written int, err error) {
	p := b.tables[f].Plan()
	for i, s := range p.Create {
		err := b.sets.Create(s)
		if err == nil {
			continue
		}
		for _, s := range p.Create[:i] {
			err = errors.Join(err, b.sets.Destroy(s.Name))
		}
		if errors.Is(err, ipset.ErrFull) {
			return 0, &noRoomError{f, s.Name, err}
		}
		return 0, err
	}
	for _, name := range p.Empty {
		if err := b.sets.Empty(name); err != nil {
			return 0, err
		}
	}
	for _, add := range p.Add {
		if err := b.sets.Add(add.Set, add.Elements); err != nil {
			return 0, err
		}
	}
	for _, input := range append(p.Prepare, p.Restore) {
		if input == "" {
			continue
		}
		if err := b.tool.restore(ctx, f, input); err != nil {
			return 0, err
		}
		if b.o.OnProgress != nil {
			b.o.OnProgress()
		}
	}
	for _, remove := range p.Delete {
		if err := b.sets.Delete(remove.Set, remove.Elements); err != nil {
			return 0, err
		}
	}
	kept, err := b.destroy(p.Destroy)
	if err != nil {
		return 0, err
	}
	p.Commit(kept)
	if b.o.OnRules != nil && (p.Restore != "" || len(p.Prepare) > 0) {
		for _, table := range []rules.Table{rules.NAT, rules.Filter} {
			b.o.OnRules(string(table), f, b.tables[f].Rules(table), p.Rules[table])
		}
	}
	return p.Written - len(kept), nil
}

// destroy destroys sets, and returns those that rules still refer to: nf_tables lets go of them some time after the rules are gone.
func (b *Backend) destroy(names []string) (kept []string, err error) {
	for _, name := range names {
		for pause := time.Millisecond; ; pause *= 2 {
			if err = b.sets.Destroy(name); !ipset.IsBusy(err) || pause > longestDestroyPause {
				break
			}
			time.Sleep(pause)
		}
		switch {
		case ipset.IsBusy(err):
			kept = append(kept, name)
		case err != nil:
			return nil, err
		}
	}
	return slices.Compact(kept), nil
}

// longestDestroyPause bounds how long a change waits for the kernel to let go of a set. The next one tries again.
const longestDestroyPause = 8 * time.Millisecond
