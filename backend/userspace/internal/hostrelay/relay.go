// Package hostrelay relays connections to addresses of this machine, with functions that all systems have. It listens at each frontend,
// chooses an endpoint by the record, and copies both ways.
package hostrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/drain"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Options are the settings of a [Relay]. All numbers are greater than 0.
type Options struct {
	Logger                      *slog.Logger
	Policy                      balance.Policy
	DialTimeout, UDPIdleTimeout time.Duration
	DialAttempts                int
	Ejection                    balance.Ejection
	ProxyProtocol, ResetRemoved bool
	MaxConnections, MaxUDPFlows int
	MaxAffinityClients          int
	// Listen are the only frontends that are served. Without any, all of TCP and UDP are, at their own addresses.
	Listen []Listen
	// HostAddrs returns the addresses of this machine, sorted. It is called at any time.
	HostAddrs func() []netip.Addr
	// Interface gets addresses of frontends that this machine does not have.
	Interface Interface
}

// Listen is a frontend and the address where it is served.
type Listen struct {
	Frontend state.FrontendKey
	At       netip.AddrPort
}

// Interface is an interface of this machine that addresses can be added to.
type Interface interface {
	// Added returns the addresses that Add has added, also in an earlier process.
	Added() ([]netip.Addr, error)
	Add(netip.Addr) error
	Remove(netip.Addr) error
}

// Relay is a relay. It implements [backend.Backend].
type Relay struct {
	log     *slog.Logger
	ctx     context.Context // ends when the relay stops
	stop    context.CancelFunc
	running sync.WaitGroup
	started chan struct{} // closed when there is a state
	began   time.Time

	loads ledger.Loads
	// places are the places of connections, and flowPlaces the places of flows.
	places     *ledger.Room[*conn]
	flowPlaces *ledger.Room[*flow]

	mu sync.Mutex // guards all below
	o  Options
	// next are the options that count from the next full update on, nil if they have not changed.
	next  *Options
	node  *state.Node
	table plan.Table
	// sockets are the sockets of each frontend that is served, by the address that they listen at.
	sockets map[state.FrontendKey]map[netip.AddrPort]*socket
	// unserved are services that have ports of protocols which cannot be relayed.
	unserved map[state.ServiceName]bool
	// returning are endpoints, one of each service, that get no connections because the relay itself listens there.
	returning map[state.ServiceName]netip.AddrPort
	// users counts what needs an address that was added to the interface: sockets and connections.
	users map[netip.Addr]int
	// stale are addresses that an earlier process has added, and that nothing here needs so far.
	stale map[netip.Addr]bool

	conns     map[state.ServiceName]map[*conn]bool
	open      int // all connections; those without an endpoint yet are not in conns
	flows     map[flowKey]*flow
	ofService map[state.ServiceName]map[*flow]bool
}

var _ backend.Backend = (*Relay)(nil)

// New makes a relay. It listens from the first update on, at the addresses of Options.Listen at once. The caller must Close it.
func New(o Options) (*Relay, error) {
	r := &Relay{
		log: o.Logger, o: o, started: make(chan struct{}), began: time.Now(), places: ledger.NewRoom[*conn](), flowPlaces: ledger.NewRoom[*flow](),
		sockets: map[state.FrontendKey]map[netip.AddrPort]*socket{}, unserved: map[state.ServiceName]bool{},
		returning: map[state.ServiceName]netip.AddrPort{},
		users:     map[netip.Addr]int{}, stale: map[netip.Addr]bool{},
		conns: map[state.ServiceName]map[*conn]bool{}, flows: map[flowKey]*flow{}, ofService: map[state.ServiceName]map[*flow]bool{},
	}
	r.loads.Visits.Reset(o.MaxAffinityClients)
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.mu.Lock()
	err := r.begin()
	r.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Relay) begin() error {
	if len(r.o.Listen) == 0 {
		added, err := r.o.Interface.Added()
		if err != nil {
			r.log.Warn("cannot list the addresses of services that a previous process has added", "error", err)
		}
		for _, addr := range added {
			r.stale[addr] = true
		}
		return nil
	}
	for _, l := range r.o.Listen {
		if err := r.listen(l.Frontend, l.At); err != nil {
			return fmt.Errorf("listen on %v for %v: %w; choose another address or port", l.At, l.Frontend, err)
		}
	}
	return nil
}

// Disturbed implements [backend.Backend]. Verify finds changes.
func (*Relay) Disturbed() <-chan struct{} { return nil }

// Reconfigure replaces the options from the next full update on, except for Logger, Listen, HostAddrs and Interface.
func (r *Relay) Reconfigure(o Options) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.Logger, o.Listen, o.HostAddrs, o.Interface = r.o.Logger, r.o.Listen, r.o.HostAddrs, r.o.Interface
	r.next = &o
}

// Apply implements [backend.Backend].
func (r *Relay) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u.Full && r.next != nil {
		r.o, r.next = *r.next, nil
		r.loads.Visits.SetLimit(r.o.MaxAffinityClients)
	}
	if r.node == nil {
		defer close(r.started)
	}
	moved := r.node == nil || u.Full || !r.node.Equal(u.Node)
	r.node = u.Node
	names, keys, before := r.set(u)
	if moved {
		keys = r.allKeys(keys)
	}
	result := r.sync(keys)
	for name := range names {
		delete(r.returning, name)
	}
	if u.Full {
		r.removeStale()
	}
	r.settle(names, before)
	return result, nil
}

// set takes over the services of u. It returns the names of all that have changed, the frontends that they have or had, and the previous records.
func (r *Relay) set(u *state.Update) (names map[state.ServiceName]bool, keys map[state.FrontendKey]bool, before map[state.ServiceName]*state.Service) {
	names, keys, before = map[state.ServiceName]bool{}, map[state.FrontendKey]bool{}, map[state.ServiceName]*state.Service{}
	note := func(name state.ServiceName) {
		names[name] = true
		if s := r.table.Get(name); s != nil {
			for key := range frontends(s) {
				keys[key] = true
			}
		}
	}
	for _, name := range u.Gone(r.table.Names()) {
		note(name)
		before[name] = r.table.Get(name)
		r.table.Remove(name)
		delete(r.unserved, name)
	}
	for _, s := range u.Changed {
		note(s.Name)
		before[s.Name] = r.table.Get(s.Name)
		r.table.Set(s)
		note(s.Name)
		r.noteUnserved(s)
	}
	return names, keys, before
}

// frontends yields the frontends of a service that can be relayed.
func frontends(s *state.Service) func(yield func(state.FrontendKey) bool) {
	return func(yield func(state.FrontendKey) bool) {
		for p, f := range s.Frontends() {
			if canRelay(p.Protocol) && !yield(p.Key(f)) {
				return
			}
		}
	}
}

func canRelay(p state.Protocol) bool { return p == state.TCP || p == state.UDP }

func (r *Relay) noteUnserved(s *state.Service) {
	if !slices.ContainsFunc(s.Ports, func(p state.Port) bool { return !canRelay(p.Protocol) }) {
		delete(r.unserved, s.Name)
		return
	}
	if !r.unserved[s.Name] {
		r.log.Warn("ports of a service cannot be relayed: only TCP and UDP can", "service", s.Name.String())
	}
	r.unserved[s.Name] = true
}

// leadsBack reports whether the relay itself listens at an endpoint. The caller holds mu.
func (r *Relay) leadsBack(p state.Protocol, endpoint netip.AddrPort) bool {
	key := state.FrontendKey{Family: state.FamilyOf(endpoint.Addr()), Protocol: p, Addr: endpoint.Addr(), Port: endpoint.Port()}
	nodePort := key
	nodePort.Addr = netip.Addr{}
	if r.sockets[key][endpoint] != nil || r.sockets[nodePort][endpoint] != nil {
		return true
	}
	return slices.ContainsFunc(r.o.Listen, func(l Listen) bool {
		all := l.At.Addr().IsUnspecified() && (endpoint.Addr().IsLoopback() || r.isHost(endpoint.Addr()))
		return l.Frontend.Protocol == p && l.At.Port() == endpoint.Port() && (all || l.At.Addr() == endpoint.Addr())
	})
}

// noteReturning notes an endpoint that was chosen, and where the relay itself listens. The caller holds mu.
func (r *Relay) noteReturning(name state.ServiceName, endpoint netip.AddrPort) {
	if _, noted := r.returning[name]; !noted {
		r.returning[name] = endpoint
		r.log.Warn("an endpoint is an address of the relay, and gets no connections", "service", name.String(), "endpoint", endpoint)
	}
}

// Problems names the services with ports that cannot be relayed or endpoints that would be relayed in a loop. It also names services whose
// connections ended to make room for other connections. It may be called at any time.
func (r *Relay) Problems() (errs []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(r.unserved), state.ServiceName.Compare) {
		errs = append(errs, fmt.Errorf("service %v: only ports of TCP and UDP can be relayed", name))
	}
	for _, name := range slices.SortedFunc(maps.Keys(r.returning), state.ServiceName.Compare) {
		errs = append(errs, fmt.Errorf("service %v: endpoint %v is an address of the relay, and gets no connections: remove it from the EndpointSlice", name, r.returning[name]))
	}
	errs = append(errs, r.table.Problems()...)
	return append(errs, ledger.Problems(r.places.Note(), r.o.MaxConnections, r.flowPlaces.Note(), r.o.MaxUDPFlows, time.Now())...)
}

// Amounts returns the amounts of connections and of flows. It may be called at any time.
func (r *Relay) Amounts() [2]ledger.Amount {
	r.mu.Lock()
	defer r.mu.Unlock()
	return [2]ledger.Amount{r.places.Amount(r.o.MaxConnections), r.flowPlaces.Amount(r.o.MaxUDPFlows)}
}

// allKeys adds all frontends that there are, and those that have sockets.
func (r *Relay) allKeys(keys map[state.FrontendKey]bool) map[state.FrontendKey]bool {
	for s := range r.table.All() {
		for key := range frontends(s) {
			keys[key] = true
		}
	}
	for key := range r.sockets {
		keys[key] = true
	}
	return keys
}

// sync has frontends listened at where they are to be, and nowhere else. The caller holds mu.
func (r *Relay) sync(keys map[state.FrontendKey]bool) (result backend.Result) {
	if len(r.o.Listen) > 0 {
		return result
	}
	host := sync.OnceValue(r.ownAddrs)
	type missing struct {
		key   state.FrontendKey
		at    netip.AddrPort
		owner state.ServiceName
	}
	var open []missing
	for key := range keys {
		wanted := map[netip.AddrPort]bool{}
		p := r.portOf(key)
		if p != nil {
			for _, addr := range r.addrsOf(key, host) {
				wanted[netip.AddrPortFrom(addr, key.Port)] = true
			}
		}
		for at, s := range r.sockets[key] {
			if !wanted[at] {
				r.closeSocket(s)
				result.Written++
			}
		}
		for at := range wanted {
			if r.sockets[key][at] == nil {
				open = append(open, missing{key, at, p.ID.Service})
			}
		}
	}
	// After all that are closed: another frontend may have had the address and port.
	for _, m := range open {
		if err := r.listen(m.key, m.at); err != nil {
			if result.Failed == nil {
				result.Failed = map[state.ServiceName]error{}
			}
			result.Failed[m.owner] = fmt.Errorf("listen on %v for %v: %w; end what else listens there, or give the Service another address or port", m.at, m.key, err)
			continue
		}
		result.Written++
	}
	return result
}

// portOf returns the port that has a frontend, nil if there is none: a node port is not served instead of an address.
func (r *Relay) portOf(key state.FrontendKey) *plan.Port {
	p, _ := r.lookup(key)
	return p
}

// lookup is portOf that also returns the frontend.
func (r *Relay) lookup(key state.FrontendKey) (*plan.Port, *state.Frontend) {
	p, frontend, found := r.table.Lookup(plan.Kind{Family: key.Family, Protocol: key.Protocol}, netip.AddrPortFrom(key.Addr, key.Port))
	if found != key {
		return nil, nil
	}
	return p, frontend
}

// ownAddrs returns the addresses that this machine has without the relay.
func (r *Relay) ownAddrs() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(r.o.HostAddrs()), func(a netip.Addr) bool { return r.users[a] > 0 || r.stale[a] })
}

func (r *Relay) isHost(addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(r.o.HostAddrs(), addr, netip.Addr.Compare)
	return found
}

// addrsOf returns where a frontend is served.
func (r *Relay) addrsOf(key state.FrontendKey, host func() []netip.Addr) []netip.Addr {
	if key.Addr.IsValid() {
		return []netip.Addr{key.Addr}
	}
	return slices.DeleteFunc(slices.Clone(r.node.NodePorts.Select(host(), r.node)), func(a netip.Addr) bool { return state.FamilyOf(a) != key.Family })
}

// Verify implements [backend.Backend]: it adds addresses that are gone, and listens where nothing listens.
func (r *Relay) Verify(context.Context) (backend.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.node == nil || len(r.o.Listen) > 0 {
		return backend.Result{}, nil
	}
	var added []netip.Addr
	if len(r.users) > 0 {
		var err error
		if added, err = r.o.Interface.Added(); err != nil {
			return backend.Result{}, err
		}
	}
	repaired := 0
	for addr := range r.users {
		if slices.Contains(added, addr) {
			continue
		}
		if err := r.o.Interface.Add(addr); err != nil {
			r.log.Warn("cannot add the address of a service again", "address", addr, "error", err)
			continue
		}
		repaired++
	}
	result := r.sync(r.allKeys(map[state.FrontendKey]bool{}))
	result.Written += repaired
	result.Repaired = result.Written
	return result, nil
}

// hold has the interface have an address, unless this machine has it anyway. The caller holds mu.
func (r *Relay) hold(addr netip.Addr) error {
	switch {
	case r.users[addr] > 0:
	case r.stale[addr]:
		delete(r.stale, addr)
	case addr.IsLoopback() || r.isHost(addr) || len(r.o.Listen) > 0:
		return nil
	default:
		if err := r.o.Interface.Add(addr); err != nil {
			return err
		}
	}
	r.users[addr]++
	return nil
}

// release undoes hold. The caller holds mu.
func (r *Relay) release(addr netip.Addr) {
	if r.users[addr] == 0 {
		return
	}
	if r.users[addr]--; r.users[addr] > 0 {
		return
	}
	delete(r.users, addr)
	r.remove(addr)
}

func (r *Relay) remove(addr netip.Addr) {
	if err := r.o.Interface.Remove(addr); err != nil {
		r.log.Warn("cannot remove the address of a service", "address", addr, "error", err)
	}
}

// removeStale removes what an earlier process has added, and nothing needs.
func (r *Relay) removeStale() {
	for addr := range r.stale {
		r.remove(addr)
	}
	clear(r.stale)
}

// request is a connection that has to get an endpoint.
type request struct {
	key    state.FrontendKey
	client netip.AddrPort
	// tried are endpoints that did not answer, or that are the relay's own addresses.
	tried []netip.AddrPort
}

// choice is the endpoint that a connection goes to.
type choice struct {
	port     plan.PortID
	frontend state.FrontendKey
	endpoint netip.AddrPort
}

// choose returns an endpoint for a connection, which counts as one of its own until end is called. ok is false if there is none.
func (r *Relay) choose(q *request) (c choice, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, frontend := r.lookup(q.key)
	if p == nil || !plan.Admits(frontend, q.client.Addr()) {
		return c, false
	}
	c.port, c.frontend = p.ID, q.key
	route, number := p.Route(frontend, r.classOf(q.client.Addr()))
	for len(q.tried) < r.o.DialAttempts {
		c.endpoint, ok = r.loads.Choose(r.o.Policy, &balance.Request{
			Port: p, Route: route, Number: number, Client: q.client, Tried: q.tried,
		}, time.Now(), rand.IntN)
		if !ok || !r.leadsBack(q.key.Protocol, c.endpoint) {
			return c, ok
		}
		r.end(&c)
		r.noteReturning(p.ID.Service, c.endpoint)
		q.tried = append(q.tried, c.endpoint)
	}
	return c, false
}

// classOf returns which routes a client takes: pods, by the ranges that the node has of them, and this machine are inside.
func (r *Relay) classOf(client netip.Addr) plan.Class {
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(client) })
	}
	switch {
	case client.IsLoopback() || r.isHost(client):
		return plan.Inside
	case in(r.node.PodCIDRs) || r.node.LocalDetector != nil && in(r.node.LocalDetector.ClusterCIDRs):
		return plan.Inside
	}
	return plan.Outside
}

// end notes that a connection to an endpoint has ended.
func (r *Relay) end(c *choice) { r.loads.End(c.port, c.endpoint) }

// dialed notes whether an endpoint has accepted a connection.
func (r *Relay) dialed(c *choice, rule balance.Ejection, err error) {
	if r.loads.Dialed(c.port, c.endpoint, err == nil, rule, time.Now()) {
		r.log.Warn("endpoint gets no new connections for a while", "service", c.port.Service.String(), "endpoint", c.endpoint, "for", rule.Time, "error", err)
	}
}

// settle ends these services' connections and flows to endpoints that no longer serve. It sets the deadlines of connections to endpoints that take
// no more of them. The caller holds mu.
func (r *Relay) settle(names map[state.ServiceName]bool, before map[state.ServiceName]*state.Service) {
	for name := range names {
		for f := range r.ofService[name] {
			if !r.serves(&f.choice) {
				r.endFlow(f)
			}
		}
		was, is := before[name], r.table.Get(name)
		drains := drain.Uses(was, is)
		if !r.o.ResetRemoved && !drains {
			continue
		}
		for c := range r.conns[name] {
			if r.o.ResetRemoved && !r.serves(&c.choice) {
				c.abort()
			} else if drains {
				c.setDeadline(was, is)
			}
		}
	}
}

// serves reports whether the chosen endpoint still serves the frontend. The caller holds mu.
func (r *Relay) serves(c *choice) bool {
	p := r.portOf(c.frontend)
	return p != nil && p.ID == c.port && p.Serves(c.endpoint)
}

// Carried returns how many connections and flows the relay carries. It may be called at any time.
func (r *Relay) Carried() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open + len(r.flows)
}

// Release has the relay accept no new connections of TCP; those that it has go on. Neither Apply nor Verify may be called after it.
func (r *Relay) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.sockets {
		for _, s := range of {
			s.refuse()
		}
	}
}

// Close ends what the relay carries, and removes the addresses that it has added.
func (r *Relay) Close() error {
	r.stop()
	r.mu.Lock()
	for _, of := range r.sockets {
		for _, s := range of {
			r.closeSocket(s)
		}
	}
	for _, of := range r.conns {
		for c := range of {
			c.abort()
		}
	}
	for _, f := range r.flows {
		r.endFlow(f)
	}
	r.mu.Unlock()
	r.running.Wait()
	return nil
}
