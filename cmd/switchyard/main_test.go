package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"switchyard": program, "kube-proxy": program, kubectlName: program})
}

// program is the program, beginning with the limits that a test sets.
func program() {
	limitOpenFiles()
	main()
}

// TestStories runs the command line as a person would; testdata has one story a file.
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata"})
}

func TestExitCodes(t *testing.T) {
	tests := []struct {
		args string
		code int
		text string // on stderr, or on stdout if there is no error
	}{
		{"version", exitOK, "switchyard "},
		{"--version", exitOK, "switchyard "},
		{"--help", exitOK, "lab"},
		{"--help", exitOK, "completion"},
		{"", exitOK, "Available Commands"},
		{"frob", exitUsage, `switchyard: unknown command "frob"`},
		{"labs", exitUsage, `switchyard: unknown command "labs" for "switchyard": did you mean "lab"?`},
		{"appyl nftables", exitUsage, `did you mean "apply"?`},
		{"conf", exitUsage, `did you mean "config"?`},
		{"apply nftable", exitUsage, `unknown command "nftable" for "switchyard apply": did you mean "nftables"?`},
		{"proxy --cleanup-iptables", exitUsage, "unknown flag: --cleanup-iptables: Kubernetes 1.16 removed it: use --cleanup\n"},
		{"proxy --conntrack_max=1", exitUsage, "Kubernetes 1.16 removed it: use --conntrack-max-per-core and --conntrack-min"},
		{"proxy --logtostderr=true", exitUsage, "Kubernetes 1.26 removed it: leave it out"},
		{"proxy --proxy-mod=ipvs", exitUsage, "unknown flag: --proxy-mod: did you mean --proxy-mode?"},
		{"proxy --config-sync-period=900", exitUsage, "write 15m0s for 900 seconds"},
		{"run", exitUsage, "switchyard: --source is missing"},
		{"run --source a --source b", exitUsage, "a was given before: put the manifests into one directory, and name that"},
		{"run --source x --frob", exitUsage, "switchyard: unknown flag: --frob"},
		{"run --source x --cluster-cidr ten", exitUsage, `"ten" is not a CIDR such as 10.244.0.0/16`},
		{"run --source x --nodeport-addresses here", exitUsage, "nor the word primary"},
		{"run --source x --logging-format xml", exitUsage, "neither text nor json"},
		{"version now", exitUsage, "switchyard: unknown command"},
		{"lab --dataplane kernelspace", exitUsage, `switchyard: --dataplane: "kernelspace" is none of [nftables iptables ebpf ipvs userspace]`},
		{"run --source /there/is/nothing", exitError, "switchyard: /there/is/nothing: cannot be read: no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := run(t.Context(), strings.Fields(tt.args), &stdout, &stderr)
			text := stderr.String()
			if tt.code == exitOK {
				text = stdout.String()
			}
			if code != tt.code || !strings.Contains(text, tt.text) {
				t.Errorf("exit code %d, want %d, with %q in:\n%s", code, tt.code, tt.text, text)
			}
			if tt.code != exitOK && strings.Count(text, "switchyard:") != 1 {
				t.Errorf("the error is not printed exactly once:\n%s", text)
			}
		})
	}
}

func TestNodeNamesAreChecked(t *testing.T) {
	dir := t.TempDir()
	node := "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: node-b}\n"
	if err := os.WriteFile(dir+"/nodes.yaml", []byte(node), 0o644); err != nil {
		t.Fatal(err)
	}
	if known, err := checkNode(dir, "node-b"); !known || err != nil {
		t.Errorf("checkNode(node-b) = %v", err)
	}
	_, err := checkNode(dir, "node-c")
	if err == nil || !strings.Contains(err.Error(), `there is no Node "node-c"`) || !strings.Contains(err.Error(), "only node-a, node-b; choose one") {
		t.Errorf("checkNode(node-c) = %v", err)
	}
	if err := os.WriteFile(dir+"/broken.yaml", []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if known, err := checkNode(dir, "node-c"); known || err != nil {
		t.Errorf("where it may be in a broken manifest: checkNode(node-c) = %v, %v", known, err)
	}
	if known, err := checkNode(t.TempDir(), "any"); known || err != nil {
		t.Errorf("without any Node: %v", err)
	}
}
