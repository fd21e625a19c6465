package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// change is the transition from the applied state to an update.
type change struct {
	update *state.Update
	// next are the divisions that services get, nil for those that go.
	next map[state.ServiceName]*plan.Division
	// redivided are services that are not in the update, whose part of the base has changed.
	redivided []state.ServiceName
	// started are the virtual servers that IPVS has taken on.
	started map[plan.Key]bool
	// whole is set if all that the kernel holds was read.
	whole bool
	// repair is set if only foreign changes are to be repaired. written is how much had been written before.
	repair  bool
	written int
	// notes are the effects of the change on flows.
	notes []conntrack.Note
}

// base returns the update for the base.
func (c *change) base() *state.Update {
	u := *c.update
	u.Changed = make([]*state.Service, 0, len(c.update.Changed)+len(c.redivided))
	for _, s := range c.update.Changed {
		u.Changed = append(u.Changed, c.next[s.Name].Base)
	}
	for _, name := range c.redivided {
		u.Changed = append(u.Changed, c.next[name].Base)
	}
	slices.SortFunc(u.Changed, func(a, b *state.Service) int { return a.Name.Compare(b.Name) })
	return &u
}

// begin works out the change for u, and has IPVS take on the frontends that it serves from now on.
func (b *Backend) begin(u *state.Update) (*change, error) {
	b.deadlines = b.deadlines || slices.ContainsFunc(u.Changed, func(s *state.Service) bool {
		return slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.DrainSeconds > 0 })
	})
	b.lookForCounting(u)
	settings := b.divide()
	c := &change{
		update: u, next: map[state.ServiceName]*plan.Division{}, started: map[plan.Key]bool{},
		written: b.written(),
		whole:   u.Full || !b.known || !settings.Equal(&b.settings),
	}
	if c.whole {
		b.settings, b.refused = settings, map[plan.Key]error{}
	}
	b.divideAll(c)
	if c.whole {
		if err := b.read(c); err != nil {
			return c, fmt.Errorf("ipvs: %w", err)
		}
	}
	b.tables.use(b.rules(u.Node))
	if err := b.takeOn(c); err != nil {
		return c, fmt.Errorf("ipvs: %w", err)
	}
	updated := make(map[state.ServiceName]bool, len(u.Changed))
	for _, s := range u.Changed {
		updated[s.Name] = true
	}
	for name, d := range c.next {
		if d != nil && !updated[name] && !d.Base.Equal(b.divisions[name].Base) {
			c.redivided = append(c.redivided, name)
		}
	}
	return c, nil
}

// divideAll divides the services that a change is about.
func (b *Backend) divideAll(c *change) {
	if c.whole && !c.update.Full {
		for name, d := range b.divisions {
			c.next[name] = b.settings.Divide(d.Record, b.isRefused)
		}
	}
	for _, name := range c.update.Gone(maps.Keys(b.divisions)) {
		if b.divisions[name] != nil {
			c.next[name] = nil
		}
	}
	for _, s := range c.update.Changed {
		c.next[s.Name] = b.settings.Divide(s, b.isRefused)
	}
}

// answer is what the kernel has said so far about something that it may have.
type answer uint8

const (
	unknown answer = iota
	yes
	no
)

// lookForCounting finds out whether the kernel has a scheduler that counts connections, once a service asks for it. The kernel may load a module for that.
func (b *Backend) lookForCounting(u *state.Update) {
	if b.counts != unknown || !slices.ContainsFunc(u.Changed, func(s *state.Service) bool {
		return slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.Balance == state.LeastConnections })
	}) {
		return
	}
	b.counts = yes
	if err := checkScheduler(b.servers.kernel, countingScheduler); err != nil {
		b.counts = no
		b.log.Info("connections cannot be counted by IPVS; the dataplane below serves Services with least connections", "scheduler", countingScheduler, "error", err)
	}
}

func (b *Backend) isRefused(k plan.Key) bool { return b.refused[k] != nil }

// divide returns the settings by which records are to be divided now.
func (b *Backend) divide() plan.Settings {
	local := slices.DeleteFunc(slices.Clone(b.addrs.Addrs()), func(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() })
	return plan.Settings{
		Excluded: b.o.ExcludeCIDRs, Local: local, Connections: b.o.ResetRemoved || b.deadlines, Retired: b.retired, Weights: b.o.weighs(), Counts: b.counts == yes,
	}
}

// rules returns what the rules of the tables are to be made of.
func (b *Backend) rules(n *state.Node) plan.Rules {
	r := plan.Rules{Mark: b.o.mark(), Detector: b.o.LocalDetector, PodCIDRs: n.PodCIDRs}
	if n.LocalDetector != nil {
		r.Detector = *n.LocalDetector
	}
	return r
}

// read records the kernel's contents, and makes the device and the settings as desired.
func (b *Backend) read(c *change) error {
	b.servers.scheduler, b.servers.abrupt, b.servers.drainTimeout = b.o.Scheduler, b.o.ResetRemoved, b.o.DrainTimeout
	if err := errors.Join(b.device.read(), b.device.make()); err != nil {
		return err
	}
	if err := b.tune(); err != nil {
		return err
	}
	b.tables.use(b.rules(c.update.Node))
	if err := b.tables.read(); err != nil {
		return err
	}
	held, known, wanted := b.tables.addresses(), maps.Clone(b.servers.byKey), map[plan.Key]bool{}
	for _, d := range c.next {
		if d != nil {
			for i := range d.Servers {
				wanted[d.Servers[i].Key] = true
			}
		}
	}
	// A server that is where one of ours is to be becomes ours: it is of an earlier process, or of kube-proxy.
	if err := b.servers.read(func(k plan.Key) bool {
		addr := k.Addr.Addr()
		return wanted[k] || (b.device.held[addr] || held[string(addr.AsSlice())]) && !b.settings.Excludes(addr)
	}); err != nil {
		return err
	}
	for k := range b.servers.byKey {
		if known[k] == nil {
			b.claim(k)
		}
	}
	return nil
}

// claim has the address of a server be the node's.
func (b *Backend) claim(k plan.Key) {
	b.device.want(k.Addr.Addr())
	b.tables.add(plan.AddressElement(k.Addr.Addr()))
}

// release undoes claims of servers that are gone.
func (b *Backend) release(ended []plan.Key) error {
	var addrs []netip.Addr
	for _, k := range ended {
		b.device.unwant(k.Addr.Addr())
		b.tables.remove(plan.AddressElement(k.Addr.Addr()))
		addrs = append(addrs, k.Addr.Addr())
	}
	return errors.Join(b.device.release(addrs), b.tables.flush(true))
}

// takeOn has IPVS serve the new frontends. Frontends that the kernel refuses are left to the base.
func (b *Backend) takeOn(c *change) error {
	fresh := map[plan.Key]*plan.Server{}
	owners := map[plan.Key]state.ServiceName{}
	for name, d := range c.next {
		if d == nil {
			continue
		}
		for i := range d.Servers {
			want := &d.Servers[i]
			v := b.servers.byKey[want.Key]
			if v == nil {
				v = &server{}
				b.servers.byKey[want.Key] = v
				b.claim(want.Key)
			}
			if v.want == nil || c.whole {
				fresh[want.Key], owners[want.Key] = want, name
			}
		}
	}
	// Others must not be reached at an address once it is the node's.
	if err := b.tables.flush(false); err != nil {
		return err
	}
	now, again := time.Now(), map[state.ServiceName]bool{}
	keys := slices.SortedFunc(maps.Keys(fresh), plan.Key.Compare)
	unheld := b.device.hold(keys)
	for _, k := range keys {
		v := b.servers.byKey[k]
		if v.want == nil {
			v.want, v.owner, v.keep = fresh[k], owners[k], nil
			c.started[k] = true
		}
		err := unheld[k.Addr.Addr()]
		if err == nil {
			err = b.servers.sync(k, now)
		}
		if err != nil {
			b.log.Warn("IPVS does not serve a frontend, the dataplane below it does", "server", k, "service", owners[k], "error", err)
			b.refused[k], v.want = err, nil
			again[owners[k]] = true
			c.started[k] = true
			continue
		}
		b.show(v)
	}
	for name := range again {
		c.next[name] = b.settings.Divide(c.next[name].Record, b.isRefused)
	}
	return b.tables.flush(false)
}

// show has the tables hold what a server needs.
func (b *Backend) show(v *server) {
	if v.shown == v.want {
		return
	}
	if v.want != nil {
		v.want.Elements(b.tables.add)
		b.serves.put(v.want.Key, true)
	} else {
		b.serves.put(v.shown.Key, false)
	}
	if v.shown != nil {
		v.shown.Elements(b.tables.remove)
	}
	v.shown = v.want
}

// finish makes the kernel hold what a change is to leave behind, after the base has done its part.
func (b *Backend) finish(c *change, result *backend.Result) error {
	dirty := b.assign(c)
	for k := range dirty {
		b.show(b.servers.byKey[k])
	}
	if err := b.tables.flush(true); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	var ended []plan.Key
	var errs []error
	now, failed := time.Now(), maps.Clone(result.Failed)
	for _, k := range slices.SortedFunc(maps.Keys(dirty), plan.Key.Compare) {
		owner := b.servers.byKey[k].owner
		switch err := b.servers.sync(k, now); {
		case err != nil && owner == (state.ServiceName{}):
			errs = append(errs, err) // of an earlier process
		case err != nil:
			if failed == nil {
				failed = map[state.ServiceName]error{}
			}
			failed[owner] = fmt.Errorf("ipvs: %w", err)
		}
		if b.servers.byKey[k] == nil {
			ended = append(ended, k)
		}
	}
	result.Failed = failed
	b.note(c)
	b.keep(c)
	if err := errors.Join(append(errs, b.release(ended))...); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	if c.whole {
		if err := b.device.release(b.device.strays()); err != nil {
			return fmt.Errorf("ipvs: %w", err)
		}
	}
	return nil
}

// keep records the applied state.
func (b *Backend) keep(c *change) {
	for name, d := range c.next {
		if d == nil {
			delete(b.divisions, name)
		} else {
			b.divisions[name] = d
		}
	}
	b.node, b.revision = c.update.Node, c.update.Revision
}

// assign makes servers what a change wants them to be, and returns those that the kernel may hold otherwise.
func (b *Backend) assign(c *change) (dirty map[plan.Key]bool) {
	dirty = map[plan.Key]bool{}
	claimed := map[plan.Key]bool{}
	for _, d := range c.next {
		if d != nil {
			for i := range d.Servers {
				claimed[d.Servers[i].Key] = true
			}
		}
	}
	drop := func(k plan.Key) {
		if v := b.servers.byKey[k]; v != nil && v.want != nil {
			v.want = nil
			dirty[k] = true
		}
	}
	for name, d := range c.next {
		old := b.divisions[name]
		if old != nil {
			for i := range old.Servers {
				k := old.Servers[i].Key
				if v := b.servers.byKey[k]; v != nil && v.owner == name && !claimed[k] {
					drop(k)
				}
			}
		}
		if d != nil {
			b.claimServers(name, d, dirty)
		}
		b.countClusterIPs(name, d)
	}
	for k := range c.started {
		if !claimed[k] {
			drop(k)
			dirty[k] = true
		}
	}
	if c.whole {
		for k := range b.servers.byKey {
			if !claimed[k] {
				drop(k)
			}
			dirty[k] = true
		}
	}
	for name, d := range c.next {
		b.keepFlows(b.divisions[name], d, dirty)
	}
	return dirty
}

// claimServers makes servers what a division wants them to be.
func (b *Backend) claimServers(name state.ServiceName, d *plan.Division, dirty map[plan.Key]bool) {
	for i := range d.Servers {
		want := &d.Servers[i]
		v := b.servers.byKey[want.Key]
		if v == nil {
			v = &server{}
			b.servers.byKey[want.Key] = v
			b.claim(want.Key)
		}
		v.owner, v.keep = name, nil
		if v.want == nil || !v.want.Equal(want) {
			v.want = want
			dirty[want.Key] = true
		}
	}
}

// countClusterIPs has the tables know the cluster IPs of a service.
func (b *Backend) countClusterIPs(name state.ServiceName, d *plan.Division) {
	was := b.clusterIPs[name]
	if d == nil {
		delete(b.clusterIPs, name)
	} else {
		b.clusterIPs[name] = d.Record
		plan.ClusterIPElements(d.Record, b.tables.add)
	}
	if was != nil {
		plan.ClusterIPElements(was, b.tables.remove)
	}
}

// keepFlows has servers that take no new connections keep flows of UDP to the endpoints that serve the frontend elsewhere.
func (b *Backend) keepFlows(old, d *plan.Division, dirty map[plan.Key]bool) {
	if old == d && d != nil {
		return
	}
	for _, of := range []*plan.Division{old, d} {
		if of == nil {
			continue
		}
		plan.EachUDP(of.Record, func(k plan.Key) {
			v := b.servers.byKey[k]
			if v == nil || v.want != nil {
				return
			}
			dirty[k] = true
			v.keep = nil
			if d != nil {
				v.keep = plan.Serving(d.Record, k)
			}
		})
	}
}

// note takes down what a change means for flows.
func (b *Backend) note(c *change) {
	if b.node == nil || b.cutter.IsDoubtful() || c.repair && b.written() > c.written {
		var all []*state.Service
		for name, d := range c.next {
			if d != nil {
				all = append(all, plan.Served(d, b.divisions[name]))
			}
		}
		c.notes = append(c.notes, conntrack.Note{All: all, Gap: b.node != nil})
		return
	}
	for name, d := range c.next {
		if old := b.divisions[name]; old != d {
			c.notes = append(c.notes, conntrack.Note{Old: plan.Served(old, d), New: plan.Served(d, old)})
		}
	}
}
