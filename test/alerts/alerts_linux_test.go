package alerts

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
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
	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/test/await"
)

const (
	interval = 15 * time.Second
	minute   = int(time.Minute / interval) // in steps
)

// TestBehind: the programs of iptables that write fail. The alert fires while the process stays, and while the kubelet restarts it.
func TestBehind(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for name, restarts := range map[string]bool{"the process stays": false, "the process restarts": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.proxy("iptables", true)
			w.silent(interval, 5*time.Minute, nil)
			w.tool("*-restore", "/bin/false")
			w.put(slice("web", endpointAddr, "10.1.0.9"))
			w.pending()
			restart := func(i int) {
				if restarts && i > 0 && i%(2*minute) == 0 { // about when the liveness probe has failed six times
					p.Kill()
					w.step(interval) // which finds nobody
					p = w.proxy("iptables", false)
				}
			}
			w.fires("SwitchyardBehind", interval, 8*time.Minute, restart)
			for i := range 6 * minute {
				restart(i)
				if !slices.Contains(w.step(interval), "SwitchyardBehind") {
					t.Fatal("SwitchyardBehind ends while the kernel is still behind")
				}
			}
			w.tool("*", "")
			w.applied()
			w.ends("SwitchyardBehind", interval, time.Minute)
		})
	}
}

// TestUnverified: nothing changes, and the rules cannot be read back.
func TestUnverified(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	w.proxy("iptables", true)
	w.silent(interval, 5*time.Minute, nil)
	w.tool("*", "/bin/false")
	failures := `switchyard_dataplane_attempts_total{call="verify",result="error"}`
	w.fires("SwitchyardUnverified", interval, 20*time.Minute, w.grows(failures, 4*minute))
	w.tool("*", "")
	w.ends("SwitchyardUnverified", interval, 15*time.Minute)
}

// grows returns a function for each step that waits, every so many steps, until a metric of the proxy has grown.
func (w *world) grows(metric string, steps int) func(int) {
	last := -1.0
	return func(i int) {
		if i%steps != 0 {
			return
		}
		await.Until(w, metric+" grows", func() bool {
			now := w.now(metric)
			grown := now > last && last >= 0
			if last < 0 || grown {
				last = now
			}
			return grown
		})
	}
}

// now is the value of a metric with labels as the proxy exports it, summed up over lines that begin so.
func (w *world) now(metric string) (sum float64) {
	body, _, err := get("http://" + metricsAddr + "/metrics")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(body)) {
		var value float64
		if len(line) > len(metric) && line[:len(metric)] == metric {
			if _, err := fmt.Sscan(line[len(metric)+1:], &value); err == nil {
				sum += value
			}
		}
	}
	return sum
}

// TestCrashLoop: all programs of iptables fail. The process ends at each start, and never serves metrics.
func TestCrashLoop(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	p := w.proxy("iptables", true)
	w.silent(interval, 2*time.Minute, nil)
	w.tool("*", "/bin/false")
	p.Kill()
	w.fires("SwitchyardDown", interval, 5*time.Minute, func(i int) {
		if i%minute == 0 {
			p := w.start("proxy", "--config", filepath.Join(w.dir, "config.yaml"))
			if <-p.Done(); p.Err() == nil {
				t.Error("the process ends without an error")
			}
		}
	})
}

// TestDown: the process is killed, and then Prometheus loses its target.
func TestDown(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	p := w.proxy("nftables", true)
	w.silent(interval, 2*time.Minute, nil)
	p.Kill()
	w.fires("SwitchyardDown", interval, 4*time.Minute, nil)
	w.proxy("nftables", true)
	w.ends("SwitchyardDown", interval, time.Minute)
	w.targets = nil
	w.fires("SwitchyardDown", interval, 10*time.Minute, nil) // an old sample counts for five minutes
}

// TestRestarting: the process is killed every four minutes.
func TestRestarting(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	p := w.proxy("nftables", true)
	w.fires("SwitchyardRestarting", interval, 15*time.Minute, func(i int) {
		if i > 0 && i%(4*minute) == 0 {
			p.Kill()
			w.step(interval)
			p = w.proxy("nftables", true)
		}
	})
	w.ends("SwitchyardRestarting", interval, 30*time.Minute)
}

// TestAPIUnreachable: the API server is stopped. Some minutes later, the problems of sources have an alert as well.
func TestAPIUnreachable(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	w.proxy("nftables", true)
	w.silent(interval, 5*time.Minute, nil)
	address := w.http.Listener.Addr().String()
	w.http.CloseClientConnections()
	w.http.Close()
	failures := `rest_client_requests_total{code="<error>",host="` + address + `",method="GET"}`
	w.fires("SwitchyardAPIUnreachable", interval, 10*time.Minute, w.grows(failures, 3*minute))
	w.fires("SwitchyardSourceProblems", interval, 15*time.Minute, nil)
	l, err := net.Listen("tcp", address)
	must(t, err)
	w.http = &httptest.Server{Listener: l, Config: &http.Server{Handler: w.api}}
	w.http.Start()
	await.Until(w, "the API server is reached again", func() bool { return w.now("switchyard_source_problems") == 0 })
	w.ends("SwitchyardAPIUnreachable", interval, time.Minute)
}

// TestServices: a Service without endpoints refuses connections, and one whose endpoints are on another node drops them.
func TestServices(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	local := service("local", "10.96.0.30")
	local.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	elsewhere := slice("local", "10.1.0.9")
	elsewhere.Endpoints[0].NodeName = new("node-b")
	w.put(service("empty", "10.96.0.20"), local, elsewhere)
	w.proxy("nftables", true)
	rejects := "switchyard_service_rejects_total"
	wait := w.grows(rejects+`{namespace="default",port="udp",service="empty"}`, 3*minute)
	w.fires("SwitchyardServiceRefuses", interval, 20*time.Minute, func(i int) {
		for _, address := range []string{"10.96.0.10:53", "10.96.0.20:53", "10.96.0.30:53"} {
			send(t, address)
		}
		wait(i)
	})
	if len(w.step(interval)) != 2 || w.seen["SwitchyardServiceDrops"] == "" {
		t.Errorf("these have fired: %v", w.seen)
	}
	w.ends("SwitchyardServiceRefuses", interval, 10*time.Minute)
}

// send sends a datagram from a new socket, which is a new connection for the kernel.
func send(t *testing.T, address string) {
	t.Helper()
	sendFrom(t, "0.0.0.0", address)
}

// sendFrom sends a datagram from a new socket with a source address.
func sendFrom(t *testing.T, source, address string) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}
	c, err := d.Dial("udp", address)
	must(t, err)
	defer c.Close()
	_, _ = c.Write([]byte("x")) // it may be refused
}

// TestConntrackFull: a limit of 100 entries, of which more than 90 are in use. The file of the limit is replaced, because the whole
// machine has one limit.
func TestConntrackFull(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	limit := filepath.Join(w.dir, "nf_conntrack_max")
	must(t, os.WriteFile(limit, []byte("100\n"), 0o644))
	const real = "/proc/sys/net/netfilter/nf_conntrack_max"
	w.proxy("nftables", true).Kill() // which loads the module
	must(t, unix.Mount(limit, real, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(real, 0) })
	w.proxy("nftables", true)
	w.silent(interval, 2*time.Minute, nil)
	for range 95 {
		send(t, "10.96.0.10:53")
	}
	w.fires("SwitchyardConntrackFull", interval, 6*time.Minute, nil)
	must(t, exec.Command("conntrack", "-F").Run())
	w.ends("SwitchyardConntrackFull", interval, time.Minute)
}

// TestUnfollowed: nothing follows a relay, until a dataplane comes.
func TestUnfollowed(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	w.relay()
	w.targets = []*target{{job: "switchyard-relay", address: relayMetrics, node: "node-r"}}
	w.fires("SwitchyardUnfollowed", interval, 12*time.Minute, nil)
	w.start("apply", "nftables", "--api", relayAPI, "--node", "node-a", "--healthz-bind-address", healthAddr)
	await.Until(w, "the relay has a follower that is in step", func() bool {
		w.step(time.Second)
		return w.value(`switchyard_api_followers{kind="dataplane"}`) == 1 && w.value("switchyard_api_oldest_unapplied_update_timestamp_seconds") == 0
	})
	w.ends("SwitchyardUnfollowed", interval, time.Minute)
	if sent := w.value("switchyard_api_sent_bytes_total"); sent < 100 {
		t.Errorf("the relay has sent %v bytes", sent)
	}
}

// TestOtherAlerts: two Services with one address, a health check node port that is taken, rules that another program deletes, and a Node
// without pod CIDRs.
func TestOtherAlerts(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	taken, err := net.Listen("tcp", ":32000")
	must(t, err)
	defer taken.Close()
	balanced := service("balanced", "10.96.0.40")
	balanced.Spec.Type, balanced.Spec.ExternalTrafficPolicy, balanced.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, 32000
	for i := range balanced.Spec.Ports {
		balanced.Spec.Ports[i].NodePort = int32(30000 + i)
	}
	w.put(service("thief", "10.96.0.10"), balanced)
	w.proxy("iptables", true)
	w.step(interval)
	w.node()
	await.Until(w, "the Node lacks its CIDR", func() bool { return w.now("switchyard_node_problems") == 1 })
	must(t, exec.Command("iptables", "-t", "nat", "-F").Run())
	await.Until(w, "the rules are repaired", func() bool { return w.now("switchyard_dataplane_repairs_total") > 0 })
	want := []string{"SwitchyardHealthCheckPorts", "SwitchyardLimitedServices", "SwitchyardNodeProblems", "SwitchyardRepairs"}
	w.fires(want[0], interval, 20*time.Minute, nil)
	if got := w.step(interval); !slices.Equal(got, want) {
		t.Errorf("these fire: %v, want %v", got, want)
	}
}

// TestFailedServices: a Service has more endpoints than fit in a chain of nftables.
func TestFailedServices(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	w.proxy("nftables", true)
	w.silent(interval, 2*time.Minute, nil)
	for i := range 17 {
		part := slice("many")
		part.Name = fmt.Sprint("many-", i)
		for n := range 1000 {
			part.Endpoints = append(part.Endpoints, slice("many", fmt.Sprintf("10.%d.%d.%d", 16+i, n/250, n%250+1)).Endpoints...)
		}
		w.put(part)
	}
	w.put(service("many", "10.96.0.66"))
	await.Until(w, "a Service fails", func() bool { return w.now("switchyard_failed_services") == 1 })
	w.fires("SwitchyardFailedServices", interval, 10*time.Minute, nil)
	w.put(slice("many", "10.1.0.9"))
	for i := range 17 {
		w.api.Remove("endpointslices", fmt.Sprint("many-", i))
	}
	await.Until(w, "no Service fails", func() bool { return w.now("switchyard_failed_services") == 0 })
	w.ends("SwitchyardFailedServices", interval, time.Minute)
}

// TestSlow: changes of endpoints reach the node six seconds late.
func TestSlow(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	w.proxy("nftables", true)
	began := time.Now()
	const programmed = "switchyard_network_programming_duration_seconds_count"
	change := func(late time.Duration) func(int) {
		return func(i int) {
			before := w.now(programmed)
			s := slice("web", endpointAddr, fmt.Sprint("10.1.3.", i%250+1))
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Add(-late).Format(time.RFC3339Nano)}
			w.put(s)
			await.Until(w, "the change is measured", func() bool { return w.now(programmed) > before })
		}
	}
	w.silent(interval, 5*time.Minute, change(0))
	const late = 6 * time.Second
	time.Sleep(time.Until(began.Add(late))) // changes from before the process started are not measured
	w.fires("SwitchyardSlow", interval, 30*time.Minute, change(late))
	for i := range 12 * minute {
		change(0)(i)
		w.step(interval)
	}
	w.ends("SwitchyardSlow", interval, time.Minute)
}

// TestAffinityFull: there is room for 20 clients with affinity, and 19 have it.
func TestAffinityFull(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	const clients = `switchyard_nftables_affinity_clients{ip_family="IPv4"}`
	must(t, netlink.AddrAdd(loopback(t), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 1, 4, 0), Mask: net.CIDRMask(24, 32)}}))
	sticky := service("sticky", "10.96.0.50")
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	sticky.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10800))}}
	w.put(sticky, slice("sticky", endpointAddr, nodeAddr))
	w.config = "nftables: {counters: true, maxAffinityClients: 20}"
	w.proxy("nftables", true)
	c, err := nft.Dial()
	must(t, err)
	defer c.Close()
	if tells, err := c.Has(nft.ElementCounts); err != nil || !tells {
		t.Skipf("the kernel does not report how many clients have affinity (%v): Linux does since 6.18", err)
	}
	w.silent(interval, 2*time.Minute, nil)
	for i := range 19 {
		sendFrom(t, fmt.Sprint("10.1.4.", i+1), "10.96.0.50:53")
	}
	await.Until(w, "the kernel reports 19 clients", func() bool { return w.now(clients) == 19 })
	w.fires("SwitchyardAffinityFull", interval, 20*time.Minute, nil)
}

// TestHooksOff: a proxy in mode ebpf lacks the capabilities for socket hooks.
func TestHooksOff(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	w.without = []uintptr{unix.CAP_BPF, unix.CAP_SYS_ADMIN}
	w.proxy("ebpf", true)
	w.fires("SwitchyardHooksOff", interval, 20*time.Minute, nil)
}

// TestEachAlert: each alert of the file has a test here.
func TestEachAlert(t *testing.T) {
	code, err := os.ReadFile("alerts_linux_test.go")
	must(t, err)
	for _, r := range newServer(t, alertsFile).rules {
		if !strings.Contains(string(code), strconv.Quote(r.Name())) {
			t.Errorf("no test fires %s", r.Name())
		}
	}
}

// TestNormalChurn and the next two: in an hour, endpoints and Services come and go, connections are made, the process is replaced once
// and the API server restarts once.
func TestNormalChurn(t *testing.T) {
	churn(t, func(w *world) *process { return w.proxy("nftables", true) })
}

func TestNormalChurnIPTables(t *testing.T) {
	churn(t, func(w *world) *process { return w.proxy("iptables", true) })
}

func TestNormalChurnRelay(t *testing.T) { churn(t, (*world).relayed) }

// churn plays the hour. The function replace starts the process, which is killed before further calls.
func churn(t *testing.T, replace func(*world) *process) {
	if !inNamespace(t) {
		return
	}
	w := newWorld(t)
	p := replace(w)
	steps, changes := 60*minute, 0
	w.silent(interval, time.Hour, func(i int) {
		switch i {
		case steps / 3:
			p.Kill()
			p = replace(w)
		case steps / 2:
			w.http.CloseClientConnections()
			w.api.Forget()
		}
		if !*realTime {
			changes++
			w.change()
			w.applied() // as it would be after a quarter of a minute
			return
		}
		for ; time.Until(w.next) > 0; changes++ {
			w.change()
			time.Sleep(min(time.Second, time.Until(w.next)))
		}
	})
	t.Logf("%d changes", changes)
}

// change changes endpoints of a Service and another Service, and makes connections.
func (w *world) change() {
	n := rand.IntN(20)
	name := fmt.Sprint("other-", n)
	switch rand.IntN(4) {
	case 0:
		w.api.Remove("services", name)
		w.api.Remove("endpointslices", name+"-1")
	default:
		w.put(service(name, fmt.Sprint("10.96.1.", n+1)), slice(name, fmt.Sprint("10.1.1.", rand.IntN(250)+1), "10.1.2.1"))
	}
	w.put(slice("web", endpointAddr, fmt.Sprint("10.1.3.", rand.IntN(250)+1)))
	for range 3 {
		send(w.T, "10.96.0.10:53")
	}
	if rand.IntN(40) == 0 {
		send(w.T, "10.96.0.77:53") // to a Service that does not exist
	}
}

// relayed starts a relay and, at the first call, a dataplane that follows it.
func (w *world) relayed() *process {
	p := w.relay()
	if len(w.targets) == 0 {
		w.start("apply", "nftables", "--api", relayAPI, "--node", "node-a", "--healthz-bind-address", healthAddr, "--metrics-bind-address", metricsAddr)
		w.targets = []*target{{job: "switchyard-relay", address: relayMetrics, node: "node-r"}, {job: "kube-proxy", address: metricsAddr, node: "node-a"}}
	}
	w.applied()
	return p
}
