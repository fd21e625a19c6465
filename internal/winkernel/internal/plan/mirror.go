package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/state"
)

// Names of endpoints. kube-proxy gives its own none, and HNS then calls them Ethernet.
const (
	namePrefix    = "switchyard-"
	sourceVIPName = namePrefix + "source-vip"
	defaultName   = "Ethernet"
)

// ours reports whether an endpoint is one that a service proxy has made: Switchyard or kube-proxy. Network plugins make those that are on
// this node, and name what else they make.
func ours(e *Endpoint) bool {
	if !e.Remote {
		return e.Name == sourceVIPName
	}
	return e.Name == "" || e.Name == defaultName || strings.HasPrefix(e.Name, namePrefix)
}

// mirror is what HNS holds.
type mirror struct {
	network string
	// endpoints are all of HNS, byAddr the endpoints of the network.
	endpoints map[string]*Endpoint
	byAddr    map[netip.Addr][]string
	names     map[string]string // of endpoints, with their IDs
	// lbs are the load balancers of services, surplus further ones with the frontend of another. foreign has the load
	// balancers of other networks, with their IDs.
	lbs     map[state.FrontendKey]LoadBalancer
	surplus map[string]LoadBalancer
	foreign map[state.FrontendKey]string
	// endpointsOf has the endpoints of each load balancer, and refs counts them.
	endpointsOf map[string][]string
	refs        map[string]int
	// written has each load balancer as it was given to HNS, and as HNS reported it then. HNS may report an equal load
	// balancer in another form.
	written map[string]written
}

type written struct{ given, reported LoadBalancer }

func newMirror() mirror {
	m := mirror{written: map[string]written{}}
	m.setEndpoints("", nil)
	m.setLoadBalancers(nil)
	return m
}

func (m *mirror) setEndpoints(network string, list []Endpoint) {
	m.network, m.endpoints, m.byAddr, m.names = network, make(map[string]*Endpoint, len(list)), map[netip.Addr][]string{}, map[string]string{}
	for _, e := range list {
		m.addEndpoint(e)
	}
	for _, ids := range m.byAddr {
		slices.Sort(ids)
	}
}

func (m *mirror) addEndpoint(e Endpoint) {
	m.endpoints[e.ID] = &e
	m.names[e.Name] = e.ID
	if e.Network != m.network {
		return
	}
	for _, addr := range e.Addrs {
		m.byAddr[addr] = append(m.byAddr[addr], e.ID)
	}
}

func (m *mirror) removeEndpoint(id string) {
	e := m.endpoints[id]
	if e == nil {
		return
	}
	delete(m.endpoints, id)
	for _, addr := range e.Addrs {
		ids := slices.DeleteFunc(m.byAddr[addr], func(o string) bool { return o == id })
		if m.byAddr[addr] = ids; len(ids) == 0 {
			delete(m.byAddr, addr)
		}
	}
}

func (m *mirror) setLoadBalancers(list []LoadBalancer) {
	m.lbs, m.surplus, m.foreign = make(map[state.FrontendKey]LoadBalancer, len(list)), map[string]LoadBalancer{}, map[state.FrontendKey]string{}
	m.endpointsOf, m.refs = make(map[string][]string, len(list)), map[string]int{}
	before := m.written
	m.written = make(map[string]written, len(list))
	slices.SortFunc(list, func(a, b LoadBalancer) int { return cmp.Compare(a.ID, b.ID) })
	for _, lb := range list {
		m.refer(&lb)
		key, ok := lb.Key()
		if !ok || m.isForeign(&lb) {
			m.foreign[key] = lb.ID
			continue
		}
		if w, ok := before[lb.ID]; ok && w.reported.Equal(&lb) {
			lb = w.given
			m.written[lb.ID] = w
		} else {
			m.written[lb.ID] = written{lb, lb}
		}
		if _, twice := m.lbs[key]; twice {
			m.surplus[lb.ID] = lb
			continue
		}
		m.lbs[key] = lb
	}
}

// isForeign reports whether a load balancer belongs to another network. One whose endpoints are all gone serves nobody, and is a leftover of
// a service proxy.
func (m *mirror) isForeign(lb *LoadBalancer) bool {
	return slices.ContainsFunc(lb.Endpoints, func(id string) bool {
		e := m.endpoints[id]
		return e != nil && e.Network != m.network
	})
}

func (m *mirror) refer(lb *LoadBalancer) {
	m.endpointsOf[lb.ID] = lb.Endpoints
	for _, id := range lb.Endpoints {
		m.refs[id]++
	}
}

func (m *mirror) unrefer(id string) {
	for _, e := range m.endpointsOf[id] {
		if m.refs[e]--; m.refs[e] == 0 {
			delete(m.refs, e)
		}
	}
	delete(m.endpointsOf, id)
}

// put takes down what HNS was given for a load balancer.
func (m *mirror) put(lb, reported LoadBalancer) {
	m.unrefer(lb.ID)
	m.refer(&lb)
	m.written[lb.ID] = written{lb, reported}
	key, _ := lb.Key()
	m.lbs[key] = lb
}

func (m *mirror) delete(lb *LoadBalancer) {
	m.unrefer(lb.ID)
	delete(m.written, lb.ID)
	if key, _ := lb.Key(); m.lbs[key].ID == lb.ID {
		delete(m.lbs, key)
	}
	delete(m.surplus, lb.ID)
}

func compareKeys(a, b state.FrontendKey) int {
	return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Protocol, b.Protocol), a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port))
}
