package userspace

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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/drain"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// relay carries the connections that the base brings.
type relay struct {
	log   *slog.Logger
	maker *maker
	// tracked is the kernel's table of connections, nil if it is not needed.
	tracked *conntrack.Conn
	// addrs are the addresses of this network namespace.
	addrs   *ifaddr.Watcher
	running sync.WaitGroup
	// receiving are those that take datagrams of the listeners.
	receiving sync.WaitGroup
	// ctx ends when the relay stops.
	ctx  context.Context
	stop context.CancelFunc
	// began is when it was made.
	began time.Time
	// started is closed once there are records.
	started chan struct{}

	// polls are the loops that accept connections and move data. begun counts the connections that loops were given, and polling is done when
	// no loop runs.
	polls   []*loop
	begun   atomic.Uint32
	polling sync.WaitGroup

	streams   []*streamListener
	datagrams []*datagramListener

	loads ledger.Loads
	// places are the places of connections, and flowPlaces the places of flows.
	places     *ledger.Room[*conn]
	flowPlaces *ledger.Room[*flow]
	// crowded is when it was last logged that something had to make room for others.
	crowded logTime

	// tableMu guards table. Apply alone changes it, and lets others look between parts of a large change. It is taken after mu.
	tableMu sync.RWMutex
	table   plan.Table

	problemsMu sync.Mutex // guards problems. Nothing else is taken after it
	// problems are what the relay cannot do for services.
	problems map[state.ServiceName]problem

	mu        sync.Mutex // guards all below. Nothing is done under it that takes longer, the more there is
	o         Options
	conns     map[state.ServiceName]map[*conn]bool
	open      int // all connections; those without an endpoint yet are not in conns
	flows     map[state.ServiceName]map[*flow]bool
	openFlows int
	// listening is set while connections are to be accepted, and accepting while they are, but from listeners that pause: not without records.
	listening, accepting bool
	// moving is set once another process takes over open connections and flows.
	moving bool
}

func newRelay(o Options) (*relay, error) {
	o = withinLimit(o)
	r := &relay{
		log: o.Logger, o: o, began: time.Now(), started: make(chan struct{}), places: ledger.NewRoom[*conn](), flowPlaces: ledger.NewRoom[*flow](),
		conns: map[state.ServiceName]map[*conn]bool{}, flows: map[state.ServiceName]map[*flow]bool{},
		problems: map[state.ServiceName]problem{},
	}
	r.loads.Visits.Reset(o.MaxAffinityClients)
	r.table.Step = func() {
		r.tableMu.Unlock()
		r.tableMu.Lock()
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	var err error
	mark := backend.RelayMark
	if len(o.Listen) > 0 {
		mark = 0
	}
	if r.maker, err = newMaker(mark); err != nil {
		return nil, err
	}
	if r.addrs, err = ifaddr.Open(ifaddr.Options{Logger: o.Logger}); err != nil {
		r.maker.close()
		return nil, err
	}
	if len(o.Listen) == 0 {
		if r.tracked, err = conntrack.Open(); err != nil {
			r.maker.close()
			return nil, errors.Join(err, r.addrs.Close())
		}
	}
	if r.polls, err = r.newLoops(); err != nil {
		r.close()
		return nil, err
	}
	processors.add(len(r.polls))
	r.poll()
	return r, nil
}

// withinLimit returns o with no more connections than there may be open files, and than have room in memory.
func withinLimit(o Options) Options {
	if within := o.withinMemory(); within.MaxConnections < o.MaxConnections {
		o.Logger.Info("the limit of memory allows fewer connections than are configured", "memory", o.Memory, "connections", within.MaxConnections)
		o = within
	}
	if o.Files == 0 {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return o
		}
		files := int(min(limit.Cur, 1<<30))
		o.Files = files - min(max(files/4, 64), 1024)
	}
	within, most := o.within(o.Files)
	pipes.most.Store(int32(most))
	if within.MaxConnections < o.MaxConnections || within.MaxUDPFlows < o.MaxUDPFlows {
		o.Logger.Info("the limit of open files allows fewer connections than are configured", "files", o.Files,
			"connections", within.MaxConnections, "flows", within.MaxUDPFlows)
	}
	return within
}

// request is a connection that has to get an endpoint.
type request struct {
	kind  plan.Kind
	class plan.Class
	// client is where it comes from, and dst where it was addressed to.
	client, dst netip.AddrPort
	// unguarded is set if no base has looked at where it comes from.
	unguarded bool
	// hops is the hop limit of relayed packets.
	hops int
	// tried are endpoints that did not answer, or that would lead back.
	tried []netip.AddrPort
}

// choice is the endpoint that a connection goes to.
type choice struct {
	port     plan.PortID
	frontend state.FrontendKey
	endpoint netip.AddrPort
}

// choose returns an endpoint for a connection, which counts as one of its own until end is called. ok is false if there is none.
func (r *relay) choose(q *request) (c choice, ok bool) {
	p, frontend, key := r.lookup(q.kind, q.dst)
	if p == nil || q.unguarded && !plan.Admits(frontend, q.client.Addr()) {
		return c, false
	}
	c.port, c.frontend = p.ID, key
	if q.hops == 0 {
		r.noteProblem(p.ID.Service, fmt.Errorf("the hop limit of client %v %w", q.client.Addr(), errHops))
		return c, false
	}
	o := r.options()
	route, number := p.Route(frontend, q.class)
	for len(q.tried) < o.DialAttempts {
		c.endpoint, ok = r.loads.Choose(balance.Policy(o.Policy), &balance.Request{
			Port: p, Route: route, Number: number, Client: q.client, Tried: q.tried,
		}, time.Now(), rand.IntN)
		if !ok || !r.leadsBack(p.ID.Service, q.kind, c.endpoint) {
			return c, ok
		}
		r.end(&c)
		r.noteProblem(p.ID.Service, fmt.Errorf("endpoint %v/%v %w", c.endpoint, q.kind.Protocol, errLeadsBack))
		q.tried = append(q.tried, c.endpoint)
	}
	return c, false
}

// lookup returns the port that a connection was addressed to, and the frontend, nil if there is none. They do not change.
func (r *relay) lookup(k plan.Kind, dst netip.AddrPort) (*plan.Port, *state.Frontend, state.FrontendKey) {
	r.tableMu.RLock()
	defer r.tableMu.RUnlock()
	return r.table.Lookup(k, dst)
}

// end notes that a connection to an endpoint has ended.
func (r *relay) end(c *choice) { r.loads.End(c.port, c.endpoint) }

// dialed notes whether an endpoint has accepted a connection.
func (r *relay) dialed(c *choice, err error) {
	rule := balance.Ejection(r.options().Ejection)
	if r.loads.Dialed(c.port, c.endpoint, err == nil, rule, time.Now()) {
		r.log.Warn("endpoint gets no new connections for a while", "service", c.port.Service.String(), "endpoint", c.endpoint, "for", rule.Time, "error", err)
	}
}

// listen begins to take what comes to the listeners.
func (r *relay) listen() {
	r.mu.Lock()
	r.listening = true
	r.reconsider()
	r.mu.Unlock()
	for _, l := range r.datagrams {
		r.receiving.Go(func() { r.receive(l) })
	}
}

// options returns the settings as they are now.
func (r *relay) options() Options {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.o
}

// start begins to accept connections, now that there are records.
func (r *relay) start() {
	if r.hasStarted() {
		return
	}
	close(r.started)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reconsider()
}

// hasStarted reports whether there are records.
func (r *relay) hasStarted() bool {
	select {
	case <-r.started:
		return true
	default:
		return false
	}
}

// carried is how many connections and flows are open.
func (r *relay) carried() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open + r.openFlows
}

// remembered is how many clients there are with affinity.
func (r *relay) remembered() int { return r.loads.Visits.Len() }

// settle ends these services' connections and flows to endpoints that no longer serve or would lead back. It sets the deadlines of connections to
// endpoints that take no more of them. before are the previous records.
func (r *relay) settle(names []state.ServiceName, before map[state.ServiceName]*state.Service) {
	for _, name := range names {
		r.mu.Lock()
		flows, conns, reset := slices.Collect(maps.Keys(r.flows[name])), slices.Collect(maps.Keys(r.conns[name])), r.o.ResetRemoved
		r.mu.Unlock()
		for _, f := range flows {
			if !r.serves(&f.choice) || !r.admits(f) {
				f.close()
			}
		}
		for _, c := range conns {
			if c.endpoint.IsValid() && (r.leadsBack(name, c.kind, c.endpoint) || reset && !r.serves(&c.choice)) {
				c.abort()
			}
		}
		was, is := before[name], r.record(name)
		if !drain.Uses(was, is) {
			continue
		}
		for _, c := range conns {
			c.setDeadline(was, is)
		}
	}
}

// record returns the record of a service, nil if there is none.
func (r *relay) record(name state.ServiceName) *state.Service {
	r.tableMu.RLock()
	defer r.tableMu.RUnlock()
	return r.table.Get(name)
}

// serves reports whether the chosen endpoint still serves the frontend.
func (r *relay) serves(c *choice) bool {
	dst := netip.AddrPortFrom(c.frontend.Addr, c.frontend.Port)
	p, _, frontend := r.lookup(plan.Kind{Family: c.frontend.Family, Protocol: c.frontend.Protocol}, dst)
	if frontend != c.frontend {
		return false
	}
	return p != nil && p.ID == c.port && p.Serves(c.endpoint) && !r.leadsBack(c.port.Service, plan.Kind{Family: c.frontend.Family, Protocol: c.frontend.Protocol}, c.endpoint)
}

// admits reports whether flows of the class may go on. r serves the flow.
func (r *relay) admits(f *flow) bool {
	p, frontend, _ := r.lookup(f.kind, netip.AddrPortFrom(f.choice.frontend.Addr, f.choice.frontend.Port))
	if p == nil {
		return false
	}
	route, _ := p.Route(frontend, f.listener.class)
	return len(p.Lingering) > 0 || route.Verdict == state.Forward
}

// close ends all that is relayed.
func (r *relay) close() {
	r.stop()
	r.mu.Lock()
	r.reconsider()
	r.mu.Unlock()
	for _, l := range r.datagrams {
		l.conn.Close()
	}
	r.maker.close()
	r.receiving.Wait()
	r.halt()
	for _, l := range r.streams {
		unix.Close(l.fd)
	}
	processors.add(-len(r.polls))
	_ = closeLoops(r.polls)
	for _, l := range r.polls {
		for _, c := range l.all() {
			c.abort()
		}
	}
	r.mu.Lock()
	var flows []*flow
	for _, of := range r.flows {
		for f := range of {
			flows = append(flows, f)
		}
	}
	r.mu.Unlock()
	for _, f := range flows {
		f.close()
	}
	r.running.Wait()
	_ = r.addrs.Close()
	if r.tracked == nil {
		return
	}
	if !r.isMoving() { // else they go on in another process
		r.untrackAll()
	}
	_ = r.tracked.Close()
}

// untrackAll deletes the kernel's entries of all flows that lead here, so that the next datagram of each client meets the base's rules. The kernel
// may keep them for longer than the relay keeps a flow that is idle.
func (r *relay) untrackAll() {
	for _, l := range r.datagrams {
		err := r.tracked.Flows(conntrack.Filter{Family: l.kind.Family, Protocol: state.UDP, From: l.at}, func(flows []conntrack.Flow) error {
			_, err := r.tracked.Delete(flows...)
			return err
		})
		if err != nil {
			r.log.Warn("flows of UDP that the relay has carried may go on to it until they are idle", "listener", l.at, "error", err)
		}
	}
}

// untrack deletes the kernel's entry of a flow. If it fails, the flow comes here once more.
func (r *relay) untrack(f conntrack.Flow) {
	if r.tracked != nil {
		_, _ = r.tracked.Delete(f)
	}
}
