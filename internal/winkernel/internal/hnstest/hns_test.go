package hnstest_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/internal/winkernel/internal/hnstest"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// TestRules makes calls that HNS refuses.
func TestRules(t *testing.T) {
	h := hnstest.New(plan.Network{Name: "pods", Overlay: true, Features: plan.Features{Modify: true}, HostMACs: map[netip.Addr]string{netip.MustParseAddr("192.0.2.1"): "00-15-5d-00-00-01"}})
	network, err := h.Network("pods")
	if err != nil {
		t.Fatal(err)
	}
	h.AddLocal("pod", netip.MustParseAddr("10.1.1.1"))
	pod := h.EndpointIDs(false)[0]
	balancer := func(change func(*plan.LoadBalancer)) plan.Call {
		lb := plan.LoadBalancer{
			VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Endpoints: []string{pod}, Mappings: []plan.Mapping{{Protocol: state.TCP, External: 80, Internal: 8080}},
		}
		change(&lb)
		return plan.Call{Op: plan.CreateLoadBalancer, LoadBalancer: lb}
	}
	made, err := h.Do(balancer(func(*plan.LoadBalancer) {}))
	if err != nil {
		t.Fatal(err)
	}
	endpoint := func(change func(*plan.Endpoint)) plan.Call {
		e := plan.Endpoint{Network: network.ID, Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.1")}, MAC: "02-11-00-00-00-00", Remote: true, Provider: netip.MustParseAddr("192.0.2.2")}
		change(&e)
		return plan.Call{Op: plan.CreateEndpoint, Endpoint: e}
	}
	other := func(change func(*plan.LoadBalancer)) plan.Call {
		return balancer(func(lb *plan.LoadBalancer) { lb.VIPs = []netip.Addr{netip.MustParseAddr("10.96.0.2")}; change(lb) })
	}
	for name, c := range map[string]struct {
		call plan.Call
		want string
		is   error
	}{
		"the frontend of another":  {balancer(func(lb *plan.LoadBalancer) { lb.Mappings[0].Internal = 9 }), "already exists", plan.ErrExists},
		"an endpoint that is gone": {other(func(lb *plan.LoadBalancer) { lb.Endpoints = []string{"gone"} }), "endpoint gone", plan.ErrNotFound},
		"no endpoints":             {other(func(lb *plan.LoadBalancer) { lb.Endpoints = nil }), "needs endpoints", nil},
		"an endpoint twice":        {other(func(lb *plan.LoadBalancer) { lb.Endpoints = []string{pod, pod} }), "listed twice", nil},
		"SCTP":                     {other(func(lb *plan.LoadBalancer) { lb.Mappings[0].Protocol = state.SCTP }), "SCTP is not supported", nil},
		"DSR":                      {other(func(lb *plan.LoadBalancer) { lb.Flags = plan.FlagDSR }), "direct server return", nil},
		"affinity":                 {other(func(lb *plan.LoadBalancer) { lb.Mappings[0].Distribution = plan.DistributeBySourceIP }), "affinity", nil},
		"no address":               {other(func(lb *plan.LoadBalancer) { lb.VIPs = nil }), "node ports have no address", nil},
		"IPv6":                     {other(func(lb *plan.LoadBalancer) { lb.VIPs[0], lb.Flags = netip.MustParseAddr("fd96::1"), plan.FlagIPv6 }), "IPv6 is not supported", nil},
		"an endpoint in use":       {plan.Call{Op: plan.DeleteEndpoint, Endpoint: plan.Endpoint{ID: pod}}, "leads to the endpoint", nil},
		"the address of another":   {endpoint(func(e *plan.Endpoint) { e.Addrs[0] = netip.MustParseAddr("10.1.1.1") }), "", plan.ErrExists},
		"no provider":              {endpoint(func(e *plan.Endpoint) { e.Provider = netip.Addr{} }), "provider address", nil},
		"another network":          {endpoint(func(e *plan.Endpoint) { e.Network = "none" }), "", plan.ErrNoNetwork},
		"another frontend": {plan.Call{Op: plan.ModifyLoadBalancer, LoadBalancer: func() plan.LoadBalancer {
			lb := other(func(*plan.LoadBalancer) {}).LoadBalancer
			lb.ID = made.LoadBalancer.ID
			return lb
		}()}, "another frontend", nil},
		"a load balancer that is not": {plan.Call{Op: plan.DeleteLoadBalancer, LoadBalancer: plan.LoadBalancer{ID: "none"}}, "", plan.ErrNotFound},
	} {
		before := strings.Join(h.Dump(), "\n")
		_, err := h.Do(c.call)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if after := strings.Join(h.Dump(), "\n"); after != before {
			t.Errorf("%s: a refused call has changed\n%s\nto\n%s", name, before, after)
		}
	}
}

// TestTraceBroken: connections get lost where objects do not fit together.
func TestTraceBroken(t *testing.T) {
	n := plan.Network{Name: "pods", Overlay: true, HostMACs: map[netip.Addr]string{netip.MustParseAddr("192.0.2.1"): "00-15-5d-00-00-01"},
		Subnets: []plan.Subnet{{Prefix: netip.MustParsePrefix("10.1.2.0/24"), Provider: netip.MustParseAddr("192.0.2.2")}}}
	h := hnstest.New(n)
	h.AddLocal("source", netip.MustParseAddr("10.1.1.250"))
	remote := h.Add(plan.Call{Op: plan.CreateEndpoint, Endpoint: plan.Endpoint{Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.1")}, Remote: true, Provider: netip.MustParseAddr("192.0.2.9")}})
	h.Add(plan.Call{Op: plan.CreateLoadBalancer, LoadBalancer: plan.LoadBalancer{
		VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Endpoints: []string{remote, "gone"}, SourceVIP: netip.MustParseAddr("10.1.1.9"),
		Mappings: []plan.Mapping{{Protocol: state.TCP, External: 80, Internal: 8080}},
	}})
	r := h.Trace(state.TCP, netip.MustParseAddrPort("10.96.0.1:80"))
	for _, want := range []string{"gone does not exist", "go to node 192.0.2.9", "no endpoint has the source VIP", "do not come as far as cluster IP"} {
		if !strings.Contains(strings.Join(r.Broken, "\n"), want) {
			t.Errorf("%q is missing in %q", want, r.Broken)
		}
	}
}
