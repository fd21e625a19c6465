package labcmd

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

func TestMain(m *testing.M) {
	program := func() { cli.Main(New("test"), os.Args[1:]) }
	testscript.Main(m, map[string]func(){"switchyard": program, cli.Lab: program})
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Run(ctx, New("test"), args, stdout, stderr)
}

// TestStories runs the command line as a person would; testdata has one story a file. In them, the program is called switchyard.
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata"})
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		text string // on stderr, or on stdout if there is no error
	}{
		{"--version", cli.ExitOK, "switchyard test "},
		{"", cli.ExitOK, "Available Commands"},
		{"lab --help", cli.ExitOK, "Usage:\n  switchyard lab [PATH...]"},
		{"help bench dataplanes", cli.ExitOK, "Usage:\n  switchyard bench dataplanes [flags]"},
		{"__complete lab --on", cli.ExitOK, "--once\tprint the table once and exit\n:4\n"},
		{"__completeNoDesc bench data", cli.ExitOK, "dataplanes\n:4\n"},
		{"manual . run", cli.ExitError, "switchyard: run: there is no such command; name one of bench, conformance, lab"},
		{"run", cli.ExitUsage, `switchyard: unknown command "run"`},
		{"lab --onse", cli.ExitUsage, "did you mean --once?\nRun 'switchyard lab --help' for usage."},
		{"lab --dataplane kernelspace", cli.ExitUsage, `switchyard: --dataplane: "kernelspace" is none of nftables, iptables, ebpf, ipvs and userspace`},
	} {
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
		})
	}
}

// TestCommands: switchyard knows every command that people call, and starts this program for no other.
func TestCommands(t *testing.T) {
	for _, c := range cli.Listed(New("test")) {
		if cli.LabCommands[c.Name()] != c.Short {
			t.Errorf("the command %s, %q, is not in cli.LabCommands", c.Name(), c.Short)
		}
	}
	if n := len(cli.Listed(New("test"))); n != len(cli.LabCommands) {
		t.Errorf("there are %d commands, and switchyard starts this program for %d", n, len(cli.LabCommands))
	}
}
