package main

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/config"
)

// TestFallbackNeedsItsAPIServer: a configuration whose API server could not be followed later is refused now, unless there is no fallback.
func TestFallbackNeedsItsAPIServer(t *testing.T) {
	for fallback, want := range map[bool]string{true: "missing.conf", false: ""} {
		o := applyOptions{fallback: fallback, node: "node-a"}
		flags := pflag.NewFlagSet("apply", pflag.ContinueOnError)
		o.dataplane.register(flags, "")
		o.dataplane.file.paths = []string{"config.yaml"}
		c := config.Default()
		c.ClientConnection.Kubeconfig = filepath.Join(t.TempDir(), "missing.conf")
		err := o.override(slog.New(slog.DiscardHandler))(c)
		if got := errorText(err); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("fallback %t: %q, want %q", fallback, got, want)
		}
	}
}

// TestFieldNames: messages name the flag that decides, or that can be given, and a field of the file where that decides.
func TestFieldNames(t *testing.T) {
	for _, c := range []struct {
		args, path, want string
	}{
		{"", "detectLocal", "--cluster-cidr"},
		{"", "nodePortAddresses", "--nodeport-addresses"},
		{"", "healthzBindAddress", "--healthz-bind-address"},
		{"", "mode", "mode"},
		{"--config a.yaml", "detectLocal", "detectLocal"},
		{"--config a.yaml --cluster-cidr 10.244.0.0/16", "detectLocal", "--cluster-cidr"},
	} {
		var o applyOptions
		flags := pflag.NewFlagSet("apply", pflag.ContinueOnError)
		o.routing.register(flags, "")
		o.dataplane.register(flags, "")
		if err := flags.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		got := o.dataplane.file.fieldName(c.path)
		if flag, is := strings.CutPrefix(got, "--"); got != c.want || is && flags.Lookup(flag) == nil {
			t.Errorf("with %q, %s is called %s, want %s", c.args, c.path, got, c.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
