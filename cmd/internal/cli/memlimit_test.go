package cli

import (
	"errors"
	"math"
	"os"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestMemoryLimit(t *testing.T) {
	broken := errors.New("no such file")
	for name, c := range map[string]struct {
		provider memlimit.Provider
		env      string
		want     int64
		err      error
	}{
		"a cgroup's share":      {memlimit.Limit(100 << 20), "", 60 << 20, nil},
		"too little for a node": {memlimit.Limit(10 << 20), "", minMemoryLimit, nil},
		"no limit":              {func() (uint64, error) { return 0, memlimit.ErrNoLimit }, "", math.MaxInt64, nil},
		"GOMEMLIMIT wins":       {memlimit.Limit(100 << 20), "77MiB", math.MaxInt64, nil},                                       // the runtime read it at the start
		"no cgroups":            {func() (uint64, error) { return 0, memlimit.ErrCgroupsNotSupported }, "", math.MaxInt64, nil}, // as on Windows
		"a cgroup of its own":   {func() (uint64, error) { return 0, broken }, "", math.MaxInt64, broken},
	} {
		t.Run(name, func(t *testing.T) {
			if c.env != "" {
				t.Setenv("GOMEMLIMIT", c.env)
			} else if _, ok := os.LookupEnv("GOMEMLIMIT"); ok {
				t.Skip("GOMEMLIMIT is set for the tests")
			}
			undo, err := limitMemory(c.provider)
			defer undo()
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("the limit is %d, want %d", got, c.want)
			}
			if !errors.Is(err, c.err) {
				t.Errorf("the error is %v, want %v", err, c.err)
			}
		})
	}
}
