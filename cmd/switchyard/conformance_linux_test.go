package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestConformanceCommand checks the outcome of programs that are dataplanes, and of some that are not.
func TestConformanceCommand(t *testing.T) {
	netnstest.Need(t)
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	apply := []string{"bash", "-c", "exec -a switchyard " + self + " apply nftables --api $0 --healthz-bind-address=", "{target}"}
	for _, c := range []struct {
		name, flags string
		program     []string
		code        int
		want        []string
	}{
		{"passes", "--run cluster_ip$", apply, exitOK, []string{"ok    stories/cluster_ip ", "bash: 1 passed, 0 failed, 0 skipped, of 1"}},
		{"does not follow", "--run cluster_ip$", []string{"bash", "-c", "echo no API here >&2", "{socket}"}, exitError, []string{
			"FAIL  stories/cluster_ip ", "dataplane bash has ended", "the dataplane printed:", "no API here", "0 passed, 1 failed",
		}},
		{"fails", "--run random/seed-7$ --first-seed 7 --seeds 1", []string{"false", "{socket}"}, exitError, []string{"FAIL  random/seed-7 ", "seed 7, step 0", "exit status 1"}},
		{"claims too much", "--run cluster_ip$ --limit ClientSourceLost", apply, exitError, []string{"FAIL  stories/cluster_ip "}},
		{"has no program", "", nil, exitUsage, []string{"which program?"}},
		{"is not told where", "", []string{"./mine"}, exitUsage, []string{"put {socket} or {target} into one of its arguments"}},
		{"is not there", "", []string{"./mine", "{socket}"}, exitError, []string{"find the dataplane", "./mine"}},
		{"is not selected", "--run nothing", []string{"./mine", "{socket}"}, exitUsage, []string{"--list"}},
		{"has a limit of its own", "--limit UDPOnly", []string{"./mine", "{socket}"}, exitUsage, []string{`"UDPOnly" is none of HairpinSourceKept`, "TCPOnly"}},
		{"is not run", "--list --skip random", nil, exitOK, []string{"stories/affinity\n", "stories/under_load\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"conformance"}, strings.Fields(c.flags)...)
			code := run(t.Context(), append(append(args, "--"), c.program...), &stdout, &stderr)
			text := stdout.String() + stderr.String()
			if code != c.code {
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
