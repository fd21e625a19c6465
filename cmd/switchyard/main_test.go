package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

func TestMain(m *testing.M) {
	programs["switchyard"], programs["kube-proxy"], programs[kubectlName] = asProgram, asProgram, asProgram
	testscript.Main(m, programs)
}

// programs are those that tests may start by name, and what they do.
var programs = map[string]func(){}

// asProgram is the program, beginning with the limits that a test sets.
func asProgram() {
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
		{"version", cli.ExitOK, "switchyard "},
		{"--version", cli.ExitOK, "switchyard "},
		{"--help", cli.ExitOK, "lab"},
		{"--help", cli.ExitOK, "completion"},
		{"", cli.ExitOK, "Available Commands"},
		{"frob", cli.ExitUsage, `switchyard: unknown command "frob"`},
		{"labs", cli.ExitUsage, `switchyard: unknown command "labs" for "switchyard": did you mean "lab"?`},
		{"appyl nftables", cli.ExitUsage, `did you mean "apply"?`},
		{"conf", cli.ExitUsage, `did you mean "config"?`},
		{"apply nftable", cli.ExitUsage, `unknown command "nftable" for "switchyard apply": did you mean "nftables"?`},
		{"proxy --cleanup-iptables", cli.ExitUsage, "unknown flag: --cleanup-iptables: Kubernetes 1.16 removed it: use --cleanup\n"},
		{"proxy --conntrack_max=1", cli.ExitUsage, "Kubernetes 1.16 removed it: use --conntrack-max-per-core and --conntrack-min"},
		{"proxy --logtostderr=true", cli.ExitUsage, "Kubernetes 1.26 removed it: leave it out"},
		{"proxy --proxy-mod=ipvs", cli.ExitUsage, "unknown flag: --proxy-mod: did you mean --proxy-mode?"},
		{"proxy --config-sync-period=900", cli.ExitUsage, "write 15m0s for 900 seconds"},
		{"run", cli.ExitUsage, "switchyard: --source is missing"},
		{"run --source a --source b", cli.ExitUsage, "a was given before: put the manifests into one directory, and name that"},
		{"run --source x --frob", cli.ExitUsage, "switchyard: unknown flag: --frob"},
		{"run --source x --cluster-cidr ten", cli.ExitUsage, `"ten" is not a CIDR such as 10.244.0.0/16`},
		{"run --source x --nodeport-addresses here", cli.ExitUsage, "nor the word primary"},
		{"run --source x --logging-format xml", cli.ExitUsage, "is none of text, json and klog"},
		{"version now", cli.ExitUsage, "switchyard: unknown command"},
		{"run --source /there/is/nothing", cli.ExitError, "switchyard: /there/is/nothing: cannot be read: no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := run(t.Context(), strings.Fields(tt.args), &stdout, &stderr)
			text := stderr.String()
			if tt.code == cli.ExitOK {
				text = stdout.String()
			}
			if code != tt.code || !strings.Contains(text, tt.text) {
				t.Errorf("exit code %d, want %d, with %q in:\n%s", code, tt.code, tt.text, text)
			}
			if tt.code != cli.ExitOK && strings.Count(text, "switchyard:") != 1 {
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
