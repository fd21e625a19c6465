//go:build linux

package test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/test/await"
	processes "github.com/switchyard-net/switchyard/test/program"
)

const (
	agnhostReference = "localhost/agnhost:test"
	// requestTimeout is for one request. TCP sends the first packet again after a second, so a packet may be lost.
	requestTimeout = 5 * time.Second
	// datagramTimeout is for a datagram, which nobody sends again.
	datagramTimeout = 3 * time.Second
	webPort         = 80
	// testFocus is an environment variable with a regular expression that chooses tests of e2e.test, and upstreamLogs one with a directory for its logs.
	testFocus, upstreamLogs = "SWITCHYARD_TEST_E2E_FOCUS", "SWITCHYARD_TEST_E2E_LOGS"
	// upstreamTime is for a group of tests of e2e.test, and longTime for tests that testFocus chooses.
	upstreamTime, longTime = 9 * time.Minute, time.Hour
)

// edgeOn has the chart hand connections of all Services over.
var edgeOn = values{"config": values{"edge": values{"mode": "tcx", "services": "all"}}}

// TestClusterEdge runs the chart on a cluster of three nodes with a real control plane, kubelet and containerd. Services of type LoadBalancer
// are asked from outside, first without the edge and then with it. `make cluster-edge` runs it.
func TestClusterEdge(t *testing.T) {
	programs := os.Getenv(nodePrograms)
	if programs == "" {
		t.Skip("this takes minutes: run make cluster-edge")
	}
	c := startCluster(t, programs)
	ctx, stop := context.WithCancel(t.Context())
	var balancing sync.WaitGroup
	balancing.Go(func() { c.balance(ctx, func() *clusterNode { return c.nodes[0] }) })
	t.Cleanup(balancing.Wait)
	t.Cleanup(stop)

	steps := []struct {
		name string
		run  func(t *testing.T)
	}{
		{"pods reach each other", c.testPods},
		{"the edge is off", func(t *testing.T) { c.install(t, values{}); c.testAddresses(t, c.nodes[0].ips()) }},
		{"the edge is on", func(t *testing.T) {
			c.install(t, edgeOn)
			c.takePart(t)
			c.testAddresses(t, []string{clientIPv4, clientIPv6})
		}},
		{"a rolling update", c.testRollingUpdate},
		{"Switchyard starts again", c.testRestart},
		{"e2e.test", c.testUpstream},
	}
	for _, step := range steps {
		if !t.Run(step.name, step.run) {
			return // what is left would disturb the others
		}
	}
}

// takePart waits until all nodes take part in the edge.
func (c *cluster) takePart(t *testing.T) {
	t.Helper()
	var last any
	await.Until(t, "the annotations of all Nodes", func() bool {
		nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			last = err
			return false
		}
		return !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { last = n.Annotations; return n.Annotations["switchyard.net/edge"] == "" })
	}, func() any { return last }, func() any { return c.proxies(t) })
}

// testPods has pods on all nodes ask each other, over both families.
func (c *cluster) testPods(t *testing.T) {
	labels := map[string]string{"app": "pods"}
	if _, err := c.client.AppsV1().DaemonSets("default").Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: webPod(labels)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var pods []corev1.Pod
	await.Until(t, "a pod on each node", func() bool {
		pods = c.readyPods(t, "app=pods")
		return len(pods) == len(c.nodes)
	}, func() any { return c.describe(t, "app=pods") })
	for i := range pods {
		for j := range pods {
			for _, to := range pods[j].Status.PodIPs {
				url := fmt.Sprintf("http://%s:8080/dial?host=%s&port=8080&request=hostname&protocol=http&tries=1", pods[i].Status.PodIP, to.IP)
				got, err := c.get("client", url)
				if want := `{"responses":["` + pods[j].Name + `"]}`; err != nil || got != want {
					t.Errorf("a pod on %s asks %s on %s: got %q, %v; want %s", pods[i].Spec.NodeName, to.IP, pods[j].Spec.NodeName, got, err, want)
				}
			}
		}
	}
	if err := c.client.AppsV1().DaemonSets("default").Delete(t.Context(), "pods", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// webPod is a pod that tells clients their address. It goes on for some seconds when it is told to end, as kube-proxies take a moment.
func webPod(labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(30)),
			Containers: []corev1.Container{{
				Name: "web", Image: agnhostReference, Args: []string{"netexec", "--delay-shutdown=10"},
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(8080)}}},
			}},
		},
	}
}

func (c *cluster) readyPods(t *testing.T, selector string) (ready []corev1.Pod) {
	list, err := c.client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			ready = append(ready, p)
		}
	}
	return ready
}

// describe describes pods, and the events of their namespace.
func (c *cluster) describe(t *testing.T, selector string) string {
	var b strings.Builder
	pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err.Error()
	}
	for _, p := range pods.Items {
		fmt.Fprintf(&b, "%s on %s: %s %+v\n", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.ContainerStatuses)
	}
	events, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, e := range events.Items {
		fmt.Fprintf(&b, "%s: %s\n", e.InvolvedObject.Name, e.Message)
	}
	return b.String()
}

// testAddresses asks a Service from outside, and expects that its endpoints see these addresses of clients, one of each family. No endpoint is
// on the node at which the packets come in.
func (c *cluster) testAddresses(t *testing.T, want []string) {
	addresses := c.serveWeb(t)
	for i, vip := range addresses {
		for protocol, ask := range map[string]asker{"TCP": c.askTCP, "UDP": c.askUDP} {
			const requests = 100
			seen := map[string]int{}
			for range requests {
				got, err := ask(vip)
				if err != nil {
					got = err.Error()
				}
				seen[got]++
			}
			t.Logf("%s to %s: %v", protocol, vip, seen)
			if seen[want[i]] != requests {
				t.Errorf("%s to %s: endpoints see %v, want %s %d times", protocol, vip, seen, want[i], requests)
			}
		}
	}
	c.logPackets(t)
}

// serveWeb makes a Service of type LoadBalancer with four endpoints behind the first node, if it is not there, and returns its addresses, IPv4 first.
func (c *cluster) serveWeb(t *testing.T) (addresses []string) {
	t.Helper()
	for _, n := range c.nodes[1:] {
		patch := []byte(`{"metadata":{"labels":{"behind":"true"}}}`)
		if _, err := c.client.CoreV1().Nodes().Patch(t.Context(), n.name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	labels := map[string]string{"app": "web"}
	deployments := c.client.AppsV1().Deployments("default")
	if _, err := deployments.Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
		pod := webPod(labels)
		pod.Spec.NodeSelector = map[string]string{"behind": "true"}
		none, one := intstr.FromInt32(0), intstr.FromInt32(1)
		if _, err := deployments.Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: appsv1.DeploymentSpec{
				Replicas: new(int32(4)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod, MinReadySeconds: 2,
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &none, MaxSurge: &one}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, Selector: labels, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
				Ports: []corev1.ServicePort{
					{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: webPort, TargetPort: intstr.FromInt32(8080)},
					{Name: "udp", Protocol: corev1.ProtocolUDP, Port: webPort, TargetPort: intstr.FromInt32(8081)},
				},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await.Until(t, "the endpoints", func() bool { return len(c.readyPods(t, "app=web")) == 4 }, func() any { return c.describe(t, "app=web") })
	await.Until(t, "the addresses of the Service", func() bool {
		s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
		addresses = nil
		if err == nil {
			for _, ingress := range s.Status.LoadBalancer.Ingress {
				addresses = append(addresses, ingress.IP)
			}
		}
		return len(addresses) == 2
	})
	for _, vip := range addresses {
		for _, ask := range []asker{c.askTCP, c.askUDP} {
			var err error
			await.Until(t, "an answer from "+vip, func() bool { _, err = ask(vip); return err == nil }, func() any { return err }, func() any { return c.proxies(t) })
		}
	}
	return addresses
}

// logPackets logs what the edge of each node has done with packets.
func (c *cluster) logPackets(t *testing.T) {
	for _, n := range c.nodes {
		text, err := c.get(n.name, "http://127.0.0.1:10249/metrics")
		if err != nil {
			t.Error(err)
		}
		var lines []string
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "switchyard_edge_") && !strings.HasSuffix(line, " 0\n") {
				lines = append(lines, strings.TrimPrefix(strings.TrimSpace(line), "switchyard_edge_"))
			}
		}
		t.Logf("%s: %s", n.name, strings.Join(lines, ", "))
	}
}

// asker asks an address what the client's is.
type asker func(vip string) (client string, err error)

func dialOn(p place) func(ctx context.Context, network, address string) (net.Conn, error) {
	return dialFrom(p, func() int { return 0 })
}

// dialFrom returns a function that connects from a machine. port chooses the client's port, 0 for any.
func dialFrom(p place, port func() int) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		d := net.Dialer{Timeout: requestTimeout}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{Port: port()}
		} else {
			d.LocalAddr = &net.TCPAddr{Port: port()}
		}
		err = p.Do(func() error { conn, err = d.DialContext(ctx, network, address); return err })
		return conn, err
	}
}

// freshPort returns a port that the client has not used for long. The first node gives connections to netfilter that it still tracks: with the
// same ports as an old connection, a new one would go the way of that.
func (c *cluster) freshPort() int { return 10000 + int(c.ports.Add(1)%50000) }

func (c *cluster) askTCP(vip string) (string, error) {
	url := "http://" + net.JoinHostPort(vip, fmt.Sprint(webPort)) + "/clientip"
	got, err := getBy(dialFrom(c.machines["client"], c.freshPort), url)
	return hostOf(got, err)
}

func (c *cluster) askUDP(vip string) (string, error) {
	conn, err := dialFrom(c.machines["client"], c.freshPort)(context.Background(), "udp", net.JoinHostPort(vip, fmt.Sprint(webPort)))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(datagramTimeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "clientip"); err != nil {
		return "", err
	}
	answer := make([]byte, 128)
	n, err := conn.Read(answer)
	return hostOf(string(answer[:n]), err)
}

func hostOf(address string, err error) (string, error) {
	if err != nil {
		return "", err
	}
	host, _, err := net.SplitHostPort(address)
	return host, err
}

// load asks without a pause until it is ended.
type load struct {
	stop     context.CancelFunc
	working  sync.WaitGroup
	mu       sync.Mutex
	seen     map[string]int
	failures []failure
}

// failure is a request without an answer.
type failure struct {
	begin    time.Time
	protocol string
	err      error
}

// loadOn puts load on the addresses: new connections of TCP and new flows of UDP.
func (c *cluster) loadOn(t *testing.T, addresses []string) *load {
	ctx, stop := context.WithCancel(t.Context())
	l := &load{stop: stop, seen: map[string]int{}}
	t.Cleanup(func() { stop(); l.working.Wait() })
	for _, vip := range addresses {
		for protocol, ask := range map[string]asker{"TCP": c.askTCP, "UDP": c.askUDP} {
			l.working.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
					begin := time.Now()
					got, err := ask(vip)
					l.mu.Lock()
					if err != nil {
						l.failures = append(l.failures, failure{begin, protocol, err})
					} else {
						l.seen[protocol+" from "+got]++
					}
					l.mu.Unlock()
				}
			})
		}
	}
	return l
}

// end ends the load. It returns what addresses of clients endpoints have seen, and how often. No request may have failed but those that excused excuses.
func (l *load) end(t *testing.T, excused func(failure) bool) map[string]int {
	t.Helper()
	l.stop()
	l.working.Wait()
	faults := slices.DeleteFunc(slices.Clone(l.failures), excused)
	t.Logf("answers: %v, without an answer: %d, of which %d are faults", l.seen, len(l.failures), len(faults))
	for _, f := range faults[:min(len(faults), 20)] {
		t.Errorf("%s %s: %v", f.begin.Format(time.StampMilli), f.protocol, f.err)
	}
	return l.seen
}

// testRollingUpdate replaces all endpoints under load. They are on all nodes afterwards.
func (c *cluster) testRollingUpdate(t *testing.T) {
	l := c.loadOn(t, c.serveWeb(t))
	deployments := c.client.AppsV1().Deployments("default")
	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"version":"2"}},"spec":{"nodeSelector":null}}}}`)
	if _, err := deployments.Patch(t.Context(), "web", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	var last any
	await.Until(t, "the end of the rolling update", func() bool {
		d, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return false
		}
		last = d.Status
		// The old pods are gone, too.
		pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == 4 && d.Status.AvailableReplicas == 4 && len(pods.Items) == 4
	}, func() any { return last })
	for what := range l.end(t, func(failure) bool { return false }) {
		if !strings.HasSuffix(what, " "+clientIPv4) && !strings.HasSuffix(what, " "+clientIPv6) {
			t.Errorf("endpoints saw %s", what)
		}
	}
	c.logPackets(t)
}

// held is a connection that stays open.
type held struct {
	net.Conn
	answers *bufio.Reader
	// pod is the endpoint.
	pod string
}

func (h *held) ask(path string) (string, error) {
	if err := h.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(h, "GET %s HTTP/1.1\r\nHost: web\r\n\r\n", path); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(h.answers, nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// untilSilent is how long nodes ask a node that has ended for connections that it may know: until it has missed three probes.
const untilSilent = 5 * time.Second

// testRestart deletes the pod of Switchyard on each node in turn, under load. Connections stay open, and all new connections of TCP are served. New flows
// of UDP look like existing ones. So they are lost while other nodes ask the one that has ended.
func (c *cluster) testRestart(t *testing.T) {
	addresses := c.serveWeb(t)
	var open []*held
	for i := range 60 {
		conn, err := dialFrom(c.machines["client"], c.freshPort)(t.Context(), "tcp", net.JoinHostPort(addresses[i%2], fmt.Sprint(webPort)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		h := &held{Conn: conn, answers: bufio.NewReader(conn)}
		if h.pod, err = h.ask("/hostname"); err != nil {
			t.Fatal(err)
		}
		open = append(open, h)
	}
	l := c.loadOn(t, addresses)
	var ends []time.Time
	for _, n := range c.nodes {
		pods, err := c.client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name, LabelSelector: "app.kubernetes.io/name=switchyard"})
		if err != nil || len(pods.Items) != 1 {
			t.Fatalf("the pods of Switchyard on %s: %d, %v", n.name, len(pods.Items), err)
		}
		if err := c.client.CoreV1().Pods("kube-system").Delete(t.Context(), pods.Items[0].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, time.Now())
		t.Logf("%s: Switchyard on %s is to end", time.Now().Format(time.StampMilli), n.name)
		await.Until(t, "another pod of Switchyard on "+n.name, func() bool {
			for _, p := range c.readyPods(t, "app.kubernetes.io/name=switchyard") {
				if p.Spec.NodeName == n.name && p.Name != pods.Items[0].Name {
					return true
				}
			}
			return false
		}, func() any { return c.proxies(t) })
		c.takePart(t)
		t.Logf("%s: Switchyard on %s takes part again", time.Now().Format(time.StampMilli), n.name)
		for _, h := range open {
			if pod, err := h.ask("/hostname"); err != nil || pod != h.pod {
				t.Fatalf("after a new start on %s, a connection with %s: got %q, %v", n.name, h.pod, pod, err)
			}
		}
	}
	l.end(t, func(f failure) bool {
		return f.protocol == "UDP" && slices.ContainsFunc(ends, func(end time.Time) bool { return f.begin.After(end) && f.begin.Before(end.Add(untilSilent)) })
	})
	c.logPackets(t)
}

// chosen are groups of tests of e2e.test that need no more than the network. Groups run at once, as most of them wait. Two are left to testFocus: those
// named "should not have connectivity disruption", which take a quarter of an hour each.
var chosen = []string{
	`LoadBalancers \[Feature:LoadBalancer\] should (be able to change the type|only allow access|handle load balancer cleanup|be able to create LoadBalancer Service without)`,
	`LoadBalancers \[Feature:LoadBalancer\] should (have session affinity|be able to switch session affinity)`,
	`LoadBalancers \[Feature:LoadBalancer\] should be able to preserve UDP traffic`,
	// Without "should only target nodes with endpoints". On nodes with two families, it wants nodes to report endpoints of an IPv4 Service at their
	// IPv6 addresses, which kube-proxy does not do, either.
	`LoadBalancers ExternalTrafficPolicy: Local \[Feature:LoadBalancer\] should (work|target all)`,
	`Services should (preserve source pod IP|serve a basic endpoint|be rejected when no endpoints|allow pods to hairpin|be able to create a functioning NodePort|be able to change the type from ExternalName)`,
	`Services should (have session affinity work|be able to switch session affinity)`,
	`Conntrack should be able to preserve UDP traffic when server pod cycles for a (NodePort|ClusterIP) service$`,
}

// testUpstream runs e2e.test as the client outside.
func (c *cluster) testUpstream(t *testing.T) {
	dns, err := os.ReadFile("testdata/cluster/dns.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, dns)
	await.Until(t, "CoreDNS", func() bool { return len(c.readyPods(t, "app=coredns")) == 2 }, func() any { return c.proxies(t) })
	list, err := exec.Command(c.program("e2e.test"), "--list-images").Output()
	if err != nil {
		t.Fatal(err)
	}
	for reference := range strings.FieldsSeq(string(list)) {
		for name, own := range map[string]string{"/agnhost:": agnhostReference, "/pause:": pauseReference} {
			for _, n := range c.nodes {
				if strings.Contains(reference, name) {
					if err := c.ctr(n, "images", "tag", own, reference); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	groups, most := chosen, upstreamTime
	if focus := os.Getenv(testFocus); focus != "" {
		groups, most = []string{focus}, longTime
	}
	t.Run("groups", func(t *testing.T) {
		for i, focus := range groups {
			t.Run(fmt.Sprint(i+1), func(t *testing.T) {
				t.Parallel()
				c.runUpstream(t, focus, most)
			})
		}
	})
}

// runUpstream runs a group of tests.
func (c *cluster) runUpstream(t *testing.T, focus string, most time.Duration) {
	cmd := exec.Command(c.program("e2e.test"), "--ginkgo.focus="+focus, "--ginkgo.v", "--ginkgo.no-color", "--kubeconfig="+c.plane.Kubeconfig(), "--kubectl-path="+c.program("kubectl"),
		"--host=https://127.0.0.1:6443", "--provider=skeleton", "--num-nodes=3", "--report-dir="+t.TempDir(), "--ginkgo.timeout="+most.String())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := processes.Start(cmd, c.machines["client"].Do)
	if err != nil {
		t.Fatal(err)
	}
	p.End(most + patience)
	text := out.String()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "Ran ") || strings.HasPrefix(line, "[sig-network]") || strings.HasPrefix(line, "• ") || strings.Contains(line, "[FAILED]") || strings.HasPrefix(line, "S [SKIPPED]") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if dir := os.Getenv(upstreamLogs); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(t.Name())+".log"), out.Bytes(), 0o644); err != nil {
			t.Error(err)
		}
	}
	if p.Err() != nil {
		t.Errorf("%s: %v\n%s", focus, p.Err(), text[max(0, len(text)-20000):])
	}
	if strings.Contains(text, "Ran 0 of ") {
		t.Errorf("no test is named %s", focus)
	}
}
