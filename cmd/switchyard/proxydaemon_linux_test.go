package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// inNamespace runs the calling test in a process of its own, whose network is a namespace of its own, and reports whether this is
// that process. Such tests run in parallel: they wait most of their time.
func inNamespace(t *testing.T) bool {
	t.Helper()
	timeout := 90 * time.Second
	if deadline, ok := t.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	// One story at a time: one process at most programs a network namespace.
	if !netnstest.Apart(t, 0, timeout, "-test.parallel=1") {
		return false
	}
	if err := netnstest.Alone(nodeAddr, endpointAddr, otherAddr); err != nil {
		t.Fatal(err)
	}
	return true
}

const (
	endpointAddr = "10.1.0.1"
	nodeAddr     = "10.1.0.2"
	otherAddr    = "10.1.0.3"
	clusterAddr  = "10.96.0.10:80"
	nodePort     = "30080"
	healthPort   = "32000" // of the service
)

// objects are what the API server has, by resource.
var objects = map[string]string{
	"nodes": `{"metadata":{"name":"node-a","resourceVersion":"1"},
		"status":{"addresses":[{"type":"InternalIP","address":"` + nodeAddr + `"}]}}`,
	"services": `{"metadata":{"namespace":"default","name":"web","resourceVersion":"1"},
		"spec":{"type":"LoadBalancer","externalTrafficPolicy":"Local","healthCheckNodePort":` + healthPort + `,"clusterIP":"10.96.0.10",
			"clusterIPs":["10.96.0.10"],"ipFamilies":["IPv4"],"ports":[{"name":"tcp","protocol":"TCP","port":80,"nodePort":` + nodePort + `},{"name":"udp","protocol":"UDP","port":53}]}}`,
	"endpointslices": `{"metadata":{"namespace":"default","name":"web-1","resourceVersion":"1","labels":{"kubernetes.io/service-name":"web"}},
		"addressType":"IPv4","ports":[{"name":"tcp","protocol":"TCP","port":8080},{"name":"udp","protocol":"UDP","port":8053}],
		"endpoints":[{"addresses":["` + endpointAddr + `"],"nodeName":"node-a","conditions":{"ready":true}}]}`,
}

// apiServer serves the objects, and counts how often somebody asks for all of a resource, and how often for changes. It keeps the events
// that it gets.
type apiServer struct {
	*httptest.Server
	asked, watched atomic.Int32
	added          map[string]chan string // objects that are new, by resource, for who watches it
	events         await.Log
}

func newAPIServer(t *testing.T) *apiServer {
	a := &apiServer{added: map[string]chan string{}}
	for resource := range objects {
		a.added[resource] = make(chan string, 1)
	}
	kinds := map[string][2]string{"namespaces": {"v1", "Namespace"}, "nodes": {"v1", "Node"}, "services": {"v1", "Service"},
		"servicecidrs": {"networking.k8s.io/v1", "ServiceCIDR"}, "endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		kind, known := kinds[resource]
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost && resource == "events" {
			event, _ := io.ReadAll(r.Body)
			_, _ = a.events.Write(append(event, '\n'))
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(event)
			return
		}
		if !known {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if !r.URL.Query().Has("watch") {
			a.asked.Add(1)
			fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"1"},"items":[%s]}`, kind[0], kind[1], objects[resource])
			return
		}
		send := func(event, object string) {
			object = fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s`, kind[0], kind[1], object[1:])
			var line bytes.Buffer
			_ = json.Compact(&line, fmt.Appendf(nil, `{"type":%q,"object":%s}`, event, object))
			fmt.Fprintln(w, line.String())
		}
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			a.asked.Add(1)
			if o := objects[resource]; o != "" {
				send("ADDED", o)
			}
			send("BOOKMARK", `{"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}`)
		}
		a.watched.Add(1)
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case object := <-a.added[resource]:
				send("ADDED", object)
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(func() { a.CloseClientConnections(); a.Close() })
	return a
}

// proxyBench is a daemon with a configuration file, and a client that connects through it all the time.
type proxyBench struct {
	*testing.T
	api    *apiServer
	file   string
	fields map[string]string // of the file
	d      *daemon
	// own is the file of this node; file is the file of all nodes.
	own  string
	log  *await.Log
	done chan error
	lost atomic.Int32
	made atomic.Int32
}

func startProxy(t *testing.T) *proxyBench {
	b := &proxyBench{T: t, api: newAPIServer(t), file: filepath.Join(t.TempDir(), "config.yaml"), log: &await.Log{}, done: make(chan error, 1)}
	b.fields = map[string]string{
		"hostnameOverride": "node-a", "mode": "nftables", "configHardFail": "false", "bindAddressHardFail": "false",
		"healthzBindAddress": `"127.0.0.1:10256"`, "metricsBindAddress": `"127.0.0.1:10249"`, "adminBindAddress": "none",
		"clientConnection": "{contentType: application/json}",
		"detectLocal":      "{clusterCIDRs: [10.244.0.0/16]}",
		"linux":            "{oomScoreAdj: 0, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}",
	}
	b.write()
	b.own = filepath.Join(t.TempDir(), "node.yaml")
	b.writeOwn("")
	p := parse(t, "--config", b.file, "--config", b.own, "--master", b.api.URL)
	c, _, err := p.config()
	if err != nil {
		t.Fatal(err)
	}
	v := newVerbosity()
	if b.d, err = newDaemon(t.Context(), p, c, newLog(b.log, b.log, c, v), v); err != nil {
		t.Fatal(err)
	}
	endpoint, err := net.Listen("tcp", endpointAddr+":8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endpoint.Close() })
	go func() { _ = http.Serve(endpoint, http.NotFoundHandler()) }()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); b.done <- b.d.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("the log since it was last looked at:\n%s", b.log.Take())
		}
	})
	await.Until(t, "the service is routed", func() bool { return connects(clusterAddr) })
	await.Until(t, "the health check port is served", func() bool { return connects(nodeAddr + ":" + healthPort) })
	clients := make(chan struct{})
	go func() {
		defer close(clients)
		for ctx.Err() == nil {
			b.made.Add(1)
			if c, err := net.DialTimeout("tcp", clusterAddr, time.Minute); err != nil {
				b.lost.Add(1)
			} else {
				if n, err := resent(c); err != nil || n > 1 { // the second time is after more than two seconds
					b.lost.Add(1)
				}
				c.Close()
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-clients
		if made, lost := b.made.Load(), b.lost.Load(); made < 10 || lost > 0 {
			t.Errorf("%d of %d connections were lost", lost, made)
		}
	})
	return b
}

// connects makes a connection that something must answer.
func connects(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// get returns what a path of the process says.
func get(url string) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	resp, err := client.Get("http://" + url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.Status + " " + string(text)
}

// write replaces the configuration file, as a ConfigMap is.
func (b *proxyBench) write() {
	b.Helper()
	var text strings.Builder
	text.WriteString("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n")
	for name, value := range b.fields {
		text.WriteString(name + ": " + value + "\n")
	}
	next := b.file + ".next"
	if err := os.WriteFile(next, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Rename(next, b.file); err != nil {
		b.Fatal(err)
	}
}

// writeOwn replaces the file of this node.
func (b *proxyBench) writeOwn(fields string) {
	b.Helper()
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyInstanceConfiguration\n" + fields
	if err := errors.Join(os.WriteFile(b.own+".next", []byte(text), 0o600), os.Rename(b.own+".next", b.own)); err != nil {
		b.Fatal(err)
	}
}

// change sets a field of the file, and waits until the process says what.
func (b *proxyBench) change(name, value, what string) (logged string) {
	b.Helper()
	b.fields[name] = value
	b.write()
	await.Until(b.T, name+" leads to "+what, func() bool {
		logged += b.log.Take()
		return strings.Contains(logged, what)
	})
	return logged
}

const changed = "the configuration has changed"

// listening returns the sockets that listen: their inodes, by address.
func listening(t *testing.T) map[string]string {
	sockets := map[string]string{}
	text, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ *\d+: (\S+) \S+ 0A .* (\d+) \d+ [0-9a-f]+ 100 .*$`).FindAllStringSubmatch(string(text), -1) {
		sockets[m[1]] = m[2]
	}
	return sockets
}

// masquerade says which connections inside the cluster are masqueraded now.
func (b *proxyBench) masquerade() state.Masquerade {
	for _, s := range b.states().Changed {
		if s.Name.Name == "web" {
			return s.Ports[0].Internal.Masquerade
		}
	}
	b.Fatal("the service web is not routed")
	return 0
}

// states returns all that is routed now.
func (b *proxyBench) states() *state.Update {
	u, err := b.d.node.Feed().Next(b.Context(), 0)
	if err != nil { // another source is about to take its place
		return &state.Update{Node: &state.Node{}}
	}
	return u
}

// TestLiveChanges changes one setting after the other of a process that is in use: each takes effect, no connection through the
// service is lost, no port that the setting does not concern is closed, and the API server is asked for nothing again.
func TestLiveChanges(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	b := startProxy(t)
	file := func(path, want string) func() bool {
		return func() bool {
			text, err := os.ReadFile(path)
			return err == nil && strings.TrimSpace(string(text)) == want
		}
	}
	oneOf := func(url, want string) func() bool { return func() bool { return strings.Contains(get(url), want) } }
	steps := []struct {
		field, value string
		effect       func() bool
	}{
		{"logging", "{verbosity: 4}", func() bool { return b.d.log.Enabled(t.Context(), slog.LevelDebug) }},
		{"logging", "{vmodule: [{filePattern: kube, verbosity: 9}]}", func() bool { return b.d.log.Enabled(t.Context(), slog.LevelDebug) }},
		{"logging", "{verbosity: 0}", func() bool { return !b.d.log.Enabled(t.Context(), slog.LevelDebug) }},
		{"enableProfiling", "true", oneOf("127.0.0.1:10249/debug/pprof/", "200 OK")},
		{"enableProfiling", "false", oneOf("127.0.0.1:10249/debug/pprof/", "404")},
		{"linux", "{oomScoreAdj: 17, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}",
			file("/proc/self/oom_score_adj", "17")},
		{"linux", "{oomScoreAdj: 17, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 17s}}",
			file("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", "17")},
		{"linux", "{masqueradeAll: true, oomScoreAdj: 17, conntrack: {maxPerCore: 0}}",
			func() bool { return b.masquerade() == state.MasqueradeAlways }},
		{"linux", "{oomScoreAdj: 17, conntrack: {maxPerCore: 0}}",
			func() bool { return b.masquerade() != state.MasqueradeAlways }},
		{"detectLocal", "{clusterCIDRs: [10.1.0.0/24]}", func() bool { return b.masquerade() == state.MasqueradeUnlessPod }},
		{"nodePortAddresses", "[" + otherAddr + "/32]", func() bool { return connects(otherAddr+":"+nodePort) && !connects(nodeAddr+":"+nodePort) }},
		{"nodePortAddresses", "[primary]", func() bool { return connects(nodeAddr+":"+nodePort) && !connects(otherAddr+":"+nodePort) }},
		{"nodeIPOverride", "[" + otherAddr + "]", func() bool {
			return slices.Equal(b.states().Node.Addresses, []netip.Addr{netip.MustParseAddr(otherAddr)}) &&
				connects(otherAddr+":"+nodePort)
		}},
		{"nodeIPOverride", "[]", func() bool { return connects(nodeAddr+":"+nodePort) && !connects(otherAddr+":"+nodePort) }},
		{"nftables", "{masqueradeBit: 9}", oneOf("127.0.0.1:10249/configz", `"masqueradeBit":9`)},
		{"nftables", "{masqueradeBit: 9, maxAffinityClients: 7}", oneOf("127.0.0.1:10249/configz", `"maxAffinityClients":7`)},
		{"syncPeriod", "70s", oneOf("127.0.0.1:10249/configz", `"syncPeriod":"1m10s"`)},
		{"metricsBindAddress", `"127.0.0.1:10259"`, func() bool { return connects("127.0.0.1:10259") && !connects("127.0.0.1:10249") }},
		{"api", "{listen: [\"unix://" + b.file + ".sock\"]}", func() bool { return len(apiServices(t, b.file+".sock")) == 1 }},
		{"api", "{listen: [\"unix://" + b.file + ".2.sock\"]}", func() bool { return len(apiServices(t, b.file+".2.sock")) == 1 }},
		{"api", "{}", func() bool {
			_, err := os.Stat(b.file + ".2.sock")
			return os.IsNotExist(err)
		}},
		{"healthzBindAddress", `"127.0.0.1:10266"`, func() bool { return connects("127.0.0.1:10266") && !connects("127.0.0.1:10256") }},
	}
	await.Until(t, "the looks at flows are counted, at those of UDP and at others", func() bool {
		return strings.Contains(get("127.0.0.1:10249/metrics"), `kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"} 2`)
	})
	asked := b.api.asked.Load()
	for _, s := range steps {
		before := listening(t)
		b.change(s.field, s.value, changed)
		await.Until(t, s.field+" "+s.value+" takes effect", s.effect)
		await.Until(t, "the health check port is where NodePorts are", func() bool {
			return strings.Contains(s.field, "node") || connects(nodeAddr+":"+healthPort)
		})
		for address, inode := range listening(t) {
			if was := before[address]; was != "" && was != inode {
				t.Errorf("%s: %s closed the port %s for a moment", s.field, s.value, address)
			}
		}
		if now := listening(t); !strings.HasPrefix(s.field, "node") && len(now) < len(before) {
			t.Errorf("%s: %s closed a port; was %v, is %v", s.field, s.value, before, now)
		}
		if n := b.api.asked.Load() - asked; n != 0 {
			t.Fatalf("%s: %s asks the API server for everything again (%d times)", s.field, s.value, n)
		}
		if !strings.HasPrefix(get("127.0.0.1:10256/healthz")+get("127.0.0.1:10266/healthz"), "200") && s.field != "healthzBindAddress" {
			t.Errorf("%s: %s: not healthy", s.field, s.value)
		}
	}
}

// apiServices returns what the node-local API has at a socket, nothing if it is not served yet.
func apiServices(t *testing.T, socket string) []*localnetv1.ServiceEndpoints {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := client.NewWatcher(client.Options{Target: "unix://" + socket})
	if err != nil {
		t.Fatal(err)
	}
	for u := range w.Updates(ctx) {
		return u.Changed
	}
	return nil
}

// TestChangesOfTheOrigin: another way to the API server, or another Node, takes everything from the start, with ports open and
// routes in place.
func TestChangesOfTheOrigin(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	b := startProxy(t)
	asked, before := b.api.asked.Load(), listening(t)
	stillOpen := func(of string) {
		t.Helper()
		after := listening(t)
		for address, inode := range before {
			if after[address] != inode && strings.HasPrefix(address, of) {
				t.Errorf("the port %s was closed", address)
			}
		}
	}
	b.change("clientConnection", "{contentType: application/json, qps: 50}", changed)
	await.Until(t, "everything is asked for again", func() bool { return b.api.asked.Load() == 2*asked })
	await.Until(t, "it is routed", func() bool { return len(b.states().Changed) == 1 })
	stillOpen("")
	b.change("hostnameOverride", "node-b", changed)
	await.Until(t, "the node is another one", func() bool { return b.states().Node.Name == "node-b" })

	// A failure is retried, and everything stays as it is until a retry succeeds.
	b.change("clientConnection", "{contentType: application/json, kubeconfig: "+b.file+".kubeconfig}", "keeping the current one")
	if b.d.node.Name() != "node-b" || !strings.Contains(get("127.0.0.1:10249/configz"), `"kubeconfig":""`) {
		t.Error("a kubeconfig that is missing is in use")
	}
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", b.api.URL)
	if err := os.WriteFile(b.file+".kubeconfig", []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the kubeconfig is taken when it is there", func() bool {
		return strings.Contains(get("127.0.0.1:10249/configz"), "config.yaml.kubeconfig")
	})
	stillOpen("0100007F") // loopback: node-b has no addresses, and so no health check port
}

// TestChangesThatAreNotTaken: what cannot change while the process runs is named once, a broken file changes nothing, and ends
// the process if configHardFail says so.
func TestChangesOfThisNodesOwnFile(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	b := startProxy(t)
	b.writeOwn("metricsBindAddress: 127.0.0.1:10250\n")
	await.Until(t, "metrics are served elsewhere", func() bool { return strings.Contains(get("127.0.0.1:10250/metrics"), "200 OK") })
	b.log.Take()
	b.writeOwn("metricsBindAddress: 127.0.0.1:10250\nhostnameOverride: node-b\n")
	await.Until(t, "a conflict is reported with both places", func() bool {
		logged := b.log.Take()
		return strings.Contains(logged, b.own+":4:19: hostnameOverride: is ") && strings.Contains(logged, " in "+b.file+":")
	})
	b.writeOwn("")
	await.Until(t, "metrics are served where the shared file has them", func() bool { return strings.Contains(get("127.0.0.1:10249/metrics"), "200 OK") })
}

func TestChangesThatAreNotTaken(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	b := startProxy(t)
	b.fields["logging"] = "{format: json}"
	b.fields["ebpf"] = "{namespaceMap: /sys/fs/bpf/namespaces}"
	logged := b.change("enableProfiling", "true", changed)
	if strings.Count(logged, "level=WARN") != 1 || !strings.Contains(logged, `fields="ebpf.namespaceMap, logging.format"`) {
		t.Errorf("what waits for a restart is not named in one warning:\n%s", logged)
	}
	if text := get("127.0.0.1:10249/configz"); !strings.Contains(text, `"namespaceMap":""`) || !strings.Contains(text, `"enableProfiling":true`) {
		t.Errorf("/configz shows what is not in use: %s", text)
	}
	logged = b.change("showHiddenMetricsForVersion", `"1.36"`, changed)
	if !strings.Contains(logged, "no effect") || !strings.Contains(logged, "showHiddenMetricsForVersion") {
		t.Errorf("what has no effect is not named:\n%s", logged)
	}
	before := b.d.node.Config()
	b.change("frob", "true", "keeping last known good configuration")
	if b.d.node.Config() != before {
		t.Error("a broken file changed the configuration")
	}
	if err := errors.Join(syscall.Mkfifo(b.file+".next", 0o600), os.Rename(b.file+".next", b.file)); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "a named pipe in the file's place is reported", func() bool {
		return strings.Contains(b.log.Take(), b.file+": it is a named pipe: put a regular file in its place")
	})
	delete(b.fields, "frob")
	b.change("configHardFail", "true", changed)
	b.fields["frob"] = "true"
	b.write()
	if err := await.Receive(t, "the process ends because of a broken file", b.done); err == nil || !strings.Contains(err.Error(), "frob") {
		t.Errorf("the process ended with %v", err)
	}
	if !connects(clusterAddr) {
		t.Error("the routes did not outlive the process")
	}
}
