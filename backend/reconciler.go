package backend

import (
	"context"
	"errors"
	"maps"

	"github.com/switchyard-net/switchyard/state"
)

// Reconciler keeps the last good record of each service of one dataplane, so that a service that cannot be programmed keeps what it had, and no two
// services have the same frontend. It lives as long as the dataplane. Its methods are called by one goroutine at a time.
type Reconciler struct {
	backend Backend
	held    *held
}

// NewReconciler returns a Reconciler of a dataplane that nothing was applied to yet.
func NewReconciler(b Backend) *Reconciler { return &Reconciler{backend: b, held: newHeld(0)} }

// Apply programs u, but for services that the dataplane refuses: they keep their last good records, and are in the result as those are that failed.
// What is not in the result but in u is programmed. After an error, the same or a merged update is to be applied again.
//
// [Reconciler.Run] does so. Apply is for a caller that has a single update, and none at the same time.
func (r *Reconciler) Apply(ctx context.Context, u *state.Update) (total Result, err error) {
	refusals := &refusals{map[state.ServiceName]error{}, map[state.ServiceName]bool{}}
	for {
		v := r.held.resolve(u, refusals)
		result, err := r.backend.Apply(ctx, v)
		total.Written += result.Written
		total.Repaired += result.Repaired
		if refused, ok := errors.AsType[*RefusedError](err); ok && refusals.add(refused, v) {
			continue
		}
		if err != nil {
			return total, err
		}
		r.held.note(u, v, refusals, result.Failed)
		total.Failed = result.Failed
		if len(refusals.refused) > 0 {
			maps.Copy(refusals.refused, result.Failed)
			total.Failed = refusals.refused
		}
		return total, nil
	}
}
