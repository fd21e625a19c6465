// Package backend holds what all dataplanes share: the contract, [Run], which keeps one in step with a feed of states, and the
// settings of a node that every dataplane needs. Each dataplane is a package below this one.
package backend

import (
	"context"

	"github.com/switchyard-net/switchyard/state"
)

// Backend programs one dataplane. Its methods are called by one goroutine at a time.
type Backend interface {
	// Apply makes the dataplane show u. It is atomic: if it returns an error, the dataplane shows what it did before, and
	// the same or a merged update is applied again later. If u is full, whatever the dataplane holds beyond u is removed,
	// and only differences are written. A service that cannot be programmed is named in the result, keeps what it had, and
	// does not keep others from being programmed.
	Apply(ctx context.Context, u *state.Update) (Result, error)
	// Verify compares all that the dataplane holds with what was last applied and repairs any difference. It does nothing
	// before the first Apply.
	Verify(ctx context.Context) (Result, error)
	// Disturbed gets a value when something outside changed the dataplane, or what it depends on (interface addresses),
	// so that a Verify should come soon. It may be nil.
	Disturbed() <-chan struct{}
}

// Result says what an Apply or Verify did.
type Result struct {
	// Written counts the kernel objects that were added, replaced or deleted.
	Written int
	// Repaired counts those of them that had drifted: something else had changed or deleted them.
	Repaired int
	// Failed are the services that could not be programmed, each with the reason and, where there is one, the remedy.
	Failed map[state.ServiceName]error
}
