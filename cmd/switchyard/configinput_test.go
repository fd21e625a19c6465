package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/internal/configfile"
)

// TestStandardInput reads a configuration from standard input, which may be too large, or not come to its end.
func TestStandardInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		silent, end := io.Pipe()
		defer end.Close()
		for what, c := range map[string]struct {
			ctx  context.Context
			in   io.Reader
			data string
			err  string
		}{
			"ends":       {t.Context(), strings.NewReader("mode: nftables"), "mode: nftables", ""},
			"too large":  {t.Context(), bytes.NewReader(make([]byte, configfile.MaxFile+1)), "", "it has more than 8 MiB: make it smaller"},
			"never ends": {t.Context(), silent, "", "it has not ended within 1m0s: close it after the configuration, or name a file"},
			"canceled":   {canceled, silent, "", "context canceled"},
		} {
			cmd := &cobra.Command{}
			cmd.SetContext(c.ctx)
			cmd.SetIn(c.in)
			files, err := readFiles(standardInput(cmd), "-")
			if c.err != "" {
				if err == nil || err.Error() != "read the configuration from standard input: "+c.err {
					t.Errorf("%s: %v", what, err)
				}
				continue
			}
			if err != nil || len(files) != 1 || files[0].Name != "stdin" || string(files[0].Data) != c.data {
				t.Errorf("%s: %+v, %v", what, files, err)
			}
		}
	})
}

// TestStandardInputIsReadOnce: named twice, it would be empty the second time.
func TestStandardInputIsReadOnce(t *testing.T) {
	reads := 0
	_, err := readFiles(func() ([]byte, error) { reads++; return nil, nil }, "-", "-")
	if want := "standard input (-) is named twice, and can be read once: leave one out"; err == nil || err.Error() != want || reads > 0 {
		t.Errorf("read %d times: %v, want %s", reads, err, want)
	}
}

// TestStandardInputIsNotFollowed: a configuration that can be read once cannot change, and the log says so.
func TestStandardInputIsNotFollowed(t *testing.T) {
	var logged strings.Builder
	d := &daemon{files: &configFiles{paths: []string{"-"}}, log: slog.New(slog.NewTextHandler(&logged, nil))}
	if err := d.followConfig(t.Context()); err != nil {
		t.Error(err)
	}
	if want := `msg="standard input is read once: the configuration does not change while the process runs"`; !strings.Contains(logged.String(), want) {
		t.Errorf("the log has not %s:\n%s", want, logged.String())
	}
}
