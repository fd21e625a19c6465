package backendtest

import (
	"sync"

	"github.com/switchyard-net/switchyard/backend"
)

// Reconcilers are those of dataplanes that a test applies updates to one by one. The zero value has none. It is safe for concurrent use.
type Reconcilers struct{ all sync.Map }

// Of returns the reconciler of a dataplane, which is always the same.
func (r *Reconcilers) Of(b backend.Backend) *backend.Reconciler {
	if known, ok := r.all.Load(b); ok {
		return known.(*backend.Reconciler)
	}
	known, _ := r.all.LoadOrStore(b, backend.NewReconciler(b))
	return known.(*backend.Reconciler)
}

// Forget forgets that of a dataplane, which the test closes.
func (r *Reconcilers) Forget(b backend.Backend) { r.all.Delete(b) }
