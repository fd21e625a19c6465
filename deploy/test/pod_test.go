//go:build linux

package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	processes "github.com/switchyard-net/switchyard/test/program"
)

// nodePrograms is an environment variable with the directory of containerd, ctr, containerd-shim-runc-v2 and runc. `make test-pods` sets it.
const nodePrograms = "SWITCHYARD_TEST_NODE_PROGRAMS"

// The configuration of the programs of a node. DIR is the node's directory, and PROGRAMS is where the programs are.
const (
	containerdConfig = `version = 3
root = "DIR/root"
state = "DIR/state"
[grpc]
address = "DIR/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "localhost/pause:test"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true # as where nobody may lower it
[plugins.'io.containerd.cri.v1.runtime'.cni]
conf_dir = "DIR/cni"
bin_dirs = ["PROGRAMS"]
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "PROGRAMS/runc"
`
	kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://DIR/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
evictionHard: {imagefs.available: "0%", imagefs.inodesFree: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
volumePluginDir: DIR/plugins
podLogsDir: DIR/logs
clusterDNS: [10.99.0.10]
clusterDomain: cluster.local
`
)

const (
	nodeName = "node-1"
	// patience is for one step of a program or a connection.
	patience = time.Minute
)

// TestPods runs the pods of the chart with a real control plane, kubelet, containerd and runc. The processes have the rights that the chart's
// security contexts name, and no others. The pods route Services, and a new pod takes over while a connection stays open.
func TestPods(t *testing.T) {
	programs := os.Getenv(nodePrograms)
	if programs == "" {
		t.Skip("this takes minutes: run make test-pods")
	}
	n := startNode(t, programs)
	cluster := n.echoService("echo")
	var open net.Conn
	for _, test := range []struct {
		name   string
		values values
	}{
		{"one container", values{}},
		{"two containers", values{"split": values{"enabled": true}}},
		{"mode ebpf", values{"config": values{"mode": "ebpf"}}},
	} {
		if !t.Run(test.name, func(t *testing.T) {
			all := n.install(t, test.values)
			pod := n.ready(t, "")
			n.checkRights(t, pod)
			var conn net.Conn
			var err error
			await.Until(t, "a connection through the cluster IP", func() bool {
				conn, err = n.echo(nil, cluster)
				return err == nil
			}, func() any { return err })
			if open == nil {
				open = conn
			}
			if err := n.client.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			n.ready(t, pod.Name)
			if _, err := n.echo(open, cluster); err != nil {
				t.Errorf("the connection that was open when the first pod started: %v", err)
			}
			n.uninstall(t, all)
		}) {
			return // what is left would disturb the others
		}
	}
}

// node is a cluster of one node.
type node struct {
	t        *testing.T
	plane    *controlplane.ControlPlane
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	dir      string
	programs string
}

func startNode(t *testing.T, programs string) *node {
	t.Helper()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Dir: t.TempDir(), Pods: true, Controllers: []string{
		"daemonset-controller", "root-ca-certificate-publisher-controller", "serviceaccount-controller",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	n := &node{t: t, plane: plane, dir: t.TempDir(), programs: programs}
	if n.client, err = kubernetes.NewForConfig(plane.Config()); err != nil {
		t.Fatal(err)
	}
	if n.dynamic, err = dynamic.NewForConfig(plane.Config()); err != nil {
		t.Fatal(err)
	}
	// Connections to Services leave by the route that the node's packets have.
	if err := plane.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Src: net.ParseIP(controlplane.Address)})
	}); err != nil {
		t.Fatal(err)
	}
	n.write("containerd.toml", containerdConfig)
	n.write("kubelet.yaml", kubeletConfig)
	t.Cleanup(n.unmount)
	n.start("containerd", filepath.Join(programs, "containerd"), "--config", filepath.Join(n.dir, "containerd.toml"))
	await.Until(t, "containerd", func() bool { _, err := n.ctr("version"); return err == nil }, func() any { return processes.Tail(filepath.Join(n.dir, "containerd.log")) })
	t.Cleanup(n.endContainers)
	n.importImage(pauseImage(t, n.dir, "localhost/pause:test"))
	n.importImage("../../bin/switchyard-image.tar")
	upstream, err := controlplane.Binary()
	if err != nil {
		t.Fatal(err)
	}
	n.start("kubelet", upstream, "kubelet", "--config="+filepath.Join(n.dir, "kubelet.yaml"), "--kubeconfig="+plane.Kubeconfig(),
		"--root-dir="+filepath.Join(n.dir, "kubelet"), "--cert-dir="+filepath.Join(n.dir, "pki"), "--hostname-override="+nodeName, "--node-ip="+controlplane.Address)
	await.Until(t, "the Node", func() bool {
		_, err := n.client.CoreV1().Nodes().Patch(t.Context(), nodeName, "application/merge-patch+json", []byte(`{"spec":{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"]}}`), metav1.PatchOptions{})
		return err == nil
	}, func() any { return processes.Tail(filepath.Join(n.dir, "kubelet.log")) })
	return n
}

func (n *node) write(file, text string) {
	n.t.Helper()
	writeConfig(n.t, filepath.Join(n.dir, file), text, n.dir, n.programs)
}

// writeConfig writes a configuration with the directories of a node.
func writeConfig(t *testing.T, path, text, dir, programs string) {
	t.Helper()
	text = strings.NewReplacer("DIR", dir, "PROGRAMS", programs).Replace(text)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start runs a program in the namespace until the end of the test.
func (n *node) start(name, path string, args ...string) {
	n.t.Helper()
	log, err := os.Create(filepath.Join(n.dir, name+".log"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "PATH="+n.programs+":"+os.Getenv("PATH"))
	p, err := processes.Start(cmd, n.plane.Do)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("%s: %s", name, processes.Tail(log.Name()))
		}
		_ = p.Cmd.Process.Signal(unix.SIGTERM)
		p.End(patience)
	})
}

// ctr runs a command of containerd.
func (n *node) ctr(args ...string) (string, error) {
	args = append([]string{"--address", filepath.Join(n.dir, "containerd.sock"), "--namespace", "k8s.io"}, args...)
	cmd := exec.Command(filepath.Join(n.programs, "ctr"), args...)
	var failure bytes.Buffer // and warnings about the system
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", args, err, &failure)
	}
	return string(out), nil
}

func (n *node) importImage(file string) {
	n.t.Helper()
	if _, err := n.ctr("images", "import", file); err != nil {
		n.t.Fatal(err)
	}
}

// resources are the resources of the kinds that the chart and the cluster have.
var resources = map[string]schema.GroupVersionResource{
	"ConfigMap":          corev1.SchemeGroupVersion.WithResource("configmaps"),
	"ServiceAccount":     corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
	"DaemonSet":          appsv1.SchemeGroupVersion.WithResource("daemonsets"),
	"Deployment":         appsv1.SchemeGroupVersion.WithResource("deployments"),
	"Service":            corev1.SchemeGroupVersion.WithResource("services"),
	"ClusterRole":        rbacv1.SchemeGroupVersion.WithResource("clusterroles"),
	"ClusterRoleBinding": rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"),
	"Role":               rbacv1.SchemeGroupVersion.WithResource("roles"),
	"RoleBinding":        rbacv1.SchemeGroupVersion.WithResource("rolebindings"),

	"ValidatingAdmissionPolicy":        admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"),
	"ValidatingAdmissionPolicyBinding": admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings"),
}

// resourceOf returns what an object of the chart is changed by.
func resourceOf(t *testing.T, client dynamic.Interface, o *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	r, ok := resources[o.GetKind()]
	if !ok {
		t.Fatalf("the chart has a %s: add it to resources", o.GetKind())
	}
	if o.GetNamespace() == "" {
		return client.Resource(r)
	}
	return client.Resource(r).Namespace(o.GetNamespace())
}

func (n *node) install(t *testing.T, v values) objects {
	t.Helper()
	v["apiServer"], v["image"] = "https://127.0.0.1:6443", values{"tag": "test"}
	text, err := helm(v)
	if err != nil {
		t.Fatal(err)
	}
	all := read(t, text)
	for key, o := range all {
		if _, err := resourceOf(t, n.dynamic, o).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
	return all
}

// uninstall deletes the objects of a chart, and waits until the pods are gone.
func (n *node) uninstall(t *testing.T, all objects) {
	t.Helper()
	for key, o := range all {
		err := resourceOf(t, n.dynamic, o).Delete(t.Context(), o.GetName(), metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	// There is no garbage collector here.
	pods := n.client.CoreV1().Pods("kube-system")
	await.Until(t, "the end of the pods", func() bool {
		list, err := pods.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false
		}
		for i := range list.Items {
			if err := pods.Delete(t.Context(), list.Items[i].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Log(err)
			}
		}
		return len(list.Items) == 0
	})
}

// ready waits for a pod that is ready, and is not the one named not.
func (n *node) ready(t *testing.T, not string) (ready *corev1.Pod) {
	t.Helper()
	var last *corev1.PodList
	await.Until(t, "a pod that is ready", func() bool {
		last, _ = n.client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{})
		for i := range last.Items {
			p := &last.Items[i]
			isReady := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
			if isReady && p.Name != not && p.DeletionTimestamp == nil {
				ready = p
				return true
			}
		}
		return false
	}, func() any { return last })
	return ready
}

// checkRights compares what each container may do with its security context.
func (n *node) checkRights(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	tasks, err := n.ctr("tasks", "list")
	if err != nil {
		t.Fatal(err)
	}
	for i := range pod.Spec.Containers {
		c, status := &pod.Spec.Containers[i], &pod.Status.ContainerStatuses
		at := slices.IndexFunc(*status, func(s corev1.ContainerStatus) bool { return s.Name == c.Name })
		id := strings.TrimPrefix((*status)[at].ContainerID, "containerd://")
		var pid string
		for line := range strings.Lines(tasks) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == id {
				pid = f[1]
			}
		}
		is, err := fieldsOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		sc := c.SecurityContext
		want := map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "CapEff": capabilities(t, sc.Capabilities), "CapBnd": capabilities(t, sc.Capabilities), "Uid": "0"}
		if sc.RunAsUser != nil {
			want["Uid"] = strconv.FormatInt(*sc.RunAsUser, 10)
		}
		for field, value := range want {
			if is[field] != value {
				t.Errorf("container %s: %s is %s, want %s", c.Name, field, is[field], value)
			}
		}
		if file, err := os.Create(filepath.Join("/proc", pid, "root", "written")); !errors.Is(err, unix.EROFS) {
			t.Errorf("container %s: its root can be written: %v, %v", c.Name, file, err)
		}
		t.Logf("container %s: %v", c.Name, want)
	}
}

// fieldsOf returns the first words of the fields in a process's status.
func fieldsOf(pid string) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	is := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(line, ":"); found {
			if words := strings.Fields(value); len(words) > 0 {
				is[name] = words[0]
			}
		}
	}
	return is, err
}

// capabilities returns the capabilities that a security context adds, as /proc has them. All others are dropped.
func capabilities(t *testing.T, c *corev1.Capabilities) string {
	t.Helper()
	numbers := map[corev1.Capability]uint{
		"DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH, "NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "PERFMON": unix.CAP_PERFMON, "BPF": unix.CAP_BPF,
	}
	if !slices.Equal(c.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("the chart drops %v", c.Drop)
	}
	var bits uint64
	for _, add := range c.Add {
		number, ok := numbers[add]
		if !ok {
			t.Errorf("the chart adds %s: add it to numbers", add)
		}
		bits |= 1 << number
	}
	return fmt.Sprintf("%016x", bits)
}

// echoService makes a Service whose endpoint repeats what it gets, and returns its address.
func (n *node) echoService(name string) string {
	n.t.Helper()
	var listener net.Listener
	err := n.plane.Do(func() (err error) { listener, err = net.Listen("tcp4", controlplane.Address+":0"); return err })
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); conn.Close() }()
		}
	}()
	svc, err := n.client.CoreV1().Services("default").Create(n.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	_, err = n.client.DiscoveryV1().EndpointSlices("default").Create(n.t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{controlplane.Address}}},
		Ports:     []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(listener.Addr().(*net.TCPAddr).Port))}},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return net.JoinHostPort(svc.Spec.ClusterIP, "80")
}

// echo sends a word through a connection and waits for it. With a nil connection it opens one, which it returns.
func (n *node) echo(conn net.Conn, address string) (net.Conn, error) {
	if conn == nil {
		ctx, cancel := context.WithTimeout(n.t.Context(), patience)
		defer cancel()
		err := n.plane.Do(func() (err error) { conn, err = (&net.Dialer{}).DialContext(ctx, "tcp4", address); return err })
		if err != nil {
			return nil, err
		}
	}
	const word = "hello"
	_, err := io.WriteString(conn, word)
	got := make([]byte, len(word))
	_, err2 := io.ReadFull(conn, got)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	if string(got) != word {
		return nil, fmt.Errorf("the endpoint answered %q", got)
	}
	return conn, nil
}

// endContainers ends the containers that a failed test has left. They would outlive containerd.
func (n *node) endContainers() {
	tasks, err := n.ctr("tasks", "list", "--quiet")
	if err != nil {
		n.t.Error(err)
	}
	for _, id := range strings.Fields(tasks) {
		if _, err := n.ctr("tasks", "delete", "--force", id); err != nil {
			n.t.Error(err)
		}
	}
}

// unmount unmounts what kubelet and containerd have left in the node's directory.
func (n *node) unmount() {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		n.t.Error(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.HasPrefix(f[1], n.dir+"/") {
			_ = unix.Unmount(f[1], unix.MNT_DETACH)
		}
	}
}
