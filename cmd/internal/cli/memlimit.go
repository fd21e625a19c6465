package cli

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// MemoryShare is the share of a cgroup's memory limit that Go's heap may fill before it is collected more often. The rest is for what
// Go does not count and the cgroup is charged for: nf_tables' elements, batches in sockets, and pages of the program.
const MemoryShare = 0.6

// minMemoryLimit keeps a limit that no node can be served in from becoming a process that does nothing but collect.
const minMemoryLimit = 24 << 20

// limitMemory sets Go's soft memory limit to a share of the process's cgroup limit, unless GOMEMLIMIT is set. It returns the function
// that undoes it.
func limitMemory(provider memlimit.Provider, stderr io.Writer) (undo func()) {
	before := debug.SetMemoryLimit(-1)
	if _, err := memlimit.Set(memlimit.WithProvider(provider), memlimit.WithRatio(MemoryShare), memlimit.WithMin(minMemoryLimit)); err != nil && !errors.Is(err, memlimit.ErrCgroupsNotSupported) {
		fmt.Fprintf(stderr, "switchyard: cannot read the memory limit of the cgroup: %v; set GOMEMLIMIT instead\n", err)
	}
	return func() { debug.SetMemoryLimit(before) }
}
