//go:build linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/topology"
)

// TestDaemon runs the program as kubeadm's DaemonSet runs kube-proxy: by its name, with its ConfigMap, which is changed and
// broken while it runs. It comes after rules that a kube-proxy has left.
func TestDaemon(t *testing.T) {
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Dir: t.TempDir(), ServiceCIDRs: "10.96.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	n, err := newNode(t.Context(), "switchyard")
	if err != nil {
		t.Fatal(err)
	}
	n.stop = n.Close
	t.Cleanup(func() { closeNode(t, n) })
	n.own(n.Client())
	exposed, err := plane.Expose(n.Node())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exposed.Close() })
	client, err := apicluster.NewClient(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	pod, err := n.AddPod(topology.PodOptions{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := pod.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, 8080), "a"); err != nil {
		t.Fatal(err)
	}
	objects := append([]model.Object{&model.Node{Name: "node", Addresses: n.Node().Addrs}}, pair("shop", 0, pod)...)
	for _, o := range objects {
		if _, err := client.Set(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	inNode(t, n, "iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES")
	inNode(t, n, "iptables-nft", "-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES")

	dir := t.TempDir()
	program := filepath.Join(dir, "kube-proxy")
	build := exec.Command("go", "build", "-o", program, "./cmd/switchyard")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file := filepath.Join(dir, "config.conf")
	kubeadm, err := os.ReadFile("../../internal/configfile/testdata/kubeadm.v1alpha1.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(kubeadm), "/var/lib/kube-proxy/kubeconfig.conf", plane.Kubeconfig(), 1)
	write(t, file, text)
	p, err := controlplane.Run(n.Node(), dir, "kube-proxy", program, "--config="+file, "--hostname-override=node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)

	frontend := pairIP(0).String() + ":80"
	reaches(t, n, frontend, "a")
	becomes(t, n, "10249/proxyMode", func(s string) bool { return s == "nftables" })
	becomes(t, n, "10256/healthz", func(s string) bool { return strings.Contains(s, `"nodeEligible":true`) })
	becomes(t, n, "10249/metrics", func(s string) bool {
		return strings.Contains(s, "kubeproxy_sync_proxy_rules_duration_seconds_count") && strings.Contains(s, "switchyard_services 2" /* default/kubernetes is the other */) &&
			strings.Contains(s, "rest_client_requests_total")
	})
	// Objects that kube-proxy left go once the new rules are programmed.
	eventually(t, "the leftovers go", func() bool { return !strings.Contains(inNode(t, n, "iptables-nft-save"), "KUBE-SERVICES") })

	eventually(t, "the start is an event", func() bool {
		events, err := client.Kubernetes().EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Reason == "Starting" && e.Regarding.Kind == "Node" && e.Regarding.Name == "node"
		})
	})

	// A change that can be applied is; one that cannot is named; the process stays the same.
	changed := strings.NewReplacer("masqueradeAll: false", "masqueradeAll: true",
		"metricsBindAddress: \"\"", "metricsBindAddress: 127.0.0.1:20249", "mode: \"\"", "mode: iptables", "logging:\n", "logging:\n  format: json\n").Replace(text)
	write(t, file, changed)
	becomes(t, n, "20249/configz", func(s string) bool { return strings.Contains(s, `"masqueradeAll":true`) })
	becomes(t, n, "20249/proxyMode", func(s string) bool { return s == "iptables" })
	if log := p.Tail(); !strings.Contains(log, `fields=logging.format`) {
		t.Errorf("the log does not name the change that needs a restart:\n%s", log)
	}
	reaches(t, n, frontend, "a")

	// The end leaves the rules standing.
	if err := syscall.Kill(p.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await.Receive(t, "the program ends on SIGTERM", p.Done())
	reaches(t, n, frontend, "a")

	// A broken file ends the start, and reports where it is broken.
	write(t, file, text+"\nbindAddres: 0.0.0.0\nmode: [\n")
	if out := failing(t, n, program, "--config="+file); !strings.Contains(out, "config.conf:") {
		t.Errorf("a broken file: %s", out)
	}
	// --cleanup leaves nothing.
	inNode(t, n, program, "--cleanup")
	if rules := inNode(t, n, "nft", "list", "ruleset"); strings.Contains(rules, "switchyard") {
		t.Errorf("after --cleanup:\n%s", rules)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// inNode runs a program inside the node and returns what it says.
func inNode(t *testing.T, n *node, name string, args ...string) string {
	t.Helper()
	out, err := runIn(n, name, args...)
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

func failing(t *testing.T, n *node, name string, args ...string) string {
	t.Helper()
	out, err := runIn(n, name, args...)
	if err == nil {
		t.Fatalf("%s %v does not fail:\n%s", name, args, out)
	}
	return out
}

func runIn(n *node, name string, args ...string) (string, error) {
	var out []byte
	err := n.Node().Do(func() (err error) { out, err = exec.Command(name, args...).CombinedOutput(); return err })
	return string(out), err
}

// becomes waits until a page of the daemon, port/path, is as it should be.
func becomes(t *testing.T, n *node, page string, right func(string) bool) {
	t.Helper()
	var last string
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = n.Node().Do(func() (err error) { conn, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
			return conn, err
		}}}
	eventually(t, page+" is right", func() bool {
		resp, err := client.Get("http://127.0.0.1:" + page)
		if err != nil {
			last = err.Error()
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		last = fmt.Sprint(string(body), err)
		return err == nil && right(string(body))
	}, func() string { return last })
}

func eventually(t *testing.T, what string, ok func() bool, last ...func() string) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > *settleTimeout {
			for _, l := range last {
				t.Log(l())
			}
			t.Fatalf("it does not come to be that %s", what)
		}
	}
}
