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

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
