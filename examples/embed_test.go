//go:build linux

package examples_test

import (
	"context"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// inModule runs the go command in a directory that is a module of its own.
func inModule(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

// TestEmbed builds programs that have Switchyard as libraries, in a module of its own, lets them program a node, and sends packets.
func TestEmbed(t *testing.T) {
	netnstest.Need(t)
	inModule(t, "embed", "vet", "./...")
	for _, program := range []string{".", "./parts"} {
		t.Run(program, func(t *testing.T) { embeds(t, program) })
	}
}

func embeds(t *testing.T, program string) {
	bin := filepath.Join(t.TempDir(), "embed")
	inModule(t, "embed", "build", "-o", bin, program)

	l := netnstest.Lab(t, topology.Options{})
	server, err := l.AddPod(topology.PodOptions{Name: "server"})
	if err != nil {
		t.Fatal(err)
	}
	visitor, err := l.AddPod(topology.PodOptions{Name: "visitor"})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, 8080), "server"); err != nil {
		t.Fatal(err)
	}
	manifests := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(manifests, []byte(strings.ReplaceAll(embedManifest, "ENDPOINT", server.Addrs[0].String())), 0o600); err != nil {
		t.Fatal(err)
	}
	clusterIP := netip.MustParseAddrPort("10.96.0.10:80")
	if a := visitor.Probe(t.Context(), state.TCP, clusterIP, topology.ProbeOptions{Timeout: 200 * time.Millisecond}); a.Outcome == topology.Answered {
		t.Fatalf("%s answers before the program runs", clusterIP)
	}

	cmd := exec.Command(bin, "-manifests", manifests, "-node", "node", "-pods", "10.244.0.0/16")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = l.Node().Do(cmd.Start) // a process is born into the namespace of the thread that starts it
	}
	if err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	line := make([]byte, len("the kernel "))
	if _, err := io.ReadFull(out, line); err != nil {
		t.Errorf("the program says nothing: %v", err)
	}
	checkAnswer(t, visitor, clusterIP, "server")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the program ends with %v", err)
	}
	checkAnswer(t, visitor, clusterIP, "server") // what it programmed stays
}

func checkAnswer(t *testing.T, from *topology.Host, to netip.AddrPort, want string) {
	t.Helper()
	if a := from.Probe(context.Background(), state.TCP, to, topology.ProbeOptions{}); a.Outcome != topology.Answered || a.Server != want {
		t.Errorf("%s from %s: %v by %q (%v), want an answer of %s", to, from.Name, a.Outcome, a.Server, a.Err, want)
	}
}

// TestEmbedNeedsNoKubernetes looks at everything that a program which embeds Switchyard needs.
func TestEmbedNeedsNoKubernetes(t *testing.T) {
	const why = `
Law 9: nothing imports k8s.io/kubernetes. It is not made to be a library, and a program that embeds a service proxy must not have
to choose its own dependencies by it.`
	modules := strings.Fields(inModule(t, "embed", "list", "-m", "-f", "{{.Path}}", "all"))
	if !slices.Contains(modules, "github.com/switchyard-net/switchyard") {
		t.Fatalf("the list of modules is not that of the example: %q", modules)
	}
	if slices.Contains(modules, "k8s.io/kubernetes") {
		t.Errorf("the module of examples/embed needs k8s.io/kubernetes.%s", why)
	}
	sums, err := os.ReadFile(filepath.Join("embed", "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(sums), "k8s.io/kubernetes ") {
		t.Errorf("go.sum of examples/embed has k8s.io/kubernetes.%s", why)
	}
	for program, needless := range map[string][]string{".": {"k8s.io/client-go"}, "./parts": {"k8s.io/client-go", "google.golang.org/grpc"}} {
		for pkg := range strings.FieldsSeq(inModule(t, "embed", "list", "-deps", program)) {
			if slices.ContainsFunc(needless, func(tree string) bool { return strings.HasPrefix(pkg, tree) }) {
				t.Errorf("%s in examples/embed links %s, which it does not need", program, pkg)
			}
		}
	}
}

const embedManifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
- addresses: [ENDPOINT]
`
