package main

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

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
