package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// verdictCodes are the exit codes of verdicts, as stories call them.
var verdictCodes = map[string]int{"forwarded": cli.ExitOK, "rejected": exitRejected, "dropped": exitDropped, "not-served": exitNotServed}

// TestQuestions runs questions of real users; testdata/explain has one a file, with the issue that it was asked in. All are asked in the
// cluster of testdata/explain/cluster.yaml and the story's own objects.
func TestQuestions(t *testing.T) {
	cluster, err := os.ReadFile(filepath.Join("testdata", "explain", "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "explain"),
		Setup: func(e *testscript.Env) error {
			return os.WriteFile(filepath.Join(e.WorkDir, "cluster", "0.yaml"), cluster, 0o644)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// explain VERDICT FROM TO [FLAGS...]
			"explain": func(ts *testscript.TestScript, _ bool, args []string) {
				want, known := verdictCodes[args[0]]
				if !known {
					ts.Fatalf("there is no verdict %q", args[0])
				}
				err := ts.Exec("switchyard", append([]string{"explain", "--source", "cluster", "--cluster-cidr", "10.244.0.0/16"}, args[1:]...)...)
				code := 0
				if exit, ok := errors.AsType[*exec.ExitError](err); ok {
					code = exit.ExitCode()
				} else if err != nil {
					ts.Fatalf("%v", err)
				}
				if code != want {
					ts.Fatalf("exit code %d, want %d (%s)", code, want, args[0])
				}
			},
		},
	})
}

func TestExplainExitCodes(t *testing.T) {
	source := filepath.Join("testdata", "explain", "cluster.yaml")
	for args, want := range map[string]int{
		"node 10.96.0.1:443":       cli.ExitOK,
		"node 10.96.0.1:80":        exitRejected,
		"node 10.96.200.200:80":    exitDropped,
		"node 192.0.2.1:80":        exitNotServed,
		"node svc/default/nothing": cli.ExitError,
		"node nothing":             cli.ExitError,
		"node www.example.com":     cli.ExitUsage,
		"":                         cli.ExitUsage,
		"node":                     cli.ExitUsage,
	} {
		var out strings.Builder
		if got := run(t.Context(), append(strings.Fields("explain --node node-a --source "+source), strings.Fields(args)...), &out, &out); got != want {
			t.Errorf("explain %s: exit code %d, want %d\n%s", args, got, want, out.String())
		}
	}
}

// exampleAPI is an API server with the objects of testdata/explain/cluster.yaml, which lets nobody list Namespaces. It calls asked with the
// path of each request.
func exampleAPI(t *testing.T, asked func(path string)) *httptest.Server {
	objects, errs := manifest.Load(filepath.Join("testdata", "explain", "cluster.yaml"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked(r.URL.Path)
		kinds := map[string]string{"services": "Service", "endpointslices": "EndpointSlice", "nodes": "Node", "pods": "Pod", "servicecidrs": "ServiceCIDR"}
		versions := map[string]string{"endpointslices": "discovery.k8s.io/v1", "servicecidrs": "networking.k8s.io/v1"}
		plural := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		kind, ok := kinds[plural]
		if !ok { // namespaces, which not everybody may list
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
			return
		}
		items := []runtime.Object{}
		for _, o := range objects {
			if o.Object.GetObjectKind().GroupVersionKind().Kind == kind {
				items = append(items, o.Object)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind + "List", "apiVersion": cmp.Or(versions[plural], "v1"), "metadata": map[string]any{}, "items": items})
	}))
	t.Cleanup(api.Close)
	return api
}

// TestExplainAsksTheAPIServer: a cluster's objects come from its API server, and the node is the client's node.
func TestExplainAsksTheAPIServer(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	api := exampleAPI(t, func(path string) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, path)
	})
	var stdout, stderr strings.Builder
	args := strings.Fields("explain pod/default/client svc/default/kubernetes --cluster-cidr 10.244.0.0/16 --master " + api.URL)
	if code := run(t.Context(), args, &stdout, &stderr); code != cli.ExitOK || stderr.String() != "" {
		t.Fatalf("exit code %d\n%s%s", code, stdout.String(), stderr.String())
	}
	for _, text := range []string{"pod default/client (10.244.1.10)", "on node node-a", "✓ FORWARDED", "172.16.0.1:6443"} {
		if !strings.Contains(stdout.String(), text) {
			t.Errorf("no %q in\n%s", text, stdout.String())
		}
	}
	if got := strings.Join(asked, "\n"); strings.Count(got, "/api/v1/namespaces/default/pods") != 1 {
		t.Errorf("asked for\n%s", got)
	}

	api.Close()
	stdout.Reset()
	if code := run(t.Context(), args, &stdout, &stderr); code != cli.ExitError || !strings.Contains(stderr.String(), "list namespaces") {
		t.Errorf("without an API server: exit code %d\n%s%s", code, stdout.String(), stderr.String())
	}
}

// TestKubeconfigs: an operator's commands find the API server where kubectl does.
func TestKubeconfigs(t *testing.T) {
	var asked atomic.Int32
	api := exampleAPI(t, func(string) { asked.Add(1) })
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const head = "apiVersion: v1\nkind: Config\n"
	cluster := head + "clusters: [{name: c, cluster: {server: " + api.URL + "}}]\n"
	contexts := head + "contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n"
	whole := cluster + strings.TrimPrefix(contexts, head)
	one, two, empty := write("one", cluster), write("two", contexts), write("empty", "")
	missing, socket := filepath.Join(dir, "missing"), filepath.Join(dir, "none.sock")
	home := filepath.Dir(filepath.Dir(write("home/.kube/config", whole)))
	defer func(before string) { defaultSocket = before }(defaultSocket)
	defaultSocket = "unix://" + socket
	nowhere := filepath.Join(dir, "nowhere")
	for name, tt := range map[string]struct {
		home, kubeconfig string
		code             int
		text             string
	}{
		"~/.kube/config":              {home, "", cli.ExitOK, "FORWARDED"},
		"$KUBECONFIG before the home": {home, empty, cli.ExitError, "how to reach the API server"},
		"$KUBECONFIG":                 {nowhere, write("whole", whole), cli.ExitOK, "FORWARDED"},
		"files of $KUBECONFIG":        {nowhere, strings.Join([]string{one, missing, two}, string(os.PathListSeparator)), cli.ExitOK, "FORWARDED"},
		"$KUBECONFIG is missing":      {home, missing, cli.ExitError, "there is no such file: correct it, unset it, or name a file with --kubeconfig"},
		"a directory":                 {nowhere, dir, cli.ExitError, "how to reach the API server"},
		"nothing":                     {nowhere, "", cli.ExitError, "which cluster? Name manifests or a dump with --source, or a kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", tt.home)
			t.Setenv("USERPROFILE", tt.home) // of Windows
			t.Setenv("KUBECONFIG", tt.kubeconfig)
			var out strings.Builder
			code := run(t.Context(), strings.Fields("explain pod/default/client svc/default/kubernetes --cluster-cidr 10.244.0.0/16"), &out, &out)
			if code != tt.code || !strings.Contains(out.String(), tt.text) {
				t.Errorf("exit code %d, want %d with %q\n%s", code, tt.code, tt.text, out.String())
			}
		})
	}

	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	t.Setenv("KUBECONFIG", "")
	for args, want := range map[string]string{
		"__complete explain pod/default/":       "pod/default/client\n",
		"__complete explain node svc/default/k": "svc/default/kubernetes\n",
		"__complete explain --node node-":       "node-a\n",
		"doctor --problems":                     "the API server cannot be asked: http://",
	} {
		asked.Store(0)
		var out strings.Builder
		run(t.Context(), strings.Fields(args), &out, &out)
		if !strings.Contains(out.String(), want) || asked.Load() == 0 {
			t.Errorf("%s: no %q after %d requests\n%s", args, want, asked.Load(), out.String())
		}
	}
}
