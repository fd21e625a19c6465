package cli

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// MemoryShare is the share of a cgroup's memory limit that Go's heap may fill before it is collected more often. The rest is for what
// Go does not count and the cgroup is charged for: nf_tables' elements, batches in sockets, and pages of the program.
const MemoryShare = 0.6

// minMemoryLimit keeps a limit that no node can be served in from becoming a process that does nothing but collect.
const minMemoryLimit = 24 << 20

// limitMemory sets Go's soft memory limit to a share of the process's cgroup limit, unless GOMEMLIMIT is set. It returns the function
// that undoes it, also with an error.
func limitMemory(provider memlimit.Provider) (undo func(), err error) {
	before := debug.SetMemoryLimit(-1)
	_, err = memlimit.Set(memlimit.WithProvider(provider), memlimit.WithRatio(MemoryShare), memlimit.WithMin(minMemoryLimit))
	if errors.Is(err, memlimit.ErrCgroupsNotSupported) {
		err = nil
	} else if err != nil {
		err = fmt.Errorf("cannot read the memory limit of the cgroup: %w; set GOMEMLIMIT instead", err)
	}
	return func() { debug.SetMemoryLimit(before) }, err
}
