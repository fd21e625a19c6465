package store

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestPodNamesAreNoNews: a change of the names of pods alone reaches explanations, and no dataplane.
func TestPodNamesAreNoNews(t *testing.T) {
	s, sink := newStore(t)
	slice := func(pod string) *model.EndpointSlice {
		return &model.EndpointSlice{Namespace: "ns", Name: "a-1", Service: "a", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.1.0.1"), Ready: true, Serving: true}}, Pods: model.PackPods("", []string{pod})}
	}
	name := state.ServiceName{Namespace: "ns", Name: "a"}
	svc := &model.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}}
	sink.Update([]model.Object{svc, slice("web-0")}, nil)
	sink.Complete()
	before := s.Snapshot()
	sink.Update([]model.Object{slice("web-1")}, nil)
	if after := s.Snapshot(); after.Revision() != before.Revision() || after.Get(name) != before.Get(name) {
		t.Errorf("revision %d became %d", before.Revision(), after.Revision())
	}
	if pod := s.Explain(name).Ports[0].Endpoints[0].Pod(); pod != "web-1" {
		t.Errorf("the pod is %q", pod)
	}
}

// TestTriggers follows the times of changes of endpoints into the updates that carry them.
func TestTriggers(t *testing.T) {
	s, sink := newStore(t)
	at := func(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }
	slice := func(service string, trigger time.Time, addrs ...string) model.Object {
		m := &model.EndpointSlice{Namespace: "ns", Name: service + "-a", Service: service, Family: state.IPv4, TriggerTime: trigger,
			Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
		for _, a := range addrs {
			m.Endpoints = append(m.Endpoints, model.Endpoint{Addr: netip.MustParseAddr(a), Ready: true, Serving: true})
		}
		return m
	}
	service := func(name, ip string) model.Object {
		return &model.Service{Name: state.ServiceName{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}}
	}
	sink.Update([]model.Object{service("a", "10.0.0.1"), service("b", "10.0.0.2"),
		slice("a", at(0), "10.1.0.1"), slice("b", at(1), "10.1.0.2")}, nil)
	sink.Complete()

	after := state.Revision(0)
	check := func(what string, want ...time.Time) {
		t.Helper()
		u, err := s.Next(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		after = u.Revision
		slices.SortFunc(u.Triggers, time.Time.Compare)
		if !slices.EqualFunc(u.Triggers, want, time.Time.Equal) {
			t.Errorf("%s: got triggers %v, want %v", what, u.Triggers, want)
		}
	}
	check("the first state was not waited for")

	sink.Update([]model.Object{slice("a", at(10), "10.1.0.3")}, nil)
	check("one change", at(10))

	sink.Update([]model.Object{slice("a", at(20), "10.1.0.4")}, nil)
	sink.Update([]model.Object{slice("a", at(21), "10.1.0.5"), slice("b", at(22), "10.1.0.6")}, nil)
	check("merged revisions", at(20), at(21), at(22))

	sink.Update([]model.Object{slice("a", at(30), "10.1.0.5")}, nil) // makes no difference here
	sink.Update([]model.Object{slice("a", at(30), "10.1.0.7")}, nil) // has been published with the one before
	sink.Update([]model.Object{slice("b", time.Time{}, "10.1.0.8")}, nil)
	check("no new trigger")
}
