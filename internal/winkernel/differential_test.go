package winkernel

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/hnstest"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/windows/cases"
)

var upstreamFile = flag.String("upstream", "", "what test/windows/upstream/record has printed; make differential-windows")

// TestDifferential plays the cases of test/windows/cases, and compares the load balancers after each step with those that upstream's proxier
// makes of the same objects. Each difference has one of the reasons in docs/windows.md, and each of these occurs.
func TestDifferential(t *testing.T) {
	if *upstreamFile == "" {
		t.Skip("-upstream is not set: run make differential-windows")
	}
	file, err := os.Open(*upstreamFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := comparison{t: t, reasons: map[string]int{}}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	all := cases.All()
	for i := range all {
		var recorded cases.Recorded
		if !lines.Scan() {
			t.Fatalf("upstream's side of %q is missing (%v): run make differential-windows", all[i].Name, lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &recorded); err != nil {
			t.Fatal(err)
		}
		if recorded.Name != all[i].Name || len(recorded.Steps) != len(all[i].Steps) {
			t.Fatalf("upstream has played %q in the place of %q: run make differential-windows", recorded.Name, all[i].Name)
		}
		c.play(&all[i], recorded.Steps)
	}
	t.Logf("%d cases: %d load balancers are the same; others: %v", len(all), c.same, c.reasons)
	if c.same < 1000 {
		t.Errorf("%d load balancers that are the same are too few to compare", c.same)
	}
	names := []string{sourceRanges, leftover, goneEndpoint}
	for _, d := range differences {
		names = append(names, d.name)
	}
	for _, name := range names {
		if c.reasons[name] == 0 {
			t.Errorf("%q does not occur any more: remove it here and in docs/windows.md", name)
		}
	}
}

// comparison is the comparison of all cases.
type comparison struct {
	t       *testing.T
	same    int
	wrong   int
	reasons map[string]int
}

func (c *comparison) play(h *cases.Case, recorded [][]cases.LoadBalancer) {
	network := plan.Network{Name: cases.Network, Overlay: h.Overlay, Features: allFeatures, HostMACs: map[netip.Addr]string{netip.MustParseAddr(cases.NodeAddr): "00-15-5d-10-00-01"}}
	network.Features.Modify = h.Modify
	for _, pod := range cases.Pods() {
		if pod.Node.String() != cases.NodeAddr {
			network.Subnets = append(network.Subnets, plan.Subnet{Prefix: netip.PrefixFrom(pod.Addr, 32), Provider: pod.Node})
		}
	}
	hns := hnstest.New(network)
	for _, pod := range cases.Pods() {
		if pod.Node.String() == cases.NodeAddr {
			hns.AddLocal("pod", pod.Addr)
		}
	}
	hns.AddLocal(cases.Root, netip.MustParseAddr(cases.RootAddr))
	o := Options{HealthzPort: cases.HealthzPort, Config: Config{NetworkName: cases.Network, EnableDSR: h.DSR, ForwardHealthCheckVIP: h.HealthVIPs, RootHNSEndpointName: cases.Root}}
	if h.Overlay {
		o.Config.SourceVIP = netip.MustParseAddr(cases.SourceVIP)
	}
	o, err := o.complete()
	if err != nil {
		c.t.Fatal(err)
	}
	b := open(o, hns)
	s := store.New(store.Options{Brain: brain.Config{NodeName: cases.Node}})
	defer s.Close()
	sink := s.Source("history")
	var revision state.Revision
	objects := map[model.Ref]model.Object{}
	for i, step := range h.Steps {
		for _, addr := range step.Made {
			hns.AddLocal("pod", addr)
		}
		hns.Faults = func(call string) hnstest.Fault {
			if step.Refused && call == plan.DeleteLoadBalancer.String() {
				return hnstest.Refused
			}
			return hnstest.None
		}
		sink.Update(step.Set, step.Deleted)
		if i == 0 {
			sink.Complete()
		}
		if s.Snapshot().Revision() != revision {
			u, err := s.Next(c.t.Context(), revision)
			if err != nil {
				c.t.Fatal(err)
			}
			result, err := b.Apply(c.t.Context(), u)
			if failed := err != nil || len(result.Failed) > 0; failed != step.Refused {
				c.t.Fatalf("%s, step %d: %+v, %v", h.Name, i, result, err)
			}
			if !step.Refused { // otherwise the next step applies it again
				revision = u.Revision
			}
		}
		for _, ref := range step.Deleted {
			delete(objects, ref)
		}
		for _, obj := range step.Set {
			objects[obj.Ref()] = obj
		}
		if step.Refused {
			continue
		}
		m := &moment{h: h, world: world(objects), network: network, hns: hns, ours: loadBalancers(hns), theirs: byFrontend(recorded[i])}
		m.services = services(m.world)
		if i > 0 {
			m.before = byFrontend(recorded[i-1])
		}
		c.compare(fmt.Sprintf("%s, step %d", h.Name, i), m)
	}
}

// world is what the oracle is asked about.
func world(objects map[model.Ref]model.Object) *oracle.World {
	w := &oracle.World{NodeName: cases.Node, NodePortAddrs: func(a netip.Addr) bool { return a.String() == cases.NodeAddr }}
	for _, obj := range objects {
		switch obj := obj.(type) {
		case *model.Service:
			w.Services = append(w.Services, obj)
		case *model.EndpointSlice:
			w.Slices = append(w.Slices, obj)
		case *model.Node:
			w.Nodes = append(w.Nodes, obj)
		case *model.ServiceCIDR:
			w.ServiceCIDRs = append(w.ServiceCIDRs, obj)
		}
	}
	return w
}

func services(w *oracle.World) map[string]*model.Service {
	m := map[string]*model.Service{}
	for _, s := range w.Services {
		for _, p := range s.Ports {
			add := func(vip string, port uint16) {
				m[(&cases.LoadBalancer{VIP: vip, Port: port, Protocol: p.Protocol}).Frontend()] = s
			}
			for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs} {
				for _, a := range list {
					add(a.String(), p.Port)
				}
			}
			if p.NodePort != 0 {
				add("", p.NodePort)
			}
		}
	}
	return m
}

func byFrontend(list []cases.LoadBalancer) map[string]*cases.LoadBalancer {
	m := map[string]*cases.LoadBalancer{}
	for i := range list {
		m[list[i].Frontend()] = &list[i]
	}
	return m
}

// loadBalancers are the IPv4 load balancers of HNS, in the form in which upstream's are recorded.
func loadBalancers(hns *hnstest.HNS) map[string]*cases.LoadBalancer {
	var list []cases.LoadBalancer
	for _, id := range hns.LoadBalancerIDs() {
		lb := hns.LoadBalancer(id)
		if lb.Flags&plan.FlagIPv6 != 0 {
			continue
		}
		m := lb.Mappings[0]
		r := cases.LoadBalancer{
			Protocol: m.Protocol, Port: m.External, TargetPort: m.Internal, DSR: lb.Flags&plan.FlagDSR != 0, External: m.MapFlags&plan.MapVIPExternalIP != 0,
			LocalRouted: m.MapFlags&plan.MapLocalRoutedVIP != 0, Affinity: m.Distribution == plan.DistributeBySourceIP,
		}
		if len(lb.VIPs) > 0 {
			r.VIP = lb.VIPs[0].String()
		}
		if lb.SourceVIP.IsValid() {
			r.SourceVIP = lb.SourceVIP.String()
		}
		for _, id := range lb.Endpoints {
			r.Endpoints = append(r.Endpoints, hns.Endpoint(id).Addrs[0].String())
		}
		slices.Sort(r.Endpoints)
		list = append(list, r)
	}
	return byFrontend(list)
}

// moment is one step of a case, as both see it.
type moment struct {
	h            *cases.Case
	world        *oracle.World
	network      plan.Network
	hns          *hnstest.HNS
	services     map[string]*model.Service
	ours, theirs map[string]*cases.LoadBalancer
	before       map[string]*cases.LoadBalancer // theirs, a step ago
}

func (c *comparison) compare(where string, s *moment) {
	frontends := map[string]bool{}
	for _, m := range []map[string]*cases.LoadBalancer{s.ours, s.theirs} {
		for f := range m {
			frontends[f] = true
		}
	}
	for _, f := range slices.Sorted(maps.Keys(frontends)) {
		ours, theirs := s.ours[f], s.theirs[f]
		if same(ours, theirs) {
			c.same++
			continue
		}
		service := s.services[f]
		reason, err := "", errors.New("no service has this frontend")
		if service != nil {
			reason, err = s.reason(service, ours, theirs)
		}
		if err == nil {
			c.reasons[reason]++
			continue
		}
		if c.wrong++; c.wrong <= 6 {
			c.t.Errorf("%s: %s (overlay %t, DSR %t, Modify %t): %v: ours\n\t%+v\nupstream's\n\t%+v\nof service %+v\nwith %s", where, f, s.h.Overlay, s.h.DSR, s.h.Modify, err, ours, theirs, service, s.endpoints(service))
		}
	}
}

func (s *moment) endpoints(service *model.Service) string {
	var text strings.Builder
	for _, slice := range s.world.Slices {
		if service != nil && slice.ServiceName() == service.Name {
			fmt.Fprintf(&text, "\n\t%+v", slice)
		}
	}
	return text.String()
}

func same(a, b *cases.LoadBalancer) bool {
	if a == nil || b == nil {
		return a == b
	}
	return sameFlags(a, b) && a.TargetPort == b.TargetPort && slices.Equal(a.Endpoints, b.Endpoints) && a.SourceVIP == b.SourceVIP
}

// sameFlags reports whether two load balancers differ at most in where they lead, and what follows from that.
func sameFlags(a, b *cases.LoadBalancer) bool {
	return a == nil || b == nil || a.DSR == b.DSR && a.External == b.External && a.LocalRouted == b.LocalRouted && a.Affinity == b.Affinity
}

// The differences from kube-proxy that docs/windows.md lists.
const (
	sourceRanges = "source ranges"
	leftover     = "leftovers"
	goneEndpoint = "endpoints that are gone"
)

// differences are the differences that a change of the endpoints undoes: without hints, say, both lead to the same
// endpoints. A number is the port which our load balancer leads to, 0 if there is none.
var differences = []struct {
	name string
	undo func(s *moment, number uint16, slice *model.EndpointSlice)
}{
	{"hints", func(_ *moment, _ uint16, slice *model.EndpointSlice) {
		for i := range slice.Endpoints {
			slice.Endpoints[i].ZoneHints, slice.Endpoints[i].NodeHints = nil, nil
		}
	}},
	{"endpoints without a node", func(s *moment, _ uint16, slice *model.EndpointSlice) {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.NodeName == "" && s.local(e.Addr) {
				e.NodeName = cases.Node
			}
		}
	}},
	{"endpoints that terminate", func(_ *moment, _ uint16, slice *model.EndpointSlice) {
		slice.Endpoints = slices.DeleteFunc(slice.Endpoints, func(e model.Endpoint) bool { return e.Terminating })
	}},
	{"endpoints that are not ready", func(_ *moment, _ uint16, slice *model.EndpointSlice) {
		slice.Endpoints = slices.DeleteFunc(slice.Endpoints, func(e model.Endpoint) bool { return !e.Ready && !e.Terminating })
	}},
	{"several port numbers", func(_ *moment, number uint16, slice *model.EndpointSlice) {
		if number != 0 {
			slice.Ports = slices.DeleteFunc(slice.Ports, func(p model.EndpointPort) bool { return p.Port != number })
		}
	}},
}

// reason names the difference that makes upstream's load balancer another one than ours. Each side must be what its own rules say, whatever the
// difference is.
func (s *moment) reason(service *model.Service, ours, theirs *cases.LoadBalancer) (string, error) {
	lb := cmp.Or(ours, theirs)
	wanted := s.wanted(s.world, lb)
	if !slices.Equal(targets(ours), wanted) {
		return "", fmt.Errorf("the oracle wants %v", wanted)
	}
	if !sameFlags(ours, theirs) {
		return "", errors.New("the flags differ")
	}
	if ours != nil && theirs != nil && ours.SourceVIP != theirs.SourceVIP && !slices.ContainsFunc(joined(s.world, service, lb), func(e model.Endpoint) bool { return e.NodeName == "" && s.local(e.Addr) }) {
		return "", errors.New("the source VIPs differ")
	}
	if theirs != nil && slices.Contains(theirs.Endpoints, "gone") {
		return goneEndpoint, nil
	}
	if ours == nil && len(service.SourceRanges) > 0 && slices.ContainsFunc(service.LoadBalancerIPs, func(a netip.Addr) bool { return a.String() == lb.VIP }) {
		return sourceRanges, nil
	}
	var there []string
	if theirs != nil {
		there = slices.Compact(slices.Clone(theirs.Endpoints))
	}
	if rules := s.kubeProxy(s.world, service, lb); !slices.Equal(there, rules) {
		if before := s.before[lb.Frontend()]; theirs != nil && before != nil && same(theirs, before) {
			return leftover, nil
		}
		return "", fmt.Errorf("kube-proxy's rules say %v", rules)
	}
	number := uint16(0)
	if ours != nil {
		number = ours.TargetPort
	}
	undone := func(list []int) bool {
		w := *s.world
		w.Slices = nil
		for _, slice := range s.world.Slices {
			changed := *slice
			changed.Endpoints, changed.Ports = slices.Clone(slice.Endpoints), slices.Clone(slice.Ports)
			for _, i := range list {
				differences[i].undo(s, number, &changed)
			}
			w.Slices = append(w.Slices, &changed)
		}
		return slices.Equal(addresses(s.wanted(&w, lb)), s.kubeProxy(&w, service, lb))
	}
	var all []int
	for i := range differences {
		if undone([]int{i}) {
			return differences[i].name, nil
		}
	}
	for i := range differences {
		if all = append(all, i); undone(all) {
			return differences[i].name, nil
		}
	}
	return "", errors.New("no listed difference makes one of the other")
}

// wanted is where the oracle wants a frontend to lead, sorted.
func (s *moment) wanted(w *oracle.World, lb *cases.LoadBalancer) []netip.AddrPort {
	addr := cases.NodeAddr
	if lb.VIP != "" {
		addr = lb.VIP
	}
	j := judge{world: w, network: s.network, options: &Options{Config: Config{EnableDSR: s.h.DSR}}, own: map[netip.Addr]string{}}
	for _, a := range s.hns.HostAddrs() {
		j.own[a] = cases.Node
	}
	list := j.route(lb.Protocol, netip.AddrPortFrom(netip.MustParseAddr(addr), lb.Port)).Endpoints
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// targets is where a load balancer leads, sorted.
func targets(lb *cases.LoadBalancer) (list []netip.AddrPort) {
	if lb == nil {
		return nil
	}
	for _, e := range lb.Endpoints {
		list = append(list, netip.AddrPortFrom(netip.MustParseAddr(e), lb.TargetPort))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

func addresses(list []netip.AddrPort) (addrs []string) {
	for _, e := range list {
		addrs = append(addrs, e.Addr().String())
	}
	slices.Sort(addrs)
	return addrs
}

// local reports whether the network plugin has made an HNS endpoint at an address.
func (s *moment) local(addr netip.Addr) bool {
	return slices.ContainsFunc(s.hns.EndpointIDs(false), func(id string) bool {
		e := s.hns.Endpoint(id)
		return !e.Remote && slices.Contains(e.Addrs, addr)
	})
}

// kubeProxy is where kube-proxy's rules for Windows lead a frontend, sorted, each address once.
func (s *moment) kubeProxy(w *oracle.World, service *model.Service, lb *cases.LoadBalancer) []string {
	isOf := func(list []netip.Addr) bool {
		return slices.ContainsFunc(list, func(a netip.Addr) bool { return a.String() == lb.VIP })
	}
	all := joined(w, service, lb)
	// A Service with a load balancer's address is looked at as a whole: is all that it has terminating, is nothing of it serving?
	here := func(e *model.Endpoint) bool { return e.NodeName == cases.Node }
	terminating := len(service.LoadBalancerIPs) > 0
	silent := terminating
	for _, e := range all {
		if service.ExternalLocal && !here(&e) {
			continue
		}
		terminating = terminating && (!e.Ready || e.Terminating)
		silent = silent && !e.Serving
	}
	clusterIP, balanced := isOf(service.ClusterIPs), isOf(service.LoadBalancerIPs)
	if (terminating || silent) && !clusterIP && !balanced {
		return nil
	}
	var list []string
	for _, e := range all {
		local := clusterIP && service.InternalLocal || !clusterIP && service.ExternalLocal
		switch {
		case service.InternalLocal && service.ExternalLocal && !here(&e):
		case !silent && (!terminating && !e.Ready || !e.Serving):
		case local && !s.local(e.Addr):
		default:
			list = append(list, e.Addr.String())
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// joined are the endpoints of the port of a load balancer. Of two with the same address and port number the one that does not terminate counts.
func joined(w *oracle.World, service *model.Service, lb *cases.LoadBalancer) []model.Endpoint {
	found := map[netip.AddrPort]model.Endpoint{}
	for _, slice := range w.Slices {
		if slice.ServiceName() != service.Name || slice.Family != state.IPv4 || slice.Headless {
			continue
		}
		for _, p := range service.Ports {
			for _, sp := range slice.Ports {
				if sp.Name != p.Name || sp.Protocol != p.Protocol || p.Protocol != lb.Protocol || lb.VIP != "" && p.Port != lb.Port || lb.VIP == "" && p.NodePort != lb.Port {
					continue
				}
				for _, e := range slice.Endpoints {
					at := netip.AddrPortFrom(e.Addr, sp.Port)
					if before, ok := found[at]; !ok || before.Terminating && !e.Terminating {
						found[at] = e
					}
				}
			}
		}
	}
	return slices.Collect(maps.Values(found))
}
