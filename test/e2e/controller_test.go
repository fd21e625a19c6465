//go:build linux

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

// The endpoint slice controller makes slices of pods, which lead to the pods of the lab.
func TestRealEndpointSlices(t *testing.T) {
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Dir: t.TempDir(), Controllers: []string{"endpointslice-controller"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	n, err := startOurs(t.Context(), plane, settings{externalIPs: true, clusterCIDRs: podCIDRs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNode(t, n) })
	client, err := apicluster.NewClient(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []*topology.Host{n.Node(), n.OtherNode()} {
		if _, err := client.Set(t.Context(), &model.Node{Name: node.Name, Zone: "zone", Addresses: node.Addrs}); err != nil {
			t.Fatal(err)
		}
	}
	n.own(n.Client())
	api := client.Kubernetes()
	ip := makeSelectingService(t, api)
	for name, other := range map[string]bool{"a": false, "b": true} {
		host, err := n.AddPod(topology.PodOptions{Name: name, OtherNode: other})
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range host.Addrs[:1] {
			if err := host.Serve(state.TCP, netip.AddrPortFrom(addr, 8080), name); err != nil {
				t.Fatal(err)
			}
		}
		on := n.Node().Name
		if other {
			on = n.OtherNode().Name
		}
		runPod(t, api, host, on, true)
	}
	reaches(t, n, ip+":80", "a", "b")
	setReady(t, api, "a", false)
	reaches(t, n, ip+":80", "b")
	setReady(t, api, "a", true)
	reaches(t, n, ip+":80", "a", "b")
	if err := api.CoreV1().Pods("default").Delete(t.Context(), "b", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	reaches(t, n, ip+":80", "a")
}

// makeSelectingService makes a service and returns the cluster IP that the API server gives it.
func makeSelectingService(t *testing.T, api kubernetes.Interface) string {
	t.Helper()
	service, err := api.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return service.Spec.ClusterIP
}

// runPod makes the object of a pod, and reports it as running, as a kubelet would.
func runPod(t *testing.T, api kubernetes.Interface, host *topology.Host, node string, ready bool) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: host.Name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "web", Image: "web", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		}}},
	}
	pod, err := api.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip := host.Addrs[0].String()
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	if _, err := api.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	setReady(t, api, host.Name, ready)
}

func setReady(t *testing.T, api kubernetes.Interface, name string, ready bool) {
	t.Helper()
	pod, err := api.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	if _, err := api.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// reaches waits until connections from outside are answered by exactly these servers.
func reaches(t *testing.T, n *node, dst string, servers ...string) {
	t.Helper()
	deadline := time.Now().Add(*settleTimeout)
	for {
		got := answers(t.Context(), n, dst)
		if slices.Equal(got, servers) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is answered by %v, want %v", dst, got, servers)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// answers lists who answers 20 connections from outside.
func answers(ctx context.Context, n *node, dst string) []string {
	var o observation
	p := probe.Packet{From: probe.FromOutside, Src: n.Client().Addrs[0], Dst: netip.MustParseAddrPort(dst), Protocol: state.TCP}
	n.observe(ctx, &o, p, 0, 20, silence)
	list := slices.Sorted(maps.Keys(o.servers))
	if len(o.others) > 0 {
		list = append(list, strings.TrimSpace(fmt.Sprint(o.others)))
	}
	return list
}
