package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

const manifests = `apiVersion: v1
kind: Node
metadata: {name: node-a}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
`

// namespace makes a network namespace with a loopback device that is up.
func namespace(t *testing.T) *netns.NS {
	t.Helper()
	ns := netnstest.New(t)
	err := ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// healthz asks the process in ns.
func askHealthz(ns *netns.NS) (status int, body string, err error) {
	var conn net.Conn
	err = ns.Do(func() (err error) { conn, err = net.Dial("tcp", "127.0.0.1:10256"); return err })
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestRunProgramsReportsAndLeavesItsRules(t *testing.T) {
	ns := namespace(t)
	path := filepath.Join(t.TempDir(), "web.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(manifests)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, stdout := io.Pipe()
	var stderr strings.Builder
	done := make(chan int, 1)
	go func() {
		_ = ns.Do(func() error {
			done <- run(ctx, []string{"run", "--source", path, "--node", "node-a", "--logging-format", "json", "-v", "4"}, stdout, &stderr)
			return nil
		})
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if want := "switchyard: node node-a routes 1 service\n"; err != nil || line != want {
		t.Errorf("first line = %q, %v, want %q", line, err, want)
	}
	says := func(status int, text string) func() bool {
		return func() bool {
			s, body, err := askHealthz(ns)
			return err == nil && s == status && strings.Contains(body, text)
		}
	}
	await.Until(t, "it is healthy", says(200, `"healthy":true`))
	write("kind: Service\napiVersion: v1\nmetadata: {name: web}\nspec: {ports: [{port: eighty}]}\n")
	await.Until(t, "a broken manifest shows in /healthz", says(503, "web.yaml:4"))
	write(manifests)
	await.Until(t, "a fixed manifest is forgotten", says(200, `"healthy":true`))

	cancel()
	if code := <-done; code != cli.ExitOK {
		t.Errorf("exit code %d after the signal to stop, stderr:\n%s", code, stderr.String())
	}
	messages := map[string]bool{}
	for line := range strings.Lines(stderr.String()) {
		var l struct{ Msg string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("a line that is no JSON: %s", line)
		}
		messages[l.Msg] = true
	}
	if !messages["applied a change"] || !messages["applied a change of a service"] {
		t.Errorf("the log does not say what changed:\n%s", stderr.String())
	}
	cleanup := func() string {
		var text strings.Builder
		_ = ns.Do(func() error { run(t.Context(), []string{"cleanup"}, &text, &text); return nil })
		return text.String()
	}
	if got := cleanup(); !strings.Contains(got, "removed everything") {
		t.Errorf("cleanup after run: %s; the rules did not outlive the process", got)
	}
	if got := cleanup(); !strings.Contains(got, "nothing to remove") {
		t.Errorf("second cleanup: %s", got)
	}
}

func TestRunNamesAnAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(path, []byte(manifests), 0o644); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	code := run(t.Context(), []string{"run", "--source", path, "--node", "node-a", "--healthz-bind-address", l.Addr().String()}, io.Discard, &stderr)
	if code != cli.ExitError || !strings.Contains(stderr.String(), "choose another address with --healthz-bind-address") {
		t.Errorf("exit code %d, stderr: %s", code, stderr.String())
	}
}
