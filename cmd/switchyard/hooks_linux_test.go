package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/await"
)

// newCgroup makes a cgroup, and returns its path.
func newCgroup(t *testing.T, name string) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		path := filepath.Join(root, fmt.Sprintf("switchyard-test-%d-%s", os.Getpid(), name))
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Skipf("no cgroup can be made: %v", err)
		}
		t.Cleanup(func() {
			err := os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
			if err = errors.Join(err, os.Remove(path)); err != nil {
				t.Error(err)
			}
		})
		return path
	}
	t.Skip("no cgroup2 file system is mounted")
	return ""
}

// enter moves this process into a cgroup: sockets that it makes from now on are there.
func enter(t *testing.T, cgroup string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		t.Fatal(err)
	}
}

// hookedSite is a site that routes in mode ebpf, with hooks for the processes of a cgroup.
type hookedSite struct {
	*site
	config string
}

func newHookedSite(t *testing.T, cgroup string) *hookedSite {
	s := &hookedSite{site: newSite(t)}
	s.config = filepath.Join(filepath.Dir(s.dir), "config.yaml")
	s.configure(cgroup)
	s.site.write("web.yaml", rendered("web", stableIP, "", endpointAddr))
	return s
}

// configure has the hooks in a cgroup.
func (s *hookedSite) configure(cgroup string) {
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: ebpf\nsyncPeriod: 1s\n" +
		"resetConnectionsToRemovedEndpoints: true\nlinux: {conntrack: {maxPerCore: 0, min: 0}}\nebpf: {cgroupPath: " + cgroup + "}\n"
	next := s.config + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o644), os.Rename(next, s.config)); err != nil {
		s.Fatal(err)
	}
}

// run routes the site in a process without some capabilities.
func (s *hookedSite) run(without ...uintptr) *process {
	return startWithout(s, without, "run", "--source", s.dir, "--node", "node-a", "--config", s.config, "--healthz-bind-address", "127.0.0.1:10256", "--take-over", "1m")
}

// ask returns the answer of the process's server for operators.
func ask(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return resp.Status + "\n" + string(text)
}

// metric returns the value of a metric, -1 if there is none.
func metric(t *testing.T, name string) float64 {
	t.Helper()
	_, rest, _ := strings.Cut(ask(t, "127.0.0.1:10249/metrics"), "\n"+name+" ")
	text, _, _ := strings.Cut(rest, "\n")
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return -1
	}
	return value
}

const translatedMetric = `switchyard_socket_hooks_connections_total{result="translated"}`

// hooksAre returns whether the hooks of the process are in a state.
func hooksAre(t *testing.T, state string) func() bool {
	return func() bool { return metric(t, `switchyard_socket_hooks{state="`+state+`"}`) == 1 }
}

// TestHooks: in mode ebpf connections are translated at their sockets. When the process is killed, nftables goes on with them, and its
// successor attaches hooks again; none is lost. The configuration moves them while they are at work.
func TestHooks(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	here, elsewhere := newCgroup(t, "here"), newCgroup(t, "elsewhere")
	enter(t, here)
	s := newHookedSite(t, here)
	process := s.run()
	await.Until(t, "the service is routed", process.says(routing+"1 service"))
	if process.says("and not at sockets")() {
		t.Skip(process.log.String())
	}
	await.Until(t, "the hooks are on", hooksAre(t, "on"))
	if got := ask(t, "127.0.0.1:10249/proxyMode"); !strings.HasSuffix(got, "\nebpf") {
		t.Errorf("/proxyMode is %q", got)
	}
	if metric(t, "switchyard_socket_hooks_frontends") != 1 || metric(t, "switchyard_socket_hooks_memory_bytes") < 1<<20 {
		t.Errorf("the metrics are\n%s", ask(t, "127.0.0.1:10249/metrics"))
	}
	_, stop := startTraffic(t)
	grows := func() bool {
		before := metric(t, translatedMetric)
		time.Sleep(300 * time.Millisecond)
		return metric(t, translatedMetric) > before
	}
	for range 5 {
		await.Until(t, "connections are translated at their sockets", grows)
		process.Kill()
		time.Sleep(300 * time.Millisecond) // nobody is there but nftables
		process = s.run()
		await.Until(t, "the next process routes", process.says(routing))
	}
	await.Until(t, "connections are translated at their sockets", grows)

	s.configure(elsewhere)
	await.Until(t, "the configuration has changed", process.says("the configuration has changed"))
	await.Until(t, "connections go past the hooks", func() bool { return hooksAre(t, "on")() && !grows() })
	s.configure(here)
	await.Until(t, "connections are translated again", grows)
	stop()
	s.losesAnEndpoint()
	if process.says("and not at sockets")() {
		t.Error("hooks were off for a time")
	}
	if status, body, err := askHealthzHere(); err != nil || status != http.StatusOK || strings.Contains(body, "socketHooks") {
		t.Errorf("/healthz: %d %s %v", status, body, err)
	}
}

// losesAnEndpoint has the endpoint of a connection leave its service: the connection is ended, although to netfilter it is one to a pod.
func (s *hookedSite) losesAnEndpoint() {
	s.Helper()
	l, err := net.Listen("tcp", otherAddr+":8080")
	if err != nil {
		s.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				conn.Close()
			}()
		}
	}()
	s.write("leaves.yaml", rendered("leaves", "10.96.0.20", "", otherAddr))
	var conn net.Conn
	// A connection between the commit of nftables and the update of the hooks' maps is routed, but not at its socket.
	await.Until(s.T, "a connection is translated at its socket", func() bool {
		before := metric(s.T, translatedMetric)
		conn, err = net.DialTimeout("tcp", "10.96.0.20:80", 200*time.Millisecond) // where it is not routed yet, nothing answers
		if err != nil {
			return false
		}
		if err := talk(conn); err != nil {
			s.Fatal(err)
		}
		if before >= 0 && metric(s.T, translatedMetric) > before {
			return true
		}
		conn.Close()
		return false
	})
	defer conn.Close()
	s.write("leaves.yaml", rendered("leaves", "10.96.0.20", ""))
	await.Until(s.T, "the connection is ended", func() bool {
		err = talk(conn)
		return err != nil
	})
	if !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.EPIPE) {
		s.Errorf("the connection ends with %v, want it aborted", err)
	}
}

// askHealthzHere asks the process in this network namespace.
func askHealthzHere() (status int, body string, err error) {
	resp, err := http.Get("http://127.0.0.1:10256/healthz")
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// TestHooksRefused: a kernel that refuses the hooks costs speed only. The process says so once, is healthy, and routes.
func TestHooksRefused(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s := newHookedSite(t, newCgroup(t, "refused"))
	process := s.run(unix.CAP_BPF, unix.CAP_SYS_ADMIN)
	await.Until(t, "the service is routed", process.says(routing+"1 service"))
	startTraffic(t)
	await.Until(t, "the kernel was compared with the state a few times, for hooks to be tried again", func() bool {
		return metric(t, "switchyard_dataplane_verify_duration_seconds_count") >= 3
	})
	if !hooksAre(t, "off")() || metric(t, translatedMetric) != 0 {
		t.Errorf("hooks are not off:\n%s", process.log.String())
	}
	status, body, err := askHealthzHere()
	if err != nil || status != http.StatusOK || !strings.Contains(body, `"part":"socketHooks","message":"off: loading the programs: operation not permitted`) || !strings.Contains(body, "CAP_BPF") {
		t.Errorf("/healthz: %d %s %v", status, body, err)
	}
	log := process.log.String()
	if n := strings.Count(log, "translated by netfilter, and not at sockets"); n != 1 || strings.Count(log, "CAP_BPF") != 1 {
		t.Errorf("%d warnings, want one:\n%s", n, log)
	}
}
