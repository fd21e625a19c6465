package edge

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge/plan"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/internal/kernel/bpfarray"
	"github.com/switchyard-net/switchyard/state"
)

// ports are the ports that the edge serves, and those that it served a moment ago, as the maps have them.
type ports struct {
	settings *Settings
	v4, v6   *ebpf.Map // of frontends
	// nodePorts is how many frontends without an address there are, and the variable that programs read it from.
	nodePorts    uint32
	nodePortsVar *ebpf.Variable
	slots        bpfarray.Array
	peers        *peers

	maker     plan.Tables
	ranges    *plan.Ranges
	services  map[state.ServiceName]*state.Service // those that matter here
	byName    map[PortName]*port
	frontends map[state.FrontendKey]*frontend
	// draining are frontends in the order in which their drain ends. Those that are served again in the meantime are in it as well.
	draining []draining
	drains   int // how many drain now
	left     map[PortName]error
	// earlier are nodes that slots have as earlier owners, or had.
	earlier map[plan.Number]bool
	// shares counts the ports that each node has a share in, by its ID. The edge serves them, or is to serve them.
	shares map[uint32]int
	// freed is set if there is more room than when ports were left.
	freed bool
	// refused is why no port is served, nil if ports are.
	refused error
}

// port is a table and what it is for.
type port struct {
	name   PortName
	table  uint32
	shares []state.EdgeShare
	// served is set while the port has the edge; else its frontends drain.
	served bool
	// waits is set while a node of the shares does not answer. Netfilter serves new connections then, and all others are handed over.
	waits bool
	// own is set if this node has a share.
	own bool
	// keys are the frontends that are served. Those that drain lead to the table as well, and frontends counts all of them.
	keys      []state.FrontendKey
	frontends int
}

// frontend is a frontend in the maps.
type frontend struct {
	port  *port
	value uint32
	// until is when its drain is over, zero if it does not drain.
	until time.Time
}

type draining struct {
	key   state.FrontendKey
	until time.Time
}

// shared yields the ports of a record that the edge is to serve. It yields nothing if the record is nil.
func shared(s *state.Service) iter.Seq2[PortName, *state.Port] {
	return func(yield func(PortName, *state.Port) bool) {
		if s == nil {
			return
		}
		for i := range s.Ports {
			p := &s.Ports[i]
			if p.Edge != nil && len(p.Edge.Shares) > 0 && !yield(PortName{s.Name, p.Name, p.Protocol, p.Family}, p) {
				return
			}
		}
	}
}

// replace replaces the record of a service, nil to remove it. An error is one of the peers' maps; ports that cannot be served are left.
func (p *ports) replace(name state.ServiceName, record *state.Service, now time.Time) error {
	had := p.services[name]
	var errs []error
	for addr := range plan.Addresses(record) {
		errs = append(errs, p.peers.own(addr, 1))
	}
	for addr := range plan.Addresses(had) {
		errs = append(errs, p.peers.own(addr, -1))
	}
	there := map[PortName]bool{}
	for id, of := range shared(record) {
		there[id] = true
		p.count(of.Edge.Shares, 1)
	}
	for id, of := range shared(had) {
		p.count(of.Edge.Shares, -1)
		if !there[id] {
			delete(p.left, id)
			p.letGo(p.byName[id], now)
		}
	}
	if matters(record) {
		p.services[name] = record
	} else {
		delete(p.services, name)
	}
	for id, of := range shared(record) {
		p.serve(id, of, now)
	}
	return errors.Join(errs...)
}

// count counts a port more or less for the nodes of its shares.
func (p *ports) count(shares []state.EdgeShare, by int) {
	for _, s := range shares {
		if p.shares[s.Node] += by; p.shares[s.Node] == 0 {
			delete(p.shares, s.Node)
		}
	}
}

// matters reports whether the edge has to know a record.
func matters(s *state.Service) bool {
	for range shared(s) {
		return true
	}
	for range plan.Addresses(s) {
		return true
	}
	return false
}

// serve has the edge serve a port by its record, or leaves it to netfilter.
func (p *ports) serve(id PortName, of *state.Port, now time.Time) {
	if err := p.try(id, of, now); err != nil {
		p.left[id] = err
		p.letGo(p.byName[id], now)
		return
	}
	delete(p.left, id)
	if p.byName[id].waits {
		p.left[id] = fmt.Errorf("node %s does not answer: see whether Switchyard runs there, and whether nodes reach its UDP port of the edge", p.peers.silent(of.Edge.Shares))
	}
}

func (p *ports) try(id PortName, of *state.Port, now time.Time) error {
	if p.refused != nil {
		return p.refused
	}
	numbers, err := p.peers.numbers(of.Edge.Shares)
	if err != nil {
		return err
	}
	e := p.byName[id]
	if e == nil {
		table, ok := p.ranges.Take()
		if !ok {
			return errNoRoom
		}
		e = &port{name: id, table: table}
		p.byName[id] = e
	}
	p.fill(e, of.Edge.Shares, numbers)
	e.shares, e.served, e.own, e.waits = of.Edge.Shares, true, slices.Contains(numbers, programs.Self), p.peers.silent(of.Edge.Shares) != ""
	had := e.keys
	e.keys = slices.Collect(plan.Frontends(of))
	for i, key := range e.keys {
		if err := p.show(key, e); err != nil {
			e.keys = append(e.keys[:i:i], had...)
			return err
		}
	}
	if slices.Equal(had, e.keys) {
		return nil // as nearly always
	}
	stay := make(map[state.FrontendKey]bool, len(e.keys))
	for _, key := range e.keys {
		stay[key] = true
	}
	for _, key := range had {
		if !stay[key] {
			p.drain(key, e, now)
		}
	}
	return nil
}

// fill changes the slots of a port by its shares. The numbers identify their nodes.
func (p *ports) fill(e *port, shares []state.EdgeShare, numbers []plan.Number) {
	if e.shares != nil && slices.Equal(e.shares, shares) {
		return
	}
	base := e.table * uint32(p.settings.TableSize)
	for i, share := range p.maker.Table(p.settings.TableSize, shares) {
		at := base + uint32(i)
		if e.shares == nil {
			p.slots.Store(at, 0, uint64(plan.Owned(numbers[share])))
			continue
		}
		had := plan.Word(p.slots.Load(at, 0))
		if next := had.Moved(numbers[share]); next != had {
			if owner, ok := had.Owner(0); ok {
				p.earlier[owner] = true
			}
			p.slots.Store(at, 0, uint64(next))
		}
	}
}

// show has a frontend lead to the table of a port.
func (p *ports) show(key state.FrontendKey, e *port) error {
	value := programs.FrontendThere | e.table
	if !e.own {
		value |= programs.FrontendNoShare
	}
	if e.waits {
		value |= programs.FrontendDrains
	}
	f := p.frontends[key]
	if f != nil && f.port == e && f.value == value {
		return nil
	}
	if f == nil && !key.Addr.IsValid() {
		if err := p.nodePortsVar.Set(p.nodePorts + 1); err != nil { // before programs can find it
			return fmt.Errorf("counting the frontend %v: %w", key, err)
		}
	}
	if err := p.put(key, value); err != nil {
		return err
	}
	e.frontends++
	switch {
	case f == nil && !key.Addr.IsValid():
		p.nodePorts++
	case f != nil:
		if !f.until.IsZero() {
			p.drains--
		}
		p.release(f.port)
	}
	p.frontends[key] = &frontend{port: e, value: value}
	return nil
}

func (p *ports) put(key state.FrontendKey, value uint32) error {
	k := plan.Key(key)
	err := p.mapOf(key).Put(k, uint64(plan.Check(k))<<32|uint64(value))
	if errors.Is(err, unix.E2BIG) {
		return errFrontends
	} else if err != nil {
		return fmt.Errorf("adding the frontend %v: %w", key, err)
	}
	return nil
}

func (p *ports) mapOf(key state.FrontendKey) *ebpf.Map {
	if key.Family == state.IPv6 {
		return p.v6
	}
	return p.v4
}

// letGo has the frontends of a port drain, which netfilter serves from now on.
func (p *ports) letGo(e *port, now time.Time) {
	if e == nil || !e.served {
		return
	}
	e.served = false
	e.frontends++ // until all of them drain
	for _, key := range e.keys {
		p.drain(key, e, now)
	}
	e.keys = nil
	p.release(e)
}

// drain has only connections of a port's frontend handed over that exist, until its time is over. It does nothing if another port has the frontend.
func (p *ports) drain(key state.FrontendKey, e *port, now time.Time) {
	f := p.frontends[key]
	if f == nil || f.port != e || !f.until.IsZero() {
		return
	}
	value := f.value | programs.FrontendDrains
	if p.settings.Drain == 0 || p.put(key, value) != nil {
		p.remove(key, f)
		return
	}
	f.value, f.until = value, now.Add(p.settings.Drain)
	p.draining = append(p.draining, draining{key, f.until})
	p.drains++
}

// expire removes the frontends whose drain is over.
func (p *ports) expire(now time.Time) {
	for len(p.draining) > 0 && !p.draining[0].until.After(now) {
		d := p.draining[0]
		p.draining = p.draining[1:]
		if f := p.frontends[d.key]; f != nil && f.until.Equal(d.until) { // else it has been served again
			p.remove(d.key, f)
		}
	}
}

// remove removes a frontend.
func (p *ports) remove(key state.FrontendKey, f *frontend) {
	err := p.mapOf(key).Delete(plan.Key(key))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		p.settings.Logger.Warn("cannot remove a frontend from the edge", "frontend", key, "error", err)
	}
	delete(p.frontends, key)
	if !f.until.IsZero() {
		p.drains--
	}
	if !key.Addr.IsValid() {
		p.nodePorts--
		_ = p.nodePortsVar.Set(p.nodePorts) // programs look and find nothing
	}
	p.freed = true
	p.release(f.port)
}

// release counts a frontend less that leads to a port's table, which is free when none is left.
func (p *ports) release(e *port) {
	if e.frontends--; e.frontends > 0 || e.served {
		return
	}
	delete(p.byName, e.name)
	p.ranges.Give(e.table)
	p.freed = true
}

// retry tries ports again that were left, if there is more room, or for another reason if again is set.
func (p *ports) retry(again bool, now time.Time) {
	if p.refused != nil || !p.freed && !again {
		return
	}
	p.freed = false
	for id := range p.left {
		for other, of := range shared(p.services[id.Service]) {
			if other == id {
				p.serve(id, of, now)
			}
		}
	}
}

// revisit looks again whether the ports can be served in which some nodes have shares, by their IDs.
func (p *ports) revisit(nodes map[uint32]bool, now time.Time) {
	for _, record := range p.services {
		for id, of := range shared(record) {
			if slices.ContainsFunc(of.Edge.Shares, func(s state.EdgeShare) bool { return nodes[s.Node] }) {
				p.serve(id, of, now)
			}
		}
	}
}

// refuse leaves all ports to netfilter from now on, for a reason.
func (p *ports) refuse(reason error, now time.Time) {
	p.refused = reason
	for id, e := range p.byName {
		if e.served {
			p.left[id] = reason
			p.letGo(e, now)
		}
	}
}

// forget removes nodes that have left the cluster from all slots.
func (p *ports) forget(gone []plan.Number) {
	if len(gone) == 0 {
		return
	}
	for _, n := range gone {
		delete(p.earlier, n)
	}
	for _, e := range p.byName {
		base := e.table * uint32(p.settings.TableSize)
		for i := range uint32(p.settings.TableSize) {
			had := plan.Word(p.slots.Load(base+i, 0))
			next := had
			for o := range plan.Owners {
				if n, ok := had.Owner(o); ok {
					if _, left := slices.BinarySearch(gone, n); left {
						next = next.Without(n)
					}
				}
			}
			if next != had {
				p.slots.Store(base+i, 0, uint64(next))
			}
		}
	}
}

// served returns how many ports the edge serves.
func (p *ports) served() (n int) {
	for _, e := range p.byName {
		if e.served && !e.waits {
			n++
		}
	}
	return n
}
