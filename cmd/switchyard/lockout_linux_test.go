package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/await"
)

// upstreamAddr is where the API server of these tests is: on no interface, but this machine accepts connections to it.
const upstreamAddr = "203.0.113.5"

// upstreamServer is an API server at upstreamAddr.
type upstreamServer struct {
	*apiServer
	addr string

	mu    sync.Mutex
	conns []net.Conn
	last  string // the last taker
}

func newUpstreamServer(t *testing.T) *upstreamServer {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.RouteReplace(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: net.ParseIP(upstreamAddr), Mask: net.CIDRMask(32, 32)}, Src: net.ParseIP(nodeAddr),
			Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", upstreamAddr+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &upstreamServer{apiServer: newAPIServer(t), addr: l.Addr().String()}
	server := &http.Server{Handler: http.HandlerFunc(s.handle), ConnState: func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
		}
	}}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return s
}

// handle answers as the API server does, and knows what it had when a watch ended.
func (s *upstreamServer) handle(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	items := map[string]string{"services": s.last, "endpointslices": takerSlice}[path.Base(r.URL.Path)]
	s.mu.Unlock()
	if items == "" || r.URL.Query().Get("resourceVersionMatch") != "Exact" {
		s.Config.Handler.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":%q},"items":[%s]}`, r.URL.Query().Get("resourceVersion"), items)
}

// cut ends all connections.
func (s *upstreamServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

// answers reports whether a process of the node that is not the proxy gets to the API server, and not to somebody else.
func (s *upstreamServer) answers() bool {
	return strings.HasPrefix(get(s.addr+"/api/v1/nodes"), "200")
}

// taker is a Service with the address and port of the API server.
func (s *upstreamServer) taker(version int, spec, status string) string {
	_, port, _ := net.SplitHostPort(s.addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = fmt.Sprintf(`{"metadata":{"namespace":"tenant","name":"taker","resourceVersion":"%d"},"spec":{"type":"LoadBalancer","clusterIP":"10.96.0.20",
		"clusterIPs":["10.96.0.20"],"ipFamilies":["IPv4"],"ports":[{"name":"tcp","protocol":"TCP","port":%s}]%s},"status":{%s}}`, version, port, spec, status)
	return s.last
}

const takerSlice = `{"metadata":{"namespace":"tenant","name":"taker-1","resourceVersion":"2","labels":{"kubernetes.io/service-name":"taker"}},
	"addressType":"IPv4","ports":[{"name":"tcp","protocol":"TCP","port":8080}],"endpoints":[{"addresses":["` + endpointAddr + `"],"conditions":{"ready":true}}]}`

// TestServiceTakesTheAPIServersAddress: an externalIP cannot take that address in any configuration. A Service that
// can take it does not keep the proxy from the API server: the proxy learns that the Service is gone, also after a
// restart.
func TestServiceTakesTheAPIServersAddress(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, mode := range []string{"nftables", "ebpf", "iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			more := ""
			switch mode {
			case "iptables":
				if _, err := exec.LookPath("iptables-restore"); err != nil {
					t.Skip(err)
				}
			case "ebpf":
				cgroup := newCgroup(t, "upstream")
				enter(t, cgroup)
				more = "ebpf: {cgroupPath: " + cgroup + "}\n"
			}
			api := newUpstreamServer(t)
			hostile, err := net.Listen("tcp", endpointAddr+":8080")
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: http.NotFoundHandler()}
			go func() { _ = server.Serve(hostile) }()
			defer server.Close()
			config := filepath.Join(t.TempDir(), "config.yaml")
			text := "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nhostnameOverride: node-a\nmode: " + mode + "\n" + more +
				"services: {nodeExternalIPs: true}\nmetricsBindAddress: \"127.0.0.1:10249\"\nclientConnection: {contentType: application/json}\n" +
				"linux: {oomScoreAdj: 0, conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n"
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			run := func() *process {
				p := start(t, "proxy", "--config", config, "--master", "http://"+api.addr, "--healthz-bind-address", "127.0.0.1:10256", "--take-over", "1m")
				await.Until(t, "the first state is programmed", p.says("the first state is programmed"))
				return p
			}
			p := run()

			api.added["endpointslices"] <- takerSlice
			api.added["services"] <- api.taker(2, `,"externalIPs":["`+upstreamAddr+`"]`, "")
			await.Until(t, "the externalIP is refused", func() bool {
				return strings.Contains(get("127.0.0.1:10256/healthz"), "which listens on TCP port")
			})
			if !api.answers() {
				t.Error("an externalIP takes the connections to the API server")
			}

			api.added["services"] <- api.taker(3, "", `"loadBalancer":{"ingress":[{"ip":"`+upstreamAddr+`"}]}`)
			await.Until(t, "a load balancer takes the connections to the API server", func() bool { return !api.answers() })
			watched := api.watched.Load()
			api.cut()
			await.Until(t, "the proxy watches again", func() bool { return api.watched.Load() > watched })
			p.Kill()
			if api.answers() {
				t.Fatal("the rules are gone with the process")
			}
			p = run() // the API server's list is without that Service
			await.Until(t, "the Service is gone", api.answers)
			p.Kill()
		})
	}
}

// TestMarkNeedsACapability: without it, all goes on as without the mark.
func TestMarkNeedsACapability(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	api := newUpstreamServer(t)
	dir := t.TempDir()
	p := startWithout(t, []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}, "serve", "--master", "http://"+api.addr, "--node", "node-a",
		"--listen", "unix://"+filepath.Join(dir, "api.sock"))
	await.Until(t, "the process follows the API server", func() bool { return api.watched.Load() > 0 })
	p.Kill()
}
