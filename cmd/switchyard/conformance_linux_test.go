package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestConformanceCommand runs the command through switchyard, which starts switchyard-lab. It checks the outcome of programs that are dataplanes, and of some that are not.
func TestConformanceCommand(t *testing.T) {
	netnstest.Need(t)
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	apply := []string{"bash", "-c", "exec switchyard apply nftables --api $0 --healthz-bind-address=", "{target}"}
	for _, c := range []struct {
		name, flags string
		program     []string
		code        int
		want        []string
	}{
		{"passes", "--run cluster_ip$", apply, cli.ExitOK, []string{"ok    stories/cluster_ip ", "bash: 1 passed, 0 failed, 0 skipped, of 1"}},
		{"does not follow", "--run cluster_ip$", []string{"bash", "-c", "echo no API here >&2", "{socket}"}, cli.ExitError, []string{
			"FAIL  stories/cluster_ip ", "dataplane bash has ended", "the dataplane printed:", "no API here", "0 passed, 1 failed",
		}},
		{"fails", "--run random/seed-7$ --first-seed 7 --seeds 1", []string{"false", "{socket}"}, cli.ExitError, []string{"FAIL  random/seed-7 ", "seed 7, step 0", "exit status 1"}},
		{"claims too much", "--run cluster_ip$ --limit ClientSourceLost", apply, cli.ExitError, []string{"FAIL  stories/cluster_ip "}},
		{"has no program", "", nil, cli.ExitUsage, []string{"which program?"}},
		{"is not told where", "", []string{"./mine"}, cli.ExitUsage, []string{"put {socket} or {target} into one of its arguments"}},
		{"is not there", "", []string{"./mine", "{socket}"}, cli.ExitError, []string{"find the dataplane", "./mine"}},
		{"is not selected", "--run nothing", []string{"./mine", "{socket}"}, cli.ExitUsage, []string{"--list"}},
		{"has a limit of its own", "--limit UDPOnly", []string{"./mine", "{socket}"}, cli.ExitUsage, []string{`"UDPOnly" is none of HairpinSourceKept`, "TCPOnly"}},
		{"is not run", "--list --skip random", nil, cli.ExitOK, []string{"stories/affinity\n", "stories/under_load\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"conformance"}, strings.Fields(c.flags)...)
			cmd := exec.CommandContext(t.Context(), "switchyard", append(append(args, "--"), c.program...)...)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil {
				t.Fatal(err)
			}
			text := string(out)
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("ends with %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q is missing", want)
				}
			}
			if t.Failed() {
				t.Log(text)
			}
		})
	}
}
