package main

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// processMemory returns how many bytes of memory the process may use, 0 if that is not known. It is the limit of the
// cgroup or the memory that GOMEMLIMIT is a share of, whichever is less. Without either, it is half of the machine's
// memory.
func processMemory() int64 { return memoryOf(memlimit.FromCgroup, machineMemory) }

func memoryOf(cgroup, system memlimit.Provider) int64 {
	memory := int64(math.MaxInt64)
	if limit, err := cgroup(); err == nil && limit < math.MaxInt64 {
		memory = int64(limit)
	}
	if soft := debug.SetMemoryLimit(-1); soft < math.MaxInt64 {
		memory = min(memory, int64(float64(soft)/cli.MemoryShare))
	}
	if memory < math.MaxInt64 {
		return memory
	}
	if all, err := system(); err == nil {
		return int64(all / 2)
	}
	return 0
}

// machineMemory returns how many bytes of memory the machine has. The library asks by sysinfo(2), which seccomp profiles of ours do not permit.
func machineMemory() (uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	var kibibytes uint64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kibibytes); err != nil {
		return 0, fmt.Errorf("/proc/meminfo: %w", err)
	}
	return kibibytes << 10, nil
}

// startGCPercent is how much the heap may grow, in percent, until it is collected again, before the first state is
// programmed. The first reading of everything leaves more garbage than all later work. A limit of the pod's memory
// must allow for its peak.
const startGCPercent = 50

// collectOften has garbage collected more often until it is undone, unless GOGC wants that anyway, or never.
func collectOften() (undo func()) {
	before := debug.SetGCPercent(startGCPercent)
	undo = func() { debug.SetGCPercent(before) }
	if before < startGCPercent {
		undo()
	}
	return undo
}
