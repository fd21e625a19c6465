package main

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

// TestProcessMemory: the budgets of Services go by the tightest of the limits.
func TestProcessMemory(t *testing.T) {
	none := func() (uint64, error) { return 0, memlimit.ErrNoLimit }
	for name, c := range map[string]struct {
		cgroup, system memlimit.Provider
		soft           int64
		want           int64
	}{
		"a cgroup":                      {memlimit.Limit(1000 << 20), memlimit.Limit(64 << 30), math.MaxInt64, 1000 << 20},
		"a cgroup, and its share":       {memlimit.Limit(1000 << 20), memlimit.Limit(64 << 30), 600 << 20, 1000 << 20},
		"a cgroup, and less than it":    {memlimit.Limit(1000 << 20), memlimit.Limit(64 << 30), 300 << 20, 500 << 20},
		"GOMEMLIMIT alone":              {none, memlimit.Limit(64 << 30), 60 << 20, 100 << 20},
		"no limit: half of the machine": {none, memlimit.Limit(2 << 30), math.MaxInt64, 1 << 30},
		"nothing is known":              {none, none, math.MaxInt64, 0},
	} {
		t.Run(name, func(t *testing.T) {
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(c.soft))
			if got := memoryOf(c.cgroup, c.system); got != c.want {
				t.Errorf("the process may use %d bytes, want %d", got, c.want)
			}
		})
	}
}

func TestCollectOften(t *testing.T) {
	for usual, want := range map[int]int{100: startGCPercent, startGCPercent + 1: startGCPercent, 20: 20, -1: -1} {
		before := debug.SetGCPercent(usual)
		undo := collectOften()
		if got := debug.SetGCPercent(want); got != want {
			t.Errorf("GOGC=%d: until the first state it is %d, want %d", usual, got, want)
		}
		undo()
		if got := debug.SetGCPercent(before); got != usual {
			t.Errorf("GOGC=%d: afterwards it is %d", usual, got)
		}
	}
}
