// Package ejection decides which endpoints that do not answer get no new connections, and which of them get connections again. It is pure: a [Watch] gets
// what was read and what probes have found, and returns what to do.
//
// Rules of the kernel suspect an endpoint that leaves a repeated SYN without an answer. Anybody who can send packets can cause that, also for an endpoint that
// works, so a suspect is only asked. It is ejected from a port if all of this holds:
//
//   - a probe of this process had no answer;
//   - no answer to anybody else has taken the suspicion away since the probe began;
//   - another endpoint of the same route has answered a probe since then, so that the network of this node works;
//   - that other endpoint is not ejected, so that one is left.
//
// It is asked again until it answers. So the number of packets and of clients decides nothing.
package ejection

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// Period is the time between two steps in which probes begin. A client's second SYN comes after 1 s and its third after 2 or 3 s. With this period and
	// a timeout of 1 s for probes, an endpoint is ejected between them.
	Period = 250 * time.Millisecond
	// MaxProbes is how many probes are under way at a time.
	MaxProbes = 16
	// MaxShare is how many of them a namespace may have, and how many may be for suspects. MaxReturns is how many may be for ejected endpoints. So a
	// namespace, suspects and ejected endpoints leave room for each other.
	MaxShare, MaxReturns = 12, 8
	// MaxEjected is how many endpoints of ports may be ejected, and MaxNamespaceEjected how many of one namespace.
	MaxEjected, MaxNamespaceEjected = 1024, MaxEjected / 2
	// ReturnPeriod is the time between two probes of an ejected endpoint. It is longer where there are more of them than probes.
	ReturnPeriod = 5 * time.Second
	// After an answer, and after a silence without consequence, a suspect is not asked again for a time that doubles from FirstPause to LongestPause.
	FirstPause, LongestPause = time.Second, 30 * time.Second
	// forgetAfter is how long an endpoint must not have been suspected for the next pause to be the first one again.
	forgetAfter = time.Minute
	// maxWitnesses is how many other endpoints are asked with a suspect, for each of maxPorts ports that have it. They are found among maxOthers.
	maxWitnesses, maxPorts, maxOthers = 2, 4, 32
	// ageError is by how much the age of a suspect may be too small. The kernel counts it in ticks of its clock, of 10 ms at most.
	ageError = 20 * time.Millisecond
)

// Outcome is what a probe has found.
type Outcome uint8

// The outcomes.
const (
	// Answered: the endpoint has accepted or refused a connection.
	Answered Outcome = iota
	// Silent: it has done neither within the timeout.
	Silent
	// Failed: the probe could not be sent, which says nothing about the endpoint.
	Failed
)

// Result is the end of a probe.
type Result struct {
	Endpoint netip.AddrPort
	Outcome  Outcome
}

// Input is what a step goes by.
type Input struct {
	Now time.Time
	// Suspects are all endpoints that are suspected. They were read after Results had come.
	Suspects []ruleset.Suspect
	Results  []Result
	// Services have all services with a port that ejects, by their names. Others may be among them. The step does not keep the map.
	Services map[state.ServiceName]*state.Service
	// Probes is set if new probes may begin.
	Probes bool
}

// Output is what to do after a step.
type Output struct {
	// Probe are endpoints to ask. For each of them, one Result follows.
	Probe []netip.AddrPort
	// Forget are suspects that are to be taken out of the kernel's sets, because nothing can follow from them.
	Forget []netip.AddrPort
	// Ejected and Returned are endpoints that are ejected now, and those that are no longer.
	Ejected, Returned []ruleset.PortEndpoint
}

// Watch has what is known about suspects and ejected endpoints. It is for one goroutine at a time.
type Watch struct {
	endpoints map[netip.AddrPort]*endpoint
	// probes are how many are under way, in all and by what they are for. A probe belongs to the namespace of the first port for which it was sent.
	probes   int
	kinds    [2]int
	spaces   map[string]int
	ejected  int
	ejecting map[string]int // by namespace
}

// endpoint is what is known about one endpoint.
type endpoint struct {
	addr netip.AddrPort
	// probe is what the probe under way is for, which began at began.
	probe     *probe
	began     time.Time
	answered  time.Time // the last time
	until     time.Time // it is not asked as a suspect before
	pause     time.Duration
	attempts  int // as a suspect
	from      map[ruleset.PortEndpoint]struct{}
	since     time.Time // of the silence for which it is ejected
	unheard   int       // how many probes it has not answered since
	nextProbe time.Time
}

type probe struct {
	kind      kind
	namespace string
	// suspect is set if the endpoint was a suspect when the probe began, or since.
	suspect bool
}

type kind uint8

const (
	ofSuspect kind = iota // and its witnesses
	ofEjected
)

// New returns a Watch that knows nothing.
func New() *Watch {
	return &Watch{endpoints: map[netip.AddrPort]*endpoint{}, spaces: map[string]int{}, ejecting: map[string]int{}}
}

// Status is an ejected endpoint.
type Status struct {
	ruleset.PortEndpoint
	// Since is when it was first suspected, and Probes is how many probes it has not answered.
	Since  time.Time
	Probes int
}

// Ejected returns the endpoints that are ejected, in order.
func (w *Watch) Ejected() (list []Status) {
	for _, e := range w.endpoints {
		for of := range e.from {
			list = append(list, Status{of, e.since, e.unheard})
		}
	}
	slices.SortFunc(list, func(a, b Status) int { return a.Compare(b.PortEndpoint) })
	return list
}

// IsIdle reports whether nothing is under way and nothing is ejected.
func (w *Watch) IsIdle() bool { return w.probes+w.ejected == 0 }

// Step takes in what was found, and decides.
func (w *Watch) Step(in Input) (out Output) {
	w.release(&in, &out)
	ages := make(map[netip.AddrPort]time.Duration, len(in.Suspects))
	for _, s := range in.Suspects {
		ages[s.Endpoint] = s.Age
	}
	silent := w.results(&in, ages, &out)
	due := w.due(&in)
	at := locate(&in, silent, due)
	for _, e := range silent {
		w.judge(&in, e, ages, at[e.addr], &out)
	}
	if in.Probes {
		w.probeEjected(in.Now, &out)
		w.probeSuspects(&in, due, ages, at, &out)
	}
	for addr, e := range w.endpoints {
		if e.probe == nil && len(e.from) == 0 && in.Now.Sub(later(e.until, e.answered)) > forgetAfter {
			delete(w.endpoints, addr)
		}
	}
	slices.SortFunc(out.Ejected, ruleset.PortEndpoint.Compare)
	slices.SortFunc(out.Returned, ruleset.PortEndpoint.Compare)
	return out
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (w *Watch) endpoint(addr netip.AddrPort) *endpoint {
	e := w.endpoints[addr]
	if e == nil {
		e = &endpoint{addr: addr}
		w.endpoints[addr] = e
	}
	return e
}

// release lets go of ejected endpoints that their ports no longer have, or no longer eject.
func (w *Watch) release(in *Input, out *Output) {
	if w.ejected == 0 {
		return
	}
	for _, e := range w.endpoints {
		for of := range e.from {
			if !hasEndpoint(in.Services[of.Service], of) {
				w.back(e, of, out)
			}
		}
	}
}

func (w *Watch) back(e *endpoint, of ruleset.PortEndpoint, out *Output) {
	delete(e.from, of)
	w.ejected--
	count(w.ejecting, of.Service.Namespace, -1)
	out.Returned = append(out.Returned, of)
}

// count adds to a count, and removes it if it is 0.
func count(counts map[string]int, of string, n int) {
	if counts[of] += n; counts[of] == 0 {
		delete(counts, of)
	}
}

// results takes in what probes have found, and returns the suspects that are silent.
func (w *Watch) results(in *Input, ages map[netip.AddrPort]time.Duration, out *Output) (silent []*endpoint) {
	for _, r := range in.Results {
		e := w.endpoints[r.Endpoint]
		if e == nil || e.probe == nil {
			continue
		}
		w.probes--
		w.kinds[e.probe.kind]--
		count(w.spaces, e.probe.namespace, -1)
		asSuspect := e.probe.suspect
		e.probe = nil
		switch r.Outcome {
		case Answered:
			e.answered, e.unheard = in.Now, 0
			for of := range e.from {
				w.back(e, of, out)
			}
			if asSuspect { // the answer itself has taken the suspicion away
				e.wait(in.Now)
			}
		case Silent:
			if len(e.from) > 0 {
				e.unheard++
				e.nextProbe = e.began.Add(ReturnPeriod)
			}
			if _, suspected := ages[e.addr]; suspected {
				silent = append(silent, e)
			} else if asSuspect {
				e.wait(in.Now)
			}
		case Failed:
			e.nextProbe = in.Now.Add(ReturnPeriod)
			if asSuspect {
				e.wait(in.Now)
			}
		}
	}
	return silent
}

// wait makes a pause in which the endpoint is not asked as a suspect.
func (e *endpoint) wait(now time.Time) {
	e.pause = min(max(2*e.pause, FirstPause), LongestPause)
	e.until = now.Add(e.pause)
}

// judge decides about a suspect whose probe had no answer.
func (w *Watch) judge(in *Input, e *endpoint, ages map[netip.AddrPort]time.Duration, ports []portOf, out *Output) {
	first, answered := len(e.from) == 0, w.answeredSince(e.began)
	if age := ages[e.addr]; age+ageError >= in.Now.Sub(e.began) {
		for _, p := range ports {
			of := ruleset.PortEndpoint{Service: p.service.Name, Port: p.port.Name, Endpoint: e.addr}
			_, is := e.from[of]
			if is || w.ejected >= MaxEjected || w.ejecting[of.Service.Namespace] >= MaxNamespaceEjected || !slices.ContainsFunc(answered, func(o *endpoint) bool { return o != e && !o.ejectedFrom(p) && p.share(e.addr, o.addr) }) {
				continue
			}
			if e.from == nil {
				e.from = map[ruleset.PortEndpoint]struct{}{}
			}
			e.from[of] = struct{}{}
			w.ejected++
			count(w.ejecting, of.Service.Namespace, 1)
			out.Ejected = append(out.Ejected, of)
		}
		if first && len(e.from) > 0 {
			e.since, e.unheard, e.nextProbe = in.Now.Add(-age), 1, e.began.Add(ReturnPeriod)
		}
	}
	e.wait(in.Now)
}

// answeredSince returns the endpoints that have answered since a time. They are few, because probes are.
func (w *Watch) answeredSince(t time.Time) (list []*endpoint) {
	for _, e := range w.endpoints {
		if e.answered.After(t) {
			list = append(list, e)
		}
	}
	return list
}

func (e *endpoint) ejectedFrom(p portOf) bool {
	_, is := e.from[ruleset.PortEndpoint{Service: p.service.Name, Port: p.port.Name, Endpoint: e.addr}]
	return is
}

// due returns the suspects that may be asked now, the oldest first.
func (w *Watch) due(in *Input) (due []ruleset.Suspect) {
	if !in.Probes {
		return nil
	}
	for _, s := range in.Suspects {
		if e := w.endpoints[s.Endpoint]; e == nil || e.probe == nil && !e.until.After(in.Now) {
			due = append(due, s)
		}
	}
	slices.SortFunc(due, func(a, b ruleset.Suspect) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), a.Endpoint.Compare(b.Endpoint))
	})
	return due
}

// probeEjected begins probes of ejected endpoints, those first that wait longest.
func (w *Watch) probeEjected(now time.Time, out *Output) {
	if w.ejected == 0 {
		return
	}
	var due []*endpoint
	for _, e := range w.endpoints {
		if len(e.from) > 0 && e.probe == nil && !e.nextProbe.After(now) {
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *endpoint) int { return cmp.Or(a.nextProbe.Compare(b.nextProbe), a.addr.Compare(b.addr)) })
	for _, e := range due {
		first := slices.MinFunc(slices.Collect(maps.Keys(e.from)), ruleset.PortEndpoint.Compare)
		w.begin(now, e, probe{kind: ofEjected, namespace: first.Service.Namespace}, out)
	}
}

// begin begins a probe, if there is room for one more.
func (w *Watch) begin(now time.Time, e *endpoint, p probe, out *Output) bool {
	if w.probes == MaxProbes || w.kinds[p.kind] == [...]int{ofSuspect: MaxShare, ofEjected: MaxReturns}[p.kind] || w.spaces[p.namespace] == MaxShare {
		return false
	}
	e.probe, e.began = &p, now
	w.probes++
	w.kinds[p.kind]++
	count(w.spaces, p.namespace, 1)
	out.Probe = append(out.Probe, e.addr)
	return true
}

// probeSuspects begins probes of suspects and of other endpoints of their routes. The namespace with the fewest probes comes first.
func (w *Watch) probeSuspects(in *Input, due []ruleset.Suspect, ages map[netip.AddrPort]time.Duration, at map[netip.AddrPort][]portOf, out *Output) {
	queues := map[string][]netip.AddrPort{}
	for _, s := range due {
		ports := slices.DeleteFunc(slices.Clone(at[s.Endpoint]), func(p portOf) bool {
			e := w.endpoints[s.Endpoint]
			return !p.hasOthers(s.Endpoint) || e != nil && e.ejectedFrom(p)
		})
		if at[s.Endpoint] = ports; len(ports) == 0 {
			out.Forget = append(out.Forget, s.Endpoint)
			continue
		}
		namespace := ports[0].service.Name.Namespace
		queues[namespace] = append(queues[namespace], s.Endpoint)
	}
	for len(queues) > 0 {
		namespace := slices.MinFunc(slices.Collect(maps.Keys(queues)), func(a, b string) int { return cmp.Or(cmp.Compare(w.spaces[a], w.spaces[b]), cmp.Compare(a, b)) })
		queue := queues[namespace]
		if len(queue) == 0 || !w.probeSuspect(in.Now, queue[0], ages, at[queue[0]], probe{kind: ofSuspect, namespace: namespace}, out) {
			delete(queues, namespace)
			continue
		}
		queues[namespace] = queue[1:]
	}
}

// probeSuspect begins the probe of a suspect, and probes of other endpoints in its ports.
func (w *Watch) probeSuspect(now time.Time, addr netip.AddrPort, ages map[netip.AddrPort]time.Duration, ports []portOf, p probe, out *Output) bool {
	e := w.endpoint(addr)
	if e.probe == nil && !w.begin(now, e, p, out) { // it may be a witness since now
		return false
	}
	e.probe.suspect = true
	n := len(ports)
	for i := range min(n, maxPorts) { // each attempt begins with other ones
		w.probeWitnesses(now, e, ports[(e.attempts*maxPorts+i)%n], ages, p, out)
	}
	e.attempts++
	return true
}

// probeWitnesses begins probes of other endpoints of a suspect's routes, as far as they are not under way. Those that have answered lately come first, and
// those that are suspected or ejected last.
func (w *Watch) probeWitnesses(now time.Time, e *endpoint, p portOf, ages map[netip.AddrPort]time.Duration, of probe, out *Output) {
	rank := func(addr netip.AddrPort) int {
		_, suspected := ages[addr]
		switch o := w.endpoints[addr]; {
		case o != nil && o.ejectedFrom(p):
			return 2
		case suspected:
			return 1
		}
		return 0
	}
	asked := 0
	for _, addr := range out.Probe {
		if addr != e.addr && rank(addr) == 0 && p.share(e.addr, addr) {
			asked++
		}
	}
	var others []netip.AddrPort
	for _, o := range w.answeredSince(now.Add(-forgetAfter)) {
		if o != e && p.share(e.addr, o.addr) {
			others = append(others, o.addr)
		}
	}
	slices.SortFunc(others, netip.AddrPort.Compare)
	for _, other := range p.some(e.addr, e.attempts*maxWitnesses) {
		if !slices.Contains(others, other) {
			others = append(others, other)
		}
	}
	slices.SortStableFunc(others, func(a, b netip.AddrPort) int { return rank(a) - rank(b) })
	for _, other := range others {
		if asked >= maxWitnesses {
			return
		}
		if o := w.endpoint(other); o.probe == nil && !w.begin(now, o, of, out) {
			return
		}
		asked++
	}
}
