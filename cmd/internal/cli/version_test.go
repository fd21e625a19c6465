package cli

import (
	"crypto/fips140"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
)

func TestCommit(t *testing.T) {
	for modified, want := range map[string]string{"false": " commit abc", "true": " commit abc with changes"} {
		info := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: modified}}}
		if got := commitOf(info); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := commitOf(&debug.BuildInfo{}); got != "" {
		t.Errorf("got %q without a repository", got)
	}
}

// TestVersionNamesFIPSMode runs itself in each mode of GODEBUG=fips140. A build with GOFIPS140 is in mode on without it.
func TestVersionNamesFIPSMode(t *testing.T) {
	if os.Getenv("SWITCHYARD_TEST_VERSION") != "" {
		if got := VersionText("v1"); strings.Contains(got, " FIPS 140-3 module ") != fips140.Enabled() {
			t.Errorf("got %q with FIPS mode %v", got, fips140.Enabled())
		}
		t.Logf("FIPS mode %v", fips140.Enabled())
		return
	}
	for mode, want := range map[string]string{"off": "FIPS mode false", "on": "FIPS mode true", "only": "FIPS mode true"} {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "SWITCHYARD_TEST_VERSION=1", "GODEBUG=fips140="+mode)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("fips140=%s: %v, want %q\n%s", mode, err, want, out)
		}
	}
}
