package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/program"
)

// process is this program in a process of its own.
type process struct {
	*program.Process
	log await.Log // stdout and stderr
}

// newProcess runs the program with arguments, until it is killed, without some capabilities that this process has.
func newProcess(args []string, without ...uintptr) (*process, error) {
	isNode := slices.Contains([]string{"run", "serve", "proxy"}, args[0])
	if isNode && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--admin-bind-address") }) {
		args = append(slices.Clone(args), "--admin-bind-address=none") // the default is one place for all tests
	}
	p := &process{}
	cmd := exec.Command("switchyard", args...) // TestMain puts it on PATH
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	var err error
	p.Process, err = program.Start(cmd, program.Without(without...))
	return p, err
}

// start runs the program with arguments until the end of the test, or until it is killed.
func start(t testing.TB, args ...string) *process {
	t.Helper()
	return startWithout(t, nil, args...)
}

// startWithout is start without some capabilities.
func startWithout(t testing.TB, capabilities []uintptr, args ...string) *process {
	t.Helper()
	p, err := newProcess(args, capabilities...)
	if err != nil {
		t.Error(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s:\n%.1500s", strings.Join(args, " "), p.log.String())
		}
	})
	return p
}

// says returns whether the process has said something.
func (p *process) says(text string) func() bool {
	return func() bool { return strings.Contains(p.log.String(), text) }
}

// site is a node with manifests, which a server serves and a dataplane follows.
type site struct {
	*testing.T
	dir, socket string
	mu          sync.Mutex // held while manifests are written
}

func newSite(t *testing.T) *site {
	// The socket is not below the test's directory, whose name may be too long for one.
	dir, err := os.MkdirTemp("", "switchyard")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &site{T: t, dir: filepath.Join(dir, "manifests"), socket: filepath.Join(dir, "api.sock")}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.write("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nstatus: {addresses: [{type: InternalIP, address: "+nodeAddr+"}]}\n")
	return s
}

// write replaces a manifest.
func (s *site) write(name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	temporary := filepath.Join(filepath.Dir(s.dir), "next")
	err := os.WriteFile(temporary, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(temporary, filepath.Join(s.dir, name))
	}
	if err != nil {
		s.Error(err)
	}
}

func (s *site) serve(args ...string) *process {
	return start(s, append([]string{"serve", "--source", s.dir, "--node", "node-a", "--listen", "unix://" + s.socket}, args...)...)
}

func (s *site) apply(args ...string) *process {
	return start(s, append([]string{"apply", "nftables", "--api", "unix://" + s.socket}, args...)...)
}

// The lines that the processes log once they are ready.
const (
	serving = "switchyard: serving node node-a on "
	routing = "switchyard: node node-a routes "
)

// rendered is the manifest of a service with TCP and UDP, and its endpoints.
func rendered(name, clusterIP, more string, endpoints ...string) string {
	var text strings.Builder
	fmt.Fprintf(&text, `apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  clusterIP: %[2]s
  clusterIPs: [%[2]s]
  ipFamilies: [IPv4]
  ports: [{name: tcp, protocol: TCP, port: 80}, {name: udp, protocol: UDP, port: 53}]
%[3]s---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: tcp, protocol: TCP, port: 8080}, {name: udp, protocol: UDP, port: 8053}]
endpoints:
`, name, clusterIP, more)
	for _, e := range endpoints {
		fmt.Fprintf(&text, "- {addresses: [%s], nodeName: node-a, conditions: {ready: true}}\n", e)
	}
	return text.String()
}

// generation is the number of the ruleset's generation. Every commit raises it.
func generation(t *testing.T) uint32 {
	t.Helper()
	c, err := nft.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// quiet waits until nothing has been written for a while, and returns the generation.
func quiet(t *testing.T) uint32 {
	t.Helper()
	last := generation(t)
	for range 100 {
		time.Sleep(200 * time.Millisecond)
		now := generation(t)
		if now == last {
			return now
		}
		last = now
	}
	t.Fatal("the ruleset never came to rest")
	return 0
}
