package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/cmd/internal/labcmd"
)

func init() {
	programs[cli.Lab] = func() { cli.Main(labcmd.New("test"), os.Args[1:]) }
}

func TestIsForLab(t *testing.T) {
	for args, want := range map[string]bool{
		"":                          false,
		"run --source lab":          false,
		"lab":                       true,
		"lab --help":                true,
		"bench dataplanes":          true,
		"conformance -- ./mine":     true,
		"labs":                      false,
		"help":                      false,
		"help run":                  false,
		"help bench dataplanes":     true,
		"__complete lab":            false, // switchyard completes the names of commands
		"__complete run lab":        false,
		"__complete lab --":         true,
		"__completeNoDesc bench d":  true,
		"explain lab svc/default/a": false,
	} {
		if got := isForLab(strings.Fields(args)); got != want {
			t.Errorf("switchyard %s: switchyard-lab answers: %v, want %v", args, got, want)
		}
	}
}

// TestLabCommands: help and completion of switchyard include the commands of switchyard-lab.
func TestLabCommands(t *testing.T) {
	for args, want := range map[string]string{
		"--help":                   "\n  lab         Show what manifests do, in a throw-away node\n",
		"lab --help":               "Usage:\n  switchyard lab [PATH...]",
		"help bench dataplanes":    "Usage:\n  switchyard bench dataplanes [flags]",
		"__complete la":            "lab\tShow what manifests do, in a throw-away node\n:4\n",
		"__complete lab --on":      "--once\tprint the table once and exit\n:4\n",
		"__completeNoDesc bench d": "dataplanes\n:4\n",
		"conformance --list":       "stories/affinity\n",
	} {
		out, err := exec.Command("switchyard", strings.Fields(args)...).Output()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("switchyard %s: %v, want %q in:\n%s", args, err, want, out)
		}
	}
}

// TestLabInTheDirectoryOfTheProgram: switchyard starts switchyard-lab from its own directory only, also when it is called through a link.
func TestLabInTheDirectoryOfTheProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	programs, links, others := t.TempDir(), t.TempDir(), t.TempDir()
	switchyard, lab := filepath.Join(programs, "switchyard"), filepath.Join(programs, cli.Lab)
	if text, err := exec.Command("cp", "--reflink=auto", self, switchyard).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	link := filepath.Join(links, "switchyard")
	if err := os.Symlink(switchyard, link); err != nil {
		t.Fatal(err)
	}
	write := func(path, script string) {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	call := func(path string, args ...string) (code, pid int, text string) {
		cmd := exec.Command(path, args...)
		cmd.Env = append(os.Environ(), "PATH="+others+":"+links+":"+os.Getenv("PATH"))
		cmd.Stdin = strings.NewReader("input")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), cmd.Process.Pid, string(out)
	}

	write(filepath.Join(others, cli.Lab), "echo from PATH\n")
	write(filepath.Join(links, cli.Lab), "echo from the directory of a link\n")
	missing := "switchyard: " + lab + " is missing: it runs the commands lab, conformance and bench; install it in the directory of switchyard ('make build' builds both)\n"
	for _, path := range []string{switchyard, link} {
		if code, _, text := call(path, "lab", "--once"); code != cli.ExitError || text != missing {
			t.Errorf("%s without %s: exit code %d, %q, want %q", path, cli.Lab, code, text, missing)
		}
	}
	write(lab, `echo "$$ $0"; printf '<%s>' "$@"; cat; echo on stderr >&2; exit 7`)
	for _, path := range []string{switchyard, link} {
		code, pid, text := call(path, "lab", "a b", "", "--once")
		if want := fmt.Sprintf("%d %s\n<lab><a b><><--once>inputon stderr\n", pid, lab); code != 7 || text != want {
			t.Errorf("%s: exit code %d, %q, want 7, %q", path, code, text, want)
		}
	}
	if err := os.Chmod(lab, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, text := call(switchyard, "lab"); code != cli.ExitError || !strings.Contains(text, "switchyard: start "+lab+": permission denied") {
		t.Errorf("without a right to run it: exit code %d, %q", code, text)
	}
}
