package plan

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/state"
)

// Table compares the objects that services need with the objects that HNS holds. A difference stays dirty until it is
// gone, so that a change costs only its own size. Calls are handed out in four stages: [Table.Create], [Table.Point],
// [Table.Retire] and [Table.Sweep]. In this order every frontend keeps a load balancer, and no load balancer leads to
// an endpoint that is gone.
type Table struct {
	set         Settings
	records     map[state.ServiceName]*state.Service
	keys        map[state.ServiceName][]state.FrontendKey
	lost        map[state.ServiceName]Lost
	lostChanged bool
	wants       map[state.FrontendKey][]claim // the first one counts
	previous    map[state.FrontendKey]state.ServiceName
	uses        map[netip.Addr]use
	noModify    bool

	// dirty are frontends, and idle addresses, whose objects have to be looked at.
	dirty map[state.FrontendKey]bool
	idle  map[netip.Addr]bool
	// parked are frontends that lack something which no call of ours makes. They are dirty again with the next record of their service, or
	// when HNS is read.
	parked map[state.FrontendKey]bool

	held mirror
}

// claim is a policy that a service wants.
type claim struct {
	service state.ServiceName
	policy  Policy
}

// use counts how many policies need an endpoint at an address: one that exists, because it is on this node, or one that Switchyard makes.
type use struct{ local, remote int }

// NewTable returns a table without services, before anything is known of HNS.
func NewTable() *Table {
	return &Table{
		records: map[state.ServiceName]*state.Service{}, keys: map[state.ServiceName][]state.FrontendKey{}, lost: map[state.ServiceName]Lost{},
		wants: map[state.FrontendKey][]claim{}, previous: map[state.FrontendKey]state.ServiceName{}, uses: map[netip.Addr]use{},
		dirty: map[state.FrontendKey]bool{}, idle: map[netip.Addr]bool{}, parked: map[state.FrontendKey]bool{}, held: newMirror(),
	}
}

// Configure replaces the settings.
func (t *Table) Configure(set Settings) {
	if set.Equal(&t.set) {
		return
	}
	records := t.records
	for name := range records {
		t.drop(name)
	}
	t.set = set
	for name, s := range records {
		t.plan(name, s)
	}
	t.markHeld()
}

// Put gives a service a record.
func (t *Table) Put(s *state.Service) {
	t.records[s.Name] = s
	t.plan(s.Name, s)
}

// Remove takes a service away.
func (t *Table) Remove(name state.ServiceName) {
	delete(t.records, name)
	t.setLost(name, 0)
	t.drop(name)
}

// Services yields the names of all services.
func (t *Table) Services() iter.Seq[state.ServiceName] { return maps.Keys(t.records) }

// Lost returns what HNS cannot do for each service for which that is something. changed is set if it was another map when Lost was called last.
func (t *Table) Lost() (lost map[state.ServiceName]Lost, changed bool) {
	changed, t.lostChanged = t.lostChanged, false
	return t.lost, changed
}

// LostOf returns what HNS cannot do for a service.
func (t *Table) LostOf(name state.ServiceName) Lost { return t.lost[name] }

func (t *Table) setLost(name state.ServiceName, lost Lost) {
	if lost == t.lost[name] {
		return
	}
	t.lostChanged = true
	if t.lost[name] = lost; lost == 0 {
		delete(t.lost, name)
	}
}

// plan replaces the claims of a service.
func (t *Table) plan(name state.ServiceName, s *state.Service) {
	policies, lost := Policies(nil, s, &t.set)
	t.setLost(name, lost)
	now := make(map[state.FrontendKey]bool, len(policies))
	for i := range policies {
		now[policies[i].Key] = true
	}
	for _, key := range t.keys[name] {
		if !now[key] {
			t.claim(key, name, nil)
		}
	}
	keys := make([]state.FrontendKey, 0, len(policies))
	for i := range policies {
		t.claim(policies[i].Key, name, &policies[i])
		keys = append(keys, policies[i].Key)
	}
	t.keys[name] = keys
}

func (t *Table) drop(name state.ServiceName) {
	for _, key := range t.keys[name] {
		t.claim(key, name, nil)
	}
	delete(t.keys, name)
}

// claim replaces what a service wants of a frontend; nil if nothing.
func (t *Table) claim(key state.FrontendKey, name state.ServiceName, p *Policy) {
	before := t.want(key)
	claims := slices.DeleteFunc(slices.Clone(t.wants[key]), func(c claim) bool { return c.service == name })
	if p != nil {
		claims = append(claims, claim{name, *p})
		slices.SortFunc(claims, func(a, b claim) int { // a frontend goes before health checks; these may be of several services
			if a.policy.Health != b.policy.Health {
				if a.policy.Health {
					return 1
				}
				return -1
			}
			return a.service.Compare(b.service)
		})
	}
	if len(claims) > 0 {
		t.wants[key] = claims
		delete(t.previous, key)
	} else {
		delete(t.wants, key)
		t.previous[key] = name
	}
	after := t.want(key)
	if before != nil && after != nil && before.policy.equal(&after.policy) {
		if t.parked[key] {
			t.dirty[key] = true
		}
		return
	}
	t.count(before, -1)
	t.count(after, 1)
	t.dirty[key] = true
}

func (t *Table) want(key state.FrontendKey) *claim {
	if claims := t.wants[key]; len(claims) > 0 {
		return &claims[0]
	}
	return nil
}

func (p *Policy) equal(o *Policy) bool {
	return p.Key == o.Key && p.Kind == o.Kind && p.Health == o.Health && slices.Equal(p.Endpoints, o.Endpoints) && p.Port == o.Port &&
		p.SourceVIP == o.SourceVIP && p.Flags == o.Flags && p.MapFlags == o.MapFlags && p.Affinity == o.Affinity
}

// count counts the addresses that a claim needs.
func (t *Table) count(c *claim, n int) {
	if c == nil {
		return
	}
	for _, target := range t.needs(&c.policy) {
		u := t.uses[target.Addr]
		if target.Local {
			u.local += n
		} else {
			u.remote += n
		}
		if t.uses[target.Addr] = u; u == (use{}) {
			delete(t.uses, target.Addr)
		}
		t.idle[target.Addr] = true
	}
}

// needs returns where a policy needs endpoints: overlay networks also have one for a cluster IP itself.
func (t *Table) needs(p *Policy) []Target {
	if !t.set.Overlay || p.Kind != state.ClusterIP {
		return p.Endpoints
	}
	return append(slices.Clone(p.Endpoints), Target{Addr: p.Key.Addr})
}

// Hold replaces all that is known of HNS. All is dirty then.
func (t *Table) Hold(network string, endpoints []Endpoint, lbs []LoadBalancer) {
	t.held.setEndpoints(network, endpoints)
	t.held.setLoadBalancers(lbs)
	for key := range t.wants {
		t.dirty[key] = true
	}
	t.markHeld()
}

// HoldEndpoints replaces the known endpoints.
func (t *Table) HoldEndpoints(endpoints []Endpoint) {
	t.held.setEndpoints(t.held.network, endpoints)
	for addr := range t.held.byAddr {
		t.idle[addr] = true
	}
	for key := range t.parked {
		t.dirty[key] = true
	}
}

func (t *Table) markHeld() {
	for key := range t.held.lbs {
		t.dirty[key] = true
	}
	for addr := range t.held.byAddr {
		t.idle[addr] = true
	}
}

// NoModify takes down that HNS cannot change load balancers, whatever its features say.
func (t *Table) NoModify() { t.noModify = true }

// Modifies reports whether load balancers are changed rather than replaced.
func (t *Table) Modifies() bool { return t.set.Features.Modify && !t.noModify }

// Step is calls that follow each other. After one that fails, the rest makes no sense.
type Step struct {
	// Service is the one for which they are made, the zero value for what no service is known to need.
	Service state.ServiceName
	// Kind is the kind of the frontend, 0 for endpoints and for what no service needs.
	Kind  state.FrontendKind
	Calls []Call
}

// AwaitsLocal reports whether a policy leads to an endpoint on this node that HNS is not known to have. The node's network plugin makes them:
// one that is new is found by reading endpoints again.
func (t *Table) AwaitsLocal() bool {
	for key := range t.dirty {
		if c := t.want(key); c != nil {
			if _, missing := t.resolve(&c.policy); len(missing.local) > 0 || missing.root {
				return true
			}
		}
	}
	return false
}

// Create returns the calls that make endpoints.
func (t *Table) Create() []Step {
	var steps []Step
	planned := map[netip.Addr]bool{}
	if t.set.Overlay && len(t.held.byAddr[t.set.SourceVIP]) == 0 {
		planned[t.set.SourceVIP] = true
		steps = append(steps, Step{Calls: []Call{{Op: CreateEndpoint, Endpoint: Endpoint{
			Name: sourceVIPName, Network: t.held.network, Addrs: []netip.Addr{t.set.SourceVIP}, MAC: t.set.HostMAC,
		}}}})
	}
	for _, key := range t.dirtyKeys() {
		c := t.want(key)
		if c == nil {
			continue
		}
		_, missing := t.resolve(&c.policy)
		for _, addr := range missing.remote {
			if !planned[addr] {
				planned[addr] = true
				steps = append(steps, Step{Service: c.service, Calls: []Call{{Op: CreateEndpoint, Endpoint: t.remote(addr, c.policy.Key.Addr == addr)}}})
			}
		}
	}
	return steps
}

// remote returns the endpoint that stands for an address elsewhere, or for a cluster IP.
func (t *Table) remote(addr netip.Addr, vip bool) Endpoint {
	e := Endpoint{Name: namePrefix + addr.String(), Network: t.held.network, Addrs: []netip.Addr{addr}, MAC: macOf(addr), Remote: true}
	if t.set.Overlay {
		e.Provider = t.provider(addr)
	}
	if vip {
		e.MAC = t.set.HostMAC
	}
	return e
}

// provider returns the address of the node that has addr. An address that no node of the network has is reached
// through this node.
func (t *Table) provider(addr netip.Addr) netip.Addr {
	if p := t.set.Subnets.Provider(addr); p.IsValid() {
		return p
	}
	return t.set.primary(state.FamilyOf(addr))
}

// AwaitsSubnet reports whether an endpoint is to be made for an address that no node of an overlay network is known to have. A node that is
// new is found by reading the network again.
func (t *Table) AwaitsSubnet() bool {
	if !t.set.Overlay {
		return false
	}
	for key := range t.dirty {
		c := t.want(key)
		if c == nil {
			continue
		}
		_, missing := t.resolve(&c.policy)
		for _, addr := range missing.remote {
			if addr != key.Addr && !t.set.Subnets.Provider(addr).IsValid() {
				return true
			}
		}
	}
	return false
}

// macOf makes up the MAC address of a remote endpoint, as kube-proxy does. HNS wants one for each; none is ever on a wire.
func macOf(addr netip.Addr) string {
	b := addr.AsSlice()
	if addr.Is6() {
		b = []byte{b[15], b[14], b[13], b[12]}
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
}

// Point returns the calls that make and change load balancers.
func (t *Table) Point() []Step {
	var steps []Step
	for _, key := range t.dirtyKeys() {
		c := t.want(key)
		if c == nil {
			continue
		}
		lb, missing := t.resolve(&c.policy)
		if len(missing.remote) > 0 || len(lb.Endpoints) == 0 || t.held.foreign[key] != "" {
			continue // the frontend keeps its load balancer
		}
		has, ok := t.held.lbs[key]
		lb.ID = has.ID
		switch {
		case ok && has.Equal(&lb):
			if missing.none() {
				delete(t.dirty, key)
			}
			continue
		case !ok:
			steps = append(steps, Step{c.service, c.policy.Kind, []Call{{Op: CreateLoadBalancer, LoadBalancer: lb}}})
		case t.Modifies():
			steps = append(steps, Step{c.service, c.policy.Kind, []Call{{Op: ModifyLoadBalancer, LoadBalancer: lb}}})
		default:
			lb.ID = ""
			steps = append(steps, Step{c.service, c.policy.Kind, []Call{{Op: DeleteLoadBalancer, LoadBalancer: has}, {Op: CreateLoadBalancer, LoadBalancer: lb}}})
		}
	}
	return steps
}

// Retire returns the calls that delete load balancers which no service needs, or which lead nowhere.
func (t *Table) Retire() []Step {
	var steps []Step
	for _, key := range t.dirtyKeys() {
		step := Step{Service: t.previous[key]}
		if c := t.want(key); c != nil {
			lb, missing := t.resolve(&c.policy)
			if len(lb.Endpoints) > 0 || len(missing.remote) > 0 {
				continue
			}
			step = Step{Service: c.service, Kind: c.policy.Kind}
		} else if _, ok := t.held.lbs[key]; !ok {
			delete(t.dirty, key)
			delete(t.previous, key)
			continue
		}
		if lb, ok := t.held.lbs[key]; ok {
			step.Calls = []Call{{Op: DeleteLoadBalancer, LoadBalancer: lb}}
			steps = append(steps, step)
		}
	}
	for _, lb := range t.held.surplus {
		steps = append(steps, Step{Calls: []Call{{Op: DeleteLoadBalancer, LoadBalancer: lb}}})
	}
	return steps
}

// Sweep returns the calls that delete endpoints which nothing needs.
func (t *Table) Sweep() []Step {
	var steps []Step
	idle := t.idle
	t.idle = map[netip.Addr]bool{} // going through a map costs as much as it was ever large
	for addr := range idle {
		for _, id := range t.held.byAddr[addr] {
			e := t.held.endpoints[id]
			if !ours(e) || t.needed(addr, id) || t.held.refs[id] > 0 {
				continue // the last load balancer that leads to it makes it idle again
			}
			t.idle[addr] = true // until it is gone
			steps = append(steps, Step{Calls: []Call{{Op: DeleteEndpoint, Endpoint: *e}}})
		}
	}
	slices.SortFunc(steps, func(a, b Step) int {
		return strings.Compare(a.Calls[0].Endpoint.ID, b.Calls[0].Endpoint.ID)
	})
	return steps
}

// needed reports whether an endpoint of ours is the one that policies use at an address.
func (t *Table) needed(addr netip.Addr, id string) bool {
	if e := t.held.endpoints[id]; !e.Remote {
		return t.set.Overlay && addr == t.set.SourceVIP
	}
	return t.uses[addr].remote > 0 && t.endpointAt(Target{Addr: addr}) == id
}

// endpointAt returns the ID of the endpoint that policies use for a target, empty if there is none. One on this node goes before one that
// stands for another node: HNS may have both where an address was used there before.
func (t *Table) endpointAt(target Target) string {
	remote := ""
	for _, id := range t.held.byAddr[target.Addr] {
		e := t.held.endpoints[id]
		switch {
		case !e.Remote:
			return id
		case target.Local || remote != "":
		case t.set.Overlay && e.Provider.IsValid() && e.Provider != t.provider(target.Addr): // its node has changed
		default:
			remote = id
		}
	}
	return remote
}

// missing is what a policy needs and HNS does not have.
type missing struct {
	// local are addresses whose endpoints others make, remote those that Switchyard makes, and stale those at which an endpoint has to go first.
	local, remote, stale []netip.Addr
	root                 bool
}

func (m *missing) none() bool {
	return len(m.local) == 0 && len(m.remote) == 0 && len(m.stale) == 0 && !m.root
}

// resolve returns the load balancer of a policy, without an ID, with the endpoints that there are.
func (t *Table) resolve(p *Policy) (LoadBalancer, missing) {
	lb := LoadBalancer{SourceVIP: p.SourceVIP, Flags: p.Flags}
	mapping := Mapping{Protocol: p.Key.Protocol, External: p.Key.Port, Internal: p.Port, MapFlags: p.MapFlags}
	if p.Affinity {
		mapping.Distribution = DistributeBySourceIP
	}
	lb.Mappings = []Mapping{mapping}
	if p.Key.Addr.IsValid() {
		lb.VIPs = []netip.Addr{p.Key.Addr}
	}
	var m missing
	for _, target := range t.needs(p) {
		id := t.endpointAt(target)
		switch {
		case id == "" && target.Local:
			m.local = append(m.local, target.Addr)
		case id == "" && len(t.held.byAddr[target.Addr]) > 0:
			m.stale = append(m.stale, target.Addr)
		case id == "":
			m.remote = append(m.remote, target.Addr)
		case target.Addr != p.Key.Addr:
			lb.Endpoints = append(lb.Endpoints, id)
			if t.held.endpoints[id].Remote && t.set.outside(target.Addr) {
				lb.SourceVIP = t.set.primary(p.Key.Family)
			}
		}
	}
	if p.Health {
		if id := t.held.names[t.set.Root]; id != "" {
			lb.Endpoints = append(lb.Endpoints, id)
		} else {
			m.root = true
		}
	}
	slices.Sort(lb.Endpoints)
	return lb, m
}

func (t *Table) dirtyKeys() []state.FrontendKey {
	keys := make([]state.FrontendKey, 0, len(t.dirty))
	for key := range t.dirty {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

// Park ends a round: it returns the services that lack something, with the reason.
func (t *Table) Park() map[state.ServiceName]error {
	unmet := map[state.ServiceName]error{}
	t.parked = map[state.FrontendKey]bool{}
	for _, key := range t.dirtyKeys() {
		t.parked[key] = true
		c := t.want(key)
		if c == nil {
			if name, ok := t.previous[key]; ok {
				unmet[name] = fmt.Errorf("the load balancer of %v is still there", key)
			}
			continue
		}
		_, m := t.resolve(&c.policy)
		var err error
		switch {
		case t.held.foreign[key] != "":
			err = fmt.Errorf("%v is served by load balancer %s of another HNS network: delete it (hnsdiag delete loadbalancers %[2]s) or change the Service", key, t.held.foreign[key])
		case len(m.local) > 0:
			err = fmt.Errorf("%v: HNS has no endpoint for %s on this node yet: the network plugin makes it", key, join(m.local))
		case m.root:
			err = fmt.Errorf("%v: HNS has no endpoint %q for health checks: set winkernel.rootHnsEndpointName, or forwardHealthCheckVip to false", key, t.set.Root)
		case len(m.remote)+len(m.stale) > 0:
			err = fmt.Errorf("%v: HNS has no endpoint for %s", key, join(append(m.remote, m.stale...)))
		default:
			err = fmt.Errorf("%v: the load balancer differs", key)
		}
		unmet[c.service] = err
	}
	t.dirty = map[state.FrontendKey]bool{}
	return unmet
}

// HadEffect reports whether a load balancer is as a call that succeeded wanted it, by what HNS reports of it then. Windows Server 2025 has versions
// of HNS that say they have changed one, and have not (kubernetes/kubernetes#131466).
func (t *Table) HadEffect(call, reported *Call) bool {
	lb := &reported.LoadBalancer
	switch call.Op {
	case CreateLoadBalancer:
		return lb.routes(&call.LoadBalancer)
	case ModifyLoadBalancer:
		before := t.held.written[call.LoadBalancer.ID].reported
		return lb.routes(&call.LoadBalancer) && !lb.Equal(&before)
	}
	return true
}

// Done takes down that a call has succeeded. reported is its object as HNS has it then, zero for one that is deleted.
func (t *Table) Done(call, reported *Call) {
	switch call.Op {
	case CreateEndpoint:
		e := call.Endpoint
		e.ID = reported.Endpoint.ID
		t.held.addEndpoint(e)
	case DeleteEndpoint:
		t.held.removeEndpoint(call.Endpoint.ID)
		for _, addr := range call.Endpoint.Addrs {
			t.idle[addr] = true
		}
	case CreateLoadBalancer, ModifyLoadBalancer:
		lb := call.LoadBalancer
		lb.ID = reported.LoadBalancer.ID
		t.release(lb.ID)
		t.held.put(lb, reported.LoadBalancer)
	case DeleteLoadBalancer:
		t.release(call.LoadBalancer.ID)
		t.held.delete(&call.LoadBalancer)
	}
}

// release marks the endpoints of a load balancer as possibly unused.
func (t *Table) release(id string) {
	for _, endpoint := range t.held.endpointsOf[id] {
		if e := t.held.endpoints[endpoint]; e != nil {
			for _, addr := range e.Addrs {
				t.idle[addr] = true
			}
		}
	}
}
