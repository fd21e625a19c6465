// Package hnstest is a host network service for tests. It has the rules of the service in Windows, and its faults where
// a test wants them. An interpreter answers where its load balancers send a connection.
//
// The rules come from Microsoft's documentation, the types of hcn, and kube-proxy's tests and issues. Where these
// sources leave something open, the stricter rule holds here: a dataplane that works with the stricter rule also
// works with the other one.
package hnstest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Fault is what goes wrong with a call.
type Fault int

// The faults.
const (
	None Fault = iota
	// Refused: the call fails and has no effect.
	Refused
	// Lost: the call has its effect, and the caller gets an error.
	Lost
)

// ErrInjected is the error of calls that fail because a test wants them to.
var ErrInjected = errors.New("HNS failed with error : The RPC server is unavailable")

// HNS is a host network service. It is used by one goroutine at a time. The zero value is not useful; see [New].
type HNS struct {
	// Faults says what goes wrong with the next call, by its name. Nil: nothing.
	Faults func(call string) Fault
	// Before is called before each call of Do, and After when it had its effect.
	Before, After func(plan.Call)
	// MaxLoadBalancers is how many there can be; 0 for any number.
	MaxLoadBalancers int
	// ModifyMissing has load balancers that cannot be changed, though the features say that they can.
	ModifyMissing bool
	// ModifyIgnored has changes of load balancers succeed and do nothing, as in kubernetes/kubernetes#131466.
	ModifyIgnored bool
	// KeepsEmpty keeps load balancers whose endpoints are all deleted by others. They are deleted otherwise.
	KeepsEmpty bool
	// Rewrites has HNS report a source VIP for load balancers that were given none.
	Rewrites bool

	// Calls counts calls of Do, and Reads counts calls of other methods. Refusals are the refusals that a faultless
	// caller would not get.
	Calls, Reads int
	Refusals     []string

	networks  []*plan.Network
	forgotten []plan.Call // for Restore
	endpoints map[string]plan.Endpoint
	lbs       map[string]plan.LoadBalancer
	lastID    int
}

// New returns a service with one network.
func New(n plan.Network) *HNS {
	h := &HNS{endpoints: map[string]plan.Endpoint{}, lbs: map[string]plan.LoadBalancer{}}
	h.AddNetwork(n)
	return h
}

func (h *HNS) id() string {
	h.lastID++
	return fmt.Sprintf("%08x-0000-4000-8000-000000000000", h.lastID)
}

// Network implements the dataplane's interface, as do the other calls.
func (h *HNS) Network(name string) (*plan.Network, error) {
	h.Reads++
	if h.fault("network") != None {
		return nil, ErrInjected
	}
	for _, n := range h.networks {
		if n.Name == name {
			c := *n
			c.Subnets = slices.Clone(n.Subnets)
			return &c, nil
		}
	}
	return nil, fmt.Errorf("network %q: %w", name, plan.ErrNoNetwork)
}

// Endpoints returns all endpoints.
func (h *HNS) Endpoints() ([]plan.Endpoint, error) {
	h.Reads++
	if h.fault("endpoints") != None {
		return nil, ErrInjected
	}
	var list []plan.Endpoint
	for _, e := range h.endpoints {
		list = append(list, e)
	}
	return list, nil
}

// LoadBalancers returns all load balancers.
func (h *HNS) LoadBalancers() ([]plan.LoadBalancer, error) {
	h.Reads++
	if h.fault("load balancers") != None {
		return nil, ErrInjected
	}
	var list []plan.LoadBalancer
	for _, lb := range h.lbs {
		list = append(list, h.reported(lb))
	}
	return list, nil
}

func (h *HNS) reported(lb plan.LoadBalancer) plan.LoadBalancer {
	lb.Endpoints, lb.VIPs, lb.Mappings = slices.Clone(lb.Endpoints), slices.Clone(lb.VIPs), slices.Clone(lb.Mappings)
	if h.Rewrites && !lb.SourceVIP.IsValid() {
		lb.SourceVIP = h.hostAddr(lb.Flags&plan.FlagIPv6 != 0)
	}
	return lb
}

func (h *HNS) fault(call string) Fault {
	if h.Faults == nil {
		return None
	}
	return h.Faults(call)
}

// Do makes a call.
func (h *HNS) Do(call plan.Call) (plan.Call, error) {
	h.Calls++
	if h.Before != nil {
		h.Before(call)
	}
	fault := h.fault(call.Op.String())
	if fault == Refused {
		return plan.Call{}, ErrInjected
	}
	reported, err := h.do(call)
	if err != nil {
		err = fmt.Errorf("%v: %w", &call, err)
		h.Refusals = append(h.Refusals, err.Error())
		return plan.Call{}, err
	}
	if h.After != nil {
		h.After(call)
	}
	if fault == Lost {
		return plan.Call{}, ErrInjected
	}
	return reported, nil
}

func (h *HNS) do(call plan.Call) (plan.Call, error) {
	switch call.Op {
	case plan.CreateEndpoint:
		return h.createEndpoint(call)
	case plan.DeleteEndpoint:
		if _, ok := h.endpoints[call.Endpoint.ID]; !ok {
			return call, plan.ErrNotFound
		}
		for _, lb := range h.lbs {
			if slices.Contains(lb.Endpoints, call.Endpoint.ID) {
				return call, fmt.Errorf("load balancer %s leads to the endpoint", lb.ID)
			}
		}
		delete(h.endpoints, call.Endpoint.ID)
		return call, nil
	case plan.CreateLoadBalancer:
		if h.MaxLoadBalancers > 0 && len(h.lbs) >= h.MaxLoadBalancers {
			return call, errors.New("there are too many load balancers")
		}
		call.LoadBalancer.ID = ""
		return h.putLoadBalancer(call)
	case plan.ModifyLoadBalancer:
		if !h.networks[0].Features.Modify || h.ModifyMissing {
			return call, plan.ErrNotImplemented
		}
		lb, ok := h.lbs[call.LoadBalancer.ID]
		if !ok {
			return call, plan.ErrNotFound
		}
		if h.ModifyIgnored {
			call.LoadBalancer = h.reported(lb)
			return call, nil
		}
		return h.putLoadBalancer(call)
	case plan.DeleteLoadBalancer:
		if _, ok := h.lbs[call.LoadBalancer.ID]; !ok {
			return call, plan.ErrNotFound
		}
		delete(h.lbs, call.LoadBalancer.ID)
		return call, nil
	}
	return call, fmt.Errorf("there is no such call: %d", call.Op)
}

func (h *HNS) createEndpoint(call plan.Call) (plan.Call, error) {
	e := call.Endpoint
	n := h.networkOf(e.Network)
	switch {
	case n == nil:
		return call, plan.ErrNoNetwork
	case len(e.Addrs) != 1 || !e.Addrs[0].IsValid():
		return call, errors.New("an endpoint needs an address")
	case e.MAC == "":
		return call, errors.New("an endpoint needs a MAC address")
	case n.Overlay && e.Remote && !e.Provider.IsValid():
		return call, errors.New("a remote endpoint of an overlay network needs a provider address")
	case !n.Overlay && e.Provider.IsValid():
		return call, errors.New("only endpoints of overlay networks have provider addresses")
	}
	for _, other := range h.endpoints {
		if other.Network == e.Network && slices.Contains(other.Addrs, e.Addrs[0]) {
			return call, plan.ErrExists
		}
	}
	e.ID = h.id()
	h.endpoints[e.ID] = e
	call.Endpoint = e
	return call, nil
}

// putLoadBalancer creates a load balancer that has no ID, and changes one that has.
func (h *HNS) putLoadBalancer(call plan.Call) (plan.Call, error) {
	lb := call.LoadBalancer
	if err := h.checkLoadBalancer(&lb); err != nil {
		return call, err
	}
	key, _ := lb.Key()
	for id, other := range h.lbs {
		if k, _ := other.Key(); k == key && id != lb.ID {
			return call, fmt.Errorf("the specified port already exists: %w", plan.ErrExists)
		}
		if k, _ := other.Key(); id == lb.ID && k != key {
			return call, errors.New("a load balancer cannot get another frontend")
		}
	}
	if lb.ID == "" {
		lb.ID = h.id()
	}
	lb.Endpoints, lb.VIPs, lb.Mappings = slices.Clone(lb.Endpoints), slices.Clone(lb.VIPs), slices.Clone(lb.Mappings)
	h.lbs[lb.ID] = lb
	call.LoadBalancer = h.reported(lb)
	return call, nil
}

func (h *HNS) checkLoadBalancer(lb *plan.LoadBalancer) error {
	key, ok := lb.Key()
	if !ok {
		return errors.New("a load balancer of a service proxy has one port and one address at most")
	}
	m := lb.Mappings[0]
	features, ipv6 := h.networks[0].Features, lb.Flags&plan.FlagIPv6 != 0
	switch {
	case len(lb.Endpoints) == 0:
		return errors.New("a load balancer needs endpoints")
	case !slices.IsSorted(lb.Endpoints) || len(slices.Compact(slices.Clone(lb.Endpoints))) != len(lb.Endpoints):
		return errors.New("an endpoint is listed twice")
	case m.Protocol != state.TCP && m.Protocol != state.UDP:
		return fmt.Errorf("protocol %v is not supported", m.Protocol)
	case m.External == 0 || m.Internal == 0:
		return errors.New("a port is 0")
	case (m.MapFlags&plan.MapLocalRoutedVIP != 0) != (len(lb.VIPs) == 0):
		return errors.New("node ports have no address, and others have one")
	case ipv6 != (key.Family == state.IPv6):
		return errors.New("the flag for IPv6 does not fit the address")
	case ipv6 && !features.IPv6:
		return errors.New("IPv6 is not supported")
	case lb.Flags&plan.FlagDSR != 0 && !features.DSR:
		return errors.New("direct server return is not supported")
	case m.Distribution != 0 && !features.SessionAffinity:
		return errors.New("session affinity is not supported")
	case lb.SourceVIP.IsValid() && lb.SourceVIP.Is6() != ipv6:
		return errors.New("the source VIP is of the other family")
	}
	network := ""
	for _, id := range lb.Endpoints {
		e, ok := h.endpoints[id]
		if !ok {
			return fmt.Errorf("endpoint %s: %w", id, plan.ErrNotFound)
		}
		if network == "" {
			network = e.Network
		}
		if e.Network != network {
			return errors.New("endpoints are of several networks")
		}
		if !slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return a.Is6() == ipv6 }) {
			return fmt.Errorf("endpoint %s has no address of the family", id)
		}
	}
	return nil
}

func (h *HNS) networkOf(id string) *plan.Network {
	for _, n := range h.networks {
		if n.ID == id {
			return n
		}
	}
	return nil
}

func (h *HNS) hostAddr(ipv6 bool) netip.Addr {
	var first netip.Addr
	for addr := range h.networks[0].HostMACs {
		if addr.Is6() == ipv6 && (!first.IsValid() || addr.Less(first)) {
			first = addr
		}
	}
	return first
}

// Dump lists all load balancers and endpoints, sorted, without IDs.
func (h *HNS) Dump() []string {
	var list []string
	for _, e := range h.endpoints {
		kind := "local"
		if e.Remote {
			kind = "remote"
		}
		line := fmt.Sprintf("endpoint %v %s mac=%s", e.Addrs, kind, e.MAC)
		if e.Provider.IsValid() {
			line += fmt.Sprintf(" provider=%v", e.Provider)
		}
		list = append(list, line)
	}
	for _, lb := range h.lbs {
		key, _ := lb.Key()
		list = append(list, fmt.Sprintf("loadbalancer %v -> %s", key, h.describe(&lb)))
	}
	slices.Sort(list)
	return list
}

func (h *HNS) describe(lb *plan.LoadBalancer) string {
	var addrs []string
	for _, id := range lb.Endpoints {
		addrs = append(addrs, fmt.Sprint(h.endpoints[id].Addrs))
	}
	slices.Sort(addrs)
	var text strings.Builder
	fmt.Fprintf(&text, "%s port %d", strings.Join(addrs, " "), lb.Mappings[0].Internal)
	for _, flag := range []struct {
		has  bool
		name string
	}{
		{lb.Flags&plan.FlagDSR != 0, "dsr"}, {lb.Flags&plan.FlagIPv6 != 0, "ipv6"}, {lb.Mappings[0].MapFlags&plan.MapLocalRoutedVIP != 0, "local-routed"},
		{lb.Mappings[0].MapFlags&plan.MapVIPExternalIP != 0, "external"}, {lb.Mappings[0].Distribution == plan.DistributeBySourceIP, "affinity"},
	} {
		if flag.has {
			text.WriteString(" " + flag.name)
		}
	}
	if lb.SourceVIP.IsValid() {
		fmt.Fprintf(&text, " source=%v", lb.SourceVIP)
	}
	return text.String()
}
