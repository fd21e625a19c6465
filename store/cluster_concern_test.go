package store

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/fields"
)

type (
	services = map[string]*model.Service
	slicesOf = map[string]*model.EndpointSlice
	nodes    = map[string]*model.Node
)

// concernNodes are the nodes of the tests below. The last has no object.
var concernNodes = []string{"n1", "n2", "n3", "ghost"}

// concernObjects are three nodes in two zones and services of all kinds, each with an endpoint on n1 and one on n2, ready or
// not. change may alter them.
func concernObjects(change func(services, slicesOf, nodes)) (set []model.Object) {
	svcs, eps, ns := services{}, slicesOf{}, nodes{}
	for i, name := range []string{"plain", "internal-local", "external-local", "zonal", "nodal"} {
		svcs[name] = &model.Service{Name: state.ServiceName{Namespace: "ns", Name: name},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}}
		s := &model.EndpointSlice{Namespace: "ns", Name: name, Service: name, Family: state.IPv4,
			Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
		for j, node := range concernNodes[:2] {
			s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i), byte(j)}), Ready: true, Serving: true, NodeName: node})
		}
		eps[name] = s
	}
	svcs["internal-local"].InternalLocal = true
	svcs["external-local"].ExternalLocal = true
	svcs["external-local"].Type = model.TypeLoadBalancer
	svcs["external-local"].LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	svcs["external-local"].SourceRanges = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/31")}
	svcs["external-local"].HealthCheckNodePort = 32000
	for i := range 2 {
		eps["zonal"].Endpoints[i].ZoneHints = []string{[]string{"a", "b"}[i]}
		eps["nodal"].Endpoints[i].NodeHints = []string{concernNodes[i]}
	}
	// n3 is in the zone of n1.
	for i, zone := range []string{"a", "b", "a"} {
		ns[concernNodes[i]] = &model.Node{Name: concernNodes[i], Zone: zone, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, 0, byte(i)})}}
	}
	change(svcs, eps, ns)
	for name := range svcs {
		set = append(set, svcs[name], eps[name])
	}
	for _, n := range ns {
		set = append(set, n)
	}
	return set
}

// TestChangesReachOnlyWhomTheyConcern makes single changes, and looks which nodes get an update.
func TestChangesReachOnlyWhomTheyConcern(t *testing.T) {
	type change = func(services, slicesOf, nodes)
	second := func(name string) change { // the endpoint on n2 becomes unready
		return func(_ services, s slicesOf, _ nodes) {
			s[name].Endpoints[1].Ready, s[name].Endpoints[1].Serving = false, false
		}
	}
	inService := func(do func(services)) change { return func(s services, _ slicesOf, _ nodes) { do(s) } }
	inSlice := func(do func(slicesOf)) change { return func(_ services, s slicesOf, _ nodes) { do(s) } }
	inNode := func(do func(nodes)) change { return func(_ services, _ slicesOf, n nodes) { do(n) } }
	ranges := func(prefix string) change {
		return inService(func(s services) { s["external-local"].SourceRanges[0] = netip.MustParsePrefix(prefix) })
	}
	starting := model.Endpoint{Addr: netip.MustParseAddr("10.1.9.9"), NodeName: "n3"}
	podCIDRs := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	all := concernNodes
	tests := map[string]struct {
		change change
		want   []string
	}{
		"nothing":                  {inService(func(services) {}), nil},
		"an endpoint":              {second("plain"), all},
		"a local endpoint":         {second("internal-local"), []string{"n2"}},
		"an endpoint of a zone":    {second("zonal"), []string{"n2", "ghost"}}, // n1 and n3 are in the other one
		"an endpoint for a node":   {second("nodal"), []string{"n2", "n3", "ghost"}},
		"an external endpoint":     {second("external-local"), all}, // pods use it from everywhere
		"an endpoint that starts":  {inSlice(func(s slicesOf) { s["plain"].Endpoints = append(s["plain"].Endpoints, starting) }), nil},
		"the order of endpoints":   {inSlice(func(s slicesOf) { slices.Reverse(s["internal-local"].Endpoints) }), nil},
		"the port of local ones":   {inSlice(func(s slicesOf) { s["internal-local"].Ports[0].Port++ }), concernNodes[:2]},
		"a trigger time":           {inSlice(func(s slicesOf) { s["plain"].TriggerTime = time.Unix(1, 0) }), nil},
		"the name of a pod":        {inSlice(func(s slicesOf) { s["plain"].Pods = model.PackPods("", []string{"web-0", "web-1"}) }), nil},
		"where an endpoint is":     {inSlice(func(s slicesOf) { s["plain"].Endpoints[0].NodeName = "n3" }), []string{"n1", "n3"}},
		"a zone that is nobody's":  {inSlice(func(s slicesOf) { s["zonal"].Endpoints[0].ZoneHints = []string{"a", "c"} }), nil},
		"the zone of a node":       {inNode(func(n nodes) { n["n3"].Zone = "b" }), []string{"n3"}},
		"a zone without endpoints": {inNode(func(n nodes) { n["n3"].Zone = "d" }), []string{"n3"}},
		"a zone of equal effect":   {inNode(func(n nodes) { n["ghost"] = &model.Node{Name: "ghost", Zone: "e"} }), nil},
		"the address of a node":    {inNode(func(n nodes) { n["n3"].Addresses[0] = netip.MustParseAddr("172.16.0.1") }), []string{"n3"}},
		"the pods of a node":       {inNode(func(n nodes) { n["n1"].PodCIDRs = podCIDRs }), []string{"n1"}},
		"source ranges":            {ranges("172.16.0.0/32"), all},
		"the same source ranges":   {ranges("172.16.0.1/31"), nil},
		"the health check's port":  {inService(func(s services) { s["external-local"].HealthCheckNodePort++ }), all},
		"an internal policy":       {inService(func(s services) { s["plain"].InternalLocal = true }), all},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := NewCluster(ClusterOptions{Brain: brain.Config{LocalDetector: state.LocalDetector{NodeCIDR: true}}})
				defer c.Close()
				sink := c.Source("test")
				sink.Update(concernObjects(func(services, slicesOf, nodes) {}), nil)
				sink.Complete()
				var mu sync.Mutex // guards got
				got := make(map[string]*state.Update)
				first := make(map[string]*state.Update)
				for _, node := range all {
					first[node], _ = c.Node(node).Next(t.Context(), 0)
					go func() {
						u, err := c.Node(node).Next(t.Context(), first[node].Revision)
						if err == nil {
							mu.Lock()
							defer mu.Unlock()
							got[node] = u
						}
					}()
					synctest.Wait()
				}
				sink.Update(concernObjects(test.change), nil)
				synctest.Wait()
				for _, node := range all {
					if (got[node] != nil) != slices.Contains(test.want, node) {
						t.Errorf("node %s got %+v, wanted are those of %v", node, got[node], test.want)
					}
					u, err := c.Node(node).Next(t.Context(), 0)
					if err != nil {
						t.Fatal(err)
					}
					for i, r := range u.Changed {
						if before := first[node].Changed[i]; before != r && before.Equal(r) {
							t.Errorf("node %s: the record of %v is equal but not the same", node, r.Name)
						}
					}
				}
			})
		})
	}
}

// TestLargeServiceReachesWhomItConcerns is about a service with an endpoint on each of more nodes than are looked at one by one.
func TestLargeServiceReachesWhomItConcerns(t *testing.T) {
	const endpoints = 10 * maxCompared
	node := func(i int) string { return fmt.Sprint("n", i) }
	svc := &model.Service{Name: state.ServiceName{Namespace: "ns", Name: "dns"}, InternalLocal: true,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 53}}}
	slice := func(unready int) *model.EndpointSlice {
		s := &model.EndpointSlice{Namespace: "ns", Name: "dns", Service: "dns", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 53}}}
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Ready: i != unready, NodeName: node(i)})
		}
		return s
	}
	c := NewCluster(ClusterOptions{})
	defer c.Close()
	sink := c.Source("test")
	sink.Update([]model.Object{svc, slice(3)}, nil)
	sink.Complete()
	var watchers []watcher
	for i := range endpoints + 1 {
		watchers = append(watchers, watcher{node: node(i)})
		watchers[i].poll(t, c)
	}
	status := *svc
	sink.Update([]model.Object{slice(7), &status}, nil)
	for i := range watchers {
		if u, _ := watchers[i].poll(t, c); (u != nil) != (i == 3 || i == 7) {
			t.Errorf("node %d got %+v", i, u)
		}
	}
}

// TestNodeMovesAfterAChange: a node misses a change that concerned only its previous zone. It then moves to a zone
// whose record has not changed.
func TestNodeMovesAfterAChange(t *testing.T) {
	c := NewCluster(ClusterOptions{})
	defer c.Close()
	sink := c.Source("test")
	sink.Update(concernObjects(func(services, slicesOf, nodes) {}), nil)
	sink.Complete()
	w := watcher{node: "n3"}
	w.poll(t, c)
	second := func(s slicesOf) { // zone a gets the endpoint that zone b has
		s["zonal"].Endpoints[0].ZoneHints, s["zonal"].Endpoints[1].ZoneHints = []string{"c"}, []string{"a", "b"}
	}
	sink.Update(concernObjects(func(_ services, s slicesOf, _ nodes) { second(s) }), nil)
	sink.Update(concernObjects(func(_ services, s slicesOf, n nodes) {
		second(s)
		n["n3"].Zone = "b"
	}), nil)
	w.poll(t, c)
	route := w.held.services[state.ServiceName{Namespace: "ns", Name: "zonal"}].Ports[0].Internal.Inside
	if len(route.Endpoints) != 1 || route.Endpoints[0].Addr.Addr() != netip.MustParseAddr("10.1.3.1") {
		t.Errorf("the node has the endpoints %v, want the second", route.Endpoints)
	}
}

// TestViewpointsWithoutEffectShareTheRecord: hints that not all endpoints have do not count.
func TestViewpointsWithoutEffectShareTheRecord(t *testing.T) {
	c := NewCluster(ClusterOptions{})
	defer c.Close()
	sink := c.Source("test")
	sink.Update(concernObjects(func(_ services, s slicesOf, _ nodes) { s["zonal"].Endpoints[1].ZoneHints = nil }), nil)
	sink.Complete()
	inZone, ghost := watcher{node: "n3"}, watcher{node: "ghost"}
	inZone.poll(t, c)
	ghost.poll(t, c)
	name := state.ServiceName{Namespace: "ns", Name: "zonal"}
	if a, b := inZone.held.services[name], ghost.held.services[name]; a != b {
		t.Errorf("there are two records: %+v, %+v", a, b)
	}
}

// TestNodesOfChanged: an address that occurs twice in a slice hides nothing. All endpoints of a slice have its weight.
func TestNodesOfChanged(t *testing.T) {
	slice := func(nodes ...string) []*model.EndpointSlice {
		s := &model.EndpointSlice{Name: "s"}
		for _, n := range nodes {
			s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.MustParseAddr("10.1.0.1"), NodeName: n})
		}
		return []*model.EndpointSlice{s}
	}
	if got := nodesOfChanged(slice("a", "b"), slice("b"), nil); !got["a"] {
		t.Errorf("got %v, want a among them", got)
	}
	weighted := slice("a")
	weighted[0].Weight = "3"
	if got := nodesOfChanged(slice("a"), weighted, nil); !got["a"] {
		t.Errorf("got %v, want a, whose weight has changed", got)
	}
	if got := nodesOfChanged(slice("a"), slice("a"), nil); len(got) > 0 {
		t.Errorf("got %v, want none", got)
	}
}

// TestClusterTriggers: a node gets the times of the changes that concern it.
func TestClusterTriggers(t *testing.T) {
	c := NewCluster(ClusterOptions{})
	defer c.Close()
	sink := c.Source("test")
	sink.Update(concernObjects(func(services, slicesOf, nodes) {}), nil)
	sink.Complete()
	watchers := []watcher{{node: "n1"}, {node: "n2"}}
	for i := range watchers {
		watchers[i].poll(t, c)
	}
	sink.Update(concernObjects(func(_ services, s slicesOf, _ nodes) {
		s["plain"].Endpoints[0].Ready, s["plain"].TriggerTime = false, time.Unix(1, 0)
		s["internal-local"].Endpoints[1].Ready, s["internal-local"].TriggerTime = false, time.Unix(2, 0)
	}), nil)
	for i, want := range [][]time.Time{{time.Unix(1, 0)}, {time.Unix(1, 0), time.Unix(2, 0)}} {
		u, _ := watchers[i].poll(t, c)
		slices.SortFunc(u.Triggers, time.Time.Compare)
		if !slices.Equal(u.Triggers, want) {
			t.Errorf("node %s got triggers %v, want %v", watchers[i].node, u.Triggers, want)
		}
	}
}

func TestClusterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCluster(ClusterOptions{})
		sink := c.Source("test")
		done := make(chan error, 2)
		next := func() {
			_, err := c.Node("n1").Next(t.Context(), 0)
			done <- err
		}
		go next()
		synctest.Wait()
		if len(done) > 0 {
			t.Fatal("Next returned before the source was complete")
		}
		c.Close()
		sink.Complete()
		next()
		for range 2 {
			if err := <-done; !errors.Is(err, ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		}
		if n := len(c.feed.nodes) + len(c.feed.followed); n > 0 {
			t.Errorf("%d nodes are left that nobody waits for", n)
		}
	})
}

// TestQuietNodesNeedNoFullState: more happens elsewhere than the log remembers, and then something that concerns a node twice.
// It gets what has changed, whether it waited all the time, or comes back with the revision that it got long ago.
func TestQuietNodesNeedNoFullState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCluster(ClusterOptions{})
		defer c.Close()
		c.feed.log.Max = 10
		sink := c.Source("test")
		ready := true
		elsewhere := func(_ services, s slicesOf, _ nodes) { s["internal-local"].Endpoints[1].Ready = ready } // on n2
		sink.Update(concernObjects(elsewhere), nil)
		sink.Complete()
		waiting, away := watcher{node: "n1"}, watcher{node: "n3"}
		waiting.poll(t, c)
		away.poll(t, c)
		woken := make(chan *state.Update, 1)
		go func() {
			u, _ := c.Node("n1").Next(t.Context(), waiting.held.revision)
			woken <- u
		}()
		synctest.Wait()
		for range 25 {
			ready = !ready
			sink.Update(concernObjects(elsewhere), nil)
		}
		// The waiter may come to look after the second change only.
		c.feed.mu.Lock()
		first := c.feed.revision
		c.feed.mu.Unlock()
		for port := range 2 {
			sink.Update(concernObjects(func(s services, e slicesOf, n nodes) {
				elsewhere(s, e, n)
				s["plain"].Ports[0].Port = uint16(81 + port)
			}), nil)
		}
		u := <-woken
		if u == nil || u.Full || len(u.Changed) != 1 || u.Revision <= first {
			t.Errorf("who has waited got %+v", u)
		}
		resumed, _ := c.Node("n3").Next(t.Context(), away.held.revision)
		if resumed == nil || resumed.Full || len(resumed.Changed) != 1 || resumed.Changed[0].Ports[0].Frontends[0].Port != 82 {
			t.Errorf("who comes back got %+v", resumed)
		}
		busy, _ := c.Node("n2").Next(t.Context(), away.held.revision)
		if busy == nil || !busy.Full {
			t.Errorf("who has missed more than is remembered got %+v", busy)
		}
	})
}

// TestSameEndpointSeesEveryField: a change of any field of an endpoint may concern its node.
func TestSameEndpointSeesEveryField(t *testing.T) {
	full := func() *model.Endpoint {
		return &model.Endpoint{Addr: netip.MustParseAddr("10.0.0.1"), NodeName: "n", Zone: "z", ZoneHints: []string{"a"}, NodeHints: []string{"n"}}
	}
	if !sameEndpoint(full(), full()) {
		t.Error("an endpoint differs from itself")
	}
	for path, changed := range fields.Changes(t, full) {
		if sameEndpoint(full(), changed) {
			t.Errorf("a change of %s is not seen", path)
		}
	}
}
