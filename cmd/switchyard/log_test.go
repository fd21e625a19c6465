package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
)

// TestVerbosity logs from this file, whose name is log_test.go.
func TestVerbosity(t *testing.T) {
	module := func(pattern string, v int32) config.VModule {
		return config.VModule{FilePattern: pattern, Verbosity: v}
	}
	tests := []struct {
		name      string
		verbosity int32
		modules   []config.VModule
		debug     bool
	}{
		{"0 is for operators", 0, nil, false},
		{"3 is not yet debugging", 3, nil, false},
		{"4 is debugging", 4, nil, true},
		{"a file's name", 0, []config.VModule{module("log_test", 4)}, true},
		{"not enough for debugging", 0, []config.VModule{module("log_test", 3)}, false},
		{"a pattern", 0, []config.VModule{module("log*", 9)}, true},
		{"another file", 0, []config.VModule{module("store", 9)}, false},
		{"a path", 0, []config.VModule{module("*/*/log_test", 9)}, false},
		{"the first that matches counts", 0, []config.VModule{module("lo*", 1), module("log_test", 9)}, false},
		{"a file never logs less than all", 4, []config.VModule{module("log_test", 0)}, true},
	}
	for _, tt := range tests {
		var stdout, stderr strings.Builder
		c := config.Default()
		v := newVerbosity()
		log := newLog(&stdout, &stderr, c, v).With("a", 1).WithGroup("g")
		log.Debug("early")
		c.Logging.Verbosity, c.Logging.VModule = tt.verbosity, tt.modules
		v.set(&c.Logging)
		log.Info("always")
		log.Debug("debug")
		got := stderr.String()
		if strings.Contains(got, "early") || !strings.Contains(got, "msg=always a=1") || strings.Contains(got, "msg=debug a=1") != tt.debug {
			t.Errorf("%s: debugging is to be shown: %v; log:\n%s", tt.name, tt.debug, got)
		}
		if stdout.Len() > 0 {
			t.Errorf("%s: on stdout: %s", tt.name, stdout.String())
		}
	}
}

// TestSplitStream writes errors to stderr and the rest to stdout, if that is set for the format in use.
func TestSplitStream(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var stdout, stderr strings.Builder
		c := config.Default()
		c.Logging.Format = format
		c.Logging.Options.Text.SplitStream, c.Logging.Options.JSON.SplitStream = format == "text", format == "json"
		log := newLog(&stdout, &stderr, c, newVerbosity()).With("a", 1)
		log.Error("bad")
		log.Warn("so-so")
		if out, err := stdout.String(), stderr.String(); !strings.Contains(out, "so-so") || strings.Contains(out, "bad") ||
			!strings.Contains(err, "bad") || strings.Contains(err, "so-so") || (format == "json") != strings.HasPrefix(err, "{") {
			t.Errorf("%s: stdout %q, stderr %q", format, out, err)
		}
	}
}

// TestLogsAreBounded: lines that an outsider can cause are counted instead, in the logs of all commands and of
// libraries.
func TestLogsAreBounded(t *testing.T) {
	loggers := map[string]func(w io.Writer) *slog.Logger{
		"proxy": func(w io.Writer) *slog.Logger { return newLog(w, w, config.Default(), newVerbosity()) },
		"others": func(w io.Writer) *slog.Logger {
			log, err := (&cli.LogFlags{Format: "text"}).Logger(w)
			if err != nil {
				t.Error(err)
			}
			return log
		},
	}
	for name, logger := range loggers {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			log := logger(&text)
			cli.LogLibraries(log)
			defer klog.ClearLogger()
			for i := range 1000 {
				log.Warn("ignoring an object", "name", i)
				klog.ErrorS(nil, "message of a library", "number", i)
			}
			for _, message := range []string{"ignoring an object", "message of a library"} {
				if n := strings.Count(text.String(), message); n == 0 || n > 50 {
					t.Errorf("%q is in the log %d times", message, n)
				}
			}
		})
	}
}
