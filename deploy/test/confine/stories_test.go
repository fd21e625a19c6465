package confine

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

const (
	endpointAddr = "10.1.0.1"
	nodeAddr     = "10.1.0.2"
	clusterAddr  = "10.96.0.10:80"
	nodePort     = "30080"
	apiAddr      = "127.0.0.1:6443"
	somebody     = 65532 // a user who is not root
)

// objects are what the API server has, by resource.
var objects = map[string]string{
	"nodes": `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-a","resourceVersion":"1"},
		"spec":{"podCIDR":"10.1.1.0/24","podCIDRs":["10.1.1.0/24"]},
		"status":{"addresses":[{"type":"InternalIP","address":"` + nodeAddr + `"}]}}`,
	"services": `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"default","name":"web","resourceVersion":"1"},
		"spec":{"type":"NodePort","clusterIP":"10.96.0.10","clusterIPs":["10.96.0.10"],"ipFamilies":["IPv4"],
		"ports":[{"name":"tcp","protocol":"TCP","port":80,"nodePort":` + nodePort + `},{"name":"udp","protocol":"UDP","port":53}]}}`,
	"endpointslices": `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"namespace":"default","name":"web-1",
		"resourceVersion":"1","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
		"ports":[{"name":"tcp","protocol":"TCP","port":8080},{"name":"udp","protocol":"UDP","port":8053}],
		"endpoints":[{"addresses":["` + endpointAddr + `"],"nodeName":"node-a","conditions":{"ready":true}}]}`,
}

var kinds = map[string][2]string{"namespaces": {"v1", "Namespace"}, "nodes": {"v1", "Node"}, "services": {"v1", "Service"},
	"servicecidrs": {"networking.k8s.io/v1", "ServiceCIDR"}, "endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"}}

// answer is an API server that has the objects, in JSON, and lists only.
func answer(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	kind, known := kinds[resource]
	w.Header().Set("Content-Type", "application/json")
	switch query := r.URL.Query(); {
	case !known:
		w.WriteHeader(http.StatusNotFound)
	case query.Has("sendInitialEvents"):
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":422,"reason":"Invalid"}`)
	case query.Has("watch"):
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"1"},"items":[%s]}`, kind[0], kind[1], objects[resource])
	}
}

// node is a network namespace with an endpoint of the service in it, an API server, and files that everybody can read.
type node struct {
	*testing.T
	ns     *netns.NS
	dir    string
	binary string
	filter confinement
	env    []string
	// patience is how long to wait for something; a minute if it is 0.
	patience time.Duration
}

// binary builds the program once. It is below /tmp, where users who are not root can reach it.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "switchyard-confine")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "switchyard")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./cmd/switchyard")
	cmd.Dir = filepath.Join("..", "..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it gives up privileges step by step")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{T: t, binary: path, filter: confinement{Filter: readProfile(t).filter(t)}}
	if n.ns, err = netns.New(); err != nil {
		if _, denied := errors.AsType[*netns.PermissionError](err); denied {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { n.ns.Close() })
	if n.dir, err = os.MkdirTemp("", "switchyard-confine"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(n.dir) })
	if err := os.Chmod(n.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.file("web.yaml", objects["nodes"]+"\n---\n"+objects["services"]+"\n---\n"+objects["endpointslices"]+"\n")
	if err := n.ns.Do(func() error { return netnstest.Alone(nodeAddr, endpointAddr) }); err != nil {
		t.Fatal(err)
	}
	n.serve(endpointAddr+":8080", http.NotFoundHandler())
	n.serve(apiAddr, http.HandlerFunc(answer))
	return n
}

// serve serves HTTP at an address of the node.
func (n *node) serve(address string, h http.Handler) {
	n.Helper()
	var l net.Listener
	if err := n.ns.Do(func() (err error) { l, err = net.Listen("tcp", address); return err }); err != nil {
		n.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	n.Cleanup(func() { s.Close() })
}

// file writes a file that everybody may read, at once, so that no process reads a part of it.
func (n *node) file(name, text string) string {
	n.Helper()
	path := filepath.Join(n.dir, name)
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path)); err != nil {
		n.Fatal(err)
	}
	return path
}

// process is one that runs confined.
type process struct {
	*node
	cmd  *exec.Cmd
	said await.Log
	done chan error
}

func (p *process) output() string { return p.said.String() }

// start runs the program in the node's network, under the seccomp profile, with these capabilities only.
func (n *node) start(user, group int, caps []int, args ...string) *process {
	n.Helper()
	c := n.filter
	c.UID, c.GID, c.Caps = user, group, caps
	return n.startAs(c, append([]string{n.binary}, args...)...)
}

// startAs runs a program in the node's network, confined.
func (n *node) startAs(c confinement, args ...string) *process {
	n.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		n.Fatal(err)
	}
	p := &process{node: n, done: make(chan error, 1)}
	p.cmd = exec.Command("/proc/self/exe", args...)
	p.cmd.Env = append(append(os.Environ(), n.env...), confineMark+"="+string(text))
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	if err := n.ns.Do(p.cmd.Start); err != nil {
		n.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait(); close(p.done) }()
	n.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if n.Failed() {
			n.Logf("%v said:\n%s", args, p.output())
		}
	})
	return p
}

// wait waits until the process has ended, and returns its exit code.
func (p *process) wait() int {
	p.Helper()
	await.Receive(p, "the process ends", p.done)
	return p.cmd.ProcessState.ExitCode()
}

// stop has the process end as a kubelet does.
func (p *process) stop() {
	p.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		p.Errorf("exit code %d after the signal to stop", code)
	}
}

// status returns a line of the process's /proc/PID/status.
func (p *process) status(name string) string {
	p.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), name+":"); found {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	p.Fatalf("%s is not in /proc/PID/status", name)
	return ""
}

// eventually waits for what another process brings about.
func (n *node) eventually(what string, ok func() bool) {
	n.Helper()
	patience := cmp.Or(n.patience, time.Minute)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if ok() {
			return
		}
	}
	n.Fatalf("not after %v: %s", patience, what)
}

// get asks for a page at an address of the node.
func (n *node) get(address, path string) string {
	var conn net.Conn
	err := n.ns.Do(func() (err error) { conn, err = net.DialTimeout("tcp", address, time.Second); return err })
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
	resp, err := client.Get("http://" + address + path)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(resp.StatusCode, " ", string(text))
}

// routes reports whether the endpoint answers at an address of the service.
func (n *node) routes(address string) func() bool {
	return func() bool { return strings.HasPrefix(n.get(address, "/"), "404") }
}

// config is a configuration file as the manifests have it, with the API in front of it.
func (n *node) config(more string) string {
	return n.file("config.yaml", `apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
hostnameOverride: node-a
mode: nftables
clientConnection: {contentType: application/json}
healthzBindAddress: 0.0.0.0:10256
metricsBindAddress: 127.0.0.1:10249
`+more)
}

const kernelSettings = "linux: {oomScoreAdj: -997, conntrack: {maxPerCore: 1, min: 1073741824, tcpEstablishedTimeout: 23h}}\n"

var netAdmin = []int{unix.CAP_NET_ADMIN}

// TestProxy runs in kube-proxy's place, with one capability. It reports the operations that it may not do, and
// continues.
func TestProxy(t *testing.T) {
	for name, user := range map[string]int{"root": 0, "somebody": somebody} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p := n.start(user, user, netAdmin, "proxy", "--config", n.config(kernelSettings), "--master", "http://"+apiAddr, "-v", "1")
			n.eventually("connections to the cluster IP are routed", n.routes(clusterAddr))
			n.eventually("connections to the node port are routed", n.routes(nodeAddr+":"+nodePort))
			if got := p.status("CapEff") + p.status("CapBnd"); got != strings.Repeat("0000000000001000", 2) {
				t.Errorf("capabilities are %s", got)
			}
			if got := p.status("NoNewPrivs") + p.status("Seccomp"); got != "12" {
				t.Errorf("no new privileges, seccomp: %s", got)
			}
			for address, path := range map[string]string{"127.0.0.1:10256": "/livez", "127.0.0.1:10249": "/metrics", nodeAddr + ":10256": "/healthz"} {
				if got := n.get(address, path); !strings.HasPrefix(got, "200") {
					t.Errorf("%s of %s: %s", path, address, got)
				}
			}
			// The limit belongs to the host's namespaces, and a lower score to those with the capability SYS_RESOURCE. The score is a line of -v 1.
			for _, file := range []string{"/proc/sys/net/netfilter/nf_conntrack_max", "/proc/self/oom_score_adj"} {
				if got := p.output(); !strings.Contains(got, "cannot set "+file) || !strings.Contains(got, "leave it alone with") {
					t.Errorf("no warning with a remedy about %s", file)
				}
			}
			if got := n.sysctl("nf_conntrack_tcp_timeout_established"); got != "82800" {
				t.Errorf("the timeout of connections is %s: NET_ADMIN is enough to set it", got)
			}
			p.stop()
			if !n.routes(clusterAddr)() {
				t.Error("the rules did not outlive the process")
			}
			cleanup := n.start(user, user, netAdmin, "cleanup")
			if code := cleanup.wait(); code != 0 || !strings.Contains(cleanup.output(), "removed everything") {
				t.Errorf("cleanup: exit code %d", code)
			}
		})
	}
}

// sysctl returns a setting of connection tracking in the node's namespace.
func (n *node) sysctl(name string) (value string) {
	n.Helper()
	err := n.ns.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
		value = strings.TrimSpace(string(text))
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	return value
}

// TestInitOnly sets what it can, warns of the rest, and exits without an error whatever its rights.
func TestInitOnly(t *testing.T) {
	n := newNode(t)
	p := n.start(somebody, somebody, netAdmin, "proxy", "--init-only", "--config", n.config(kernelSettings))
	if code := p.wait(); code != 0 || n.sysctl("nf_conntrack_tcp_timeout_established") != "82800" {
		t.Errorf("exit code %d, time-out %s", code, n.sysctl("nf_conntrack_tcp_timeout_established"))
	}
	p = n.start(somebody, somebody, nil, "proxy", "--init-only", "--config", n.config(strings.Replace(kernelSettings, "23h", "22h", 1)))
	if code := p.wait(); code != 0 || !strings.Contains(p.output(), "cannot set /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established") {
		t.Errorf("exit code %d without capabilities", code)
	}
}

// TestServeAndApply has the state worked out by a process with no capability, and programmed by another user with one. The
// socket is for a group.
func TestServeAndApply(t *testing.T) {
	n := newNode(t)
	const group, stranger, unknown = 65530, 65533, 65531
	if err := errors.Join(os.Mkdir(filepath.Join(n.dir, "run"), 0o750), os.Chown(filepath.Join(n.dir, "run"), somebody, group)); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(n.dir, "run", "api.sock")
	serve := n.start(somebody, group, nil, "serve", "--source", filepath.Join(n.dir, "web.yaml"), "--node", "node-a",
		"--listen", "unix://"+socket, "--socket-mode", "0660", "--socket-users", strconv.Itoa(stranger))
	n.eventually("the socket is there", func() bool { _, err := os.Stat(socket); return err == nil })
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o660 || s.Uid != somebody || s.Gid != group {
		t.Errorf("the socket has %v, %d:%d", info.Mode(), s.Uid, s.Gid)
	}
	if got := serve.status("CapEff"); got != "0000000000000000" {
		t.Errorf("serve has the capabilities %s", got)
	}
	refused := n.start(stranger, stranger, netAdmin, "apply", "nftables", "--api", "unix://"+socket, "--healthz-bind-address", "127.0.0.1:10266")
	n.eventually("a stranger is refused", func() bool { return strings.Contains(n.get("127.0.0.1:10266", "/healthz"), "permission denied") })
	if n.routes(clusterAddr)() {
		t.Error("a stranger gets the state")
	}
	refused.stop()
	doubtful := n.start(stranger, group, netAdmin, "apply", "nftables", "--api", "unix://"+socket, "--healthz-bind-address", "127.0.0.1:10266")
	n.eventually("a server of an unknown user is refused", func() bool { return strings.Contains(n.get("127.0.0.1:10266", "/healthz"), "runs as user 65532") })
	doubtful.stop()
	unlisted := n.start(unknown, group, netAdmin, "apply", "nftables", "--api", "unix://"+socket, "--socket-users", "65532", "--healthz-bind-address", "127.0.0.1:10266")
	n.eventually("a client of an unknown user is refused", func() bool { return strings.Contains(n.get("127.0.0.1:10266", "/healthz"), "runs as user 65531") })
	unlisted.stop()
	if n.routes(clusterAddr)() {
		t.Error("a refused client has programmed the kernel")
	}
	apply := n.start(stranger, group, netAdmin, "apply", "nftables", "--api", "unix://"+socket, "--socket-users", "65532")
	n.eventually("connections are routed", n.routes(clusterAddr))
	if got := apply.status("CapEff"); got != "0000000000001000" {
		t.Errorf("apply has the capabilities %s", got)
	}
	apply.stop()
	serve.stop()
}

// TestRun is the same from files, in one process.
func TestRun(t *testing.T) {
	n := newNode(t)
	p := n.start(somebody, somebody, netAdmin, "run", "--source", n.dir, "--node", "node-a")
	n.eventually("connections are routed", n.routes(clusterAddr))
	p.stop()
}

// TestMissingPermissionsAreNamed: a process without a required permission names it and ends at once.
func TestMissingPermissionsAreNamed(t *testing.T) {
	n := newNode(t)
	source := filepath.Join(n.dir, "web.yaml")
	for _, c := range []struct {
		want string
		caps []int
		args []string
	}{
		{"CAP_NET_ADMIN", nil, []string{"run", "--source", source, "--node", "node-a"}},
		{"CAP_NET_ADMIN", nil, []string{"cleanup"}},
		{"permission denied; free the port or choose another address", netAdmin,
			[]string{"run", "--source", source, "--node", "node-a", "--healthz-bind-address", "127.0.0.1:80"}},
	} {
		p := n.start(0, 0, c.caps, c.args...)
		if code := p.wait(); code != 1 || !strings.Contains(p.output(), c.want) {
			t.Errorf("%v with %v: exit code %d, said %s; want %q", c.args, c.caps, code, p.output(), c.want)
		}
	}
}
