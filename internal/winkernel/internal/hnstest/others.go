package hnstest

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Changes by other parties: the network plugin, an administrator, kube-proxy, and HNS itself.

// AddNetwork adds a network, which gets an ID.
func (h *HNS) AddNetwork(n plan.Network) {
	n.ID = h.id()
	h.networks = append(h.networks, &n)
}

// SetSubnets replaces the subnets of the first network, as its plugin does when nodes come and go.
func (h *HNS) SetSubnets(list []plan.Subnet) { h.networks[0].Subnets = list }

// SetFeatures replaces the features.
func (h *HNS) SetFeatures(f plan.Features) { h.networks[0].Features = f }

// HostAddrs are the addresses of this machine.
func (h *HNS) HostAddrs() []netip.Addr {
	return slices.SortedFunc(maps.Keys(h.networks[0].HostMACs), netip.Addr.Compare)
}

// AddLocal adds an endpoint of a pod on this node, even if a remote endpoint has the address. Windows Server 2019 and
// 2022 allow network plugins to do so.
func (h *HNS) AddLocal(name string, addrs ...netip.Addr) {
	for _, e := range h.endpoints {
		if !e.Remote && slices.Equal(e.Addrs, addrs) {
			return
		}
	}
	id := h.id()
	h.endpoints[id] = plan.Endpoint{ID: id, Name: name, Network: h.networks[0].ID, Addrs: addrs, MAC: "00-15-5d-00-00-01"}
}

// RemoveLocal removes the endpoint of a pod. Load balancers lose it.
func (h *HNS) RemoveLocal(addr netip.Addr) {
	for id, e := range h.endpoints {
		if !e.Remote && slices.Contains(e.Addrs, addr) {
			h.RemoveEndpoint(id)
		}
	}
}

// RemoveEndpoint deletes an endpoint, whatever leads to it.
func (h *HNS) RemoveEndpoint(id string) {
	delete(h.endpoints, id)
	for lbID, lb := range h.lbs {
		if !slices.Contains(lb.Endpoints, id) {
			continue
		}
		lb.Endpoints = slices.DeleteFunc(slices.Clone(lb.Endpoints), func(e string) bool { return e == id })
		if h.lbs[lbID] = lb; len(lb.Endpoints) == 0 && !h.KeepsEmpty {
			delete(h.lbs, lbID)
		}
	}
}

// RemoveLoadBalancer deletes a load balancer.
func (h *HNS) RemoveLoadBalancer(id string) { delete(h.lbs, id) }

// Add adds an object as it is, with an ID.
func (h *HNS) Add(call plan.Call) string {
	id := h.id()
	switch call.Op {
	case plan.CreateEndpoint:
		call.Endpoint.ID = id
		if call.Endpoint.Network == "" {
			call.Endpoint.Network = h.networks[0].ID
		}
		h.endpoints[id] = call.Endpoint
	case plan.CreateLoadBalancer:
		call.LoadBalancer.ID = id
		h.lbs[id] = call.LoadBalancer
	}
	return id
}

// Forget is a restart of HNS. It keeps only the network, and the endpoints on this node that are not named for a
// service proxy.
func (h *HNS) Forget() {
	h.forgotten = nil
	for _, e := range h.endpoints {
		if e.Remote {
			h.forgotten = append(h.forgotten, plan.Call{Op: plan.CreateEndpoint, Endpoint: e})
		}
	}
	for _, lb := range h.lbs {
		h.forgotten = append(h.forgotten, plan.Call{Op: plan.CreateLoadBalancer, LoadBalancer: lb})
	}
	clear(h.lbs)
	maps.DeleteFunc(h.endpoints, func(_ string, e plan.Endpoint) bool { return e.Remote || e.Name == "switchyard-source-vip" })
}

// Restore brings back, late, the objects that HNS held before Forget, as in kubernetes/kubernetes#139519. Objects
// made in between stay, so that there may be two endpoints with an address.
func (h *HNS) Restore() {
	for _, call := range h.forgotten {
		switch call.Op {
		case plan.CreateEndpoint:
			h.endpoints[call.Endpoint.ID] = call.Endpoint
		case plan.CreateLoadBalancer:
			if key, _ := call.LoadBalancer.Key(); !h.Serves(key) {
				h.lbs[call.LoadBalancer.ID] = call.LoadBalancer
			}
		}
	}
	h.forgotten = nil
}

// ForgetAll is a restart of HNS that keeps nothing. Networks get other IDs.
func (h *HNS) ForgetAll() {
	h.forgotten = nil
	clear(h.lbs)
	clear(h.endpoints)
	for _, n := range h.networks {
		n.ID = h.id()
	}
}

// EndpointIDs returns the IDs of endpoints, and of remote endpoints only if remote is set.
func (h *HNS) EndpointIDs(remote bool) []string {
	var ids []string
	for id, e := range h.endpoints {
		if !remote || e.Remote {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Endpoint returns an endpoint.
func (h *HNS) Endpoint(id string) plan.Endpoint { return h.endpoints[id] }

// LoadBalancerIDs returns the IDs of load balancers.
func (h *HNS) LoadBalancerIDs() []string { return slices.Sorted(maps.Keys(h.lbs)) }

// LoadBalancer returns a load balancer.
func (h *HNS) LoadBalancer(id string) plan.LoadBalancer { return h.lbs[id] }

// Serves reports whether a frontend has a load balancer.
func (h *HNS) Serves(key state.FrontendKey) bool {
	_, ok := h.find(key)
	return ok
}

func (h *HNS) find(key state.FrontendKey) (plan.LoadBalancer, bool) {
	for _, lb := range h.lbs {
		if k, ok := lb.Key(); ok && k == key {
			return lb, true
		}
	}
	return plan.LoadBalancer{}, false
}
