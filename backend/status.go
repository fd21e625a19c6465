package backend

import (
	"errors"
	"maps"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Status is how a dataplane is doing. It is a value of its own: it does not change after it has been handed over.
type Status struct {
	// Applied is the revision that the dataplane shows, but for the services in Failed, and those with a large change that a later revision replaces.
	// It is 0 before the first Apply. Newer changes of some services may be there already, while a large one is applied in parts.
	Applied state.Revision
	// Pending is since when an update has been waiting to be applied, zero if none is. A large change that a later update replaces does not count, nor
	// does a service that rests: see [Run].
	Pending time.Time
	// LastSuccess is when an Apply or Verify last succeeded.
	LastSuccess time.Time
	// Failures counts the calls of Apply that failed since the last one that succeeded, and likewise the calls of Verify. Err has the
	// last error of either, nil if Failures is 0.
	Failures int
	Err      error
	// Failed are the services that cannot be programmed, with the reasons. A service stays here until an Apply has programmed it, also if a
	// Verify has repaired it.
	Failed map[state.ServiceName]error
	// Written and Repaired sum up the results of all calls; see [Result].
	Written, Repaired int
	// Verified counts successful verifications.
	Verified int
}

func (r *runner) report() {
	if r.OnStatus == nil {
		return
	}
	s := r.status
	s.Err = errors.Join(r.applying.err, r.verifying.err)
	s.Failures = r.applying.failures
	if r.verifying.err != nil {
		s.Failures += r.verifying.failures
	}
	if len(r.failing)+len(r.unrepaired) > 0 {
		s.Failed = make(map[state.ServiceName]error, len(r.failing)+len(r.unrepaired))
		maps.Copy(s.Failed, r.unrepaired)
		for name, f := range r.failing {
			s.Failed[name] = f.err
		}
	}
	r.OnStatus(s)
}
