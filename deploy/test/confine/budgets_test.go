package confine

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/config"
)

// budgetMemory is an environment variable with the limit of memory, in MiB, for TestBudgetsFitTheMemoryLimit. With it, each kind of entries fills
// the budgets alone. All modes are tried. Without it, the limit is a small one, and large
// Services of all kinds fill them together.
const budgetMemory = "SWITCHYARD_TEST_BUDGET_MEMORY"

// filler makes the objects of one tenant that wants more than there is. version changes something about each large Service.
type filler func(namespace string, tenant int, b config.Services, version int) (objects []any)

// fillers are what entries can be made of, by the kind of which most are.
var fillers = map[string]filler{
	"frontends": func(namespace string, tenant int, _ config.Services, version int) (objects []any) {
		for i := range 5 {
			var addresses []string
			for a := range 190 {
				addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 100+tenant, i, a+1))
			}
			s := serviceOf(namespace, tenant, i, 1000-version)
			s.Spec.ExternalIPs = addresses
			objects = append(objects, s)
		}
		return objects
	},
	"endpoints": func(namespace string, tenant int, b config.Services, version int) (objects []any) {
		const ports = 20
		each := (int(b.MaxEntries) - 10*ports) / ports
		for i := range int(b.MaxEntriesPerNamespace/b.MaxEntries) + 1 {
			objects = append(objects, serviceOf(namespace, tenant, i, ports))
			for first := 0; first < each; first += 1000 {
				last := min(first+1000, each)
				if first == 0 {
					last -= version
				}
				objects = append(objects, sliceOf(namespace, tenant, i, ports, first, last))
			}
		}
		return objects
	},
	"services": func(namespace string, tenant int, b config.Services, _ int) (objects []any) {
		for i := range int(b.MaxEntriesPerNamespace/11) + 1 {
			objects = append(objects, serviceOf(namespace, tenant, i, 1), sliceOf(namespace, tenant, i, 1, 0, 1))
		}
		return objects
	},
}

func serviceOf(namespace string, tenant, i, ports int) *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	s.Namespace, s.Name = namespace, fmt.Sprint("service-", i)
	s.Spec.ClusterIP = fmt.Sprintf("172.%d.%d.%d", 16+2*tenant+i>>16, i>>8&0xff, i&0xff)
	s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{s.Spec.ClusterIP}, []corev1.IPFamily{corev1.IPv4Protocol}
	for p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Protocol: corev1.ProtocolTCP, Port: int32(1 + p)})
	}
	return s
}

// sliceOf has some endpoints of a service.
func sliceOf(namespace string, tenant, i, ports, first, last int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, AddressType: discoveryv1.AddressTypeIPv4}
	s.Namespace, s.Name = namespace, fmt.Sprintf("service-%d-%d", i, first)
	s.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("service-", i)}
	for p := range ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", p)), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8000 + p))})
	}
	for e := first; e < last; e++ {
		n := i + e
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+16*tenant+n>>16, n>>8&0xff, n&0xff)}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return s
}

// crowd are manifests of tenants who ask for more than the node may have, in addition to the manifests of the node's
// service web.
type crowd struct {
	*node
	kinds   []string // one for each tenant
	budgets config.Services
}

// write writes the manifests in some version. After the first one, one tenant of each kind changes.
func (c *crowd) write(version int) {
	c.Helper()
	for tenant, kind := range c.kinds {
		if version > 0 && (kind == "services" || slices.Index(c.kinds, kind) != tenant) {
			continue
		}
		all := fillers[kind](fmt.Sprint("tenant-", tenant), tenant, c.budgets, version%2)
		for i, some := range slices.Collect(slices.Chunk(all, 20)) { // a file is read in one piece
			text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": some})
			if err != nil {
				c.Fatal(err)
			}
			c.place(fmt.Sprintf("tenant-%d-%d.json", tenant, i), string(text))
		}
	}
}

func (c *crowd) place(name, text string) {
	c.Helper()
	if err := os.Rename(c.file(name+".new", text), filepath.Join(c.dir, "objects", name)); err != nil {
		c.Fatal(err)
	}
}

// another makes another service of the endpoint of web, and returns where it is.
func (c *crowd) another(n int) (address string) {
	ip := fmt.Sprint("10.96.1.", n)
	text := strings.NewReplacer("10.96.0.10", ip, `"web"`, fmt.Sprintf(`"web-%d"`, n), `"web-1"`, fmt.Sprintf(`"web-%d-1"`, n), `,"nodePort":`+nodePort, "",
		"NodePort", "ClusterIP").Replace(objects["services"] + "\n---\n" + objects["endpointslices"] + "\n")
	c.place(fmt.Sprintf("web-%d.yaml", n), text)
	return ip + ":80"
}

// TestBudgetsFitTheMemoryLimit has tenants ask for more than there is, in a cgroup with a limit of memory. The
// process starts, keeps running while they change their services, starts again, and routes the other services all the
// time. In each mode, nothing is killed.
func TestBudgetsFitTheMemoryLimit(t *testing.T) {
	memory, mixes := int64(96<<20), map[string][]string{"all": {"frontends", "frontends", "endpoints"}}
	if text := os.Getenv(budgetMemory); text != "" {
		mib, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		memory = mib << 20
		mixes["all"] = []string{"frontends", "frontends", "endpoints", "endpoints", "services"}
		for kind := range fillers {
			mixes[kind] = []string{kind, kind, kind, kind}
		}
		mixes["services"] = []string{"services", "services", "frontends"} // two have all that the node may have; objects beyond it also take memory
	}
	modes := []string{"nftables", "iptables-nft"}
	if len(mixes) > 1 {
		modes = append(modes, "ebpf", "userspace", "iptables-legacy")
	}
	for _, mode := range modes {
		for mix, kinds := range mixes {
			t.Run(mode+"/"+mix, func(t *testing.T) { fillBudgets(t, mode, kinds, memory) })
		}
	}
}

func fillBudgets(t *testing.T, mode string, kinds []string, memory int64) {
	mode, variant, _ := strings.Cut(mode, "-")
	var n *node
	var path string
	if mode == "ebpf" {
		n, path = hookedNode(t)
	} else {
		n = newNode(t)
		path = n.modeConfig(mode)
	}
	if variant != "" {
		multi, err := exec.LookPath("xtables-" + variant + "-multi")
		if err != nil {
			t.Skipf("%v: install the package iptables", err)
		}
		n.env = append(n.env, "PATH="+n.programs(multi, variant), "XTABLES_LOCKFILE="+filepath.Join(n.dir, "lock"))
	}
	n.patience = 10 * time.Minute
	n.env = append(n.env, fmt.Sprintf("GOMEMLIMIT=%d", memory*60/100))
	dir := filepath.Join(n.dir, "objects")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := &crowd{n, kinds, config.Default().Services.Derived(config.Mode(mode), memory)}
	c.place("web.yaml", objects["nodes"]+"\n---\n"+objects["services"]+"\n---\n"+objects["endpointslices"]+"\n")
	c.write(0)
	cgroup, peak := limit(t, "budgets", memory)
	for start := range 2 {
		began := time.Now()
		p := n.startAs(confinement{Caps: held(t), Cgroup: cgroup}, n.binary, "run", "--source", dir, "--node", "node-a", "--config", path)
		n.eventually("the first state is programmed", func() bool { return strings.Contains(p.output(), "switchyard: node node-a routes") || p.ended() })
		t.Logf("start %d took %v; at most %d MiB", start, time.Since(began).Round(time.Second/10), peak()>>20)
		for change := range 2 {
			address := c.another(1 + 2*start + change)
			c.write(1 + change)
			n.eventually("another service is routed", func() bool { return p.ended() || n.routes(address)() })
		}
		if p.ended() {
			t.Fatalf("the process has ended: %v", p.cmd.ProcessState)
		}
		if !n.routes(clusterAddr)() || !strings.HasPrefix(n.get("127.0.0.1:10256", "/livez"), "200") {
			t.Errorf("web is routed: %v; /livez: %.300s", n.routes(clusterAddr)(), n.get("127.0.0.1:10256", "/livez"))
		}
		t.Logf("after changes at most %d MiB", peak()>>20)
		_ = p.cmd.Process.Kill()
		p.wait()
	}
	if kills := oomKills(t, cgroup); kills > 0 {
		t.Errorf("%d processes were killed for their memory", kills)
	}
}

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// oomKills returns how many processes of a cgroup the kernel has killed for their memory.
func oomKills(t *testing.T, cgroup string) (kills int) {
	t.Helper()
	files := []string{"memory.events", "memory.oom_control"} // of version 2, and of version 1
	i := slices.IndexFunc(files, func(name string) bool { _, err := os.Stat(filepath.Join(cgroup, name)); return err == nil })
	text, err := os.ReadFile(filepath.Join(cgroup, files[max(i, 0)]))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			if kills, err = strconv.Atoi(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kills
}
