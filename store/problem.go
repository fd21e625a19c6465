package store

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Problem is why a part of a service is not routed, or has no names, although its object asks for it. The rest of the service is served,
// and so are all others.
type Problem struct {
	Service state.ServiceName
	Reason  Reason
	// Field is the field of the Service that asks for too much.
	Field string
	// Note says which part is not served, and why.
	Note string
	// Remedy tells the owner of the service or the operator how to fix it.
	Remedy string
	// Holder is the service that has the address of an [AddressConflict] when the problem begins. In lists it is left out: it may be
	// another one by then.
	Holder state.ServiceName
	// Here is set on the node that reports the problem to other programs: the node of the service's first endpoint.
	// Without endpoints it is set on no node. A [Cluster] never sets it.
	Here bool
}

// Error names the service, the field and the remedy.
func (p Problem) Error() string {
	holder := ""
	if p.Holder != (state.ServiceName{}) {
		holder = fmt.Sprintf(" (%v)", p.Holder)
	}
	return fmt.Sprintf("service %v: %s: %s%s; %s", p.Service, p.Field, p.Note, holder, p.Remedy)
}

// Reason is a word for the kind of a [Problem].
type Reason string

// The reasons.
const (
	// AddressConflict: another service has the same address and port, or the health check node port, and a better claim to it.
	AddressConflict Reason = "AddressConflict"
	// ExternalIPRefused: an externalIP must not be routed. See [brain.AdmitExternalIPs].
	ExternalIPRefused Reason = "ExternalIPRefused"
	// ServiceTooLarge: the service has more entries than one service may have. See [brain.SizeOf].
	ServiceTooLarge Reason = "ServiceTooLarge"
	// NamespaceFull: the namespace has more entries than one namespace may have. See [Budgets].
	NamespaceFull Reason = "NamespaceFull"
	// NodeFull: the namespace has more entries than it may have because all of them have more than a node takes. See [Budgets].
	NodeFull Reason = "NodeFull"
	// TooManyNames: the names of the service have more entries than one service may have. See [brain.NamesEntries].
	TooManyNames Reason = "TooManyNames"
	// NamespaceNamesFull: the names of the namespace have more entries than one namespace may have. See [NamesLimits].
	NamespaceNamesFull Reason = "NamespaceNamesFull"
	// AnnotationIgnored: an annotation has an invalid value. It counts as absent, and the service is served without it.
	AnnotationIgnored Reason = "AnnotationIgnored"
	// NamesFull: the names of the namespace have more entries than it may have because there is no room for all names. See [NamesLimits].
	NamesFull Reason = "NamesFull"
	// RangeConflict: a range of ports overlaps a range of another service at the same address, which has a better claim to it.
	RangeConflict Reason = "RangeConflict"
	// RangeRefused: an address must not have ranges of ports. See [brain.RefuseRanges].
	RangeRefused Reason = "RangeRefused"
	// RangesFull: there are as many ranges of ports as a node takes.
	RangesFull Reason = "RangesFull"
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{AddressConflict, ExternalIPRefused, ServiceTooLarge, NamespaceFull, NodeFull, TooManyNames, NamespaceNamesFull, NamesFull, AnnotationIgnored,
		RangeConflict, RangeRefused, RangesFull}
}

// problems holds the problems of all services. It has a lock of its own, so that callers that ask do not wait for a publication.
type problems struct {
	log *slog.Logger
	// onProblem is called for each problem that begins. It may be nil.
	onProblem func(Problem)
	logged    int // since the last call of endReport
	// full counts the services of each namespace that has no room for them. shortages are those that have changed since the last
	// call of endReport.
	full      map[fullNamespace]int
	shortages map[fullNamespace]*shortage

	mu     sync.Mutex // guards all below
	of     map[state.ServiceName][]Problem
	counts map[Reason]int // of services
}

func newProblems(log *slog.Logger, onProblem func(Problem)) *problems {
	return &problems{
		log: log, onProblem: onProblem, full: make(map[fullNamespace]int), shortages: make(map[fullNamespace]*shortage),
		of: make(map[state.ServiceName][]Problem), counts: make(map[Reason]int),
	}
}

// fullNamespace is a namespace that has no room for all of its services. It is logged once for all of them.
type fullNamespace struct {
	namespace string
	reason    Reason
}

// shortage is the change of a fullNamespace.
type shortage struct {
	before int     // services without room
	last   Problem // that has begun, if any
}

// ofNamespace reports whether a problem concerns a namespace as a whole.
func (p *Problem) ofNamespace() bool {
	return slices.Contains([]Reason{NamespaceFull, NodeFull, NamespaceNamesFull, NamesFull}, p.Reason)
}

// continues reports whether a problem goes on with an earlier one of the service. Each annotation is a problem by itself.
func (p *Problem) continues(f Problem) bool {
	return f.Reason == p.Reason && (p.Reason != AnnotationIgnored || f.Field == p.Field)
}

// countFull counts the services of a namespace without room.
func (ps *problems) countFull(p *Problem, by int) *shortage {
	key := fullNamespace{p.Service.Namespace, p.Reason}
	s := ps.shortages[key]
	if s == nil {
		s = &shortage{before: ps.full[key]}
		ps.shortages[key] = s
	}
	if ps.full[key] += by; ps.full[key] == 0 {
		delete(ps.full, key)
	}
	return s
}

// maxListed bounds how many problems are logged or listed at once: anyone may cause any number of them.
const maxListed = 20

// set replaces the problems of a service, and reports those for a reason for which it had none. here is called only if there are such.
func (ps *problems) set(name state.ServiceName, now []Problem, here func() bool) {
	previous := ps.replace(name, now)
	healed := false // apart from the messages for each service
	for i := range previous {
		if previous[i].ofNamespace() {
			ps.countFull(&previous[i], -1)
		} else {
			healed = len(now) == 0
		}
	}
	for i := range now {
		if now[i].ofNamespace() {
			ps.countFull(&now[i], 1).last = now[i]
		}
	}
	for _, p := range now {
		if slices.ContainsFunc(previous, p.continues) {
			continue // the list has the changes
		}
		p.Here = here()
		if ps.onProblem != nil {
			ps.onProblem(p)
		}
		if p.ofNamespace() {
			continue
		}
		if ps.logged++; ps.logged <= maxListed {
			args := []any{"service", name.String(), "reason", string(p.Reason), "field", p.Field, "problem", p.Note}
			if p.Holder != (state.ServiceName{}) {
				args = append(args, "heldBy", p.Holder.String())
			}
			args = append(args, "remedy", p.Remedy)
			if p.Reason == AnnotationIgnored {
				ps.log.Warn("annotation of a service is ignored", args...)
			} else {
				ps.log.Warn("service is not fully served", args...)
			}
		}
	}
	if healed {
		if ps.logged++; ps.logged <= maxListed {
			ps.log.Info("service is fully served again", "service", name.String())
		}
	}
}

// replace keeps now, and returns the value that it kept before.
func (ps *problems) replace(name state.ServiceName, now []Problem) (previous []Problem) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	previous = ps.of[name]
	ps.count(previous, -1)
	ps.count(now, 1)
	if len(now) == 0 {
		delete(ps.of, name)
	} else {
		ps.of[name] = slices.Clone(now)
		for i := range now {
			ps.of[name][i].Holder = state.ServiceName{}
		}
	}
	return previous
}

// count counts the problems of a service, once for each reason.
func (ps *problems) count(list []Problem, by int) {
	for i, p := range list {
		if !slices.ContainsFunc(list[:i], func(f Problem) bool { return f.Reason == p.Reason }) {
			ps.counts[p.Reason] += by
		}
	}
}

// endReport ends a report.
func (ps *problems) endReport() {
	if len(ps.shortages) > 0 {
		ps.reportShortages()
	}
	if more := ps.logged - maxListed; more > 0 {
		ps.log.Warn("more services became or ceased to be fully served", "changes", more)
	}
	ps.logged = 0
}

// reportShortages logs which namespaces have begun or ceased to be full.
func (ps *problems) reportShortages() {
	changed := slices.SortedFunc(maps.Keys(ps.shortages), func(a, b fullNamespace) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.reason, b.reason))
	})
	for _, key := range changed {
		s, services := ps.shortages[key], ps.full[key]
		if (s.before == 0) == (services == 0) {
			continue
		}
		if ps.logged++; ps.logged > maxListed {
			continue
		}
		if services == 0 {
			ps.log.Info("namespace is within its limit again", "namespace", key.namespace, "reason", string(key.reason))
			continue
		}
		ps.log.Warn("namespace exceeds its limit; some of its services are not fully served", "namespace", key.namespace, "reason", string(key.reason),
			"services", services, "oneOfThem", s.last.Service.Name, "problem", s.last.Note, "remedy", s.last.Remedy)
	}
	clear(ps.shortages)
}

// list returns some of the problems, in the order of their services if these are all.
func (ps *problems) list() []error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var some []state.ServiceName // going through all of them would let anyone who may ask keep the process busy
	for name := range ps.of {
		if some = append(some, name); len(some) == maxListed {
			break
		}
	}
	slices.SortFunc(some, state.ServiceName.Compare)
	var list []error
	for _, name := range some {
		for _, p := range ps.of[name] {
			list = append(list, p)
		}
	}
	if more := len(ps.of) - len(some); more > 0 {
		list = append(list, fmt.Errorf("%d more services are not fully served; the log names some of them", more))
	}
	return list
}

// ofService returns the problems of a service.
func (ps *problems) ofService(name state.ServiceName) []Problem {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.Clone(ps.of[name])
}

// limited returns the number of services with a problem, by reason.
func (ps *problems) limited() map[Reason]int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return maps.Clone(ps.counts)
}

// conflict is the problem of a service that has lost claims to others.
func conflict(svc *service, lost []loss) Problem {
	first := lost[0]
	p := Problem{Service: svc.name, Reason: AddressConflict, Field: fieldOf(first.kind), Holder: first.holder.name,
		Remedy: "give one of the two services another address or port"}
	if first.kind == HealthCheckPort {
		// Which of the two it is may change while the holder does not.
		p.Note = fmt.Sprintf("%d/TCP is a nodePort or the healthCheckNodePort of another service, which gets what load balancers ask there", first.claim.Port)
		if first.holder == svc {
			p.Note = fmt.Sprintf("%d/TCP is a nodePort of the same service, whose endpoints get what load balancers ask there", first.claim.Port)
		}
		p.Remedy = "give the service another healthCheckNodePort"
		return p
	}
	p.Note = fmt.Sprintf("%v belongs to another service", first.claim)
	frontends := len(lost)
	if i := slices.IndexFunc(lost, func(l loss) bool { return l.kind == HealthCheckPort }); i >= 0 { // they come last
		frontends = i
	}
	if more := frontends - 1; more > 0 {
		p.Note += fmt.Sprintf(", and so do %d more frontends", more)
	}
	if frontends < len(lost) {
		p.Note += fmt.Sprintf("; so does its healthCheckNodePort %d", lost[frontends].claim.Port)
	}
	return p
}

// fieldOf names the field that frontends of a kind come from.
func fieldOf(kind state.FrontendKind) string {
	switch kind {
	case state.ClusterIP:
		return "spec.clusterIPs"
	case state.LoadBalancer:
		return "status.loadBalancer"
	case state.NodePort:
		return "spec.ports[].nodePort"
	case HealthCheckPort:
		return "spec.healthCheckNodePort"
	}
	return "spec.externalIPs"
}

// refused is the problem of a service with externalIPs that are not routed.
func refused(svc *service, refusals []brain.Refusal) Problem {
	first := refusals[0]
	note := fmt.Sprintf("%v %s", first.Addr, first.Why)
	if more := len(refusals) - 1; more > 0 {
		note += fmt.Sprintf(", and %d more are refused", more)
	}
	return Problem{Service: svc.name, Reason: ExternalIPRefused, Field: "spec.externalIPs", Note: note, Remedy: first.Remedy}
}

// badAnnotation is the problem of a service with an annotation that counts as absent.
func badAnnotation(svc *service, a *brain.BadAnnotation) Problem {
	const most = 256 // bytes of the value
	value := a.Value
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "…"
	}
	return Problem{Service: svc.name, Reason: AnnotationIgnored, Field: "metadata.annotations[" + a.Name + "]",
		Note:   fmt.Sprintf("%q is not %s, so it counts as absent", value, a.Want),
		Remedy: "set the annotation to " + a.Want + ", or remove it"}
}

// badWeights is the problem of a service with slices with invalid weights in an annotation. The list is not empty.
func badWeights(svc *service, annotation string, bad []*model.EndpointSlice) Problem {
	first := slices.MinFunc(bad, func(a, b *model.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	note := fmt.Sprintf("%q of EndpointSlice %s is not a whole number from 0 to 65535, so it counts as absent", first.Weight, first.Name)
	if len(bad) > 1 {
		note += fmt.Sprintf(" (EndpointSlices with such values: %d)", len(bad))
	}
	return Problem{Service: svc.name, Reason: AnnotationIgnored, Field: "metadata.annotations[" + annotation + "]", Note: note,
		Remedy: "set the annotation to a whole number from 0 to 65535, or remove it"}
}

// tooLarge is the problem of a service that does not fit in full.
func tooLarge(svc *service, cfg *brain.Config, size *brain.Size) Problem {
	limit := cfg.MaxEntries
	if limit <= 0 || limit > brain.MaxEntries {
		limit = brain.MaxEntries
	}
	has, may, what := size.Wanted, limit, "entries"
	if cfg.MaxFrontends > 0 && size.Frontends > cfg.MaxFrontends {
		has, may, what = size.Frontends, cfg.MaxFrontends, "frontends (addresses of its ports)"
	}
	return Problem{Service: svc.name, Reason: ServiceTooLarge, Field: "spec.ports",
		Note: fmt.Sprintf("the service has %d %s, and %d may be routed: connections to %d ports are refused, and %d ports are not routed, the first of them %s",
			has, what, may, size.Refused, size.Unrouted, portText(&size.Port)),
		Remedy: "split the service into several, each with fewer ports or endpoints; " +
			"or give it fewer externalIPs, load balancer addresses or source ranges"}
}

// noRoom is the problem of a service for which its namespace has not as much room as it wants.
func noRoom(svc *service, room int64, l *ledger) Problem {
	p := Problem{Service: svc.name, Reason: NamespaceFull, Field: "metadata.namespace",
		Remedy: "delete services, ports or endpoints of the namespace, or have the operator raise its budget"}
	limit, ofNode := l.limit()
	if ofNode {
		p.Reason, p.Remedy = NodeFull, "delete services, ports or endpoints of the namespace, or have the operator raise the budget of the node"
	}
	p.Note = fmt.Sprintf("the namespace may have %d entries; older services leave room for %d of the %d of this one", limit, room, svc.entries)
	if room == 0 {
		p.Note = fmt.Sprintf("the namespace may have %d entries, which older services take: this one is not routed", limit)
	}
	return p
}

// tooManyNames is the problem of a service whose names do not all fit.
func tooManyNames(svc *service, wanted int64) Problem {
	return Problem{Service: svc.name, Reason: TooManyNames, Field: "spec",
		Note:   fmt.Sprintf("the names of the service have %d entries, and %d have room: the last endpoints and ports have no names", wanted, svc.entries),
		Remedy: "split the service into several, each with fewer ports or endpoints"}
}

// noRoomForNames is the problem of a service for whose names its namespace has not as much room as they take.
func noRoomForNames(svc *service, room int64, l *ledger) Problem {
	p := Problem{Service: svc.name, Reason: NamespaceNamesFull, Field: "metadata.namespace",
		Remedy: "delete services, ports or endpoints of the namespace, or have the operator raise its budget"}
	limit, ofNode := l.limit()
	if ofNode {
		p.Reason, p.Remedy = NamesFull, "delete services, ports or endpoints of the namespace"
	}
	p.Note = fmt.Sprintf("the names of the namespace may have %d entries; older services leave room for %d of the %d of this one", limit, room, svc.entries)
	return p
}

func portText(p *model.ServicePort) string {
	if p.Name == "" {
		return fmt.Sprintf("%d/%v", p.Port, p.Protocol)
	}
	return fmt.Sprintf("%s %d/%v", p.Name, p.Port, p.Protocol)
}
