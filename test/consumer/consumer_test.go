package consumer

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/zip"
)

const (
	rootModule   = "github.com/switchyard-net/switchyard"
	clientModule = rootModule + "/client"
	root         = "../.."
)

// TestConsumer packs both modules as a module proxy would, with the versions that the next tags have, and builds programs that
// require them. A replace directive of ours has no effect there, nor has a file that is not in the module.
func TestConsumer(t *testing.T) {
	version := clientVersion(t)
	proxy := t.TempDir()
	publish(t, proxy, module.Version{Path: rootModule, Version: version}, root)
	publish(t, proxy, module.Version{Path: clientModule, Version: version}, filepath.Join(root, "client"))

	// Dependencies come from this machine's module cache, so that a machine that has built the repository needs no
	// network. A separate cache keeps the packed modules out of the machine's cache.
	cache := filepath.Join(goEnv(t, "GOMODCACHE"), "cache", "download")
	env := append(os.Environ(),
		"GOWORK=off", "GOSUMDB=off", "GONOPROXY=none", "GONOSUMDB=", "GOPRIVATE=", "CGO_ENABLED=0",
		"GOFLAGS=-mod=mod -modcacherw -trimpath -buildvcs=false", // -trimpath: compiled packages are found again by the next run
		"GOMODCACHE="+t.TempDir(),
		"GOPROXY=file://"+proxy+",file://"+cache+","+goEnv(t, "GOPROXY"),
	)
	for _, c := range []struct {
		name, require, program string
		unwanted               []string // modules that no such program needs
	}{
		{"root", rootModule, routes, []string{"github.com/spf13/cobra", "github.com/prometheus/client_golang", "k8s.io/client-go"}},
		{"client", clientModule, watcher, []string{rootModule, "k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), "module example.org/consumer\n\ngo 1.26.0\n\nrequire "+c.require+" "+version+"\n")
			write(t, filepath.Join(dir, "main.go"), c.program)
			goCommand(t, dir, env, "build", "-o", "consumer", ".")
			// The build has completed go.mod with what the program needs.
			for _, r := range readGoMod(t, dir).Require {
				if slices.Contains(c.unwanted, r.Mod.Path) {
					t.Errorf("a program that requires %s needs %s", c.require, r.Mod.Path)
				}
			}
			cmd := exec.Command(filepath.Join(dir, "consumer"))
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
				t.Errorf("the program: %v\n%s", err, out)
			}
		})
	}
}

// routes imports what programs around the core of Switchyard have use for, and computes a state.
const routes = `package main

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/client"
	_ "github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	_ "github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

var (
	_ backend.Backend
	_ = client.Options{}
)

func main() {
	service, err := kubeconv.Service(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	s := store.New(store.Options{Brain: brain.Config{NodeName: "node"}})
	sink := s.Source("program")
	sink.Update([]model.Object{service}, nil)
	sink.Complete()
	update, err := s.Next(context.Background(), 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	frontend := update.Changed[0].Ports[0].Frontends[0]
	if frontend.Kind == state.ClusterIP && frontend.Addr == netip.MustParseAddr("10.96.0.10") {
		fmt.Println("ok")
	}
}
`

// watcher imports the client library and nothing else of ours.
const watcher = `package main

import (
	"fmt"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

var _ = client.Options{}

func main() {
	if localnetv1.Endpoints_ServiceDesc.ServiceName == "switchyard.localnet.v1.Endpoints" {
		fmt.Println("ok")
	}
}
`

// clientVersion returns the version of the client module that the root module requires: the version of the next tags
// of both.
func clientVersion(t *testing.T) string {
	t.Helper()
	f := readGoMod(t, root)
	for _, tool := range f.Tool {
		t.Errorf("go.mod has the tool %s, whose needs become those of every importer: move it to tools/go.mod", tool.Path)
	}
	for _, r := range f.Require {
		if r.Mod.Path == clientModule {
			if v := r.Mod.Version; semver.Compare(v, "v0.0.0") <= 0 || semver.Prerelease(v) != "" {
				t.Fatalf("go.mod requires %s %s, which is no version that a tag has: set that of the next release", clientModule, v)
			}
			return r.Mod.Version
		}
	}
	t.Fatalf("go.mod does not require %s", clientModule)
	return ""
}

func readGoMod(t *testing.T, dir string) *modfile.File {
	t.Helper()
	name := filepath.Join(dir, "go.mod")
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := modfile.Parse(name, content, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// publish writes a module into a module proxy in the file system (go help goproxy).
func publish(t *testing.T, proxy string, m module.Version, dir string) {
	t.Helper()
	versions := filepath.Join(proxy, filepath.FromSlash(m.Path), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		t.Fatal(err)
	}
	goMod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(versions, "list"), m.Version+"\n")
	write(t, filepath.Join(versions, m.Version+".info"), fmt.Sprintf(`{"Version": %q, "Time": "2026-01-01T00:00:00Z"}`, m.Version))
	write(t, filepath.Join(versions, m.Version+".mod"), string(goMod))
	out, err := os.Create(filepath.Join(versions, m.Version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	if err := zip.Create(out, m, files(t, dir)); err != nil {
		t.Fatalf("cannot pack %s: %v", m, err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// files returns what git would have in dir after a commit of everything. [zip.Create] leaves out the modules inside.
func files(t *testing.T, dir string) []zip.File {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v; the test needs git, and a clone of the repository", err)
	}
	var list []zip.File
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		f := file{dir: dir, name: name}
		if info, err := f.Lstat(); err == nil && info.Mode().IsRegular() { // one that is deleted is still in the index
			list = append(list, f)
		}
	}
	return list
}

// file is a file in a module, as [zip.Create] wants it.
type file struct{ dir, name string }

func (f file) Path() string                 { return path.Clean(f.name) }
func (f file) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join(f.dir, f.name)) }
func (f file) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(f.dir, f.name)) }

func goCommand(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, env
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(goCommand(t, ".", os.Environ(), "env", name))
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
