package backendtest

import (
	"sync"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
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

// Apply applies an update through the Reconciler of a dataplane. It fails the test if that returns an error.
func (r *Reconcilers) Apply(t testing.TB, b backend.Backend, u *state.Update) backend.Result {
	t.Helper()
	result, err := r.Of(b).Apply(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// Verify has a dataplane verify what it has programmed. It fails the test if that returns an error.
func Verify(t testing.TB, b backend.Backend) backend.Result {
	t.Helper()
	result, err := b.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return result
}
