package cli

import (
	"errors"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestMemoryLimit(t *testing.T) {
	for name, c := range map[string]struct {
		provider memlimit.Provider
		env      string
		want     int64
		warning  string
	}{
		"a cgroup's share":      {memlimit.Limit(100 << 20), "", 60 << 20, ""},
		"too little for a node": {memlimit.Limit(10 << 20), "", minMemoryLimit, ""},
		"no limit":              {func() (uint64, error) { return 0, memlimit.ErrNoLimit }, "", math.MaxInt64, ""},
		"GOMEMLIMIT wins":       {memlimit.Limit(100 << 20), "77MiB", math.MaxInt64, ""},                                       // the runtime read it at the start
		"no cgroups":            {func() (uint64, error) { return 0, memlimit.ErrCgroupsNotSupported }, "", math.MaxInt64, ""}, // as on Windows
		"a cgroup of its own":   {func() (uint64, error) { return 0, errors.New("no such file") }, "", math.MaxInt64, "set GOMEMLIMIT instead"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.env != "" {
				t.Setenv("GOMEMLIMIT", c.env)
			} else if _, ok := os.LookupEnv("GOMEMLIMIT"); ok {
				t.Skip("GOMEMLIMIT is set for the tests")
			}
			var warning strings.Builder
			undo := limitMemory(c.provider, &warning)
			defer undo()
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("the limit is %d, want %d", got, c.want)
			}
			if got := warning.String(); (c.warning == "") != (got == "") || !strings.Contains(got, c.warning) {
				t.Errorf("the warning is %q, want %q", got, c.warning)
			}
		})
	}
}
