package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// TestFailuresInJSON: where the log is JSON, so is everything on stderr when a start fails.
func TestFailuresInJSON(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n"
	unreachable := "clientConnection: {kubeconfig: " + filepath.Join(dir, "none") + "}\n"
	inFile := file("json.yaml", header+unreachable+"logging: {format: json}\n")
	broken := file("broken.yaml", header+"mode: 5\n")
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"proxy", "--logging-format=json", "--frob"}, cli.ExitUsage, "unknown flag: --frob"},
		{[]string{"proxy", "--frob", "--logging-format", "json"}, cli.ExitUsage, "unknown flag: --frob"},
		{[]string{"proxy", "--logging_format=json", "--v=x"}, cli.ExitUsage, "invalid argument"},
		{[]string{"proxy", "--logging-format=json", "now"}, cli.ExitUsage, `unknown command "now"`},
		{[]string{"proxy", "--logging-format=json", "--config=" + filepath.Join(dir, "none")}, cli.ExitError, "no such file"},
		{[]string{"proxy", "--logging-format=json", "--config=" + broken}, cli.ExitError, "broken.yaml"},
		{[]string{"proxy", "--logging-format=json", "--nodeport-addresses=x"}, cli.ExitError, "--nodeport-addresses"},
		{[]string{"proxy", "--config=" + inFile}, cli.ExitError, "no such file"},
		{[]string{"run", "--logging-format=json", "--source", filepath.Join(dir, "none")}, cli.ExitError, "no such file"},
		{[]string{"run", "--logging-format=json"}, cli.ExitUsage, "--source is missing"},
		{[]string{"serve", "--config=" + inFile}, cli.ExitError, "no such file"},
		{[]string{"apply", "nftables", "--logging-format=json", "--frob"}, cli.ExitUsage, "--frob"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), c.args, &stdout, &stderr); code != c.code {
			t.Errorf("%q: exit code %d, want %d", c.args, code, c.code)
		}
		lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
		var last struct{ Time, Level, Msg, Error string }
		for _, line := range lines {
			if err := json.Unmarshal([]byte(line), &last); err != nil || last.Time == "" || last.Level == "" {
				t.Errorf("%q: a line that is no JSON of the log: %s", c.args, line)
			}
		}
		if last.Level != "ERROR" || last.Msg != "command failed" || !strings.Contains(last.Error, c.text) {
			t.Errorf("%q: the last line is %s", c.args, lines[len(lines)-1])
		}
	}
}

// TestFailuresInOtherFormats: the format text has the words that all commands have, and klog has a line of klog.
func TestFailuresInOtherFormats(t *testing.T) {
	for format, want := range map[string]string{
		"text": "switchyard: unknown flag: --frob\nRun 'switchyard proxy --help' for usage.\n",
		"xml":  "switchyard: unknown flag: --frob\nRun 'switchyard proxy --help' for usage.\n",
		"klog": "] \"command failed\" error=\"unknown flag: --frob\"\n",
	} {
		var stdout, stderr bytes.Buffer
		run(t.Context(), []string{"proxy", "--logging-format", format, "--frob"}, &stdout, &stderr)
		if got := stderr.String(); !strings.HasSuffix(got, want) || format == "klog" && got[0] != 'E' {
			t.Errorf("%s: %q", format, got)
		}
	}
}
