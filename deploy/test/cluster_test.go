//go:build linux

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	processes "github.com/switchyard-net/switchyard/test/program"
)

// cluster is a cluster of three nodes with kubelet and containerd, and a client outside:
//
//	client ── router ──┐
//	                   ├── switch ── node-1, node-2 and node-3 ── pods
//	control plane ─────┘
//
// Each node has its network, its mounts and its processes to itself. All of them end with the test.
type cluster struct {
	t        *testing.T
	plane    *controlplane.ControlPlane
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	dir      string
	programs string
	upstream string
	machines map[string]place
	nodes    []*clusterNode
	// ports counts connections of the client.
	ports atomic.Uint32
}

// clusterNode is a node of a [cluster].
type clusterNode struct {
	name  string
	place place
	// number is its last number in all of its addresses.
	number int
	dir    string
	// holder is the process that holds the namespaces of the node.
	holder *processes.Process
}

// place is a network namespace.
type place interface{ Do(fn func() error) error }

const (
	clientIPv4, clientIPv6 = "192.0.2.100", "2001:db8:0:1::64"
	// balancedIPv4 and balancedIPv6 are the beginnings of the addresses of load balancers.
	balancedIPv4, balancedIPv6 = "203.0.113.", "2001:db8:0:3::"
	// pauseReference is in the configuration of containerd.
	pauseReference = "localhost/pause:test"
)

// ips are the addresses of a node, and pods are the ranges of its pods.
func (n *clusterNode) ips() []string {
	return []string{fmt.Sprintf("198.51.100.%d", n.number), fmt.Sprintf("2001:db8:0:2::%d", n.number)}
}

func (n *clusterNode) pods() []string {
	return []string{fmt.Sprintf("10.244.%d.0/24", n.number), fmt.Sprintf("fd00:10:244:%d::/64", n.number)}
}

// startCluster starts a cluster with three nodes that are ready. They have no service proxy.
func startCluster(t *testing.T, programs string) *cluster {
	t.Helper()
	netnstest.Need(t)
	upstream, err := controlplane.Binary()
	if err != nil {
		t.Fatal(err)
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Options{
		Dir: t.TempDir(), Pods: true, Controllers: []string{"*"},
		APIServerFlags: []string{"--bind-address=0.0.0.0", "--kubelet-preferred-address-types=InternalIP"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	c := &cluster{t: t, plane: plane, dir: t.TempDir(), programs: programs, upstream: upstream, machines: map[string]place{"plane": plane}}
	if c.client, err = kubernetes.NewForConfig(plane.Config()); err != nil {
		t.Fatal(err)
	}
	if c.dynamic, err = dynamic.NewForConfig(plane.Config()); err != nil {
		t.Fatal(err)
	}
	for number := 1; number <= 3; number++ {
		c.nodes = append(c.nodes, &clusterNode{name: fmt.Sprintf("node-%d", number), number: number})
	}
	c.connectAll()
	c.serveAPI()
	images := []string{
		pauseImage(t, c.dir, pauseReference),
		agnhostImage(t, c.dir, c.program("agnhost"), agnhostReference),
		imageWith(t, filepath.Join(c.dir, "coredns.tar"), "localhost/coredns:test", map[string]string{"coredns": c.program("coredns")}, "/coredns"),
	}
	switchyard, err := filepath.Abs("../../bin/switchyard-image.tar")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		c.startNode(n, append(images, switchyard)...)
	}
	for _, n := range c.nodes {
		c.ready(n)
	}
	return c
}

// program returns the path of a program that is built from a module.
func (c *cluster) program(name string) string { return filepath.Join(filepath.Dir(c.upstream), name) }

// connectAll makes the networks of all machines.
func (c *cluster) connectAll() {
	c.t.Helper()
	for _, name := range []string{"switch", "router", "client"} {
		c.add(name, name == "router")
	}
	for _, n := range c.nodes {
		n.place = c.add(n.name, true)
	}
	c.ip("switch", "link add br0 type bridge", "link set br0 up")
	for _, name := range []string{"router", "plane", "node-1", "node-2", "node-3"} {
		c.connect("switch", name, name, "eth0")
		c.ip("switch", "link set "+name+" master br0")
	}
	c.connect("client", "eth0", "router", "eth1")
	c.ip("client", "addr add "+clientIPv4+"/24 dev eth0", "addr add "+clientIPv6+"/64 dev eth0 nodad",
		"route add default via 192.0.2.1", "route add default via 2001:db8:0:1::1")
	c.ip("router", "addr add 192.0.2.1/24 dev eth1", "addr add 2001:db8:0:1::1/64 dev eth1 nodad",
		"addr add 198.51.100.254/24 dev eth0", "addr add 2001:db8:0:2::fe/64 dev eth0 nodad", "route add "+controlplane.Address+" via 198.51.100.250")
	c.ip("plane", "addr add 198.51.100.250/24 dev eth0", "route add default via 198.51.100.254")
	for _, n := range c.nodes {
		c.ip(n.name, "addr add "+n.ips()[0]+"/24 dev eth0", "addr add "+n.ips()[1]+"/64 dev eth0 nodad",
			"route add default via 198.51.100.254", "route add default via 2001:db8:0:2::fe", "route add "+controlplane.Address+" via 198.51.100.250")
	}
	for _, n := range c.nodes {
		for _, other := range append([]string{"router"}, "node-1", "node-2", "node-3") {
			if other != n.name {
				c.ip(other, "route add "+n.pods()[0]+" via "+n.ips()[0], "route add "+n.pods()[1]+" via "+n.ips()[1])
			}
		}
	}
}

func (c *cluster) add(name string, forwards bool) *netns.NS {
	c.t.Helper()
	ns := netnstest.New(c.t)
	c.machines[name] = ns
	yes := map[bool]string{true: "1", false: "0"}[forwards]
	if err := ns.SetSysctls(
		netns.Sysctl{Path: "net/ipv4/ip_forward", Value: yes}, netns.Sysctl{Path: "net/ipv6/conf/all/forwarding", Value: yes},
		netns.Sysctl{Path: "net/ipv4/conf/all/rp_filter", Value: "1"}, netns.Sysctl{Path: "net/ipv4/conf/default/rp_filter", Value: "1"},
		netns.Sysctl{Path: "net/ipv4/conf/all/send_redirects", Value: "0"}, netns.Sysctl{Path: "net/ipv4/conf/default/send_redirects", Value: "0"},
		netns.Sysctl{Path: "net/ipv6/conf/default/dad_transmits", Value: "0"},
		// The router shares connections among nodes by their ports, too.
		netns.Sysctl{Path: "net/ipv4/fib_multipath_hash_policy", Value: "1"}, netns.Sysctl{Path: "net/ipv6/fib_multipath_hash_policy", Value: "1"},
	); err != nil {
		c.t.Fatal(err)
	}
	c.ip(name, "link set lo up")
	return ns
}

// connect connects two machines by a pair of devices.
func (c *cluster) connect(a, aDevice, b, bDevice string) {
	c.t.Helper()
	var other *netns.NS
	err := c.machines[b].Do(func() (err error) { other, err = netns.Current(); return err })
	if err == nil {
		defer other.Close()
		err = other.Fd(func(fd int) error {
			return c.machines[a].Do(func() error {
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: aDevice}, PeerName: bDevice, PeerNamespace: netlink.NsFd(fd)})
			})
		})
	}
	if err != nil {
		c.t.Fatalf("connect %s with %s: %v", a, b, err)
	}
	c.ip(a, "link set "+aDevice+" up")
	c.ip(b, "link set "+bDevice+" up")
}

// ip runs commands of the program ip on a machine.
func (c *cluster) ip(machine string, commands ...string) {
	c.t.Helper()
	if err := c.tryIP(machine, commands...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) tryIP(machine string, commands ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := c.machines[machine].Do(cmd.Run); err != nil {
		return fmt.Errorf("%s: ip %q: %w: %s", machine, commands, err, &out)
	}
	return nil
}

// serveAPI has the API server answer on all machines, at the address in its kubeconfig, and for pods by its Service.
func (c *cluster) serveAPI() {
	c.t.Helper()
	for _, name := range []string{"client", "node-1", "node-2", "node-3"} {
		exposed, err := c.plane.Expose(c.machines[name])
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { exposed.Close() })
	}
	if _, err := c.client.DiscoveryV1().EndpointSlices("default").Create(c.t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{controlplane.Address}}},
		Ports:     []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(6443))}},
	}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// hold makes the namespaces of a node. Its first process collects those whose parents have ended.
const hold = `set -e
mount --make-rshared /
mkdir -p /run /var/lib/cni /var/log/containers
for dir in /run /var/lib/cni /var/log/containers; do mount -t tmpfs tmpfs $dir; done
touch $1
while sleep 1; do :; done`

// network is the configuration of the plugins that connect pods.
const network = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "mtu": 1500, "ipam": {"type": "host-local", "dataDir": "DIR/ipam",
	"ranges": [[{"subnet": "POD4"}], [{"subnet": "POD6"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}]}`

// startNode starts containerd and kubelet, and imports images.
func (c *cluster) startNode(n *clusterNode, images ...string) {
	t := c.t
	t.Helper()
	n.dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(n.dir, "cni"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeConfig(t, filepath.Join(n.dir, "containerd.toml"), containerdConfig, n.dir, c.programs)
	writeConfig(t, filepath.Join(n.dir, "kubelet.yaml"), kubeletConfig, n.dir, c.programs)
	pods := strings.NewReplacer("POD4", n.pods()[0], "POD6", n.pods()[1]).Replace(network)
	writeConfig(t, filepath.Join(n.dir, "cni", "pods.conflist"), pods, n.dir, c.programs)
	held := filepath.Join(n.dir, "held")
	var err error
	n.holder, err = processes.Start(exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", hold, "hold", held), n.place.Do)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.endNode(n) })
	await.Until(t, "the namespaces of "+n.name, func() bool { _, err := os.Stat(held); return err == nil })
	c.start(n, "containerd", filepath.Join(c.programs, "containerd"), "--config", filepath.Join(n.dir, "containerd.toml"))
	await.Until(t, "containerd", func() bool { return c.ctr(n, "version") == nil }, func() any { return processes.Tail(filepath.Join(n.dir, "containerd.log")) })
	for _, image := range images {
		if err := c.ctr(n, "images", "import", image); err != nil {
			t.Fatal(err)
		}
	}
	c.start(n, "kubelet", c.upstream, "kubelet", "--config="+filepath.Join(n.dir, "kubelet.yaml"), "--kubeconfig="+c.plane.Kubeconfig(),
		"--root-dir="+filepath.Join(n.dir, "kubelet"), "--cert-dir="+filepath.Join(n.dir, "pki"), "--hostname-override="+n.name, "--node-ip="+strings.Join(n.ips(), ","))
}

// inside is a command that runs in the namespaces of a node.
func (n *clusterNode) inside(path string, args ...string) *exec.Cmd {
	pid := n.holder.PID()
	args = append([]string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", pid), fmt.Sprintf("--pid=/proc/%d/ns/pid_for_children", pid), path}, args...)
	return exec.Command("nsenter", args...)
}

// start runs a program on a node until the end of the test.
func (c *cluster) start(n *clusterNode, name, path string, args ...string) {
	c.t.Helper()
	log, err := os.Create(filepath.Join(n.dir, name+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := n.inside(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "PATH="+c.programs+":"+os.Getenv("PATH"))
	if _, err := processes.Start(cmd, n.place.Do); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("%s of %s: %s", name, n.name, processes.Tail(log.Name()))
		}
	})
}

// ctr runs a command of containerd on a node.
func (c *cluster) ctr(n *clusterNode, args ...string) error {
	args = append([]string{"--address", filepath.Join(n.dir, "containerd.sock"), "--namespace", "k8s.io"}, args...)
	cmd := n.inside(filepath.Join(c.programs, "ctr"), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %s on %s: %w: %s", args, n.name, err, out)
	}
	return nil
}

// endNode ends all processes of a node. Its mounts go with the last one, and then its control groups can go.
func (c *cluster) endNode(n *clusterNode) {
	ids, _ := filepath.Glob(filepath.Join(n.dir, "state", "io.containerd.runtime.v2.task", "k8s.io", "*"))
	n.holder.Kill()
	for _, id := range ids {
		groups, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", "k8s.io", filepath.Base(id)))
		for _, group := range append(groups, filepath.Join("/sys/fs/cgroup/k8s.io", filepath.Base(id))) {
			for end := time.Now().Add(5 * time.Second); os.Remove(group) != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(group); os.IsNotExist(err) {
					break
				}
			}
		}
	}
}

// ready waits until a node is ready.
func (c *cluster) ready(n *clusterNode) {
	c.t.Helper()
	nodes := c.client.CoreV1().Nodes()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"podCIDR": n.pods()[0], "podCIDRs": n.pods()}})
	if err != nil {
		c.t.Fatal(err)
	}
	tail := func() any { return processes.Tail(filepath.Join(n.dir, "kubelet.log")) }
	await.Until(c.t, "the Node "+n.name, func() bool {
		_, err := nodes.Patch(c.t.Context(), n.name, "application/merge-patch+json", patch, metav1.PatchOptions{})
		return err == nil
	}, tail)
	var conditions any
	await.Until(c.t, n.name+" to be ready", func() bool {
		node, err := nodes.Get(c.t.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		conditions = node.Status.Conditions
		return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}, tail, func() any { return conditions })
}

// install makes the objects of the chart what its values say, and waits until all of its pods are ready and of the last version.
func (c *cluster) install(t *testing.T, v values) {
	t.Helper()
	v["apiServer"], v["image"] = "https://127.0.0.1:6443", values{"tag": "test"}
	text, err := helm(v)
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, text)
	c.rolledOut(t)
}

// apply makes objects what a text in YAML says.
func (c *cluster) apply(t *testing.T, text []byte) {
	t.Helper()
	for key, o := range read(t, text) {
		if _, err := resourceOf(t, c.dynamic, o).Apply(t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
}

// rolledOut waits until the pods of the DaemonSet are ready.
func (c *cluster) rolledOut(t *testing.T) {
	t.Helper()
	var last any
	await.Until(t, "Switchyard on all nodes", func() bool {
		d, err := c.client.AppsV1().DaemonSets("kube-system").Get(t.Context(), "switchyard", metav1.GetOptions{})
		if err != nil {
			last = err
			return false
		}
		last = d.Status
		return d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedNumberScheduled == 3 && d.Status.NumberReady == 3
	}, func() any { return last }, func() any { return c.proxies(t) })
}

// proxies describes the pods of Switchyard.
func (c *cluster) proxies(t *testing.T) string {
	pods, err := c.client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for i := range pods.Items {
		p := &pods.Items[i]
		log, err := c.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{TailLines: new(int64(20))}).DoRaw(t.Context())
		fmt.Fprintf(&b, "%s on %s: %+v\n%s %v\n", p.Name, p.Spec.NodeName, p.Status.ContainerStatuses, log, err)
	}
	return b.String()
}

// get gets a page on a machine.
func (c *cluster) get(machine, url string) (string, error) {
	return getBy(dialOn(c.machines[machine]), url)
}

func getBy(dial func(ctx context.Context, network, address string) (net.Conn, error), url string) (string, error) {
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport, Timeout: requestTimeout}).Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}

// balance is the load balancer of the cloud: until ctx ends, it gives addresses to Services, and has the router send their packets to a node: to entry, or
// to those with endpoints if the policy is Local, to one of them if clients are to stay at an endpoint.
func (c *cluster) balance(ctx context.Context, entry func() *clusterNode) {
	numbers := map[string]int{}
	routes := map[string]string{}
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		services, err := c.client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for i := range services.Items {
			if err := c.balanceOne(ctx, &services.Items[i], entry(), numbers, routes); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				c.t.Errorf("balance %s: %v", services.Items[i].Name, err)
			}
		}
	}
}

// cleanup is the finalizer of Services with a load balancer.
const cleanup = "service.kubernetes.io/load-balancer-cleanup"

func (c *cluster) balanceOne(ctx context.Context, s *corev1.Service, entry *clusterNode, numbers map[string]int, routes map[string]string) error {
	client := c.client.CoreV1().Services(s.Namespace)
	key := s.Namespace + "/" + s.Name
	finalizer := slices.Index(s.Finalizers, cleanup)
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.LoadBalancerClass != nil || s.DeletionTimestamp != nil {
		if finalizer < 0 {
			return nil
		}
		delete(numbers, key)
		if len(s.Status.LoadBalancer.Ingress) > 0 {
			s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
			var err error
			if s, err = client.UpdateStatus(ctx, s, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		s.Finalizers = slices.DeleteFunc(s.Finalizers, func(f string) bool { return f == cleanup })
		_, err := client.Update(ctx, s, metav1.UpdateOptions{})
		return err
	}
	if finalizer < 0 {
		s.Finalizers = append(s.Finalizers, cleanup)
		var err error
		if s, err = client.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if numbers[key] == 0 {
		numbers[key] = free(numbers)
	}
	to := []*clusterNode{entry}
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		if behind := c.withEndpoints(ctx, s); len(behind) > 0 {
			to = behind
		}
		if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
			to = to[:1]
		}
	}
	for i, vip := range vips(numbers[key]) {
		route := "route replace " + vip + []string{"/32", "/128"}[i]
		for _, n := range to {
			route += " nexthop via " + n.ips()[i]
		}
		if routes[vip] != route {
			if err := c.tryIP("router", route); err != nil {
				return err
			}
			routes[vip] = route
		}
	}
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	for _, family := range s.Spec.IPFamilies {
		i := map[corev1.IPFamily]int{corev1.IPv4Protocol: 0, corev1.IPv6Protocol: 1}[family]
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: vips(numbers[key])[i]})
	}
	_, err := client.UpdateStatus(ctx, s, metav1.UpdateOptions{})
	return err
}

// free returns the least number that no Service has.
func free(numbers map[string]int) int {
	for n := 1; ; n++ {
		taken := false
		for _, other := range numbers {
			taken = taken || other == n
		}
		if !taken {
			return n
		}
	}
}

func vips(number int) []string {
	return []string{fmt.Sprint(balancedIPv4, number), fmt.Sprintf("%s%x", balancedIPv6, number)}
}

// withEndpoints returns the nodes with ready endpoints.
func (c *cluster) withEndpoints(ctx context.Context, s *corev1.Service) (nodes []*clusterNode) {
	list, err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + s.Name})
	if err != nil {
		return nil
	}
	for _, n := range c.nodes {
		if slices.ContainsFunc(list.Items, func(slice discoveryv1.EndpointSlice) bool {
			return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
				return e.NodeName != nil && *e.NodeName == n.name && e.Conditions.Ready != nil && *e.Conditions.Ready
			})
		}) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}
