package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// problemStore is a store of node n1 that notes what it reports.
type problemStore struct {
	*testing.T
	*Store
	logged   bytes.Buffer
	reported []Problem
	deliver  func(objects string) // in the notation of parseObjects
}

func newProblemStore(t *testing.T, b brain.Config) *problemStore {
	p := &problemStore{T: t}
	b.NodeName = "n1"
	p.Store = New(Options{Brain: b, Logger: slog.New(slog.NewTextHandler(&p.logged, nil)), OnProblem: func(problem Problem) {
		p.reported = append(p.reported, problem)
	}})
	sink := p.Source("test")
	sink.Complete()
	p.deliver = func(objects string) { sink.Update(parseObjects(t, objects)) }
	return p
}

// expect checks what is listed, and what was reported since it was last called.
func (p *problemStore) expect(listed string, reported ...string) {
	p.Helper()
	var list []string
	for _, err := range p.Problems() {
		list = append(list, err.Error())
	}
	if got := strings.Join(list, "\n"); got != listed {
		p.Errorf("listed:\n%s\nwant:\n%s", got, listed)
	}
	var reports []string
	for _, r := range p.reported {
		reports = append(reports, fmt.Sprintf("%v %s %s here=%v", r.Service, r.Reason, r.Holder.Name, r.Here))
	}
	if got, want := strings.Join(reports, ", "), strings.Join(reported, ", "); got != want {
		p.Errorf("reported: %s\nwant: %s", got, want)
	}
	p.reported = nil
}

// TestProblems follows two problems of one service and one of another from their beginning to their end.
func TestProblems(t *testing.T) {
	p := newProblemStore(t, brain.Config{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	const (
		old     = "service ns/old 10.96.0.1:80 external=192.0.2.1 created=1"
		refused = "service ns/b: spec.externalIPs: 8.8.8.8 is not in the ranges that the operator allows; " +
			"choose an address in one of them, or have the operator add a range"
		conflict = "service ns/b: spec.externalIPs: 192.0.2.1:80/TCP belongs to another service; give one of the two services another address or port"
	)
	p.deliver(old)
	p.expect("")
	p.deliver("slice ns/b-1 b 10.0.0.9@n2 10.0.0.10@n1 10.0.0.2@n1; service ns/b 10.96.0.2:80 external=8.8.8.8")
	p.expect(refused, "ns/b ExternalIPRefused  here=true")
	p.deliver("service ns/b 10.96.0.2:80 external=8.8.8.8 external=192.0.2.1; slice ns/b-2 b 10.0.0.1@n2")
	p.expect(refused+"\n"+conflict, "ns/b AddressConflict old here=false")
	if got := p.Limited(); got[ExternalIPRefused] != 1 || got[AddressConflict] != 1 || got[ServiceTooLarge] != 0 {
		t.Errorf("counted %v", got)
	}
	// Changes of endpoints change nothing about it, and nor does a list that becomes longer make it new.
	p.deliver("slice ns/b-2 b 10.0.0.3")
	p.deliver("service ns/b 10.96.0.2:80 external=8.8.8.8 external=192.0.2.1 external=9.9.9.9")
	p.expect(strings.Replace(refused, " allows;", " allows, and 1 more are refused;", 1) + "\n" + conflict)
	// Each ends by itself.
	p.deliver("delete " + old)
	p.expect(strings.Replace(refused, " allows;", " allows, and 1 more are refused;", 1))
	p.deliver("node other 192.0.2.1")
	p.expect(strings.Replace(refused, " allows;", " allows, and 2 more are refused;", 1))
	p.deliver("delete service ns/b")
	p.expect("")
	if got := p.Limited(); got[ExternalIPRefused] != 0 || got[AddressConflict] != 0 {
		t.Errorf("counted %v", got)
	}
	if !strings.Contains(p.logged.String(), `msg="service is fully served again" service=ns/b`) {
		t.Errorf("the end is not logged: %s", &p.logged)
	}
}

// TestManyProblems: any number of services may have problems. What is logged and listed at once is bounded, what is counted is not.
func TestManyProblems(t *testing.T) {
	p := newProblemStore(t, brain.Config{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	var objects []string
	for i := range 1000 {
		objects = append(objects, fmt.Sprintf("service ns/s%d 10.96.%d.%d:80 external=8.8.%d.%d", i, i/250, i%250, i/250, i%250))
	}
	p.deliver(strings.Join(objects, ";"))
	if lines := strings.Count(p.logged.String(), "\n"); lines != maxListed+1 || !strings.Contains(p.logged.String(), "changes=980") {
		t.Errorf("%d lines are logged, the end is %s", lines, p.logged.String()[max(0, p.logged.Len()-200):])
	}
	list := p.Problems()
	if len(list) != maxListed+1 || !strings.Contains(list[maxListed].Error(), "980 more services") {
		t.Errorf("%d are listed, the last is %v", len(list), list[len(list)-1])
	}
	if got := p.Limited()[ExternalIPRefused]; got != 1000 || len(p.reported) != 1000 {
		t.Errorf("%d are counted, %d reported", got, len(p.reported))
	}
	p.Reconfigure(brain.Config{}, Budgets{})
	if list := p.Problems(); len(list) != 0 {
		t.Errorf("without the allowlist there are still problems: %v", list)
	}
}

// TestClusterProblems: a relay lists what its nodes do not route.
func TestClusterProblems(t *testing.T) {
	c := NewCluster(ClusterOptions{Brain: brain.Config{NodeExternalIPs: true}})
	sink := c.Source("test")
	sink.Complete()
	set, _ := parseObjects(t, "service ns/a 10.96.0.1:80 external=192.0.2.1; service ns/b 10.96.0.2:80 external=192.0.2.1; node n 192.0.2.1")
	sink.Update(set, nil)
	if list := c.Problems(); len(list) != 1 || !strings.Contains(list[0].Error(), "service ns/b: spec.externalIPs: 192.0.2.1:80/TCP belongs to another service;") {
		t.Errorf("listed %v", list)
	}
	sink.Update(nil, []model.Ref{{Kind: model.KindService, Namespace: "ns", Name: "a"}})
	if list, counted := c.Problems(), c.Limited(); len(list) != 0 || counted[AddressConflict] != 0 {
		t.Errorf("listed %v, counted %v", list, counted)
	}
}

// TestBudgets: a tenant with too much harms itself, and reports it; others have all that they had.
func TestBudgets(t *testing.T) {
	p := &problemStore{T: t}
	p.Store = New(Options{Brain: brain.Config{NodeName: "n1", MaxEntries: 40}, Budgets: Budgets{PerNamespace: 58, PerNode: 92}, OnProblem: func(problem Problem) {
		p.reported = append(p.reported, problem)
	}})
	sink := p.Source("test")
	sink.Complete()
	p.deliver = func(objects string) { sink.Update(parseObjects(t, objects)) }
	routed := func(want string) {
		t.Helper()
		var got []string
		for s := range p.Snapshot().Services() {
			var text strings.Builder
			text.WriteString(s.Name.String())
			for _, port := range s.Ports {
				text.WriteString(" " + port.Internal.Inside.Verdict.String())
			}
			got = append(got, text.String())
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("routed: %s\nwant: %s", text, want)
		}
	}
	endpoints := func(n int) (text string) {
		for i := range n {
			text += fmt.Sprintf(" 10.0.0.%d", 1+i)
		}
		return text
	}
	// A service with one frontend takes 10, and 1 for each endpoint.
	p.deliver("service evil/a 10.96.1.1:80 created=1; slice evil/a-1 a" + endpoints(20))
	p.deliver("service evil/b 10.96.1.2:80 created=2; slice evil/b-1 b" + endpoints(14))
	p.deliver("service good/a 10.96.2.1:80 created=9; slice good/a-1 a" + endpoints(10))
	p.expect("")
	routed("evil/a Forward, evil/b Forward, good/a Forward")

	p.deliver("slice evil/b-1 b" + endpoints(60))
	p.expect("service evil/b: spec.ports: the service has 70 entries, and 40 may be routed: connections to 1 ports are refused, and 0 ports are not routed, "+
		"the first of them 80/TCP; split the service into several, each with fewer ports or endpoints; or give it fewer externalIPs, load balancer addresses or source ranges",
		"evil/b ServiceTooLarge  here=false")
	routed("evil/a Forward, evil/b Reject, good/a Forward")

	// The namespace is full: 30 and 24 leave 4.
	p.deliver("slice evil/b-1 b" + endpoints(14))
	p.deliver("service evil/c 10.96.1.3:80 created=3; service evil/0 10.96.1.4:80 created=4; slice good/a-1 a" + endpoints(11))
	p.expect("service evil/0: metadata.namespace: the namespace may have 58 entries, which older services take: this one is not routed; "+
		"delete services, ports or endpoints of the namespace, or have the operator raise its budget\n"+
		"service evil/c: metadata.namespace: the namespace may have 58 entries; older services leave room for 4 of the 10 of this one; "+
		"delete services, ports or endpoints of the namespace, or have the operator raise its budget",
		"evil/c NamespaceFull  here=false", "evil/0 NamespaceFull  here=false")
	routed("evil/a Forward, evil/b Forward, good/a Forward")

	// So is the node: 58 and 38 are more than 92. Namespaces may have 44 now, which concerns only the one that has more.
	p.deliver("slice good/a-1 a" + endpoints(28))
	routed("evil/a Forward, evil/b Reject, good/a Forward")
	if got := p.Limited(); got[NodeFull] != 3 || got[NamespaceFull] != 0 {
		t.Errorf("counted %v", got)
	}
	p.deliver("delete service evil/a; slice good/a-1 a" + endpoints(1))
	p.expect("", "evil/b NodeFull  here=false", "evil/c NodeFull  here=false", "evil/0 NodeFull  here=false")
	routed("evil/0 Reject, evil/b Forward, evil/c Reject, good/a Forward")

	// Without budgets nothing is cut.
	p.deliver("service evil/a 10.96.1.1:80 created=1; slice evil/a-1 a" + endpoints(200))
	p.Reconfigure(brain.Config{}, Budgets{})
	p.reported = nil
	p.expect("")
	routed("evil/0 Reject, evil/a Forward, evil/b Forward, evil/c Reject, good/a Forward")
}

// TestAFullNamespaceIsLoggedOnce: the owner of a namespace can let any number of its services find no room. Each is listed, but they share
// a line of the log when the first of them finds none, and one when the last has room.
func TestAFullNamespaceIsLoggedOnce(t *testing.T) {
	p := newProblemStore(t, brain.Config{})
	p.Reconfigure(brain.Config{NodeName: "n1"}, Budgets{PerNamespace: 34})
	deliver := func(what string, from, to int) {
		var list []string
		for i := from; i < to; i++ {
			list = append(list, fmt.Sprintf(what, i, i))
		}
		p.deliver(strings.Join(list, "; "))
	}
	for _, step := range []struct {
		name    string
		deliver func()
		without int
		want    string
	}{
		{"as many as there is room for", func() { deliver("service evil/s%02d 10.96.1.%d:80 created=1", 0, 3) }, 0, ""},
		{"too many", func() { deliver("service evil/s%02d 10.96.1.%d:80 created=2", 3, 15) }, 12,
			`level=WARN msg="namespace exceeds its limit; some of its services are not fully served" namespace=evil reason=NamespaceFull services=12 oneOfThem=`},
		{"still more", func() { deliver("service evil/s%02d 10.96.1.%d:80 created=3", 15, 25) }, 22, ""},
		{"another namespace", func() { deliver("service worse/s%02d 10.96.2.%d:80 created=3", 0, 5) }, 24,
			`level=WARN msg="namespace exceeds its limit; some of its services are not fully served" namespace=worse reason=NamespaceFull services=2 oneOfThem=`},
		{"fewer", func() { deliver("delete service evil/s%02[1]d", 10, 25) }, 9, ""},
		{"few", func() { deliver("delete service evil/s%02[1]d", 2, 10) }, 2,
			`level=INFO msg="namespace is within its limit again" namespace=evil reason=NamespaceFull`},
	} {
		p.logged.Reset()
		step.deliver()
		if n := p.Limited()[NamespaceFull]; n != step.without {
			t.Errorf("%s: %d services without room, want %d", step.name, n, step.without)
		}
		lines := strings.Count(p.logged.String(), "\n")
		if want := min(len(step.want), 1); lines != want || !strings.Contains(p.logged.String(), step.want) {
			t.Errorf("%s: logged %q, want %q", step.name, p.logged.String(), step.want)
		}
	}
}

// TestBadAnnotation: a bad annotation of a Service is reported with the remedy, next to bad weights of its slices. Both are one service for the metric.
func TestBadAnnotation(t *testing.T) {
	const (
		field   = "service ns/web: metadata.annotations[switchyard.net/balance]: "
		remedy  = "set the annotation to random, hash, hash-connection or least-connections, or remove it"
		nothing = `"nonsense" is not random, hash, hash-connection or least-connections, so it counts as absent; ` + remedy
		weights = `service ns/web: metadata.annotations[switchyard.net/weight]: "-1" of EndpointSlice a is not a whole number from 0 to 65535, so it counts as absent; ` +
			"set the annotation to a whole number from 0 to 65535, or remove it"
	)
	p := newProblemStore(t, brain.Config{})
	sink := p.Source("other")
	sink.Complete()
	deliver := func(balance, weight string) {
		sink.Update([]model.Object{
			&model.Service{Name: state.ServiceName{Namespace: "ns", Name: "web"}, Annotations: []model.Annotation{{Name: model.BalanceAnnotation, Value: balance}}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
				Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}},
			&model.EndpointSlice{Namespace: "ns", Name: "a", Service: "web", Family: state.IPv4, Weight: weight},
		}, nil)
	}
	const ignored = "ns/web AnnotationIgnored  here=false"
	deliver("hash", "1")
	p.expect("")
	deliver("hash", "-1")
	p.expect(weights, ignored)
	deliver("nonsense", "-1")
	p.expect(field+nothing+"\n"+weights, ignored) // the other annotation
	if n := p.Limited()[AnnotationIgnored]; n != 1 || strings.Count(p.logged.String(), "annotation of a service is ignored") != 2 {
		t.Errorf("%d services: %s", n, &p.logged)
	}
	deliver("hash", "")
	p.expect("")
	if n := p.Limited()[AnnotationIgnored]; n != 0 {
		t.Errorf("%d services", n)
	}
}

// TestForeignAnnotations: annotations of other projects count and are reported only while the configuration accepts them.
func TestForeignAnnotations(t *testing.T) {
	p := newProblemStore(t, brain.Config{})
	sink := p.Source("other")
	sink.Complete()
	sink.Update([]model.Object{
		&model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports:       []model.ServicePort{{Protocol: state.TCP, Port: 80}},
			Annotations: []model.Annotation{{Name: model.KubeRouterSchedAnnotation, Value: "dh"}, {Name: model.LoxilbSelectAnnotation, Value: "persist"}},
		},
		&model.EndpointSlice{
			Namespace: "ns", Name: "a", Service: "web", Family: state.IPv4, Weight: "1", CiliumWeight: true, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 80}},
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.1.0.1"), Ready: true, Serving: true}},
		},
		&model.EndpointSlice{
			Namespace: "ns", Name: "b", Service: "web", Family: state.IPv4, Weight: "3", CiliumWeight: true, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 80}},
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.1.0.2"), Ready: true, Serving: true}},
		},
		&model.EndpointSlice{Namespace: "ns", Name: "c", Service: "web", Family: state.IPv4, Weight: "70%", CiliumWeight: true},
	}, nil)
	shown := func() string {
		port := p.Snapshot().Get(state.ServiceName{Namespace: "ns", Name: "web"}).Ports[0]
		return fmt.Sprintf("%v %v", port.Balance, port.Internal.Inside.Weighted())
	}
	p.expect("")
	if got := shown(); got != "Random false" {
		t.Errorf("nothing is accepted: %s", got)
	}
	const (
		ignored = "ns/web AnnotationIgnored  here=false"
		sched   = `service ns/web: metadata.annotations[kube-router.io/service.scheduler]: "dh" is not rr, lc, sh or mh, so it counts as absent; set the annotation to rr, lc, sh or mh, or remove it`
		weight  = `service ns/web: metadata.annotations[service.cilium.io/weight]: "70%" of EndpointSlice c is not a whole number from 0 to 65535, so it counts as absent; ` +
			"set the annotation to a whole number from 0 to 65535, or remove it"
	)
	p.Reconfigure(brain.Config{AcceptAnnotationsOf: []string{"kube-router.io", "loxilb.io", "cilium.io"}}, Budgets{})
	p.expect(sched+"\n"+weight, ignored, ignored)
	if got := shown(); got != "HashClient true" {
		t.Errorf("all are accepted: %s", got)
	}
	p.Reconfigure(brain.Config{}, Budgets{})
	p.expect("")
	if got := shown(); got != "Random false" {
		t.Errorf("nothing is accepted again: %s", got)
	}
}

// TestBadWeights: a weight that is none is reported once for a service, with the remedy.
func TestBadWeights(t *testing.T) {
	p := newProblemStore(t, brain.Config{})
	p.deliver("service ns/web 10.96.0.1:80")
	slice := func(name, weight string) {
		sink := p.Source(name)
		sink.Update([]model.Object{&model.EndpointSlice{Namespace: "ns", Name: name, Service: "web", Family: state.IPv4, Weight: weight}}, nil)
		sink.Complete()
	}
	p.expect("")
	slice("b", "70%")
	slice("a", "-1")
	p.expect(`service ns/web: metadata.annotations[switchyard.net/weight]: "-1" of EndpointSlice a is not a whole number from 0 to 65535, so it counts as absent `+
		"(EndpointSlices with such values: 2); set the annotation to a whole number from 0 to 65535, or remove it", "ns/web AnnotationIgnored  here=false")
	if n := p.Limited()[AnnotationIgnored]; n != 1 || strings.Count(p.logged.String(), "annotation of a service is ignored") != 1 {
		t.Errorf("%d services: %s", n, &p.logged)
	}
}
