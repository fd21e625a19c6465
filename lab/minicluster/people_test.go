package minicluster

//lint:file-ignore SA1019 People still write Endpoints by hand.

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// podNames are the names of all pods.
func podNames(c *Cluster) (list []string) {
	for _, p := range c.Pods {
		list = append(list, p.Name)
	}
	return list
}

func controlledBy(o metav1.Object, kind, name string) {
	o.SetOwnerReferences([]metav1.OwnerReference{{Kind: kind, Name: name, UID: types.UID(name), Controller: new(true)}})
}

// TestWhatControllersMadeIsNotMadeAgain: kubectl get all -o yaml.
func TestWhatControllersMadeIsNotMadeAgain(t *testing.T) {
	web := deployment("web", 3, "http:80/TCP")
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web-6d4b75cb6d"}}
	rs.Spec = appsv1.ReplicaSetSpec{Replicas: new(int32(3)), Selector: web.Spec.Selector, Template: web.Spec.Template}
	controlledBy(rs, "Deployment", "web")
	old := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web-59d9c4c5b8"}}
	old.Spec = rs.Spec
	old.Spec.Replicas = new(int32(0))
	controlledBy(old, "Deployment", "web")
	objs := []runtime.Object{web, rs, old, service("web", nil)}
	for i, ready := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-6d4b75cb6d-pod%d", i), Labels: web.Spec.Template.Labels}, Spec: web.Spec.Template.Spec}
		p.Spec.NodeName = "ip-10-0-0-7.ec2.internal"
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}
		controlledBy(p, "ReplicaSet", "web-6d4b75cb6d")
		objs = append(objs, p)
	}
	agents := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent"}}
	agents.Spec.Selector, agents.Spec.Template = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}}, corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "agent"}}, Spec: podSpec("http:9100/TCP")}
	agents.Spec.Template.Spec.HostNetwork = true
	objs = append(objs, agents)
	for i := range 3 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("agent-%d", i), Labels: map[string]string{"app": "agent"}}, Spec: agents.Spec.Template.Spec}
		controlledBy(p, "DaemonSet", "agent")
		objs = append(objs, p)
	}
	c := mustBuild(t, objs...)
	want := []string{"agent-here", "agent-there", "web-6d4b75cb6d-1", "web-6d4b75cb6d-pod0", "web-6d4b75cb6d-pod1"}
	if d := cmp.Diff(want, podNames(c)); d != "" {
		t.Errorf("pods (-want +got):\n%s", d)
	}
	ready := 0
	for _, e := range c.Slices[0].Endpoints {
		if *e.Conditions.Ready {
			ready++
		}
	}
	if ready != 2 || len(c.Warnings) > 0 {
		t.Errorf("%d of the endpoints are ready, want those two that the export does not report as unready; warnings %v", ready, warnings(c))
	}
}

// TestReplicationControllers: with and without a selector of their own.
func TestReplicationControllers(t *testing.T) {
	rc := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	rc.Spec.Replicas = new(int32(2))
	rc.Spec.Template = &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: podSpec("http:80/TCP")}
	if c := mustBuild(t, rc, service("web", nil)); len(c.Pods) != 2 || len(c.Slices) != 1 || len(c.Slices[0].Endpoints) != 2 {
		t.Errorf("pods %v, slices %v", podNames(c), c.Slices)
	}
	rc.Spec.Selector = map[string]string{"app": "other"}
	if _, err := Build([]runtime.Object{rc}, testOptions()); err == nil || !strings.Contains(err.Error(), "ReplicationController default/web: spec.selector: does not match") {
		t.Errorf("error = %v", err)
	}
}

// TestEndpointsAreMirrored: the Endpoints of Services without a selector are mirrored, ready and not ready, in each
// family.
func TestEndpointsAreMirrored(t *testing.T) {
	byHand := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Subsets: []corev1.EndpointSubset{{
		Addresses:         []corev1.EndpointAddress{{IP: "203.0.113.7"}, {IP: "2001:db8::7"}},
		NotReadyAddresses: []corev1.EndpointAddress{{IP: "203.0.113.8"}},
		Ports:             []corev1.EndpointPort{{Port: 5432}},
	}}}
	made := byHand.DeepCopy()
	made.Name = "web"
	leader := byHand.DeepCopy()
	leader.Name, leader.Annotations = "leader", map[string]string{"control-plane.alpha.kubernetes.io/leader": "{}"}
	lost := byHand.DeepCopy()
	lost.Name = "lost"
	c := mustBuild(t, byHand, made, leader, lost, service("web", nil), deployment("web", 1),
		service("db", func(s *corev1.ServiceSpec) { s.Selector = nil }))
	var got []string
	for _, s := range c.Slices {
		for _, e := range s.Endpoints {
			got = append(got, fmt.Sprintf("%s %s %s ready=%v", s.Labels[discoveryv1.LabelServiceName], s.AddressType, e.Addresses[0], *e.Conditions.Ready))
		}
	}
	want := []string{"db IPv4 203.0.113.7 ready=true", "db IPv4 203.0.113.8 ready=false", "db IPv6 2001:db8::7 ready=true"}
	if d := cmp.Diff(want, slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "web") })); d != "" {
		t.Errorf("endpoints (-want +got):\n%s", d)
	}
}

// TestPodsOfTheNodesNetwork: a port is one pod's, and other processors and systems have no node here.
func TestPodsOfTheNodesNetwork(t *testing.T) {
	proxy := deployment("proxy", 3, "http:80/TCP")
	proxy.Spec.Template.Spec.HostNetwork = true
	agent := func(name string, edit func(*corev1.PodSpec)) *appsv1.DaemonSet {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
		d.Spec.Selector, d.Spec.Template = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}}, Spec: podSpec("http:9100/TCP")}
		d.Spec.Template.Spec.HostNetwork = true
		edit(&d.Spec.Template.Spec)
		return d
	}
	affine := func(r corev1.NodeSelectorRequirement) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{r}}}}}}
		}
	}
	c := mustBuild(t, proxy,
		agent("amd", func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{"kubernetes.io/arch": "amd64", "pool": "edge"}
		}),
		agent("arm", affine(corev1.NodeSelectorRequirement{Key: "kubernetes.io/arch", Operator: corev1.NodeSelectorOpIn, Values: []string{"arm64"}})),
		agent("win", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"kubernetes.io/os": "windows"} }))
	want := []string{"amd-here", "amd-there", "proxy-1", "proxy-2"}
	if d := cmp.Diff(want, podNames(c)); d != "" {
		t.Errorf("pods (-want +got):\n%s", d)
	}
	if c.Pods[2].Node == c.Pods[3].Node {
		t.Error("two pods have a port of one node")
	}
	if got := strings.Join(warnings(c), "\n"); strings.Count(got, "\n") != 2 ||
		!strings.Contains(got, "Deployment default/proxy: its pod proxy-3 does not run here: with hostNetwork it needs ports of a node that default/proxy-") ||
		!strings.Contains(got, "DaemonSet default/arm: does not run here") || !strings.Contains(got, "DaemonSet default/win: does not run here") {
		t.Errorf("warnings:\n%s", got)
	}
}

// TestLoadBalancerIP: the address that a Service asks for is its own, if it is free.
func TestLoadBalancerIP(t *testing.T) {
	at := func(ip string) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) { s.Type, s.LoadBalancerIP = corev1.ServiceTypeLoadBalancer, ip }
	}
	c := mustBuild(t, service("a", at("192.168.1.240")), service("b", at("192.168.1.240")), service("web", nil), deployment("a", 1), deployment("b", 1), deployment("web", 1))
	if got := c.Services[0].Status.LoadBalancer.Ingress[0].IP; got != "192.168.1.240" {
		t.Errorf("a has %s", got)
	}
	if d := cmp.Diff([]string{`Service default/b: spec.loadBalancerIP: "192.168.1.240" is no address of its families that is free, so it has another one`}, warnings(c)); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
}

// TestGeneratedNamesGiveWay: the names of a Deployment's pods end at random in a cluster, so they are in nobody's way.
func TestGeneratedNamesGiveWay(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	set.Spec.Replicas = new(int32(2))
	set.Spec.Selector, set.Spec.Template = &metav1.LabelSelector{MatchLabels: map[string]string{"set": "a"}}, corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"set": "a"}}, Spec: podSpec()}
	c := mustBuild(t, deployment("a", 1), set, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a-2"}})
	if d := cmp.Diff([]string{"a-0", "a-1", "a-2", "a-3"}, podNames(c)); d != "" {
		t.Errorf("pods (-want +got):\n%s", d)
	}
}

// TestPods: how many pods there are to be is known before there is a cluster.
func TestPods(t *testing.T) {
	if n := Pods([]runtime.Object{deployment("a", 300), deployment("b", 200), service("web", nil), &corev1.Pod{}}); n != 501 {
		t.Errorf("%d pods", n)
	}
}
