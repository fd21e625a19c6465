package objectlog

import (
	"net/netip"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/fields"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// samples makes one new object of each kind with all fields set.
func samples() []model.Object {
	addrs := func() []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	}
	prefixes := func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }
	return []model.Object{
		&model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "a"}, Created: at, ProxyName: "p", HasProxyName: true, Type: model.TypeNodePort,
			Headless: true, ClusterIPs: addrs(), ExternalIPs: addrs(), LoadBalancerIPs: addrs(), SourceRanges: prefixes(),
			Ports:         []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80, NodePort: 30080}},
			InternalLocal: true, ExternalLocal: true, Affinity: time.Hour, HealthCheckNodePort: 30081, ExternalName: "www.example.com", Annotations: []model.Annotation{{Name: model.BalanceAnnotation, Value: "hash"}},
		},
		&model.EndpointSlice{
			Namespace: "ns", Name: "a-1", Service: "a", ProxyName: "p", HasProxyName: true, Headless: true, Family: state.IPv4,
			Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{
				Addr: netip.MustParseAddr("10.1.0.1"), Ready: true, Serving: true, Terminating: true, NodeName: "n1",
				Zone: "west", ZoneHints: []string{"west"}, NodeHints: []string{"n1"},
			}},
			Hostnames: []string{"a-0"}, Pods: model.PackPods("", []string{"a-0"}), TriggerTime: at, Weight: "70",
		},
		&model.Node{Name: "n1", Zone: "west", Addresses: addrs(), Internal: 1, PodCIDRs: prefixes(), Health: model.NodeNotReady, HealthSince: at, Edge: "v1,7635"},
		&model.Namespace{Name: "ns", ProxyDisabled: true},
		&model.ServiceCIDR{Name: "c", CIDRs: prefixes()},
	}
}

// TestEveryFieldCounts changes each field of each kind of object and wants the object to be another one.
func TestEveryFieldCounts(t *testing.T) {
	for i, sample := range samples() {
		if !equal(sample, samples()[i]) {
			t.Errorf("%s does not equal itself", sample.Ref())
		}
		n := 0
		for path, changed := range fields.Changes(t, func() model.Object { return samples()[i] }) {
			n++
			if equal(sample, changed) || equal(changed, sample) {
				t.Errorf("a change of %s%s makes no difference", sample.Ref(), path)
			}
		}
		if n < 2 {
			t.Errorf("only %d fields found in %s", n, sample.Ref())
		}
		for j, other := range samples() {
			if i != j && equal(sample, other) {
				t.Errorf("%s equals %s", sample.Ref(), other.Ref())
			}
		}
		if equal(sample, nil) || equal(nil, sample) {
			t.Errorf("%s equals nothing", sample.Ref())
		}
	}
}

// TestInsignificantDifferences has objects that are written in different ways and are the same.
func TestInsignificantDifferences(t *testing.T) {
	a := &model.EndpointSlice{Namespace: "ns", Name: "a-1", TriggerTime: at}
	b := &model.EndpointSlice{
		Namespace: "ns", Name: "a-1", TriggerTime: at.In(time.FixedZone("", 3600)),
		Ports: []model.EndpointPort{}, Endpoints: []model.Endpoint{},
	}
	if !equal(a, b) {
		t.Error("an empty list or another time zone counts")
	}
}
