package backendtest

import (
	"sync"

	"github.com/switchyard-net/switchyard/backend"
)

// Reconcilers has one Reconciler for each dataplane of a test that applies single updates. The zero value is empty. It is safe for concurrent use.
type Reconcilers struct{ all sync.Map }

// Of returns the Reconciler of a dataplane.
func (r *Reconcilers) Of(b backend.Backend) *backend.Reconciler {
	if known, ok := r.all.Load(b); ok {
		return known.(*backend.Reconciler)
	}
	known, _ := r.all.LoadOrStore(b, backend.NewReconciler(b))
	return known.(*backend.Reconciler)
}

// Forget forgets the Reconciler of a dataplane that the test closes.
func (r *Reconcilers) Forget(b backend.Backend) { r.all.Delete(b) }
