package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documented are the commands of README.md and the quick start that a test runs. They run in a directory with a user's application in my-app.
// $SWITCHYARD is the directory of the repository.
var documented = []struct {
	command string
	// as is what is run in its place, where the command would change the machine or has no end.
	as string
	// prints are lines of what it prints, in which … stands for any text.
	prints []string
	// page is set if it prints the stable parts of the table in README.md.
	page bool
}{
	{command: "make demo", as: `cd "$SWITCHYARD" && "$HOME/bin/switchyard" lab --once --source examples/shop; cd "$HOME"`, page: true},
	{command: "bin/switchyard lab --once my-app/", prints: []string{"✓ all … paths are as they must be (… connections in …)"}},
	// Without a terminal it goes on, and prints the table again when a manifest changes.
	{command: "bin/switchyard lab my-app/", as: "bin/switchyard lab my-app/ &", prints: []string{"✓ all … paths are as they must be (… connections in …)"}},
	{command: "bin/switchyard lab", as: "bin/switchyard lab &", prints: []string{"✓ all … paths are as they must be (… connections in …)"}},
	{command: "switchyard run --source /etc/switchyard --node node-a --cluster-cidr 10.244.0.0/16",
		as:     `switchyard run --source "$HOME/manifests" --node node-a --cluster-cidr 10.244.0.0/16 --admin-bind-address none &`,
		prints: []string{"switchyard: node node-a routes 1 service…"}},
	{command: "switchyard cleanup", prints: []string{"switchyard: removed everything from this kernel"}},
}

// notRun are the commands that no test runs, with the reason.
var notRun = map[string]string{
	"make build": "it builds the programs that tests run",
	"make test":  "it runs this test",
	"make image": "it builds for two architectures, for minutes; the tests of deploy/test check what it packs",
	"kubectl -n kube-system patch daemonset kube-proxy --patch-file deploy/kubeadm/image.yaml": "it needs a cluster; TestKubeadmPatches applies the patch",
	"switchyard serve --kubeconfig kubelet.conf --node node-a --cluster-cidr 10.244.0.0/16":    "it needs a cluster; docs/tutorials/split.md runs it from manifests",
	"switchyard apply nftables": "it follows the command before it; docs/tutorials/split.md runs it",
}

// TestDocumentedCommands runs the commands of README.md and the quick start. Each of them is in documented or notRun, and these lists have no
// others. TestTutorials runs the commands of the tutorials.
func TestDocumentedCommands(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	readme := readText(t, filepath.Join(root, "README.md"))
	known := map[string]bool{}
	for command := range notRun {
		known[command] = true
	}
	for _, d := range documented {
		if known[d.command] {
			t.Errorf("%q is listed twice", d.command)
		}
		known[d.command] = true
	}
	for _, command := range append(commandsOf(readme), commandsOf(readText(t, filepath.Join(root, "docs", "quick-start.md")))...) {
		if !known[command] {
			t.Errorf("no test runs %q, and notRun has no reason", command)
		}
		delete(known, command)
	}
	for command := range known {
		t.Errorf("%q is in no page: take it off the list", command)
	}
	for _, program := range []string{"bash", "ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	if !inNamespace(t) {
		return
	}
	s := newShell(t, root)
	s.run(`export HOME="$PWD"; mkdir bin manifests; ln -s "$(command -v switchyard)" bin/; cp -r "$SWITCHYARD/examples/shop" my-app`, nil)
	s.run(`printf '%s\n' '{apiVersion: v1, kind: Node, metadata: {name: node-a}}' --- '{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}}' > manifests/web.yaml`, nil)
	for _, d := range documented {
		command := d.as
		if command == "" {
			command = d.command
		}
		want := d.prints
		if d.page {
			want = stableLines(readme)
		}
		var pattern strings.Builder
		pattern.WriteString("(?s)")
		for _, line := range want {
			pattern.WriteString(".*" + anyText(line))
		}
		if got, ok := s.match(command, regexp.MustCompile(pattern.String())); !ok {
			t.Fatalf("%s prints\n%s\nand not, in this order,\n%s", command, got, strings.Join(want, "\n"))
		}
		if strings.HasSuffix(command, "&") {
			s.match(`kill $!; wait $!`, regexp.MustCompile(""))
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// commandsOf returns the commands in the sh blocks of a page, without comments.
func commandsOf(page string) (commands []string) {
	block := ""
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if name, fence := strings.CutPrefix(line, "```"); fence {
			block = name
			continue
		}
		command, _, _ := strings.Cut(line, " #")
		if command = strings.TrimSpace(command); block == "sh" && command != "" {
			commands = append(commands, command)
		}
	}
	return commands
}

// stableLines are the parts of the table in README.md that do not change: its first line, the Services, and the number of paths.
func stableLines(page string) (lines []string) {
	_, table, _ := strings.Cut(page, "```\nswitchyard lab  ")
	table, _, _ = strings.Cut("switchyard lab  "+table, "```")
	pods := regexp.MustCompile(`\[[\d ]+\]`) // the pods that answered
	paths := regexp.MustCompile(`^(✓ all \d+ paths are as they must be) .*`)
	for line := range strings.Lines(table) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "switchyard lab  "), strings.HasPrefix(line, "shop/"):
			lines = append(lines, pods.ReplaceAllString(line, "…"))
		case paths.MatchString(line):
			lines = append(lines, paths.ReplaceAllString(line, "$1"))
		}
	}
	return lines
}
