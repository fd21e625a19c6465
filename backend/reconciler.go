package backend

import (
	"context"
	"errors"
	"maps"

	"github.com/switchyard-net/switchyard/state"
)

// Reconciler keeps the last good record of each service of one dataplane. A service that cannot be programmed keeps that record, and no two services
// have the same frontend. Use one Reconciler as long as the dataplane is open. One goroutine at a time may call its methods.
type Reconciler struct {
	backend Backend
	held    *held
}

// NewReconciler returns a Reconciler for a dataplane that has not got an update yet.
func NewReconciler(b Backend) *Reconciler { return &Reconciler{backend: b, held: newHeld(0)} }

// Apply applies one update. Services that the dataplane refuses keep their last good records, and are in Failed of the result. After an error, the
// caller applies the same or a merged update again.
//
// [Reconciler.Run] calls it for each update of a feed. It is for callers with a single update, and must not be called during Run.
func (r *Reconciler) Apply(ctx context.Context, u *state.Update) (total Result, err error) {
	refusals := &refusals{map[state.ServiceName]error{}, map[state.ServiceName]bool{}}
	for {
		v := r.held.resolve(u, refusals)
		result, err := r.backend.Apply(ctx, v.For(FeaturesOf(r.backend)))
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
