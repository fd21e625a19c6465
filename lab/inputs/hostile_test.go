package inputs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// trap notices a program that is started and a connection that is opened.
type trap struct {
	ran     string // a file that a fake git makes
	address string
	// connected are the addresses of clients, in the order in which they came.
	connected chan string
}

// newTrap makes a git that leaves a file behind the first program of PATH, and listens at a loopback address.
func newTrap(t *testing.T) *trap {
	dir := t.TempDir()
	trapped := &trap{ran: filepath.Join(dir, "ran")}
	git := "#!/bin/sh\nexec 1>>" + trapped.ran + "; echo \"$0 $@\"\n"
	for _, name := range []string{"git", "helm", "kustomize"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(git), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	trapped.address, trapped.connected = l.Addr().String(), make(chan string, 1000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			trapped.connected <- c.RemoteAddr().String()
			c.Close()
		}
	}()
	return trapped
}

// sprung is what was started or connected since the last call, empty for nothing.
func (tr *trap) sprung(t *testing.T) string {
	t.Helper()
	ran, err := os.ReadFile(tr.ran)
	if err == nil {
		_ = os.Remove(tr.ran)
		return "ran " + string(ran)
	}
	c, err := net.Dial("tcp", tr.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Earlier connections come first.
	if first := <-tr.connected; first != c.LocalAddr().String() {
		for <-tr.connected != c.LocalAddr().String() {
		}
		return "connected"
	}
	return ""
}

// TestNothingIsFetchedOrRun: whatever a Kustomize directory names, building it starts no program and opens no connection.
func TestNothingIsFetchedOrRun(t *testing.T) {
	trapped := newTrap(t)
	at := trapped.address
	url := "http://" + at + "/x.yaml"
	git := "file:///srv/x//foo?ref=--upload-pack=/bin/false"
	const helm = "{name: x, repo: 'https://charts.example', releaseName: x}"
	for name, files := range map[string]map[string]string{
		"a crafted ref":        {"kustomization.yaml": "resources: ['" + git + "']"},
		"another case of keys": {"kustomization.yaml": "Resources: ['" + git + "']"},
		"bases":                {"kustomization.yaml": "bases: ['" + git + "']"},
		"components":           {"kustomization.yaml": "components: ['" + git + "']"},
		"generators":           {"kustomization.yaml": "generators: ['" + git + "']"},
		"transformers":         {"kustomization.yaml": "transformers: ['" + git + "']"},
		"validators":           {"kustomization.yaml": "validators: ['" + git + "']"},
		"in a base":            {"kustomization.yaml": "resources: [base]", "base/kustomization.yaml": "resources: ['" + git + "']"},
		"in a component":       {"kustomization.yaml": "components: [part]", "part/kustomization.yaml": "kind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\nresources: ['" + git + "']"},
		"through a link":       {"kustomization.yaml": "link to other.txt", "other.txt": "resources: ['" + git + "']"},
		"git over HTTP":        {"kustomization.yaml": "resources: ['git::http://" + at + "/a/b']"},
		"a name of GitHub":     {"kustomization.yaml": "resources: ['github.com/owner/name?ref=--upload-pack=x']"},
		"a user and a host":    {"kustomization.yaml": "resources: ['git@127.0.0.1:owner/name']"},
		"ssh":                  {"kustomization.yaml": "resources: ['SSH://127.0.0.1/owner/name']"},
		"a directory like a repository": {
			"github.com/owner/name?ref=--upload-pack=x/kustomization.yaml": "resources: [a.yaml]",
			"github.com/owner/name?ref=--upload-pack=x/a.yaml":             "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}",
		},
		"a URL":                     {"kustomization.yaml": "resources: ['" + url + "']"},
		"a URL, patch":              {"kustomization.yaml": "patches: [{path: '" + url + "'}]"},
		"a URL, strategic merge":    {"kustomization.yaml": "patchesStrategicMerge: ['" + url + "']"},
		"a URL, JSON patch":         {"kustomization.yaml": "patchesJson6902: [{path: '" + url + "', target: {version: v1, kind: Service, name: a}}]"},
		"a URL, CRD":                {"kustomization.yaml": "crds: ['" + url + "']\nnamespace: a"},
		"a URL, configuration":      {"kustomization.yaml": "configurations: ['" + url + "']\nnamespace: a"},
		"a URL, schema":             {"kustomization.yaml": "openapi: {path: '" + url + "'}\nnamespace: a"},
		"a URL, replacement":        {"kustomization.yaml": "replacements: [{path: '" + url + "'}]"},
		"a URL, file":               {"kustomization.yaml": "configMapGenerator: [{name: a, files: ['" + url + "']}]"},
		"a URL, file with a name":   {"kustomization.yaml": "secretGenerator: [{name: a, files: ['key=" + url + "']}]"},
		"a URL, variables":          {"kustomization.yaml": "configMapGenerator: [{name: a, envs: ['" + url + "']}]"},
		"a URL, in a transformer":   {"kustomization.yaml": "transformers: [t.yaml]", "t.yaml": "apiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: a}\npath: " + url},
		"a URL, inline transformer": {"kustomization.yaml": "transformers:\n- |-\n  apiVersion: builtin\n  kind: PatchTransformer\n  metadata: {name: a}\n  path: " + url},
		"a URL, made of parts": {
			"kustomization.yaml":   "transformers: [t]",
			"t/kustomization.yaml": "resources: [t.yaml]\npatches: [{target: {kind: PatchTransformer}, patch: '[{op: replace, path: /path, value: \"" + url + "\"}]'}]",
			"t/t.yaml":             "apiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: a}\npath: a",
		},
		"a chart":             {"kustomization.yaml": "helmCharts: [" + helm + "]"},
		"a chart, generator":  {"kustomization.yaml": "generators: [g.yaml]", "g.yaml": "apiVersion: builtin\nkind: HelmChartInflationGenerator\nmetadata: {name: a}\nname: x\nrepo: " + url},
		"a function":          {"kustomization.yaml": "transformers: [f.yaml]", "f.yaml": "apiVersion: v1\nkind: F\nmetadata: {name: a, annotations: {config.kubernetes.io/function: 'exec: {path: ./git}'}}"},
		"a container":         {"kustomization.yaml": "generators: [f.yaml]", "f.yaml": "apiVersion: v1\nkind: F\nmetadata: {name: a, annotations: {config.kubernetes.io/function: 'container: {image: x}'}}"},
		"an executable":       {"kustomization.yaml": "generators: [p.yaml]", "p.yaml": "apiVersion: someteam.example.com/v1\nkind: P\nmetadata: {name: a}"},
		"an outside file":     {"kustomization.yaml": "configMapGenerator: [{name: a, files: [/etc/passwd]}]"},
		"a link outside":      {"kustomization.yaml": "configMapGenerator: [{name: a, files: [x]}]", "x": "link to /etc/passwd"},
		"an endless document": {"kustomization.yaml": "resources: [zero.yaml]", "zero.yaml": "link to /dev/zero"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			for file, text := range files {
				write(t, file, []byte(text))
			}
			s, err := New(Options{Paths: []string{"."}, Command: buildCommand})
			if err != nil {
				t.Fatal(err)
			}
			got := describe(s.Load())
			if sprung := trapped.sprung(t); sprung != "" {
				t.Errorf("it %s", sprung)
			}
			if strings.Contains(got, "root:") || !strings.Contains(got, "error: ") && name != "a directory like a repository" {
				t.Error(got)
			}
		})
	}
}

// TestRemoteIsNamed: the error says which file names what, and what to do.
func TestRemoteIsNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "test/kustomization.yaml", []byte("resources: [../base]\n"))
	write(t, "base/kustomization.yaml", []byte("resources: ['github.com/owner/name?ref=main']\n"))
	s, err := New(Options{Paths: []string{"test"}, Command: buildCommand})
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("error: test: cannot be built by Kustomize: %s/base/kustomization.yaml names %q, which is remote: the lab fetches nothing; "+
		"Kustomize itself does: kustomize build test | switchyard lab -\n", here, "github.com/owner/name?ref=main")
	if got := describe(s.Load()); got != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

// TestGuard: a process that needs more memory than it may have is killed, and so is one that takes too long.
func TestGuard(t *testing.T) {
	for name, most := range map[string]int{"memory": 1 << 20, "time": math.MaxInt} {
		t.Run(name, func(t *testing.T) {
			cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{idler}}
			stdin, err := cmd.StdinPipe() // which it reads until somebody kills it
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ctx, fail := context.WithCancelCause(t.Context())
			if name == "time" {
				fail(errors.New("too long"))
			}
			guard(ctx, cmd.Process, most, nil, fail)
			if err := cmd.Wait(); err == nil {
				t.Error("the process ended on its own")
			}
			if cause := context.Cause(ctx); name == "memory" && !strings.Contains(cause.Error(), "needs more than 1 MiB of memory") {
				t.Error(cause)
			}
		})
	}
}

// TestBuildsAreBounded: directories that read or make without end are errors.
func TestBuildsAreBounded(t *testing.T) {
	t.Chdir(t.TempDir())
	const large = 40 << 20
	write(t, "kustomization.yaml", []byte("configMapGenerator: [{name: a, files: [a, b]}]\n"))
	for _, name := range []string{"a", "b"} {
		write(t, name, nil)
		if err := os.Truncate(name, large); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := Build(".", &out); err != nil {
		t.Fatal(err)
	}
	var m made
	if err := json.Unmarshal([]byte(out.String()), &m); err != nil || !strings.Contains(m.Fault, "it is made of more than 64 MiB") {
		t.Errorf("%v, %.200s", err, m.Fault)
	}
}
