package alerts

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/kubeapi"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/program"
)

const (
	nodeAddr     = "10.1.0.2"
	endpointAddr = "10.1.0.1"
	metricsAddr  = "127.0.0.1:10249"
	healthAddr   = "127.0.0.1:10256"
	relayMetrics = "127.0.0.1:10269"
	relayAPI     = "tcp://127.0.0.1:8443"

	// programVariable is where a test finds the program.
	programVariable = "SWITCHYARD_ALERTS_PROGRAM"
)

// TestMain builds the program once.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Getenv(programVariable) != "" {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "switchyard-alerts")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program := filepath.Join(dir, "switchyard")
		build := exec.Command("go", "build", "-o", program, "./cmd/switchyard")
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
		os.Setenv(programVariable, program)
		return m.Run()
	}())
}

// inNamespace runs the calling test in a process with network, mount and PID namespaces of its own, and reports whether this is that
// process. With the PID namespace, the processes of a test end with it, even if it panics or times out.
func inNamespace(t *testing.T) bool {
	t.Helper()
	timeout := 2 * time.Minute
	if *realTime {
		timeout += time.Hour
	}
	if !netnstest.Apart(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, timeout, fmt.Sprint("-real=", *realTime)) {
		return false
	}
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(t, netnstest.Alone(nodeAddr, endpointAddr))
	return true
}

func loopback(t *testing.T) netlink.Link {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	return lo
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a cluster with an API server and processes.
type world struct {
	*testing.T
	*server
	api        *kubeapi.Server
	http       *httptest.Server
	dir        string
	kubeconfig string
	tools      string    // a directory with the programs of iptables
	config     string    // of the mode, as lines of YAML
	without    []uintptr // capabilities that processes do not get
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, server: newServer(t, alertsFile), api: kubeapi.New(), dir: t.TempDir(), config: "nftables: {counters: true}"}
	w.http = httptest.NewServer(w.api)
	t.Cleanup(func() {
		w.http.CloseClientConnections()
		w.http.Close()
	})
	w.kubeconfig, w.tools = filepath.Join(w.dir, "kubeconfig"), filepath.Join(w.dir, "tools")
	text := "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: \"" + w.http.URL + "\"}}], contexts: [{name: c, context: {cluster: c}}]}"
	must(t, os.WriteFile(w.kubeconfig, []byte(text), 0o600))
	must(t, os.Mkdir(w.tools, 0o755))
	w.tool("*", "")
	w.node("10.244.1.0/24")
	w.put(service("web", "10.96.0.10"), slice("web", endpointAddr))
	return w
}

// tool replaces the programs of iptables that match a pattern by another program; if that is empty, they are what they are.
func (w *world) tool(pattern, instead string) {
	w.Helper()
	names, err := filepath.Glob("/usr/sbin/ip*tables-" + pattern)
	must(w.T, err)
	for _, name := range names {
		link := filepath.Join(w.tools, filepath.Base(name))
		_ = os.Remove(link)
		to := name
		if instead != "" {
			to = instead
		}
		must(w.T, os.Symlink(to, link))
	}
}

func (w *world) put(objects ...kubeapi.Object) {
	w.Helper()
	must(w.T, w.api.Put(objects))
}

// node puts the Node, with pod CIDRs.
func (w *world) node(cidrs ...string) {
	w.put(&corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Spec: corev1.NodeSpec{PodCIDRs: cidrs},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddr}}},
	})
}

// service is a Service with UDP port 53 and TCP port 80.
func service(name, clusterIP string) *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(8053)},
			},
		},
	}
}

// slice is the EndpointSlice of a Service, with ready endpoints on the node.
func slice(service string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}, {Name: new("udp"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(8053))},
		},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new("node-a"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	return s
}

// process is the program in a process of its own.
type process struct {
	*program.Process
	log string // a file
}

// start starts the program, until the end of the test or until it is killed.
func (w *world) start(args ...string) *process {
	w.Helper()
	out, err := os.CreateTemp(w.dir, "log")
	must(w.T, err)
	defer out.Close()
	cmd := exec.Command(os.Getenv(programVariable), args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "PATH="+w.tools)
	started, err := program.Start(cmd, program.Without(w.without...))
	must(w.T, err)
	p := &process{started, out.Name()}
	w.Cleanup(func() {
		p.Kill()
		if w.Failed() {
			text, _ := os.ReadFile(p.log)
			w.Logf("%s:\n%.3000s", strings.Join(args, " "), text)
		}
	})
	return p
}

// proxy starts a proxy in a mode, and waits until it has programmed the first state if it is to come to that.
func (w *world) proxy(mode string, programs bool) *process {
	w.Helper()
	file := filepath.Join(w.dir, "config.yaml")
	must(w.T, os.WriteFile(file, []byte(`apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
mode: `+mode+`
hostnameOverride: node-a
detectLocalMode: NodeCIDR
clientConnection: {kubeconfig: `+w.kubeconfig+`}
metricsBindAddress: `+metricsAddr+`
healthzBindAddress: `+healthAddr+`
adminBindAddress: none
syncPeriod: 1s
linux: {oomScoreAdj: 0, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
`+w.config+"\n"), 0o600))
	p := w.start("proxy", "--config", file)
	await.Until(w, "metrics are served", func() bool {
		_, _, err := get("http://" + metricsAddr + "/metrics")
		return err == nil
	})
	if programs {
		w.applied()
	}
	if len(w.targets) == 0 {
		w.targets = []*target{{job: "kube-proxy", address: metricsAddr, node: "node-a"}}
	}
	return p
}

// relay starts a relay, and waits until it serves metrics.
func (w *world) relay() *process {
	w.Helper()
	p := w.start("serve", "--nodes", "--kubeconfig", w.kubeconfig, "--listen", relayAPI, "--metrics-bind-address", relayMetrics,
		"--healthz-bind-address", "127.0.0.1:10276")
	await.Until(w, "the relay serves metrics", func() bool {
		_, _, err := get("http://" + relayMetrics + "/metrics")
		return err == nil
	})
	return p
}

// applied waits until no change waits to be programmed.
func (w *world) applied() {
	w.Helper()
	await.Until(w, "all changes are programmed", func() bool {
		return w.shows("switchyard_oldest_pending_change_timestamp_seconds 0")
	})
}

// shows reports whether /metrics of the proxy has a line.
func (w *world) shows(line string) bool {
	body, _, err := get("http://" + metricsAddr + "/metrics")
	return err == nil && bytes.Contains(body, []byte("\n"+line+"\n"))
}

// pending waits until a change waits to be programmed.
func (w *world) pending() {
	w.Helper()
	await.Until(w, "a change waits", func() bool { return !w.shows("switchyard_oldest_pending_change_timestamp_seconds 0") })
}
