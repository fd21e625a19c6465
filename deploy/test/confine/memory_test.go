package confine

import (
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// lists are what an API server answers to requests for whole lists, in protobuf, by resource.
type lists map[string][]byte

// clusterOf is a cluster with node-a, the service web with its endpoint, and so many other services, each with five endpoints
// elsewhere.
func clusterOf(t *testing.T, services int) lists {
	t.Helper()
	version := metav1.ListMeta{ResourceVersion: "1"}
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "1"}
	}
	node := corev1.Node{ObjectMeta: meta("", "node-a")}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddr}}
	node.Spec.PodCIDR, node.Spec.PodCIDRs = "10.1.1.0/24", []string{"10.1.1.0/24"}
	all, slices := &corev1.ServiceList{ListMeta: version}, &discoveryv1.EndpointSliceList{ListMeta: version}
	add := func(namespace, name, ip string, port int32, endpoints ...string) {
		s := corev1.Service{ObjectMeta: meta(namespace, name)}
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = ip, []string{ip}, []corev1.IPFamily{corev1.IPv4Protocol}
		s.Spec.Ports = []corev1.ServicePort{{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80}}
		e := discoveryv1.EndpointSlice{ObjectMeta: meta(namespace, name+"-1"), AddressType: discoveryv1.AddressTypeIPv4}
		e.Labels = map[string]string{discoveryv1.LabelServiceName: name}
		e.Ports = []discoveryv1.EndpointPort{{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(port)}}
		for _, a := range endpoints {
			e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new("node-b"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
		}
		all.Items, slices.Items = append(all.Items, s), append(slices.Items, e)
	}
	host, _, _ := strings.Cut(clusterAddr, ":")
	add("default", "web", host, 8080, endpointAddr)
	for i := range services {
		var endpoints []string
		for e := range 5 {
			n := 5*i + e
			endpoints = append(endpoints, fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&0xff, n&0xff))
		}
		add(fmt.Sprintf("namespace-%d", i/1000), fmt.Sprintf("service-%06d", i), fmt.Sprintf("172.%d.%d.%d", 16+i>>16, i>>8&0xff, i&0xff), 8080, endpoints...)
	}
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	l := make(lists)
	for resource, list := range map[string]runtime.Object{
		"nodes": &corev1.NodeList{ListMeta: version, Items: []corev1.Node{node}}, "services": all, "endpointslices": slices,
	} {
		kinds, _, err := scheme.Scheme.ObjectKinds(list)
		if err != nil {
			t.Fatal(err)
		}
		list.GetObjectKind().SetGroupVersionKind(kinds[0])
		if l[resource], err = runtime.Encode(encoder, list); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// ServeHTTP implements [http.Handler].
func (l lists) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	body, ok := l[resource]
	if query := r.URL.Query(); !ok || query.Has("watch") || query.Has("sendInitialEvents") || query.Has("fieldSelector") && resource != "nodes" {
		answer(w, r)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, _ = w.Write(body)
}

// limit makes a cgroup with a limit of memory, and returns its directory and what it has used at most. It needs version 1 or 2 of
// cgroups with the controller of memory.
func limit(t *testing.T, name string, bytes int64) (dir string, peak func() int64) {
	t.Helper()
	name = fmt.Sprintf("switchyard-test-%d-%s", os.Getpid(), name)
	maximum, used := "memory.max", "memory.peak"
	dir = filepath.Join("/sys/fs/cgroup", name)
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); err == nil {
		dir, maximum, used = filepath.Join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes", "memory.max_usage_in_bytes"
	}
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		t.Cleanup(func() { _ = os.Remove(dir) })
		err = os.WriteFile(filepath.Join(dir, maximum), []byte(strconv.FormatInt(bytes, 10)), 0)
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS) {
		t.Skipf("needs a cgroup with a limit of memory: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir, func() int64 {
		text, err := os.ReadFile(filepath.Join(dir, used))
		if err != nil {
			return 0 // before Linux 5.19
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// limitPod makes a cgroup for each container of a pod, with its limit.
func (d *deployed) limitPod(m *manifests, start string) (peaks map[string]func() int64) {
	d.Helper()
	d.cgroups, peaks = make(map[string]string), make(map[string]func() int64)
	for _, c := range m.pod.Containers {
		d.cgroups[c.Name], peaks[c.Name] = limit(d.T, c.Name+"-"+start, c.Resources.Limits.Memory().Value())
	}
	return peaks
}

// completed is what containers say when they have taken in 10,001 services.
var completed = map[string]string{
	"switchyard": `msg="the first state is programmed" services=10001`,
	"apply":      "routes 10001 services",
	"serve":      "services=10001",
	"relay":      "services=10001",
}

// TestLimits has the pods of each manifest start next to a cluster of 10,000 services with five endpoints each. They
// are killed and start again, within the memory limits of the manifests.
func TestLimits(t *testing.T) {
	cluster := clusterOf(t, 10_000)
	for _, c := range []struct{ title, dir string }{
		{"proxy", "test/testdata/restricted"}, {"split", "kustomize/split"}, {"relay", "kustomize/relay"},
	} {
		t.Run(c.title, func(t *testing.T) { startTwice(t, cluster, readManifests(t, c.dir)) })
	}
	// 60% for Go is little enough for the smallest container that fits.
	t.Run("proxy in 80 MiB", func(t *testing.T) {
		m := readManifests(t, "test/testdata/restricted")
		c := &m.pod.Containers[0]
		c.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("80Mi")
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
		c.Env = append(c.Env, corev1.EnvVar{Name: "GOMEMLIMIT", Value: "48MiB"})
		startTwice(t, cluster, m)
	})
}

// startTwice has a pod start, be killed and start again.
func startTwice(t *testing.T, cluster lists, m *manifests) {
	t.Helper()
	d := deployBeside(t, cluster)
	volumes := d.volumes(m, pkix.Name{CommonName: "relay"}, relayName)
	for _, start := range []string{"first", "second"} {
		peaks := d.limitPod(m, start)
		pod := d.runPod(m, volumes)
		for name, p := range pod {
			d.eventually(start+" start of "+name+" is complete", func() bool { return strings.Contains(p.output(), completed[name]) })
		}
		d.eventually(start+" start: the probes succeed", func() bool { return d.well(m) })
		for name, p := range pod {
			t.Logf("%s start of %s: %d MiB resident, peak of all %d MiB", start, name, rss(p)>>10, peaks[name]()>>20)
			_ = p.cmd.Process.Kill()
			p.wait()
		}
	}
}

// rss is the resident memory of a process, in KiB.
func rss(p *process) int {
	n, _ := strconv.Atoi(strings.Fields(p.status("VmRSS"))[0])
	return n
}
