//go:build linux

package conformance_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestFollowerThatEnds gives the suite dataplanes that do not follow the API for long. It must report why, and not wait for them.
func TestFollowerThatEnds(t *testing.T) {
	netnstest.Need(t)
	for want, err := range map[string]error{"no such kernel": errors.New("no such kernel"), "did not wait": nil} {
		params := conformance.StoryParams(t, conformance.Dataplane{
			Name:   "short",
			Follow: func(context.Context, string, conformance.Settings) error { return err },
		})
		params.Files = []string{filepath.Join(params.Dir, "cluster_ip.txtar")}
		params.Dir = ""
		var result record
		testscript.RunT(&result, params)
		if log := result.log.String(); !result.failed || !strings.Contains(log, want) || !strings.Contains(log, "dataplane short has ended") {
			t.Errorf("failed: %v, and the reason %q is not in:\n%s", result.failed, want, log)
		}
	}
}
