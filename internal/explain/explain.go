// Package explain answers why a connection on a node reaches its destination, or none. It uses the records of the
// node's dataplane, and the reasons that package brain gives for them.
package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// Options are what questions are answered from.
type Options struct {
	// Store has the cluster's objects, and the resulting state of its node. Required.
	Store *store.Store
	// Local are the addresses of the node's interfaces. Default: the addresses of its Node object, and the loopback
	// addresses.
	Local []netip.Addr
	// Facts make answers plainer. They may be nil.
	Facts *diagnosis.Facts
}

// Explainer answers questions about connections on one node. It may be used by several goroutines at once.
type Explainer struct {
	store *store.Store
	local []netip.Addr
	facts *diagnosis.Facts
}

// New returns an explainer.
func New(o Options) *Explainer { return &Explainer{o.Store, o.Local, o.Facts} }

// view is the input of one answer: a state that does not change during the answer.
type view struct {
	*Explainer
	services *store.Snapshot
	node     *state.Node
	local    []netip.Addr
	// known caches the store's explanations, because each of them costs a look at a whole Service.
	known map[state.ServiceName]*store.Explanation
}

// why returns the store's explanation of a Service.
func (v *view) why(name state.ServiceName) *store.Explanation {
	e := v.known[name]
	if e == nil {
		e = v.store.Explain(name)
		v.known[name] = e
	}
	return e
}

func (x *Explainer) view() *view {
	snapshot := x.store.Snapshot()
	v := &view{Explainer: x, services: snapshot, node: snapshot.Node(), local: x.local, known: map[state.ServiceName]*store.Explanation{}}
	if v.local == nil {
		v.local = append(slices.Clone(v.node.Addresses), netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	return v
}

// Explain returns what happens to a connection.
func (x *Explainer) Explain(c Connection) *Answer {
	v := x.view()
	a := v.explain(c)
	a.Client = Client{Addr: c.Src, Class: c.Class}
	return a
}

// held is a frontend and its owner.
type held struct {
	service  *state.Service
	port     *state.Port
	frontend *state.Frontend
}

// lookup finds the frontend that a connection is made to. A frontend with an address goes before a node port, and a single port before a range.
func (v *view) lookup(dst netip.AddrPort, protocol state.Protocol) (h held, ok bool) {
	family := state.FamilyOf(dst.Addr())
	if h, ok = v.find(state.FrontendKey{Family: family, Protocol: protocol, Addr: dst.Addr(), Port: dst.Port()}); ok {
		return h, ok
	}
	if v.servesNodePorts(dst.Addr()) {
		if h, ok = v.find(state.FrontendKey{Family: family, Protocol: protocol, Port: dst.Port()}); ok {
			return h, ok
		}
	}
	return v.first(func(p *state.Port, f *state.Frontend) bool {
		return f.LastPort != 0 && f.Addr == dst.Addr() && p.Protocol == protocol && p.Key(f).Has(dst.Port())
	})
}

// find returns the holder of a frontend.
func (v *view) find(key state.FrontendKey) (held, bool) {
	return v.first(func(p *state.Port, f *state.Frontend) bool { return p.Key(f) == key })
}

// first returns the holder of the first frontend of some kind.
func (v *view) first(is func(*state.Port, *state.Frontend) bool) (held, bool) {
	for s := range v.services.Services() {
		for p, f := range s.Frontends() {
			if is(p, f) {
				return held{s, p, f}, true
			}
		}
	}
	return held{}, false
}

// servesNodePorts reports whether node ports are served on an address.
func (v *view) servesNodePorts(addr netip.Addr) bool {
	addresses := state.NodePortAddresses{}
	if v.node.NodePorts != nil {
		addresses = *v.node.NodePorts
	}
	return slices.Contains(addresses.Select(v.local, v.node), addr)
}

// explain fills in all of an answer but who asks.
func (v *view) explain(c Connection) *Answer {
	a := &Answer{Node: v.node.Name, To: fmt.Sprintf("%v/%v", c.Dst, c.Protocol)}
	h, ok := v.lookup(c.Dst, c.Protocol)
	if !ok {
		v.stray(a, c)
		v.ping(a, c)
		return a
	}
	a.Service = h.service.Name.String()
	a.Frontend = &Frontend{
		Kind: h.frontend.Kind.String(), Addr: c.Dst, Protocol: c.Protocol.String(), Port: h.port.Name, Restricted: h.frontend.Restricted,
		Sources: h.frontend.Sources, AffinitySeconds: int64(h.port.Affinity / time.Second),
	}
	if h.frontend.LastPort != 0 {
		a.Frontend.FirstPort, a.Frontend.LastPort = h.frontend.Port, h.frontend.LastPort
		a.policy(model.PortRangesAnnotation, fmt.Sprintf("%s=%d-%d/%v", h.port.Name, h.frontend.Port, h.frontend.LastPort, h.port.Protocol),
			fmt.Sprintf("no single port is %d, so that the range has the connection, which keeps its port", c.Dst.Port()))
	}
	why := v.why(h.service.Name)
	v.conflicts(a, c, h)
	if l := slices.IndexFunc(why.Lost, func(l store.Loss) bool { return l.Kind == store.HealthCheckPort }); l >= 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("healthCheckNodePort %d of the Service is not served: Service %v has that port, and load balancers reach that one there",
			why.Lost[l].Frontend.Port, why.Lost[l].Holder))
	}
	if h.frontend.Restricted && !admits(h.frontend.Sources, c.Src) {
		a.Verdict = Dropped
		a.Because, a.Remedy = notAdmitted(c, h.frontend.Sources)
		a.policy("loadBalancerSourceRanges", join(h.frontend.Sources, ", "), "all other clients are dropped before anything else is looked at")
	} else {
		v.route(a, c, h, why)
	}
	v.ping(a, c)
	v.findings(a, why)
	return a
}

// ping fills in whether the node answers echo requests of the client to the address, if a Service there asks for it.
func (v *view) ping(a *Answer, c Connection) {
	asked, answered := false, false
	for s := range v.services.Services() {
		for p, f := range s.Frontends() {
			if !f.Ping || f.Addr != c.Dst.Addr() {
				continue
			}
			asked = true
			traffic := p.Traffic(f.Kind)
			route := &traffic.Outside
			if c.Class != Outside {
				route = &traffic.Inside
			}
			answered = answered || route.Verdict == state.Forward && (!f.Restricted || admits(f.Sources, c.Src))
		}
	}
	switch {
	case answered:
		a.policy(model.PingAnnotation, "true", fmt.Sprintf("the node, not an endpoint, answers echo requests of the client to %v", c.Dst.Addr()))
	case asked:
		a.policy(model.PingAnnotation, "true", fmt.Sprintf("echo requests of the client to %v get no answer: no port there forwards its connections", c.Dst.Addr()))
	}
}

// route fills in what happens at a frontend that lets the client in.
func (v *view) route(a *Answer, c Connection, h held, why *store.Explanation) {
	traffic, policy := h.port.Traffic(h.frontend.Kind), brain.PolicyCluster
	reasons := why.Port(h.port)
	route := &traffic.Outside
	if c.Class != Outside {
		route = &traffic.Inside
	}
	if h.frontend.Restricted {
		a.policy("loadBalancerSourceRanges", join(h.frontend.Sources, ", "), "the client is among those that may connect")
	}
	if reasons == nil { // the objects have changed since the state was published
		a.Notes = append(a.Notes, "the objects are changing: ask again for the reasons")
		reasons = &brain.PortReasons{}
	}
	switch {
	case h.frontend.Kind == state.ClusterIP:
		policy = reasons.Internal
	case c.Class == Outside:
		policy = reasons.External
	}
	v.endpoints(a, c, h, route, traffic.Masquerade, policy, reasons, why)
	v.policies(a, c, h, policy, reasons, why)
	handsOver := v.edge(a, c, h, reasons)
	switch route.Verdict {
	case state.Forward:
		a.Verdict = Forwarded
		a.Because = fmt.Sprintf("the connection goes to %s", oneOf(len(route.Endpoints), "endpoint"))
		v.wayBack(a, c, h, traffic.Masquerade)
		if handsOver {
			a.handedOver(c)
		}
	case state.Reject:
		a.Verdict = Rejected
		a.Because, a.Remedy = "no endpoint gets connections", ""
		if f := diagnosis.Port(why, reasons, v.facts); f != nil {
			a.Reason, a.Because, a.Remedy, a.Place = f.Reason, f.Sentence(), f.Remedy, f.Place
		}
	case state.Drop:
		a.Verdict = Dropped
		f := diagnosis.NoneHere(reasons, h.frontend.Kind != state.ClusterIP, v.node.Name)
		a.Reason, a.Because, a.Remedy = f.Reason, f.Sentence(), f.Remedy
	default:
		a.Verdict = NotServed
		a.Because = "no connection reaches this frontend"
	}
	if a.Verdict == Forwarded {
		v.balance(a, h, why)
		a.shares(route)
	}
	if h.port.DrainSeconds > 0 {
		d := time.Duration(h.port.DrainSeconds) * time.Second
		a.policy(model.DrainAnnotation, d.String(), fmt.Sprintf("connections to an endpoint are reset %v after it has ceased to get new ones", d))
	}
	if why.LastKnown {
		a.Notes = append(a.Notes, "the Service has no usable endpoint now: these are the last known ones, which are kept")
	}
}

// balance fills in how an endpoint is chosen, if it is not drawn at random for each connection.
func (v *view) balance(a *Answer, h held, why *store.Explanation) {
	from := why.Settings.BalanceFrom
	switch {
	case h.port.Affinity > 0:
		a.policy("sessionAffinity", "ClientIP", fmt.Sprintf("connections of one client stay with one endpoint until it has made none for %v", h.port.Affinity))
		if why.Settings.Balance != state.Random {
			a.policy(from.Name, from.Value, "it has no effect, because the Service has session affinity")
		}
	case h.port.Balance == state.HashClient:
		a.hashedBy = from.Name
		a.policy(from.Name, from.Value, "all connections of a client address go to one endpoint, which is the same on all nodes")
	case h.port.Balance == state.HashConnection:
		a.hashedBy = from.Name
		a.policy(from.Name, from.Value, "the client's address and port choose the endpoint, which is the same on all nodes")
	case h.frontend.LastPort != 0 && why.Settings.Balance == state.LeastConnections:
		a.policy(from.Name, from.Value, "it has no effect on ranges of ports")
	case h.port.Balance == state.LeastConnections:
		a.policy(from.Name, from.Value, "endpoints with fewer connections from this node get more of the new ones")
	}
	if h.port.Ejection {
		a.policy(model.EjectAnnotation, "true", "endpoints that do not answer get no new connections from a node while they are silent")
	}
}

// endpoints fills in which endpoints there are, and why each gets connections or not.
func (v *view) endpoints(a *Answer, c Connection, h held, route *state.Route, m state.Masquerade, policy brain.Policy, reasons *brain.PortReasons, why *store.Explanation) {
	chosen := make(map[netip.AddrPort]bool, len(route.Endpoints))
	for _, e := range route.Endpoints {
		chosen[e.Addr] = true
	}
	always := masquerades(m, c.Class)
	for i := range reasons.Endpoints {
		r := &reasons.Endpoints[i]
		e := Endpoint{Addr: r.Addr, Node: r.Endpoint.NodeName, Pod: v.facts.PodOf(r), Slice: r.Slice.Name, Reasons: r.Out(policy)}
		if e.Gets = r.In(policy) && chosen[r.Addr]; e.Gets {
			e.Masqueraded = always || r.Addr.Addr() == c.Src
			e.Text = inText(r) + factorsText(r, policy, &why.Settings)
		} else {
			e.Text = v.outText(r, policy, reasons)
		}
		if h.frontend.LastPort != 0 {
			e.Addr = netip.AddrPortFrom(e.Addr.Addr(), c.Dst.Port())
		}
		a.Endpoints = append(a.Endpoints, e)
	}
	for _, s := range reasons.Slices {
		a.Slices = append(a.Slices, Slice{Name: s.Slice.Name, Reason: s.Reason, Text: sliceText(&s, h.port)})
	}
	slices.SortFunc(a.Slices, func(x, y Slice) int { return cmp.Compare(x.Name, y.Name) })
}

// masquerades reports whether connections of a class get an address of the node, hairpins aside.
func masquerades(m state.Masquerade, class Class) bool {
	switch m {
	case state.MasqueradeAlways:
		return true
	case state.MasqueradeUnlessPod:
		return class != Pod
	case state.MasqueradeNode:
		return class == Node
	}
	return false
}

// findings adds what else is wrong with the Service of an answer.
func (v *view) findings(a *Answer, why *store.Explanation) {
	for _, f := range diagnosis.Service(why, v.node.Name, v.facts, v.local) {
		if f.Reason == a.Reason && f.Sentence() == a.Because {
			a.Place = f.Place
			continue
		}
		a.Findings = append(a.Findings, f)
	}
}

// stray fills in the fate of a connection that no frontend takes. A cluster IP refuses its unused ports, and the rest
// of the service ranges drops everything. The proxy does not handle other addresses.
func (v *view) stray(a *Answer, c Connection) {
	dst := c.Dst.Addr()
	a.Verdict = NotServed
	for s := range v.services.Services() {
		isClusterIP := func(f state.Frontend) bool { return f.Kind == state.ClusterIP && f.Addr == dst }
		if slices.ContainsFunc(s.Ports, func(p state.Port) bool { return slices.ContainsFunc(p.Frontends, isClusterIP) }) {
			a.Verdict = Rejected
			if name := s.Name.String(); a.Service == "" || name < a.Service {
				a.Service = name
			}
		}
	}
	if a.Verdict == NotServed && admits(v.node.ServiceCIDRs, dst) {
		a.Verdict = Dropped
	}
	v.whyStray(a, c)
}

func admits(ranges []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(addr) })
}

func (a *Answer) policy(name, value, text string) {
	a.Policies = append(a.Policies, Policy{name, value, text})
}

// object returns the Service of a name, nil if there is none.
func (v *view) object(name state.ServiceName) *model.Service { return v.why(name).Object }
