// Package source says how cluster objects reach the store.
//
// A source delivers objects and nothing else: it does not decide what they mean. Package source/file reads them from
// ordinary manifests.
package source

import (
	"context"

	"github.com/switchyard-net/switchyard/model"
)

// Source delivers the cluster's objects to a sink: the full set first, then every change.
type Source interface {
	// Run delivers until ctx ends, and then returns nil. It calls sink.Complete exactly once, after the first full set.
	// It returns an error only if it can never deliver; trouble that may pass is retried and logged. Run is called once.
	Run(ctx context.Context, sink Sink) error
}

// Sink takes what one source delivers. Its methods are called by one goroutine at a time.
type Sink interface {
	// Update adds or replaces the objects in set and forgets those in deleted, all at once: no state between is ever
	// published. The sink owns the objects from now on. An object that is deleted need not be known; setting an equal
	// object again is harmless.
	Update(set []model.Object, deleted []model.Ref)
	// Complete says that the first full set has been delivered. Nothing is published before all sources are complete.
	Complete()
}
