package node

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// repairThreshold repairs within repairWindow are a fault. Fewer may follow from a single mistake.
const (
	repairThreshold = 3
	repairWindow    = 5 * time.Minute
)

// repairs has the recent repairs of a dataplane. Its methods may be called concurrently.
type repairs struct {
	mu    sync.Mutex
	times []time.Time // the oldest first
}

// note records a repair.
func (r *repairs) note() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.recent(), time.Now())
}

// errRepairs is the remedy.
var errRepairs = errors.New("find the process that changes it, and stop it; on Linux, 'nft monitor' and records NETFILTER_CFG of the audit log name the process")

// fault returns a fault if another program repeatedly changes the dataplane's rules, and nil otherwise.
func (r *repairs) fault() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	times := r.recent()
	if len(times) < repairThreshold {
		return nil
	}
	return fmt.Errorf("the dataplane had to be repaired %d times within %v, last at %s: %w", len(times), repairWindow,
		times[len(times)-1].UTC().Format(time.TimeOnly), errRepairs)
}

// recent returns the repairs that count. The caller holds mu.
func (r *repairs) recent() []time.Time {
	for len(r.times) > 0 && time.Since(r.times[0]) > repairWindow {
		r.times = r.times[1:]
	}
	return r.times
}
