package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
)

// TestOOMScore: an OOM score that cannot be set is no warning. Verbosity 1 shows it, with the remedy.
func TestOOMScore(t *testing.T) {
	c := &config.Config{}
	c.Linux.OOMScoreAdj = 5000 // which the kernel refuses, like any value in a container without the capability
	for verbosity, lines := range []int{0, 1} {
		var log bytes.Buffer
		SetUp(c, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: levelOf(verbosity)})))
		if got := log.String(); strings.Count(got, "\n") != lines || lines == 1 &&
			(!strings.Contains(got, "cannot set OOM score") || !strings.Contains(got, "oomScoreAdj: 0 (--oom-score-adj=0)")) {
			t.Errorf("with verbosity %d, the log is %q", verbosity, got)
		}
	}
}
