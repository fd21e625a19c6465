package windows

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

var (
	program = flag.String("switchyard", "", "the program, built for Windows")
	example = flag.String("example", "", "the client library's example, built for Windows")
)

// timeout is for everything that a test waits for.
const timeout = 2 * time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	if *program == "" || *example == "" {
		panic("-switchyard and -example are not set: run make test-windows")
	}
	os.Exit(m.Run())
}

// output runs the program to its end.
func output(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, *program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVersion(t *testing.T) {
	out, _, err := output(t, "version")
	if err != nil || !strings.Contains(out, "windows/amd64") {
		t.Errorf("version: %q, %v", out, err)
	}
}

// TestMistake: what a command refuses has the exit code that it has elsewhere.
func TestMistake(t *testing.T) {
	_, stderr, err := output(t, "serv")
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != 2 || !strings.Contains(stderr, "serve") {
		t.Errorf("serv: %v, %q", err, stderr)
	}
}

// TestConfigConvert converts a file of kube-proxy's of a Windows node.
func TestConfigConvert(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	write(t, file, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: kernelspace
winkernel:
  networkName: pods
  sourceVip: 10.1.1.250
  enableDSR: true
`)
	out, stderr, err := output(t, "config", "convert", file)
	if err != nil {
		t.Fatalf("config convert: %v: %s", err, stderr)
	}
	for _, want := range []string{"networkName: pods", "sourceVip: 10.1.1.250", "enableDSR: true"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

const service = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.96.0.1
  ports: [{port: 80, targetPort: 8080}]
  selector: {app: web}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints:
- {addresses: [ADDRESS], conditions: {ready: true}}
`

// TestServe has the program serve manifests over TCP.
func TestServe(t *testing.T) { testServe(t, "tcp://"+freeAddress(t, "127.0.0.1")) }

// TestServeNamedPipe has the program serve manifests on a named pipe, where the API is on Windows unless something else is said.
func TestServeNamedPipe(t *testing.T) {
	testServe(t, fmt.Sprintf("npipe:////./pipe/switchyard-test-program-%d", os.Getpid()))
}

// testServe has the program serve manifests at target, and follows it there with the client library and with its example. A manifest that changes is read
// again.
func testServe(t *testing.T, target string) {
	dir := t.TempDir()
	manifest := filepath.Join(dir, "web.yaml")
	write(t, manifest, strings.Replace(service, "ADDRESS", "10.1.1.1", 1))

	start(t, *program, "serve", "--source", dir, "--node", "node-a", "--listen", target)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	seen := make(chan string)
	ended := make(chan error, 1)
	go func() {
		ended <- client.RunSink(ctx, client.Options{Name: "test", Target: target}, sink(seen))
	}()
	expect := func(addr string) {
		t.Helper()
		for {
			select {
			case got := <-seen:
				if got == addr {
					return
				}
			case err := <-ended:
				t.Fatalf("waiting for endpoint %s: %v", addr, err)
			}
		}
	}
	expect("10.1.1.1:8080")
	write(t, manifest, strings.Replace(service, "ADDRESS", "10.1.1.2", 1))
	expect("10.1.1.2:8080")

	lines := start(t, *example, "--target", target)
	printed := func(addr string) {
		t.Helper()
		for line := range lines {
			if strings.Contains(line, `name:"web"`) && strings.Contains(line, addr) {
				return
			}
		}
		t.Fatalf("the example has not printed the service with address %s", addr)
	}
	printed(`\n\x01\x01\x02`)
	write(t, manifest, strings.Replace(service, "ADDRESS", "10.1.1.3", 1))
	printed(`\n\x01\x01\x03`)
}

// sink sends the address of each endpoint of service web.
type sink chan<- string

func (s sink) Apply(ctx context.Context, c *client.Change) (map[client.ServiceName]error, error) {
	for _, service := range c.Changed {
		for _, addr := range endpoints(service) {
			select {
			case s <- addr:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return nil, nil
}

func endpoints(s *localnetv1.ServiceEndpoints) []string {
	var list []string
	for _, p := range s.Ports {
		for e := range client.Endpoints(p, p.Internal.Inside.Endpoints) {
			list = append(list, client.AddrPort(e).String())
		}
	}
	return list
}

// freeAddress returns an address of host, with a port of TCP where nothing listens.
func freeAddress(t *testing.T, host string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start starts a program and returns the lines that it prints. It ends with the test: Windows has no signal that asks for that.
func start(t *testing.T, name string, args ...string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	cmd := exec.CommandContext(ctx, name, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			t.Logf("%s: %s", filepath.Base(name), scanner.Text())
			lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		for range lines {
		}
		_ = cmd.Wait()
	})
	return lines
}
