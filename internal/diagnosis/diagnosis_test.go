package diagnosis_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/apirules"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/diagnosis/apifacts"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

const node = `
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}}
`

// findings are those about Service default/web of manifests, as "severity reason: sentence".
func findings(t *testing.T, text string) (list []string) {
	t.Helper()
	objects, errs := manifest.Decode("test", []byte(node+"---\n"+text))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	s := store.New(store.Options{Brain: brain.Config{NodeName: "n1"}})
	defer s.Close()
	facts := apifacts.New()
	var set []model.Object
	for _, o := range objects {
		if slice, ok := o.Object.(*discoveryv1.EndpointSlice); ok {
			apirules.DefaultEndpointSlice(slice)
		}
		apifacts.Add(facts, o.Object)
		m, ok, err := kubeconv.Object(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			set = append(set, m)
		}
	}
	sink := s.Source("test")
	sink.Update(set, nil)
	sink.Complete()
	local := []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	for _, f := range diagnosis.Service(s.Explain(state.ServiceName{Namespace: "default", Name: "web"}), "n1", facts, local) {
		list = append(list, fmt.Sprintf("%s %s: %v", f.Severity, f.Reason, &f))
	}
	return list
}

// slice is an EndpointSlice of Service web with one ready endpoint.
const slice = `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.20], nodeName: n1}]
`

func service(spec string) string {
	return "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {" + spec + "}}\n"
}

func pod(name, ip, rest string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, ports: [%s]}]}
status: {podIPs: [{ip: %s}]}
`, name, rest, ip)
}

// TestFindings: each kind of finding about a Service, with its severity, sentence and remedy.
func TestFindings(t *testing.T) {
	for name, tt := range map[string]struct{ objects, want string }{
		"nothing is wrong": {service("clusterIP: 10.96.0.1, ports: [{port: 80}]") + slice, ""},
		"hints": {service("clusterIP: 10.96.0.1, trafficDistribution: PreferClose, ports: [{port: 80}]") + slice,
			"remark NoHints: trafficDistribution PreferClose has no effect: no endpoint of the Service has hints; check that"},
		"an address of the node": {service("clusterIP: 10.96.0.10, ports: [{port: 80}]") + slice,
			"remark ClusterIPOfNode: the cluster IP 10.96.0.10 is also an address of this node: a program such as a node-local DNS cache may answer there"},
		"ranges of one family": {strings.TrimSpace(strings.Replace(service("type: LoadBalancer, clusterIPs: [10.96.0.1, 'fd00::1'], loadBalancerSourceRanges: [192.0.2.0/24], ports: [{port: 80}]"),
			"kind: Service,", "kind: Service, status: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: '2001:db8::1'}]}},", 1)) + slice,
			"warning OtherFamily: the Service has no IPv6 endpoints: EndpointSlice web-1 is IPv4; give the Service the family of its endpoints|" +
				"warning SourceRangesOfOneFamily: the load balancer drops all IPv6 clients: spec.loadBalancerSourceRanges has no IPv6 range; add"},
		"a named port of another protocol": {service("clusterIP: 10.96.0.1, selector: {app: web}, ports: [{port: 53, protocol: UDP, targetPort: dns}]") +
			strings.Replace(slice, "{port: 8080}", "", 1) + pod("web-0", "10.244.1.20", "{name: dns, containerPort: 53}"),
			"fault NoSuchPort: port 53/UDP of the Service has no endpoints: the port dns of its pods is TCP, and the port of the Service is UDP; set the protocol"},
		"a port that no container declares": {service("clusterIP: 10.96.0.1, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]") + slice +
			pod("web-0", "10.244.1.20", "{containerPort: 9090}"),
			"warning UndeclaredPort: targetPort 8080/TCP is not declared by the 1 pod that the Service selects: pod default/web-0 declares 9090/TCP; set"},
		"a port that one of two pods declares": {service("clusterIP: 10.96.0.1, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]") + slice +
			pod("web-0", "10.244.1.20", "{containerPort: 8080}") + pod("web-1", "10.244.1.21", "{containerPort: 9090}"),
			"warning PodsWithoutPort: 1 of the 2 pods that the Service selects does not declare targetPort 8080/TCP: pod default/web-1 declares 9090/TCP; narrow"},
		"pods without slices": {service("clusterIP: 10.96.0.1, selector: {app: web}, ports: [{port: 80}]") + pod("web-0", "10.244.1.20", "") + pod("web-1", "10.244.1.21", ""),
			"fault NoEndpoints: the Service has no endpoints: 2 pods match its selector app=web, but no EndpointSlice has them; look"},
		"a local policy": {service("clusterIP: 10.96.0.1, internalTrafficPolicy: Local, ports: [{port: 80}]") + strings.Replace(slice, "nodeName: n1", "nodeName: n2", 1),
			"remark NoLocalEndpoint: internalTrafficPolicy is Local, and no endpoint of the Service is on this node, n1: the Service has endpoints on node n2; run"},
		"a terminating endpoint": {service("clusterIP: 10.96.0.1, ports: [{port: 80}]") + strings.Replace(slice, "nodeName: n1", "nodeName: n1, conditions: {ready: false, serving: false, terminating: true}", 1),
			"fault NotReady: no endpoint of the Service is ready: the only one is terminating or not ready; look"},
		"headless": {service("clusterIP: None, selector: {app: wbe}, ports: [{port: 80}]") + pod("web-0", "10.244.1.20", ""),
			"fault NoEndpoints: the Service has no endpoints: no pod matches its selector app=wbe; Pod default/web-0 has app=web; make"},
	} {
		t.Run(name, func(t *testing.T) {
			var want []string
			if tt.want != "" {
				want = strings.Split(tt.want, "|")
			}
			got := findings(t, tt.objects)
			begins := slices.EqualFunc(got, want, strings.HasPrefix)
			if !begins {
				t.Errorf("findings (-want +got):\n%s", cmp.Diff(want, got))
			}
		})
	}
}

// TestSentencesOfHealth: each problem of a Service that /healthz lists is a finding with the same sentence: a conflict, a refused externalIP and a
// Service that is too large.
func TestSentencesOfHealth(t *testing.T) {
	s := store.New(store.Options{Brain: brain.Config{NodeName: "n1", ExternalIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, MaxFrontends: 8}})
	defer s.Close()
	var set []model.Object
	add := func(name string, change func(*model.Service)) {
		svc := &model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(len(set))})}, Type: model.TypeNodePort,
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
		}
		change(svc)
		set = append(set, svc)
	}
	add("old", func(svc *model.Service) { svc.Ports[0].NodePort = 30080 })
	add("young", func(svc *model.Service) { svc.Ports[0].NodePort = 30080 })
	add("refused", func(svc *model.Service) { svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1")} })
	add("large", func(svc *model.Service) {
		for i := range 20 {
			svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprint(i), Protocol: state.TCP, Port: uint16(i + 100)})
		}
	})
	sink := s.Source("test")
	sink.Update(set, nil)
	sink.Complete()
	var reasons []store.Reason
	for _, err := range s.Problems() {
		problem, ok := errors.AsType[store.Problem](err)
		if !ok {
			t.Fatal(err)
		}
		reasons = append(reasons, problem.Reason)
		found := diagnosis.Service(s.Explain(problem.Service), "n1", nil, nil)
		i := slices.IndexFunc(found, func(f diagnosis.Finding) bool { return f.Reason == diagnosis.Reason(problem.Reason) })
		if i < 0 || err.Error() != fmt.Sprintf("service %v: %v", problem.Service, &found[i]) {
			t.Errorf("/healthz has %q, and the findings are %v", err, found)
			continue
		}
		if problem.Reason == store.AddressConflict && !slices.Equal(found[i].Holders, []string{"ns/old"}) {
			t.Errorf("the address is held by %v", found[i].Holders)
		}
	}
	if want := []store.Reason{store.ServiceTooLarge, store.ExternalIPRefused, store.AddressConflict}; !slices.Equal(reasons, want) {
		t.Errorf("/healthz has problems %v, want %v", reasons, want)
	}
}

// TestManyFindings: a Service with a fault in each of its thousands of ports has a bounded list of findings, and one that says so.
func TestManyFindings(t *testing.T) {
	var ports []string
	for i := range 3000 {
		ports = append(ports, fmt.Sprintf("{name: p%d, port: %d}", i, i+1))
	}
	list := findings(t, service("clusterIP: 10.96.0.1, ports: ["+strings.Join(ports, ",")+"]")+slice)
	if n := len(list); n != 33 || !strings.HasPrefix(list[0], "fault NoSuchPort") || list[n-1] != "remark MoreFindings: the Service may have more findings, which are left out" {
		t.Errorf("%d findings: %s", n, strings.Join(list, "\n"))
	}
}

// TestSpecialAddress: an endpoint that validation of manifests refuses, and an API server that does not validate it has.
func TestSpecialAddress(t *testing.T) {
	web := state.ServiceName{Namespace: "ns", Name: "web"}
	s := store.New(store.Options{Brain: brain.Config{NodeName: "n1"}})
	defer s.Close()
	sink := s.Source("test")
	sink.Update([]model.Object{
		&model.Service{Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}},
		&model.EndpointSlice{Namespace: "ns", Name: "web-1", Service: "web", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("127.0.0.1"), Ready: true}}},
	}, nil)
	sink.Complete()
	found := diagnosis.Service(s.Explain(web), "n1", nil, nil)
	if len(found) != 1 || found[0].Sentence() != "no endpoint of the Service has an address that endpoints can have: EndpointSlice web-1" {
		t.Errorf("findings %v", found)
	}
}
