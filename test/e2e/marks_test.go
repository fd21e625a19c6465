//go:build linux

package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/topology"
)

// settleTimeout is how long a proxy may take to show a change.
var settleTimeout = flag.Duration("settle", 30*time.Second, "how long a proxy may take to show a change; longer in an emulated machine")

// The addresses of the markers' services; the numbers are of IPv4 and IPv6.
var (
	markIPs = []netip.Addr{netip.MustParseAddr("10.96.1.1"), netip.MustParseAddr("fd00:10:96::101")}
	zoneIPs = []netip.Addr{netip.MustParseAddr("10.96.1.2"), netip.MustParseAddr("fd00:10:96::102")}
)

const (
	markNamespace = "e2e-marker"
	zoneFrontend  = 1
)

// turnIPs are the addresses of the markers of services and slices, by namespace: one of its own, and the histories' ones, which
// opt out and in.
var turnIPs = map[string][]netip.Addr{
	markNamespace: markIPs,
	"blue":        {netip.MustParseAddr("10.96.1.3"), netip.MustParseAddr("fd00:10:96::103")},
	"green":       {netip.MustParseAddr("10.96.1.4"), netip.MustParseAddr("fd00:10:96::104")},
}

// marks are services that are changed after everything else, so that real connections to them show when a proxy has seen it
// all. A proxy watches each kind of object separately, and programs each family separately.
type marks struct {
	client *apicluster.Client
	// optedOut are the namespaces whose markers Switchyard does not show.
	optedOut func() map[string]bool
	turn     uint16
	zone     string
}

// begin makes the marker of the zone: an endpoint in each zone, and hints.
func (m *marks) begin(ctx context.Context, n *node) error {
	service := &model.Service{Name: state.ServiceName{Namespace: markNamespace, Name: "zones"}, ClusterIPs: zoneIPs,
		Ports: []model.ServicePort{{Protocol: state.TCP, Port: zoneFrontend}}}
	objects := []model.Object{service}
	for _, family := range []state.Family{state.IPv4, state.IPv6} {
		slice := markSlice(n, markNamespace, "zones", family, zonePort, "east", "west")
		for i, zone := range []string{"east", "west"} {
			slice.Endpoints[i].ZoneHints = []string{zone}
		}
		objects = append(objects, slice)
	}
	for _, o := range objects {
		if err := m.set(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// set tries for a while: the API server may not know the service CIDR yet, which has just been made.
func (m *marks) set(ctx context.Context, o model.Object) error {
	deadline := time.Now().Add(time.Minute)
	for {
		_, err := m.client.Set(ctx, o)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// change changes the markers of services and slices.
func (m *marks) change(ctx context.Context, n *node) error {
	m.turn++
	var objects []model.Object
	for namespace, ips := range turnIPs {
		objects = append(objects, &model.Service{Name: state.ServiceName{Namespace: namespace, Name: "turn"}, ClusterIPs: ips,
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 1000 + m.turn}}})
		for _, family := range []state.Family{state.IPv4, state.IPv6} {
			objects = append(objects, markSlice(n, namespace, "turn", family, markPort+m.turn%2, "east"))
		}
	}
	for _, o := range objects {
		if err := m.set(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func markSlice(n *node, namespace, service string, family state.Family, port uint16, pods ...string) *model.EndpointSlice {
	slice := &model.EndpointSlice{
		Namespace: namespace, Service: service, Family: family,
		Ports: []model.EndpointPort{{Protocol: state.TCP, Port: port}},
	}
	slice.Name = map[state.Family]string{state.IPv4: service + "-4", state.IPv6: service + "-6"}[family]
	for _, name := range pods {
		addrs := n.Pod(name).Addrs
		i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return state.FamilyOf(a) == family })
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addrs[i], Ready: true, Serving: true, NodeName: n.Node().Name})
	}
	return slice
}

// seen waits until connections on a node show the latest markers, but for those in namespaces that have opted out.
func (m *marks) seen(ctx context.Context, n *node) error {
	deadline := time.Now().Add(*settleTimeout)
	optedOut := m.optedOut()
	for i := range markIPs {
		for namespace, ips := range turnIPs {
			for !optedOut[namespace] && !m.turnSeen(ctx, n, ips[i]) {
				if time.Now().After(deadline) {
					return fmt.Errorf("%s does not show the latest change of services and slices in %s after %v: %w", n.name, namespace, *settleTimeout, n.trouble())
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
		for !m.zoneSeen(ctx, n, zoneIPs[i]) {
			if time.Now().After(deadline) {
				return fmt.Errorf("%s does not show the zone %q after %v: %w", n.name, m.zone, *settleTimeout, n.trouble())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

func (m *marks) turnSeen(ctx context.Context, n *node, ip netip.Addr) bool {
	return markAnswer(ctx, n, netip.AddrPortFrom(ip, 1000+m.turn)) == strconv.Itoa(int(m.turn%2))
}

// zoneSeen reports whether the endpoints that answer are those for the zone. Without a zone, they are both.
func (m *marks) zoneSeen(ctx context.Context, n *node, ip netip.Addr) bool {
	const enough = 12 // of two endpoints, always the same one: once in 2,000 times
	seen := map[string]bool{}
	for range enough {
		seen[markAnswer(ctx, n, netip.AddrPortFrom(ip, zoneFrontend))] = true
	}
	if m.zone == "" {
		return seen["east"] && seen["west"]
	}
	return len(seen) == 1 && seen[m.zone]
}

func markAnswer(ctx context.Context, n *node, dst netip.AddrPort) string {
	return n.Pod(clientPod).Probe(ctx, state.TCP, dst, topology.ProbeOptions{Timeout: 200 * time.Millisecond}).Server
}
