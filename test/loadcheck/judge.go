//go:build linux

package loadcheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
)

// Target is an address to which connections are made.
type Target struct {
	// Name is for reports.
	Name     string
	Protocol state.Protocol
	Addr     netip.AddrPort
	// Service and Port, a port's name, say whose frontend it is.
	Service state.ServiceName
	Port    string
}

// State is a possible outcome of a connection at some moment.
type State struct {
	// Allowed are the endpoints that may get a new connection. If there are none, it must fail.
	Allowed []netip.AddrPort
	// Serving are the endpoints that may keep a flow that they have.
	Serving []netip.AddrPort
	// Hashed reports whether a hash of the client's address chooses its endpoint, so that all of its new connections go there.
	Hashed bool
	// Interrupted reports whether somebody else has just taken the proxy's work away: connections may fail until it is repaired.
	Interrupted bool
	// ForgotClients reports whether the proxy may have forgotten which client with affinity has which endpoint, and ForgotFlows the same of flows
	// of datagrams.
	ForgotClients, ForgotFlows bool
	// EndedOpen reports whether a process may have ended that carried connections, and had nobody to hand them over to.
	EndedOpen bool
	// LeftFlows reports whether there may have been no process that deletes flows of datagrams to endpoints that have
	// stopped serving.
	LeftFlows bool
}

// Judge decides which outcomes of connections are allowed. It is asked by many goroutines at once.
type Judge interface {
	// States returns the states that counted at some moment from one time to another, at least one.
	States(t *Target, from probe.Client, src netip.Addr, since, until time.Time) []State
}

// Plainly is the judge of connections to an address that no proxy touches.
type Plainly struct{}

// States returns the target's own address.
func (Plainly) States(t *Target, _ probe.Client, _ netip.Addr, _, _ time.Time) []State {
	self := []netip.AddrPort{t.Addr}
	return []State{{Allowed: self, Serving: self}}
}

// Ledger is the judge of connections through a cluster that changes: it asks the oracle about each state of the cluster that
// counted. The zero value is empty; there must be a state before it is asked.
type Ledger struct {
	mu      sync.Mutex
	periods []*period
	// interruptions are times after another program removed the proxy's rules. In clients and flows, the proxy may have forgotten clients with
	// affinity and flows of datagrams. In open, open connections may have ended with a process. In uncut, a process may have left stale flows.
	// The last time of each may have no end yet.
	interruptions, clients, flows, open, uncut []interruption
	// hashes is set if the proxy chooses endpoints by hashes.
	hashes bool
}

// ExpectHashes is called if the proxy chooses endpoints by hashes where the cluster asks for that. Without the call, it need not.
func (l *Ledger) ExpectHashes() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hashes = true
}

type interruption struct{ began, ended time.Time }

// underWay is how long before an interruption something may have begun that it hits.
const underWay = 100 * time.Millisecond

// covers reports whether the interruption may affect an operation: it began during the interruption or shortly
// before, or ended during it.
func (i *interruption) covers(since, until time.Time) bool {
	within := func(t, began time.Time) bool { return !t.Before(began) && (i.ended.IsZero() || !t.After(i.ended)) }
	return within(since, i.began.Add(-underWay)) || within(until, i.began)
}

// overlaps reports whether there is a moment of the interruption in a time.
func (i *interruption) overlaps(since, until time.Time) bool {
	return !until.Before(i.began) && (i.ended.IsZero() || !since.After(i.ended))
}

// period is a state of the cluster and the time in which connections may go by it.
type period struct {
	world        *oracle.World
	began, ended time.Time // ended is zero as long as the state counts
	acked        time.Time // when the proxy had taken over this state or a later one; zero before
	known        map[question]State
}

type question struct {
	protocol state.Protocol
	addr     netip.AddrPort
	client   probe.Client
	src      netip.Addr
}

// remember is how long outdated states are kept: longer than any connection waits.
const remember = time.Minute

// Change is called before the proxy learns of a new state of the cluster, which must not be modified afterwards. From
// now on connections may go by it. The first state of all counts alone at once.
func (l *Ledger) Change(w *oracle.World) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.periods = slices.DeleteFunc(l.periods, func(p *period) bool { return !p.ended.IsZero() && now.Sub(p.ended) > remember })
	l.periods = append(l.periods, &period{world: w, began: now, known: map[question]State{}})
}

// Acked is called when the proxy has taken over the latest state. From now on only that one counts.
func (l *Ledger) Acked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for i, p := range l.periods {
		if p.ended.IsZero() && i < len(l.periods)-1 {
			p.ended = now
		}
		if p.acked.IsZero() {
			p.acked = now
		}
	}
}

// Changes describes the latest changes, for reports: how long ago the proxy was told, and has taken them over.
func (l *Ledger) Changes() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	const most = 3
	var list []string
	for _, p := range l.periods[max(0, len(l.periods)-most):] {
		taken := "not taken over"
		if !p.acked.IsZero() {
			taken = fmt.Sprintf("taken over %v ago", time.Since(p.acked).Round(time.Millisecond))
		}
		list = append(list, fmt.Sprintf("told %v ago and %s", time.Since(p.began).Round(time.Millisecond), taken))
	}
	return "the latest changes: " + strings.Join(list, "; ")
}

// Interrupt is called before somebody other than the proxy takes its work away. Done is called afterwards, with the
// time that the proxy has for a repair. Connections that begin or end until then may fail, and count as expected
// failures. This includes open connections, since the kernel does not translate their packets either while there are
// no rules for NAT. The longest time without a success is measured all the same. Data that an open TCP connection
// sent must arrive in the end.
func (l *Ledger) Interrupt() (done func(time.Duration)) { return l.begin(&l.interruptions) }

// ForgetClients is called before the proxy may forget clients that it has to remember, and done when it remembers
// them again. In between a client with affinity may get another endpoint, and once more afterwards.
func (l *Ledger) ForgetClients() (done func(time.Duration)) { return l.begin(&l.clients) }

// ForgetFlows is the same for flows of datagrams.
func (l *Ledger) ForgetFlows() (done func(time.Duration)) { return l.begin(&l.flows) }

// EndOpen is called before a process may end with the connections that it carries, and done when it has. New ones must succeed all the same.
func (l *Ledger) EndOpen() (done func(time.Duration)) { return l.begin(&l.open) }

// LeaveFlows is called before the proxy is killed, and done when one serves again. Until it has served for
// [Options].CutTimeout, flows of datagrams may stay with endpoints that have stopped serving.
func (l *Ledger) LeaveFlows() (done func(time.Duration)) { return l.begin(&l.uncut) }

func (l *Ledger) begin(of *[]interruption) (done func(time.Duration)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(*of)
	*of = append(*of, interruption{began: time.Now()})
	return func(d time.Duration) {
		l.mu.Lock()
		defer l.mu.Unlock()
		(*of)[n].ended = time.Now().Add(d)
	}
}

// States asks the oracle.
func (l *Ledger) States(t *Target, from probe.Client, src netip.Addr, since, until time.Time) []State {
	l.mu.Lock()
	defer l.mu.Unlock()
	var states []State
	for _, p := range l.periods {
		if !p.began.After(until) && (p.ended.IsZero() || !p.ended.Before(since)) {
			s := p.ask(t, from, src)
			s.Interrupted = slices.ContainsFunc(l.interruptions, func(i interruption) bool { return i.covers(since, until) })
			overlaps := func(i interruption) bool { return i.overlaps(since, until) }
			s.ForgotClients, s.ForgotFlows = slices.ContainsFunc(l.clients, overlaps), slices.ContainsFunc(l.flows, overlaps)
			s.EndedOpen, s.LeftFlows = slices.ContainsFunc(l.open, overlaps), slices.ContainsFunc(l.uncut, overlaps)
			s.Hashed = s.Hashed && l.hashes
			states = append(states, s)
		}
	}
	return states
}

func (p *period) ask(t *Target, from probe.Client, src netip.Addr) State {
	q := question{t.Protocol, t.Addr, from, src}
	if s, ok := p.known[q]; ok {
		return s
	}
	var s State
	answer := p.world.Ask(probe.Packet{From: from, Src: src, Dst: t.Addr, Protocol: t.Protocol})
	for _, c := range answer.Choices {
		s.Allowed = append(s.Allowed, c.Endpoint)
	}
	s.Hashed = answer.Balance == state.HashClient
	s.Serving = p.world.Serving(t.Service, t.Port, t.Protocol, state.FamilyOf(t.Addr.Addr()))
	p.known[q] = s
	return s
}
