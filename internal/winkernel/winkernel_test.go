package winkernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/hnstest"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// node is a Windows node with HNS and a dataplane.
type node struct {
	t       *testing.T
	hns     *hnstest.HNS
	options Options
	*Backend
	record *state.Node
}

var allFeatures = plan.Features{DSR: true, RemoteSubnet: true, SessionAffinity: true, IPv6: true, Modify: true}

// newNode starts a node on an l2bridge network. change may change the network and the options before.
func newNode(t *testing.T, change func(*plan.Network, *Options)) *node {
	t.Helper()
	network := plan.Network{Name: networkName, Features: allFeatures, HostMACs: map[netip.Addr]string{
		netip.MustParseAddr("192.0.2.1"): "00-15-5d-10-00-01", netip.MustParseAddr("2001:db8::1"): "00-15-5d-10-00-01",
	}}
	n := &node{t: t, options: Options{Config: Config{RootHNSEndpointName: "cbr0"}}, record: &state.Node{
		Name: "node", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
	}}
	n.options.Config.NetworkName = networkName
	if change != nil {
		change(&network, &n.options)
	}
	n.hns = hnstest.New(network)
	n.start()
	return n
}

// overlay makes the network of a node an overlay network, in which 10.1.2.0/24 is on node 192.0.2.2.
func overlay(n *plan.Network, o *Options) {
	n.Overlay = true
	n.Subnets = []plan.Subnet{{Prefix: netip.MustParsePrefix("10.1.2.0/24"), Provider: netip.MustParseAddr("192.0.2.2")}}
	o.Config.SourceVIP = netip.MustParseAddr("10.1.1.250")
}

func (n *node) start() {
	n.t.Helper()
	o, err := n.options.complete()
	if err != nil {
		n.t.Fatal(err)
	}
	n.Backend = open(o, n.hns)
}

func (n *node) pods(addrs ...string) {
	for _, a := range addrs {
		n.hns.AddLocal("pod", netip.MustParseAddr(a))
	}
}

func (n *node) apply(full bool, services ...*state.Service) backend.Result {
	n.t.Helper()
	result, err := n.Apply(n.t.Context(), &state.Update{Revision: 1, Full: full, Node: n.record, Changed: services})
	if err != nil {
		n.t.Fatal(err)
	}
	return result
}

func (n *node) verify() backend.Result {
	n.t.Helper()
	result, err := n.Verify(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return result
}

// holds compares all that HNS holds.
func (n *node) holds(want ...string) {
	n.t.Helper()
	slices.Sort(want)
	if got := n.hns.Dump(); !slices.Equal(got, want) {
		n.t.Errorf("HNS holds\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// calls runs f and returns how many calls it made.
func (n *node) calls(f func()) int {
	before := n.hns.Calls
	f()
	return n.hns.Calls - before
}

func route(endpoints string) state.Route {
	r := state.Route{Verdict: state.Forward}
	for text := range strings.FieldsSeq(endpoints) {
		addr, local := strings.CutSuffix(text, "*")
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.MustParseAddrPort(addr), Local: local})
	}
	if len(r.Endpoints) == 0 {
		r.Verdict = state.Reject
	}
	return r
}

// service is one with a cluster IP. Endpoints that are marked with * are on this node.
func service(name, clusterIP, endpoints string, change ...func(*state.Port)) *state.Service {
	addr := netip.MustParseAddr(clusterIP)
	r := route(endpoints)
	p := state.Port{
		Protocol: state.TCP, Family: state.FamilyOf(addr), Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: 80}},
		Internal: state.Traffic{Inside: r, Outside: r},
	}
	for _, f := range change {
		f(&p)
	}
	return &state.Service{Name: state.ServiceName{Namespace: "ns", Name: name}, Ports: []state.Port{p}}
}

// loadBalancer gives a port an address of a load balancer and a node port.
func loadBalancer(addr, endpoints string, m state.Masquerade) func(*state.Port) {
	return func(p *state.Port) {
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.LoadBalancer, Addr: netip.MustParseAddr(addr), Port: 80}, state.Frontend{Kind: state.NodePort, Port: 30080})
		p.External = state.Traffic{Inside: route(endpoints), Outside: route(endpoints), Masquerade: m}
	}
}

const pod1 = "endpoint [10.1.1.1] local mac=00-15-5d-00-00-01"

func TestOneService(t *testing.T) {
	n := newNode(t, nil)
	n.pods("10.1.1.1")
	n.apply(true, service("web", "10.96.0.1", "10.1.1.1:8080* 10.1.2.1:8080", loadBalancer("203.0.113.1", "10.1.1.1:8080*", state.MasqueradeNode)))
	n.holds(pod1, "endpoint [10.1.2.1] remote mac=02-11-0a-01-02-01",
		"loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] [10.1.2.1] port 8080",
		"loadbalancer 203.0.113.1:80/TCP -> [10.1.1.1] port 8080 dsr external",
		"loadbalancer IPv4 node port 30080/TCP -> [10.1.1.1] port 8080 dsr local-routed external")

	n.apply(false, service("web", "10.96.0.1", "10.1.1.1:8080*"))
	n.holds(pod1, "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] port 8080")

	n.apply(false, service("web", "10.96.0.1", ""))
	n.holds(pod1)
}

func TestOneServiceInOverlayNetwork(t *testing.T) {
	n := newNode(t, func(network *plan.Network, o *Options) { overlay(network, o); o.Config.EnableDSR = true })
	n.pods("10.1.1.1")
	n.apply(true,
		service("web", "10.96.0.1", "10.1.1.1:8080* 10.1.2.1:8080", loadBalancer("203.0.113.1", "10.1.1.1:8080* 10.1.2.1:8080", state.MasqueradeAlways)),
		service("outside", "10.96.0.2", "198.51.100.7:443"))
	n.holds(pod1, "endpoint [10.1.1.250] local mac=00-15-5d-10-00-01",
		"endpoint [10.1.2.1] remote mac=02-11-0a-01-02-01 provider=192.0.2.2",
		"endpoint [10.96.0.1] remote mac=00-15-5d-10-00-01 provider=192.0.2.1",
		"endpoint [10.96.0.2] remote mac=00-15-5d-10-00-01 provider=192.0.2.1",
		"endpoint [198.51.100.7] remote mac=02-11-c6-33-64-07 provider=192.0.2.1",
		"loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] [10.1.2.1] port 8080 dsr source=10.1.1.250",
		"loadbalancer 10.96.0.2:80/TCP -> [198.51.100.7] port 443 dsr source=192.0.2.1",
		"loadbalancer 203.0.113.1:80/TCP -> [10.1.1.1] [10.1.2.1] port 8080 external source=10.1.1.250",
		"loadbalancer IPv4 node port 30080/TCP -> [10.1.1.1] [10.1.2.1] port 8080 local-routed external source=10.1.1.250")
	n.apply(true)
	n.holds(pod1, "endpoint [10.1.1.250] local mac=00-15-5d-10-00-01")
}

// A pod's address that comes to be on another node: packets to it must not go where it was.
func TestEndpointOfAnotherNode(t *testing.T) {
	n := newNode(t, overlay)
	web := service("web", "10.96.0.1", "10.1.2.1:8080 10.1.3.1:8080")
	n.apply(true, web) // 10.1.3.0/24 is not known yet
	n.hns.SetSubnets([]plan.Subnet{
		{Prefix: netip.MustParsePrefix("10.1.2.0/24"), Provider: netip.MustParseAddr("192.0.2.2")},
		{Prefix: netip.MustParsePrefix("10.1.3.0/24"), Provider: netip.MustParseAddr("192.0.2.3")},
	})
	if r := n.verify(); r.Repaired == 0 || len(r.Failed) > 0 {
		t.Errorf("the verification returns %+v", r)
	}
	if got := n.hns.Trace(state.TCP, netip.MustParseAddrPort("10.96.0.1:80")); len(got.Broken) > 0 || len(got.Endpoints) != 2 {
		t.Errorf("connections go to %+v", got)
	}
}

// The number of calls goes with the change, not with the number of services.
func TestCallsPerChange(t *testing.T) {
	sizes := []int{10, 1000, 10_000}
	if testing.Short() {
		sizes = sizes[:2]
	}
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			n := newNode(t, nil)
			n.pods("10.1.1.1", "10.1.1.2")
			var services []*state.Service
			for i := range size {
				ip := fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
				services = append(services, service(fmt.Sprint(i), ip, "10.1.1.1:8080* 10.1.2.1:8080"))
			}
			check := func(what string, calls, reads int, f func()) {
				t.Helper()
				before := n.hns.Reads
				made := n.calls(f)
				read := n.hns.Reads - before
				t.Logf("%s: %d calls, %d reads", what, made, read)
				if made != calls || read != reads {
					t.Errorf("%s: %d calls and %d reads, want %d and %d", what, made, read, calls, reads)
				}
			}
			check("the first state", size+1, 3, func() { n.apply(true, services...) })
			check("a service without a change", 0, 0, func() { n.apply(false, services[3]) })
			check("a remote endpoint comes", 2, 0, func() { n.apply(false, service("3", "10.96.0.4", "10.1.1.1:8080* 10.1.2.1:8080 10.1.2.2:8080")) })
			check("and goes", 2, 0, func() { n.apply(false, services[3]) })
			check("a local endpoint comes", 1, 0, func() { n.apply(false, service("3", "10.96.0.4", "10.1.1.1:8080* 10.1.1.2:8080* 10.1.2.1:8080")) })
			n.pods("10.1.1.3")
			check("a local endpoint comes that HNS did not have", 1, 2, func() { n.apply(false, service("3", "10.96.0.4", "10.1.1.1:8080* 10.1.1.3:8080* 10.1.2.1:8080")) })
			check("a service comes", 1, 0, func() { n.apply(false, service("new", "10.97.0.1", "10.1.1.1:8080*")) })
			check("and loses its endpoints", 1, 0, func() { n.apply(false, service("new", "10.97.0.1", "")) })
			check("a full state without a change", 1, 0, func() { n.apply(true, services...) }) // but for service 3
			check("a verification", 0, 3, func() { n.verify() })
			n.start()
			check("a restart", 0, 3, func() { n.apply(true, services...) })
		})
	}
}

// kube-proxy's objects, as it makes them, become Switchyard's. Nothing is deleted or made again.
func TestTakesOverFromKubeProxy(t *testing.T) {
	n := newNode(t, nil)
	n.pods("10.1.1.1")
	local := n.hns.EndpointIDs(false)[0]
	remote := n.hns.Add(plan.Call{Op: plan.CreateEndpoint, Endpoint: plan.Endpoint{
		Name: "Ethernet", Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.1")}, Remote: true, MAC: "02-11-0a-01-02-01",
	}})
	old := n.hns.Add(plan.Call{Op: plan.CreateEndpoint, Endpoint: plan.Endpoint{
		Name: "Ethernet", Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.9")}, Remote: true, MAC: "02-11-0a-01-02-09",
	}})
	lb := func(vip string, endpoints ...string) plan.Call {
		slices.Sort(endpoints)
		return plan.Call{Op: plan.CreateLoadBalancer, LoadBalancer: plan.LoadBalancer{
			VIPs: []netip.Addr{netip.MustParseAddr(vip)}, Endpoints: endpoints, Mappings: []plan.Mapping{{Protocol: state.TCP, External: 80, Internal: 8080}},
		}}
	}
	n.hns.Add(lb("10.96.0.1", local, remote))
	n.hns.Add(lb("10.96.0.9", old))
	n.hns.Add(lb("10.96.0.8", "gone-since-long"))
	web := service("web", "10.96.0.1", "10.1.1.1:8080* 10.1.2.1:8080")
	if made := n.calls(func() { n.apply(true, web) }); made != 3 {
		t.Errorf("%d calls, want 3: two load balancers and an endpoint that nobody needs", made)
	}
	n.holds(pod1, "endpoint [10.1.2.1] remote mac=02-11-0a-01-02-01", "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] [10.1.2.1] port 8080")
}

// Others' objects stay: objects of other networks, and remote endpoints that somebody has named.
func TestLeavesOthersAlone(t *testing.T) {
	n := newNode(t, nil)
	n.hns.AddNetwork(plan.Network{Name: "nat"})
	nat, _ := n.hns.Network("nat")
	theirs := n.hns.Add(plan.Call{Op: plan.CreateEndpoint, Endpoint: plan.Endpoint{Name: "docker", Network: nat.ID, Addrs: []netip.Addr{netip.MustParseAddr("172.20.0.2")}}})
	n.hns.Add(plan.Call{Op: plan.CreateEndpoint, Endpoint: plan.Endpoint{Name: "gateway", Remote: true, Addrs: []netip.Addr{netip.MustParseAddr("10.1.9.9")}}})
	n.hns.Add(plan.Call{Op: plan.CreateLoadBalancer, LoadBalancer: plan.LoadBalancer{
		VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Endpoints: []string{theirs}, Mappings: []plan.Mapping{{Protocol: state.TCP, External: 80, Internal: 80}},
	}})
	before := n.hns.Dump()
	n.pods("10.1.1.1")
	name := state.ServiceName{Namespace: "ns", Name: "web"}
	r := n.apply(true, service("web", "10.96.0.1", "10.1.1.1:8080*"), service("other", "10.96.0.2", "10.1.1.1:8080*"))
	if err := r.Failed[name]; len(r.Failed) != 1 || err == nil || !strings.Contains(err.Error(), "of another HNS network: delete it") {
		t.Errorf("failed: %v, want the service whose cluster IP another network has", r.Failed)
	}
	n.verify()
	if _, err := removeAll(t.Context(), n.hns, networkName); err != nil {
		t.Fatal(err)
	}
	n.holds(append(before, pod1)...)
}

func TestCleanup(t *testing.T) {
	n := newNode(t, overlay)
	n.pods("10.1.1.1")
	n.apply(true, service("web", "10.96.0.1", "10.1.1.1:8080* 10.1.2.1:8080"))
	calls := 0
	n.hns.Faults = func(string) hnstest.Fault {
		if calls++; calls == 4 { // the first one that is no read
			return hnstest.Lost
		}
		return hnstest.None
	}
	for _, want := range []bool{true, false} {
		if removed, err := removeAll(t.Context(), n.hns, networkName); removed != want || err != nil {
			t.Errorf("cleanup: %v, %v, want %v", removed, err, want)
		}
		n.holds(pod1)
	}
}

// An endpoint on this node that the network plugin makes late.
func TestLateEndpoint(t *testing.T) {
	n := newNode(t, nil)
	n.pods("10.1.1.1")
	web := service("web", "10.96.0.1", "10.1.1.1:8080* 10.1.1.2:8080*")
	r := n.apply(true, web)
	if err := r.Failed[web.Name]; err == nil || !strings.Contains(err.Error(), "no endpoint for 10.1.1.2 on this node yet") {
		t.Errorf("failed: %v", r.Failed)
	}
	n.holds(pod1, "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] port 8080")
	n.pods("10.1.1.2")
	if r := n.apply(false, web); len(r.Failed) > 0 || r.Written != 1 {
		t.Errorf("%+v", r)
	}
	n.holds(pod1, "endpoint [10.1.1.2] local mac=00-15-5d-00-00-01", "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] [10.1.1.2] port 8080")
}

// HNS has recreated an endpoint's network before a verification has noticed: everything else is also gone.
func TestLateEndpointOfAnotherNetwork(t *testing.T) {
	n := newNode(t, nil)
	n.pods("10.1.1.1")
	n.apply(true, service("web", "10.96.0.1", "10.1.1.1:8080*"))
	n.hns.ForgetAll() // nobody has noticed yet
	n.pods("10.1.1.1", "10.1.1.2")
	if failed := n.apply(false, service("db", "10.96.0.2", "10.1.1.2:5432*")).Failed; len(failed) > 0 {
		t.Errorf("failed: %v", failed)
	}
	n.holds(
		"endpoint [10.1.1.1] local mac=00-15-5d-00-00-01",
		"endpoint [10.1.1.2] local mac=00-15-5d-00-00-01",
		"loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] port 8080",
		"loadbalancer 10.96.0.2:80/TCP -> [10.1.1.2] port 5432",
	)
}

// The endpoint that the CNI of an older node left at an address that now belongs to this node.
func TestRemoteLeftoverAtLocalAddress(t *testing.T) {
	elsewhere := service("web", "10.96.0.1", "10.1.1.1:8080")
	for _, record := range []*state.Service{service("web", "10.96.0.1", "10.1.1.1:8080*"), elsewhere} { // a slice need not name the node
		n := newNode(t, nil)
		n.apply(true, elsewhere)
		n.pods("10.1.1.1") // the pod is here now; HNS has both
		n.apply(false, record)
		n.verify()
		n.holds(pod1, "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] port 8080")
	}
}

func TestLimitOfHNS(t *testing.T) {
	n := newNode(t, nil)
	n.pods("10.1.1.1")
	n.hns.MaxLoadBalancers = 2
	var failures []Failure
	n.o.OnFailure = func(f Failure) { failures = append(failures, f) }
	r := n.apply(true, service("a", "10.96.0.1", "10.1.1.1:80*"), service("b", "10.96.0.2", "10.1.1.1:80*"), service("c", "10.96.0.3", "10.1.1.1:80*"))
	if err := r.Failed[state.ServiceName{Namespace: "ns", Name: "c"}]; len(r.Failed) != 1 || err == nil || !strings.Contains(err.Error(), "create load balancer 10.96.0.3:80/TCP: ") {
		t.Errorf("failed: %v", r.Failed)
	}
	if len(failures) == 0 || failures[0].Operation != Create || failures[0].Kind != state.ClusterIP || failures[0].Family != state.IPv4 {
		t.Errorf("failures: %+v", failures)
	}
}

// TestFailureWords: the words are the words of kube-proxy's metrics.
func TestFailureWords(t *testing.T) {
	for kind, want := range map[state.FrontendKind]string{
		state.ClusterIP: "clusterip", state.NodePort: "nodeport", state.ExternalIP: "externalip", state.LoadBalancer: "ingressip", 0: "other",
	} {
		if got := (&Failure{Kind: kind}).LoadBalancerType(); got != want {
			t.Errorf("%v is %s, want %s", kind, got, want)
		}
	}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{plan.ErrNoNetwork, "network_not_found"}, {plan.ErrExists, "port_already_exists"}, {plan.ErrNotImplemented, "not_implemented"},
		{plan.ErrNotFound, "other"},
	} {
		if got := (&Failure{Err: fmt.Errorf("call: %w", tt.err)}).Reason(); got != tt.want {
			t.Errorf("%v is %s, want %s", tt.err, got, tt.want)
		}
	}
}

// HNS says that it can change load balancers, and cannot, or says that it did and has not.
func TestModifyMissing(t *testing.T) {
	for _, ignored := range []bool{false, true} {
		n := newNode(t, nil)
		n.hns.ModifyMissing, n.hns.ModifyIgnored = !ignored, ignored
		n.pods("10.1.1.1", "10.1.1.2")
		n.apply(true, service("web", "10.96.0.1", "10.1.1.1:80*"))
		made := n.calls(func() {
			for range 2 {
				for _, pod := range []string{"10.1.1.2", "10.1.1.1"} {
					if r := n.apply(false, service("web", "10.96.0.1", pod+":80*")); len(r.Failed) > 0 {
						t.Errorf("failed: %v", r.Failed)
					}
					if got := n.hns.Trace(state.TCP, netip.MustParseAddrPort("10.96.0.1:80")).Endpoints; len(got) != 1 || got[0].Addr().String() != pod {
						t.Errorf("connections go to %v, want %s", got, pod)
					}
				}
			}
		})
		if made != 1+4*2 {
			t.Errorf("%d calls, want one that changes a load balancer, and two for each replacement", made)
		}
	}
}

// What HNS cannot do is not served, or served otherwise, and reported by name.
func TestUnsupportedFeaturesAreReported(t *testing.T) {
	restricted := func(p *state.Port) {
		p.Frontends = append(p.Frontends, state.Frontend{
			Kind: state.LoadBalancer, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80, Restricted: true, Sources: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		})
		p.External = state.Traffic{Inside: route("10.1.1.1:80*"), Outside: route("10.1.1.1:80*")}
	}
	affine := func(p *state.Port) { p.Affinity = 1e9 }
	sctp := func(p *state.Port) { p.Protocol = state.SCTP }
	for _, c := range []struct {
		name     string
		service  *state.Service
		features func(*plan.Features)
		holds    string
		fault    string
	}{
		{"source ranges", service("web", "10.96.0.1", "10.1.1.1:80*", restricted), nil, "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] port 80", "loadBalancerSourceRanges"},
		{"SCTP", service("web", "10.96.0.1", "10.1.1.1:80*", sctp), nil, "", "SCTP"},
		{"IPv6", service("web", "fd96::1", "[fd01::1]:80*"), func(f *plan.Features) { f.IPv6 = false }, "", "IPv6"},
		{"ports", service("web", "10.96.0.1", "10.1.1.1:80* 10.1.1.1:81*"), nil, "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] port 80", "one port number"},
		{"own address", service("web", "10.96.0.1", "192.0.2.1:80*"), nil, "", "own address"},
		{"affinity", service("web", "10.96.0.1", "10.1.1.1:80*", affine), nil, "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] port 80 affinity", ""},
		{"no affinity", service("web", "10.96.0.1", "10.1.1.1:80*", affine), func(f *plan.Features) { f.SessionAffinity = false }, "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] port 80", "affinity"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, func(network *plan.Network, _ *Options) {
				if c.features != nil {
					c.features(&network.Features)
				}
			})
			n.pods("10.1.1.1")
			if r := n.apply(true, c.service); len(r.Failed) > 0 {
				t.Errorf("failed: %v", r.Failed)
			}
			want := []string{pod1}
			if c.holds != "" {
				want = append(want, c.holds)
			}
			n.holds(want...)
			faults := n.Problems()
			if c.fault == "" && len(faults) > 0 || c.fault != "" && (len(faults) != 1 || !strings.Contains(faults[0].Error(), c.fault) || !strings.HasPrefix(faults[0].Error(), "ns/web: ")) {
				t.Errorf("faults %v, want one about %q", faults, c.fault)
			}
			n.apply(true)
			if faults := n.Problems(); len(faults) > 0 {
				t.Errorf("faults of services that are gone: %v", faults)
			}
		})
	}
}

// Each setting of the section has an effect, and what cannot be is refused with a remedy.
func TestSettings(t *testing.T) {
	lb := service("web", "10.96.0.1", "10.1.1.1:8080*", loadBalancer("203.0.113.1", "10.1.1.1:8080*", state.MasqueradeNode))
	lb.HealthCheck.Port = 32000
	plain := service("plain", "10.96.0.2", "10.1.1.1:8080*", func(p *state.Port) {
		loadBalancer("203.0.113.2", "10.1.1.1:8080*", state.MasqueradeAlways)(p)
		p.Frontends = p.Frontends[:2]
	})
	has := func(n *node, want string) {
		t.Helper()
		if !slices.Contains(n.hns.Dump(), want) {
			t.Errorf("HNS lacks %s:\n%s", want, strings.Join(n.hns.Dump(), "\n"))
		}
	}
	t.Run("enableDSR", func(t *testing.T) {
		n := newNode(t, func(_ *plan.Network, o *Options) { o.Config.EnableDSR = true })
		n.pods("10.1.1.1")
		n.apply(true, lb)
		has(n, "loadbalancer 10.96.0.1:80/TCP -> [10.1.1.1] port 8080 dsr")
	})
	t.Run("forwardHealthCheckVip and rootHnsEndpointName", func(t *testing.T) {
		n := newNode(t, func(_ *plan.Network, o *Options) {
			o.Config.ForwardHealthCheckVIP, o.Config.RootHNSEndpointName, o.HealthzPort = true, "root", 10256
		})
		n.pods("10.1.1.1")
		r := n.apply(true, lb, plain)
		if err := r.Failed[lb.Name]; err == nil || !strings.Contains(err.Error(), `no endpoint "root" for health checks: set winkernel.rootHnsEndpointName`) {
			t.Errorf("failed: %v", r.Failed)
		}
		n.hns.AddLocal("root", netip.MustParseAddr("10.1.1.2"))
		n.apply(true, lb, plain)
		has(n, "loadbalancer 203.0.113.1:32000/TCP -> [10.1.1.2] port 32000")
		has(n, "loadbalancer 203.0.113.2:10256/TCP -> [10.1.1.2] port 10256")
	})
	t.Run("networkName", func(t *testing.T) {
		t.Setenv("KUBE_NETWORK", "")
		if _, err := (Options{}).complete(); err == nil || !strings.Contains(err.Error(), "winkernel.networkName is empty") {
			t.Errorf("no name: %v", err)
		}
		t.Setenv("KUBE_NETWORK", "by-environment")
		o, err := Options{}.complete()
		if err != nil || o.Config.NetworkName != "by-environment" {
			t.Errorf("by the environment: %q, %v", o.Config.NetworkName, err)
		}
		n := newNode(t, func(_ *plan.Network, o *Options) { o.Config.NetworkName = "none" })
		_, err = n.Apply(t.Context(), &state.Update{Node: n.record})
		if !errors.Is(err, plan.ErrNoNetwork) || !strings.Contains(err.Error(), "set winkernel.networkName") {
			t.Errorf("a network that is not there: %v", err)
		}
	})
	for _, c := range []struct {
		name   string
		change func(*plan.Network, *Options)
		want   string
	}{
		{"sourceVip", func(n *plan.Network, o *Options) { overlay(n, o); o.Config.SourceVIP = netip.Addr{} }, "winkernel.sourceVip is not set"},
		{"no DSR", func(n *plan.Network, o *Options) { o.Config.EnableDSR, n.Features.DSR = true, false }, "winkernel.enableDSR is set"},
		{"old HNS", func(n *plan.Network, o *Options) { overlay(n, o); n.Features.RemoteSubnet = false }, "needs HNS 9.2"},
		{"no interface", func(n *plan.Network, o *Options) { overlay(n, o); n.HostMACs = nil }, "no interface of this machine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, c.change)
			if _, err := n.Apply(t.Context(), &state.Update{Node: n.record}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// With another network, the objects on the previous one go.
func TestReconfigureNetwork(t *testing.T) {
	n := newNode(t, nil)
	n.pods("10.1.1.1")
	web := service("web", "10.96.0.1", "10.1.2.1:8080")
	n.apply(true, web)
	n.hns.AddNetwork(plan.Network{Name: "new", Features: allFeatures})
	n.options.Config.NetworkName = "new"
	if err := n.Reconfigure(n.options); err != nil {
		t.Fatal(err)
	}
	if r := n.apply(true, web); len(r.Failed) > 0 {
		t.Errorf("failed: %v", r.Failed)
	}
	n.holds(pod1, "endpoint [10.1.2.1] remote mac=02-11-0a-01-02-01", "loadbalancer 10.96.0.1:80/TCP -> [10.1.2.1] port 8080")
	if e := n.hns.Endpoint(n.hns.EndpointIDs(true)[0]); e.Network == n.hns.Endpoint(n.hns.EndpointIDs(false)[0]).Network {
		t.Error("the remote endpoint is still on the previous network")
	}
}

// An object that no service waits for is not forgotten: Run verifies soon.
func TestLeftoversAreTriedAgain(t *testing.T) {
	n := newNode(t, nil)
	n.pods("10.1.1.1")
	n.apply(true, service("web", "10.96.0.1", "10.1.1.1:80*"))
	n.start()
	n.hns.Faults = func(call string) hnstest.Fault {
		if call == plan.DeleteLoadBalancer.String() {
			return hnstest.Refused
		}
		return hnstest.None
	}
	n.apply(true)
	select {
	case <-n.Disturbed():
	default:
		t.Error("nothing asks for a verification")
	}
	if _, err := n.Verify(t.Context()); !errors.Is(err, hnstest.ErrInjected) {
		t.Errorf("a verification that repairs nothing returns %v", err)
	}
	n.hns.Faults = nil
	n.verify()
	n.holds(pod1)
}

// HNS may report a load balancer in other words than those it was given. That is no reason to write it again.
func TestEqualReportIsNotRewritten(t *testing.T) {
	n := newNode(t, nil)
	n.hns.Rewrites = true
	n.pods("10.1.1.1")
	n.apply(true, service("web", "10.96.0.1", "10.1.1.1:80*"))
	if r := n.verify(); r.Written != 0 {
		t.Errorf("a verification writes %d objects", r.Written)
	}
}

func TestUnsupported(t *testing.T) {
	if _, err := New(Options{Config: Config{NetworkName: "n"}}); !errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("this is Windows: %v", err)
	}
	if _, err := Cleanup(t.Context(), Config{NetworkName: "n"}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("cleanup: %v", err)
	}
	if _, err := Programmed(Config{NetworkName: "n"}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("programmed: %v", err)
	}
}
