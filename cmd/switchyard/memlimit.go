package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// memoryShare is the share of a cgroup's memory limit that Go's heap may fill before it is collected more often. The rest is for what
// Go does not count and the cgroup is charged for: nf_tables' elements, batches in sockets, and pages of the program.
const memoryShare = 0.6

// minMemoryLimit keeps a limit that no node can be served in from becoming a process that does nothing but collect.
const minMemoryLimit = 24 << 20

// limitMemory sets Go's soft memory limit to a share of the process's cgroup limit, unless GOMEMLIMIT is set. It returns the function
// that undoes it.
func limitMemory(provider memlimit.Provider, stderr io.Writer) (undo func()) {
	before := debug.SetMemoryLimit(-1)
	if _, err := memlimit.Set(memlimit.WithProvider(provider), memlimit.WithRatio(memoryShare), memlimit.WithMin(minMemoryLimit)); err != nil && !errors.Is(err, memlimit.ErrCgroupsNotSupported) {
		fmt.Fprintf(stderr, "switchyard: cannot read the memory limit of the cgroup: %v; set GOMEMLIMIT instead\n", err)
	}
	return func() { debug.SetMemoryLimit(before) }
}

// processMemory returns how many bytes of memory the process may use, 0 if that is not known: the limit of its cgroup, or what GOMEMLIMIT is
// a share of if that is less; without either, half of the machine's memory.
func processMemory() int64 { return memoryOf(memlimit.FromCgroup, machineMemory) }

func memoryOf(cgroup, system memlimit.Provider) int64 {
	memory := int64(math.MaxInt64)
	if limit, err := cgroup(); err == nil && limit < math.MaxInt64 {
		memory = int64(limit)
	}
	if soft := debug.SetMemoryLimit(-1); soft < math.MaxInt64 {
		memory = min(memory, int64(float64(soft)/memoryShare))
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

// startGCPercent is how much the heap may grow, in percent, until it is collected again, before the first state is programmed. Reading everything for
// the first time leaves more garbage than all that comes later, and its peak is what a limit of the pod's memory has to allow for.
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
