package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// dataplaneStatus keeps the last status of the reconciler, for /healthz. Its methods may be called concurrently.
type dataplaneStatus struct {
	repairs repairs

	mu     sync.Mutex // guards all below
	last   backend.Status
	listed []error // problems of last, nil until they are asked for
}

// attempted notes that a call of the dataplane had to repair something. A failed call does not count: it is a fault
// already, and its rules may have to be written again.
func (d *dataplaneStatus) attempted(a backend.Attempt) {
	if a.Err == nil && a.Repaired > 0 {
		d.repairs.note()
	}
}

// drift returns a fault if another program repeatedly changes the rules of the dataplane.
func (d *dataplaneStatus) drift() []error {
	if err := d.repairs.fault(); err != nil {
		return []error{err}
	}
	return nil
}

func (d *dataplaneStatus) set(s backend.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.listed = s, nil
}

// current returns the last status. The caller must not modify it.
func (d *dataplaneStatus) current() backend.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// faults are what keeps the dataplane from showing any Service: nothing is programmed yet, or the last commit failed as a whole.
func (d *dataplaneStatus) faults() []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.last.Err != nil:
		return []error{d.last.Err}
	case d.last.Applied == 0:
		return []error{errors.New("nothing is programmed yet")}
	}
	return nil
}

// problems are the Services that the dataplane cannot program. They are no faults, because the node routes all others. The owner of one
// Service must not be able to take a node out of the load balancers of everybody else. The list is made once for each status, because
// anyone who reaches /healthz can ask for it.
func (d *dataplaneStatus) problems() []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listed != nil || len(d.last.Failed) == 0 {
		return d.listed
	}
	for i, name := range slices.SortedFunc(maps.Keys(d.last.Failed), state.ServiceName.Compare) {
		if i == maxListed {
			d.listed = append(d.listed, fmt.Errorf("and %d services more", len(d.last.Failed)-maxListed))
			break
		}
		d.listed = append(d.listed, fmt.Errorf("service %v: %w", name, d.last.Failed[name]))
	}
	return d.listed
}
