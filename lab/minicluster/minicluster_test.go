package minicluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func testOptions() Options {
	prefixes := func(s ...string) (ps []netip.Prefix) {
		for _, s := range s {
			ps = append(ps, netip.MustParsePrefix(s))
		}
		return ps
	}
	return Options{
		Nodes: []Node{
			{Name: "here", Zone: "east", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodCIDRs: prefixes("10.1.0.0/24", "fd00:1::/64")},
			{Name: "there", Zone: "west", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, PodCIDRs: prefixes("10.1.1.0/24", "fd00:2::/64")},
		},
		ServiceCIDRs:      prefixes("10.96.0.0/16", "fd00:96::/112"),
		LoadBalancerCIDRs: prefixes("198.51.100.0/24", "2001:db8:0:2::/64"),
	}
}

// deployment makes a Deployment whose pods have the label app=name and listen on ports given as "name:number/protocol".
func deployment(name string, replicas int32, ports ...string) *appsv1.Deployment {
	l := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: l},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}, Spec: podSpec(ports...)}},
	}
}

func podSpec(ports ...string) corev1.PodSpec {
	c := corev1.Container{Name: "main"}
	for _, p := range ports {
		var cp corev1.ContainerPort
		name, rest, _ := strings.Cut(p, ":")
		number, proto, _ := strings.Cut(rest, "/")
		fmt.Sscan(number, &cp.ContainerPort)
		cp.Name, cp.Protocol = name, corev1.Protocol(proto)
		c.Ports = append(c.Ports, cp)
	}
	return corev1.PodSpec{Containers: []corev1.Container{c}}
}

// service makes a Service that selects app=name, with one port 80, and lets edit change it.
func service(name string, edit func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}}}}
	if edit != nil {
		edit(&s.Spec)
	}
	return s
}

func mustBuild(t *testing.T, objs ...runtime.Object) *Cluster {
	t.Helper()
	c, err := Build(objs, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWorkloadsBecomePods(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}}
	set.Spec.Replicas = new(int32(2))
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	set.Spec.Template.Labels = map[string]string{"app": "db"}
	agent := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent"}}
	agent.Spec.Selector = set.Spec.Selector
	agent.Spec.Template.Labels = set.Spec.Template.Labels
	agent.Spec.Template.Spec.HostNetwork = true
	pinned := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pinned"}, Spec: corev1.PodSpec{NodeName: "there"}}
	done := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "done"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	c := mustBuild(t, set, agent, pinned, done, deployment("web", 3), deployment("off", 0))

	var names []string
	nodes := make(map[string]int)
	for _, p := range c.Pods {
		names = append(names, p.Name)
		if strings.HasPrefix(p.Name, "web-") {
			nodes[p.Node]++
		}
		if p.HostNetwork != strings.HasPrefix(p.Name, "agent-") {
			t.Errorf("pod %s: HostNetwork = %v", p.Name, p.HostNetwork)
		}
	}
	want := []string{"agent-here", "agent-there", "db-0", "db-1", "pinned", "web-1", "web-2", "web-3"}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("pods (-want +got):\n%s", d)
	}
	if nodes["here"] == 0 || nodes["there"] == 0 {
		t.Errorf("the pods of web are on %v, want some on each node", nodes)
	}
	if c.Pods[4].Node != "there" {
		t.Errorf("pod pinned runs on %s, not on the node that it names", c.Pods[4].Node)
	}
	if got := c.Pods[0].Addrs; !slices.Equal(got, testOptions().Nodes[0].Addrs) {
		t.Errorf("pod with hostNetwork has the addresses %v, not its node's", got)
	}
	seen := make(map[netip.Addr]string)
	for _, p := range c.Pods {
		if p.HostNetwork {
			continue
		}
		if len(p.Addrs) != 2 {
			t.Errorf("pod %s has the addresses %v, want one of each family", p.Name, p.Addrs)
		}
		for _, a := range p.Addrs {
			if seen[a] != "" {
				t.Errorf("pods %s and %s share the address %v", p.Name, seen[a], a)
			}
			seen[a] = p.Name
		}
	}
}

func TestServiceDefaults(t *testing.T) {
	tests := []struct {
		name  string
		edit  func(*corev1.ServiceSpec)
		check func(t *testing.T, s *corev1.Service)
	}{
		{"plain", nil, func(t *testing.T, s *corev1.Service) {
			if s.Spec.Type != corev1.ServiceTypeClusterIP || len(s.Spec.ClusterIPs) != 1 || s.Spec.Ports[0].NodePort != 0 {
				t.Errorf("spec = %+v, want one IPv4 cluster IP and no node port", s.Spec)
			}
			if p := s.Spec.Ports[0]; p.Protocol != "TCP" || p.TargetPort.IntVal != 80 {
				t.Errorf("port = %+v, want TCP to 80", p)
			}
		}},
		{"prefer dual stack", func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack) },
			func(t *testing.T, s *corev1.Service) {
				if len(s.Spec.ClusterIPs) != 2 || !netip.MustParseAddr(s.Spec.ClusterIPs[1]).Is6() {
					t.Errorf("clusterIPs = %v, want one IPv4 and then one IPv6", s.Spec.ClusterIPs)
				}
			}},
		{"IPv6 first", func(s *corev1.ServiceSpec) {
			s.IPFamilies = []corev1.IPFamily{"IPv6", "IPv4"}
		}, func(t *testing.T, s *corev1.Service) {
			if len(s.Spec.ClusterIPs) != 2 || !netip.MustParseAddr(s.Spec.ClusterIPs[0]).Is6() || *s.Spec.IPFamilyPolicy != "RequireDualStack" {
				t.Errorf("clusterIPs = %v, policy %v", s.Spec.ClusterIPs, *s.Spec.IPFamilyPolicy)
			}
		}},
		{"explicit cluster IP", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.7.7" }, func(t *testing.T, s *corev1.Service) {
			if !slices.Equal(s.Spec.ClusterIPs, []string{"10.96.7.7"}) {
				t.Errorf("clusterIPs = %v", s.Spec.ClusterIPs)
			}
		}},
		{"headless", func(s *corev1.ServiceSpec) { s.ClusterIP = "None" }, func(t *testing.T, s *corev1.Service) {
			if !slices.Equal(s.Spec.ClusterIPs, []string{"None"}) {
				t.Errorf("clusterIPs = %v", s.Spec.ClusterIPs)
			}
		}},
		{"node port", func(s *corev1.ServiceSpec) {
			s.Type = "NodePort"
			s.Ports = []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: "UDP"}, {Name: "dns-tcp", Port: 53}, {Name: "http", Port: 80, NodePort: 30080},
				{Name: "http3", Port: 80, NodePort: 30080, Protocol: "UDP"}, {Name: "other", Port: 81, Protocol: "UDP"}}
		}, func(t *testing.T, s *corev1.Service) {
			p := s.Spec.Ports
			if p[0].NodePort < 30000 || p[0].NodePort > 32767 || p[1].NodePort != p[0].NodePort || p[2].NodePort != 30080 ||
				p[3].NodePort != 30080 || p[4].NodePort == p[0].NodePort || p[4].NodePort == 30080 {
				t.Errorf("ports = %+v", p)
			}
			if s.Spec.ExternalTrafficPolicy != "Cluster" || s.Spec.HealthCheckNodePort != 0 {
				t.Errorf("externalTrafficPolicy = %q, healthCheckNodePort = %d", s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort)
			}
		}},
		{"load balancer, local", func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalTrafficPolicy = "LoadBalancer", "Local"
			s.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		}, func(t *testing.T, s *corev1.Service) {
			if s.Spec.HealthCheckNodePort == 0 || s.Spec.HealthCheckNodePort == s.Spec.Ports[0].NodePort {
				t.Errorf("healthCheckNodePort = %d, nodePort = %d", s.Spec.HealthCheckNodePort, s.Spec.Ports[0].NodePort)
			}
			in := s.Status.LoadBalancer.Ingress
			if len(in) != 2 || !strings.HasPrefix(in[0].IP, "198.51.100.") || !strings.HasPrefix(in[1].IP, "2001:db8:0:2:") {
				t.Errorf("ingress = %v", in)
			}
		}},
		{"load balancer without node ports", func(s *corev1.ServiceSpec) {
			s.Type, s.AllocateLoadBalancerNodePorts = "LoadBalancer", new(false)
		}, func(t *testing.T, s *corev1.Service) {
			if s.Spec.Ports[0].NodePort != 0 {
				t.Errorf("nodePort = %d", s.Spec.Ports[0].NodePort)
			}
		}},
		{"affinity", func(s *corev1.ServiceSpec) { s.SessionAffinity = "ClientIP" }, func(t *testing.T, s *corev1.Service) {
			if got := *s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; got != 10800 {
				t.Errorf("timeoutSeconds = %d", got)
			}
		}},
		{"external name", func(s *corev1.ServiceSpec) { s.Type, s.ExternalName, s.Ports = "ExternalName", "mail.example.com", nil }, func(t *testing.T, s *corev1.Service) {
			if len(s.Spec.ClusterIPs) != 0 {
				t.Errorf("clusterIPs = %v", s.Spec.ClusterIPs)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, mustBuild(t, service("web", tt.edit)).Services[0]) })
	}
}

func TestRefusedObjects(t *testing.T) {
	bad := deployment("bad", 1)
	bad.Spec.Selector.MatchLabels = map[string]string{"app": "other"}
	nodePort := func(n int32) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) { s.Type, s.Ports[0].NodePort = "NodePort", n }
	}
	tests := []struct {
		name string
		objs []runtime.Object
		want string
	}{
		{"selector", []runtime.Object{bad}, "Deployment default/bad: spec.selector: does not match spec.template.metadata.labels"},
		{"no ports", []runtime.Object{service("a", func(s *corev1.ServiceSpec) { s.Ports = nil })}, "Service default/a: spec.ports: is empty: give at least one port"},
		{"unnamed port", []runtime.Object{service("a", func(s *corev1.ServiceSpec) { s.Ports = make([]corev1.ServicePort, 2) })}, "spec.ports[0].name: is empty"},
		{"target port", []runtime.Object{service("a", func(s *corev1.ServiceSpec) { s.Ports[0].TargetPort = intstr.FromInt32(70000) })}, "spec.ports[0].targetPort: 70000 is not in"},
		{"protocol", []runtime.Object{deployment("a", 1, "x:1/ICMP")}, `Deployment default/a: spec.template.spec.containers[0].ports[0].protocol: "ICMP" is none of`},
		{"node port range", []runtime.Object{service("a", nodePort(80))}, "spec.ports[0].nodePort: port 80 is not in the range 30000-32767"},
		{"node port taken", []runtime.Object{service("a", nodePort(30080)), service("b", nodePort(30080))},
			"Service default/b: spec.ports[0].nodePort: port 30080 is taken by Service default/a"},
		{"address taken", []runtime.Object{service("a", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.9" }),
			service("b", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.9" })}, "address 10.96.0.9 is taken by Service default/a"},
		{"address", []runtime.Object{service("a", func(s *corev1.ServiceSpec) { s.ClusterIP = "ten" })}, `spec.clusterIPs[0]: "ten" is not an IP address`},
		{"families", []runtime.Object{service("a", func(s *corev1.ServiceSpec) { s.IPFamilies = []corev1.IPFamily{"IPv4", "IPv4"} })}, "at most one IPv4 and one IPv6"},
		{"single stack", []runtime.Object{service("a", func(s *corev1.ServiceSpec) {
			s.IPFamilyPolicy, s.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{"IPv4", "IPv6"}
		})}, "SingleStack allows one family"},
		{"twice", []runtime.Object{service("a", nil), service("a", nil)}, "exists twice"},
		{"workload twice", []runtime.Object{deployment("a", 1), deployment("a", 1)}, "Deployment default/a: exists twice"},
		{"too many", []runtime.Object{deployment("a", 5000)}, "spec.replicas: 5000 pods are more than the 1000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Build(append(tt.objs, service("sound", nil)), testOptions())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want one that contains %q", err, tt.want)
			}
			if !slices.ContainsFunc(c.Services, func(s *corev1.Service) bool { return s.Name == "sound" }) {
				t.Error("a refused object took a sound one with it")
			}
		})
	}
}

func TestSlicesOfSelectors(t *testing.T) {
	named := func(s *corev1.ServiceSpec) {
		s.Ports = []corev1.ServicePort{{Name: "web", Port: 80, TargetPort: intstr.FromString("http")}}
		s.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	}
	old := deployment("web", 2, "http:8081/UDP", "http:8080/TCP")
	renumbered := deployment("web-new", 1, "http:9090/TCP")
	renumbered.Spec.Template.Labels = map[string]string{"app": "web", "new": "yes"}
	renumbered.Spec.Selector.MatchLabels = map[string]string{"new": "yes"}
	nameless := deployment("web-nameless", 1, "admin:1/TCP")
	nameless.Spec.Template.Labels, nameless.Spec.Selector.MatchLabels = map[string]string{"app": "web", "x": "y"}, map[string]string{"x": "y"}
	c := mustBuild(t, service("web", named), old, renumbered, nameless)

	var got []string
	for _, s := range c.Slices {
		var line strings.Builder
		fmt.Fprintf(&line, "%s %s %d:", s.Name, s.AddressType, len(s.Endpoints))
		for _, p := range s.Ports {
			fmt.Fprintf(&line, " %s=%d/%s", *p.Name, *p.Port, *p.Protocol)
		}
		got = append(got, line.String())
	}
	want := []string{
		"web-ipv4-1 IPv4 2: web=8080/TCP", "web-ipv4-2 IPv4 1:", "web-ipv4-3 IPv4 1: web=9090/TCP",
		"web-ipv6-1 IPv6 2: web=8080/TCP", "web-ipv6-2 IPv6 1:", "web-ipv6-3 IPv6 1: web=9090/TCP",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("slices (-want +got):\n%s", d)
	}
}

func TestLongSlicesAreCut(t *testing.T) {
	c := mustBuild(t, service("web", nil), deployment("web", 150))
	if len(c.Slices) != 2 || len(c.Slices[0].Endpoints) != 100 || len(c.Slices[1].Endpoints) != 50 {
		t.Errorf("150 pods are in %d slices, want 100 in one and 50 in another", len(c.Slices))
	}
}

func TestReadiness(t *testing.T) {
	gated := deployment("web", 1, "http:80/TCP")
	gated.Spec.Template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/never"}}
	for _, publish := range []bool{false, true} {
		c := mustBuild(t, gated, service("web", func(s *corev1.ServiceSpec) { s.PublishNotReadyAddresses = publish }))
		if got := *c.Slices[0].Endpoints[0].Conditions.Ready; got != publish {
			t.Errorf("publishNotReadyAddresses %v: ready = %v", publish, got)
		}
	}
}

func TestTrafficDistributionBecomesHints(t *testing.T) {
	tests := map[string]struct{ nodes, zones bool }{
		"PreferClose":    {zones: true},
		"PreferSameZone": {zones: true},
		"PreferSameNode": {nodes: true, zones: true},
	}
	for distribution, want := range tests {
		c := mustBuild(t, deployment("web", 2), service("web", func(s *corev1.ServiceSpec) { s.TrafficDistribution = &distribution }))
		for _, e := range c.Slices[0].Endpoints {
			zone := map[string]string{"here": "east", "there": "west"}[*e.NodeName]
			hints := e.Hints
			if hints == nil {
				hints = &discoveryv1.EndpointHints{}
			}
			if got := len(hints.ForNodes) == 1 && hints.ForNodes[0].Name == *e.NodeName; got != want.nodes {
				t.Errorf("%q: node hints of the endpoint on %s = %v", distribution, *e.NodeName, hints.ForNodes)
			}
			if got := len(hints.ForZones) == 1 && hints.ForZones[0].Name == zone; got != want.zones {
				t.Errorf("%q: zone hints of the endpoint on %s = %v", distribution, *e.NodeName, hints.ForZones)
			}
		}
	}
}

func TestHeadlessSlicesSayThatTheyAre(t *testing.T) {
	c := mustBuild(t, deployment("db", 1), service("db", func(s *corev1.ServiceSpec) { s.ClusterIP = "None" }))
	if _, ok := c.Slices[0].Labels[corev1.IsHeadlessService]; !ok {
		t.Errorf("labels = %v", c.Slices[0].Labels)
	}
}

func TestServicesWithoutSelectorTakeManualSlices(t *testing.T) {
	manual := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{Name: "mail-1", Labels: map[string]string{discoveryv1.LabelServiceName: "mail"}}}
	exported := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "mail-x", Labels: map[string]string{
		discoveryv1.LabelServiceName: "mail", discoveryv1.LabelManagedBy: SliceController}}}
	mail := service("mail", func(s *corev1.ServiceSpec) { s.Selector = nil })
	empty := service("empty", func(s *corev1.ServiceSpec) { s.Selector = nil })
	c := mustBuild(t, mail, empty, manual, exported, deployment("x", 3))
	if len(c.Slices) != 1 || c.Slices[0].Name != "mail-1" || c.Slices[0].Namespace != "default" {
		t.Errorf("slices = %v, want the manual one only", c.Slices)
	}
	if len(c.Namespaces) != 1 || c.Namespaces[0].Name != "default" {
		t.Errorf("namespaces = %v", c.Namespaces)
	}
}

func TestWhatPodsListenOn(t *testing.T) {
	to := func(n int32) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) { s.Ports[0].TargetPort = intstr.FromInt32(n) }
	}
	c := mustBuild(t, deployment("silent", 1), service("silent", to(8080)), deployment("declared", 1, "http:9000/TCP"), service("declared", to(8080)))
	if p := c.Pods[0]; len(p.Ports) != 2 || p.Ports[0].Port != 9000 || p.Ports[1].Port != 8080 {
		t.Errorf("pod %s listens on %v, want what it declares and the Service's targetPort", p.Name, p.Ports)
	}
	if p := c.Pods[1]; len(p.Ports) != 1 || p.Ports[0].Port != 8080 {
		t.Errorf("pod %s listens on %v, want the Service's targetPort", p.Name, p.Ports)
	}
}

// warnings are the warnings of a cluster, as sentences.
func warnings(c *Cluster) (list []string) {
	for _, w := range c.Warnings {
		list = append(list, w.String())
	}
	return list
}

func TestAddressesStayWhenOthersChange(t *testing.T) {
	objs := []runtime.Object{deployment("web", 3), service("web", nil), service("api", nil)}
	before := mustBuild(t, objs...)
	slices.Reverse(objs)
	after := mustBuild(t, append(objs, deployment("more", 3), service("more", nil))...)
	for _, p := range before.Pods {
		if !slices.ContainsFunc(after.Pods, func(q Pod) bool { return q.Name == p.Name && q.Node == p.Node && slices.Equal(p.Addrs, q.Addrs) }) {
			t.Errorf("pod %s moved when another workload came", p.Name)
		}
	}
	for _, s := range before.Services {
		if !slices.ContainsFunc(after.Services, func(o *corev1.Service) bool { return o.Name == s.Name && o.Spec.ClusterIP == s.Spec.ClusterIP }) {
			t.Errorf("Service %s got another address when another Service came", s.Name)
		}
	}
}

func TestSingleStackClusters(t *testing.T) {
	opts := testOptions()
	opts.ServiceCIDRs = opts.ServiceCIDRs[:1]
	dual := func(p corev1.IPFamilyPolicy) []runtime.Object {
		return []runtime.Object{service("web", func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = &p })}
	}
	c, err := Build(dual(corev1.IPFamilyPolicyPreferDualStack), opts)
	if err != nil || len(c.Services) != 1 || len(c.Services[0].Spec.ClusterIPs) != 1 {
		t.Errorf("PreferDualStack: services = %v, error = %v, want one with one address", c.Services, err)
	}
	if _, err = Build(dual(corev1.IPFamilyPolicyRequireDualStack), opts); err == nil || !strings.Contains(err.Error(), `no service range for "IPv6"`) {
		t.Errorf("RequireDualStack: error = %v", err)
	}
}

func TestServicesSelectInTheirNamespace(t *testing.T) {
	elsewhere := deployment("web", 3)
	elsewhere.Namespace = "elsewhere"
	if c := mustBuild(t, elsewhere, service("web", nil)); len(c.Slices) != 0 {
		t.Errorf("slices = %v, want none: the pods are in another namespace", c.Slices)
	}
}

func TestInputIsNotModified(t *testing.T) {
	svc := service("web", nil)
	before := svc.DeepCopy()
	mustBuild(t, svc)
	if d := cmp.Diff(before, svc); d != "" {
		t.Errorf("Build changed its input (-before +after):\n%s", d)
	}
}

func TestEachPodOfAStatefulSetCanBeSelected(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}}
	set.Spec.Replicas = new(int32(3))
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	set.Spec.Template.Labels = map[string]string{"app": "db"}
	c := mustBuild(t, set, service("primary", func(s *corev1.ServiceSpec) {
		s.Selector = map[string]string{"app": "db", "statefulset.kubernetes.io/pod-name": "db-0"}
	}))
	if len(c.Slices) != 1 || len(c.Slices[0].Endpoints) != 1 || c.Slices[0].Endpoints[0].TargetRef.Name != "db-0" {
		t.Errorf("slices = %v, want one with db-0 only", c.Slices)
	}
}

func TestFullRanges(t *testing.T) {
	opts := testOptions()
	opts.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/30")}
	_, err := Build([]runtime.Object{service("a", nil), service("b", nil), service("c", nil)}, opts)
	if err == nil || !strings.Contains(err.Error(), "Service default/c: spec.clusterIPs: range 10.96.0.0/30 has no free address") {
		t.Errorf("error = %v", err)
	}
}
