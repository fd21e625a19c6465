package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/test/await"
)

// routed is a site under traffic, and the process that routes it, which was run with the given arguments.
func routed(t *testing.T) (s *site, first *process) {
	s = newSite(t)
	s.write("web.yaml", rendered("web", stableIP, "", endpointAddr))
	first = s.run("127.0.0.1:10256")
	await.Until(t, "the service is routed", first.says(routing+"1 service"))
	startTraffic(t)
	return s, first
}

// run routes the site's manifests in a process.
func (s *site) run(health string, args ...string) *process {
	return start(s, append([]string{"run", "--source", s.dir, "--node", "node-a", "--healthz-bind-address", health}, args...)...)
}

// refuse runs commands while the first process runs. Each must end, name the first process, and name the remedy.
func refuse(t *testing.T, first *process, commands [][]string) {
	t.Helper()
	seconds := make([]*process, len(commands))
	for i, args := range commands {
		seconds[i] = start(t, args...)
	}
	for i, args := range commands {
		second := seconds[i]
		await.Receive(t, args[0]+" ends while the first process runs", second.Done())
		code, text := second.Cmd.ProcessState.ExitCode(), second.log.String()
		t.Logf("%s:\n%s", strings.Join(args[:1], " "), text)
		for _, want := range []string{fmt.Sprintf("PID %d", first.Cmd.Process.Pid), "switchyard " + currentVersion(), "stop it first"} {
			if code == 0 || !strings.Contains(text, want) {
				t.Errorf("%s ends with exit code %d, and does not say %q:\n%s", args[0], code, want, text)
			}
		}
		if waits := strings.Contains(text, "--take-over"); waits != (args[0] != "cleanup") {
			t.Errorf("%s says that --take-over helps: %v", args[0], waits)
		}
	}
}

// answers reports whether an endpoint answers soon. A connection that begins before its Service is routed is never
// answered.
func answers(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
	if err != nil {
		return false
	}
	defer conn.Close()
	return talk(conn) == nil
}

// TestSecondProcess: of two processes the second refuses, and says which the first is and what to do. The first is not disturbed.
func TestSecondProcess(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s, first := routed(t)
	written := quiet(t)
	refuse(t, first, [][]string{
		{"run", "--source", s.dir, "--node", "node-a", "--take-over", "0"},
		{"apply", "nftables", "--api", "unix://" + s.socket, "--take-over", "100ms"},
		{"proxy", "--master", "http://127.0.0.1:1", "--take-over", "0", "--hostname-override", "node-a"},
		{"cleanup"},
	})
	if now := quiet(t); now != written {
		t.Errorf("%d commits by processes that refused", now-written)
	}
	if path, err := exec.LookPath("nft"); err == nil {
		out, err := exec.Command(path, "list", "ruleset").CombinedOutput()
		if err != nil || !bytes.Contains(out, fmt.Appendf(nil, "PID %d", first.Cmd.Process.Pid)) {
			t.Errorf("nft list ruleset does not show who routes: %v\n%.500s", err, out)
		}
	}
	s.write("last.yaml", rendered("last", "10.96.0.99", "", endpointAddr))
	await.Until(t, "the first goes on", func() bool { return answers("10.96.0.99:80") })
}

// TestSecondProcessOfMode: in each other mode the second process refuses as well, whichever mode it has itself, and writes nothing.
func TestSecondProcessOfMode(t *testing.T) {
	needs := map[config.Mode]func() error{config.ModeIPTables: iptables.Available, config.ModeIPVS: ipvs.Available}
	for _, mode := range []config.Mode{config.ModeIPTables, config.ModeUserspace, config.ModeEBPF, config.ModeIPVS} {
		t.Run(string(mode), func(t *testing.T) {
			if available := needs[mode]; available != nil {
				if err := available(); err != nil {
					t.Skipf("mode %s cannot run here: %v", mode, err)
				}
			}
			if !inNamespace(t) {
				return
			}
			cgroup := ""
			if mode == config.ModeEBPF {
				cgroup = "ebpf: {cgroupPath: " + newCgroup(t, "second") + "}\n"
			}
			s := newSite(t)
			file := filepath.Join(filepath.Dir(s.dir), "config.yaml")
			text := "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: " + string(mode) +
				"\nlinux: {conntrack: {maxPerCore: 0, min: 0}}\n" + cgroup
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			s.write("web.yaml", rendered("web", stableIP, "", endpointAddr))
			first := s.run("127.0.0.1:10256", "--config", file)
			await.Until(t, "the service is routed", first.says(routing+"1 service"))
			if got := ask(t, "127.0.0.1:10249/proxyMode"); !strings.HasSuffix(got, "\n"+string(mode)) {
				t.Fatalf("the first process has the mode %q", got)
			}
			written := quiet(t)
			refuse(t, first, [][]string{
				{"run", "--source", s.dir, "--node", "node-a", "--config", file, "--take-over", "0"},
				{"run", "--source", s.dir, "--node", "node-a", "--take-over", "0"}, // in mode nftables
				{"cleanup"},
			})
			if now := quiet(t); now != written {
				t.Errorf("%d commits by processes that refused", now-written)
			}
			new(traffic).serve(t)
			s.write("last.yaml", rendered("last", "10.96.0.99", "", endpointAddr))
			await.Until(t, "the first goes on", func() bool { return answers("10.96.0.99:80") })
		})
	}
}

// TestTakeOver has a process wait for the end of another, and the next for its, however they end: no connection is concerned.
func TestTakeOver(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s, process := routed(t)
	for i, end := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
		// As with overlapping restarts, both have the same ports.
		next := s.run("127.0.0.1:10256", "--take-over", "1m")
		await.Until(t, "the next process waits", next.says("waiting for the end"))
		if next.says(routing)() {
			t.Fatal("two processes route")
		}
		began := time.Now()
		if err := process.Cmd.Process.Signal(end); err != nil {
			t.Fatal(err)
		}
		await.Until(t, "the next process routes", next.says(routing))
		t.Logf("%v: the next process routes %v after the signal", end, time.Since(began).Round(time.Millisecond))
		<-process.Done()
		process = next
		name := fmt.Sprintf("after-%d", i)
		s.write(name+".yaml", rendered(name, fmt.Sprintf("10.96.0.%d", 100+i), "", endpointAddr))
		await.Until(t, "the next process routes what is new", func() bool { return once("tcp", fmt.Sprintf("10.96.0.%d:80", 100+i)) == nil })
	}
}

// TestOneOfMany starts processes at the same time: one of them routes, and when it is killed, another, until none is left.
func TestOneOfMany(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s := newSite(t)
	s.write("web.yaml", rendered("web", stableIP, "", endpointAddr))
	const n = 5
	var processes [n]*process
	var starts sync.WaitGroup
	for i := range n {
		starts.Go(func() { processes[i] = s.run(fmt.Sprintf("127.0.0.1:%d", 11000+i), "--take-over", "1m") })
	}
	starts.Wait()
	for left := n; left > 0; left-- {
		var holder *process
		await.Until(t, "one of them routes", func() bool {
			for _, p := range processes {
				if p != nil && p.says(routing)() {
					holder = p
				}
			}
			return holder != nil
		})
		for i, p := range processes {
			if p != nil && p != holder && p.says(routing)() {
				t.Fatal("two processes route")
			}
			if p == holder {
				processes[i] = nil
			}
		}
		holder.Kill()
	}
	c, err := nft.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if ok, err := c.HasTable(nft.Table{Family: nft.IPv4, Name: "switchyard-lock"}); ok || err != nil {
		t.Errorf("after the end of all there is a lock: %v, %v", ok, err)
	}
}
