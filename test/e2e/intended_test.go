//go:build linux

package e2e

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/recordtest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// The differences that histories avoid, because they would never end, each by itself.
func TestDifferentialMeant(t *testing.T) {
	pool := newPool(t, 1)
	for name, test := range map[string]func(*testing.T, *race){
		"slice changes its service": sliceChangesService,
		"node gets another address": nodeGetsAnotherAddress,
	} {
		t.Run(name, func(t *testing.T) {
			plane := <-pool
			t.Cleanup(func() { pool <- plane })
			r, err := newRace(t, plane, 1, "nftables", nil)
			if err != nil {
				t.Fatal(err)
			}
			test(t, r)
		})
	}
}

// apply sets objects and waits for our dataplane, and for upstream's if that is to follow.
func (r *race) apply(t *testing.T, upstream bool, objects ...model.Object) {
	t.Helper()
	ctx := t.Context()
	for _, o := range objects {
		if err := r.marks.set(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.marks.change(ctx, r.ours); err != nil {
		t.Fatal(err)
	}
	if err := r.marks.seen(ctx, r.ours); err != nil {
		t.Fatal(err)
	}
	if !upstream {
		return
	}
	if err := r.marks.seen(ctx, r.upstream); err != nil {
		t.Fatal(err)
	}
}

// fate returns the outcome of a connection from the client outside.
func fate(ctx context.Context, n *node, dst string) string {
	var o observation
	p := probe.Packet{From: probe.FromOutside, Src: n.Client().Addrs[0], Dst: netip.MustParseAddrPort(dst), Protocol: state.TCP}
	n.observe(ctx, &o, p, 0, 1, answerTimeout)
	return o.String()
}

func simpleService(name, ip string, external ...netip.Addr) *model.Service {
	return &model.Service{Name: state.ServiceName{Namespace: "blue", Name: name}, ClusterIPs: recordtest.Addrs(ip), ExternalIPs: external,
		Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}}
}

func simpleSlice(n *node, service, pod string) *model.EndpointSlice {
	return &model.EndpointSlice{Namespace: "blue", Name: "slice-" + pod, Service: service, Family: state.IPv4,
		Ports:     []model.EndpointPort{{Protocol: state.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{{Addr: n.Pod(pod).Addrs[0], Ready: true, Serving: true, NodeName: n.Node().Name}}}
}

func sliceChangesService(t *testing.T, r *race) {
	a, b := simpleService("a", "10.96.0.1"), simpleService("b", "10.96.0.2")
	r.apply(t, true, a, b, simpleSlice(r.ours, "a", "pod-0"))
	r.apply(t, true, simpleSlice(r.ours, "b", "pod-0"))
	if got := fate(t.Context(), r.ours, "10.96.0.1:80"); got != topology.Refused.String() {
		t.Errorf("the slice has gone to another service, but the first one's fate is: %s", got)
	}
	if got := fate(t.Context(), r.upstream, "10.96.0.1:80"); got == topology.Refused.String() {
		t.Error("kube-proxy does the same now: take it from docs/differences.md, and let the histories do it")
	}
}

func nodeGetsAnotherAddress(t *testing.T, r *race) {
	service := simpleService("a", "10.96.0.1")
	service.Type, service.Ports[0].NodePort = model.TypeNodePort, 30080
	r.apply(t, true, service, simpleSlice(r.ours, "a", "pod-0"))
	added := netip.MustParsePrefix("192.0.2.7/24")
	for _, n := range []*node{r.ours, r.upstream} {
		if err := n.Node().AddAddr(added); err != nil {
			t.Fatal(err)
		}
	}
	r.apply(t, false, &model.Node{Name: r.ours.Node().Name, Addresses: []netip.Addr{added.Addr()}})
	if got := fate(t.Context(), r.ours, "192.0.2.7:30080"); got != r.ours.Pod("pod-0").Addrs[0].String()+":8080 (source node)" {
		t.Errorf("the node port on the new address: %s", got)
	}
	select {
	case <-r.upstream.ended:
	case <-time.After(answerTimeout):
		t.Error("kube-proxy goes on when its Node gets another address: change docs/differences.md")
	}
}
