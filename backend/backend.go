// Package backend has the contract of dataplanes, [Backend], and [Run], which keeps one in step with a feed of states. Each dataplane is a
// package below this one.
//
// Package node runs a Backend with everything else that a service proxy needs. Package apifeed runs it in a process of its own, in step with the
// node-local API. A program that imports neither this package nor state implements the Sink of package client instead.
//
// By hand, a Backend needs a store and a source of objects, such as the source of package source/kube:
//
//	st := store.New(store.Options{Brain: brain.Config{NodeName: "node-a"}})
//	sink := st.Source("cluster")
//	go source.Run(ctx, sink)
//	err := backend.Run(ctx, st, b, backend.RunOptions{})
//
// Package conformance tests a dataplane with real packets.
//
// Run does the work that all dataplanes share. It retries with a growing pause, cuts large updates into parts, and keeps the last good
// record of each service. A dataplane never decides which service gets a frontend. Optional abilities are small interfaces: [Inspector],
// [Counter], [Reporter], [FlowKeeper], [Drainer] and [Featured].
//
// Every dataplane on Linux deletes flows to removed endpoints with package kernel/conntrack.
package backend

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// Backend programs one dataplane. Its methods are called by one goroutine at a time.
type Backend interface {
	// Apply programs u as a whole. If it returns an error, the dataplane goes on as before, and the same or a merged update is applied later.
	//
	// If u is full, Changed has all services. The dataplane removes all others that it holds ([state.Update.Gone]), also what an earlier process has left.
	// It writes only differences. The first update of each Run is full. An update may have no services, but another Node.
	//
	// After u, no two services have the same frontend. If a service gets a frontend of another one, both are in u.
	//
	// If a service of u cannot be programmed or removed, Apply leaves it as it is and returns a [RefusedError]. Other services may be programmed
	// already. Apply is called again at once with the last good record of the refused service, or without the service. Refused then has the new
	// record, and Run retries it later. The dataplane may keep entries of an earlier process for a refused service that it has no record of.
	//
	// A dataplane without transactions cannot always leave a service as it is. It takes the new record, and names the service in [Result].Failed
	// until it is complete. Run retries it with an update that may have the revision that was applied last. A dataplane that can never serve a
	// part of a service, such as its UDP ports, serves the rest and names the service there, too.
	//
	// A large update comes in several parts ([RunOptions].PartEntries). Each part is an update in itself. All parts but the last one have the
	// revision before the update.
	//
	// Records use only the features that [Featured] names.
	//
	// ctx ends when Run's context ends. Apply may ignore that, or return its error.
	Apply(ctx context.Context, u *state.Update) (Result, error)
	// Verify compares the whole content of the dataplane with the last applied state and repairs any difference. The result names Services
	// that cannot be repaired. Verify does nothing before the first Apply.
	Verify(ctx context.Context) (Result, error)
	// Disturbed returns a channel that receives a value when something outside changed the dataplane or the interface addresses. Run then
	// calls Verify soon. Disturbed may return nil. Run calls it once, and receives at any time. A value that comes during a Verify asks for
	// another Verify. The channel needs room for one value, because a send must not block while no Run receives. It stays open for a later
	// Run.
	Disturbed() <-chan struct{}
}

// None is a dataplane that accepts every state and holds nothing. It is the base of a layer without another base.
type None struct{}

// Apply implements [Backend].
func (None) Apply(context.Context, *state.Update) (Result, error) { return Result{}, nil }

// Verify implements [Backend].
func (None) Verify(context.Context) (Result, error) { return Result{}, nil }

// Disturbed implements [Backend].
func (None) Disturbed() <-chan struct{} { return nil }

// RefusedError is returned by [Backend].Apply if some services of an update cannot be programmed.
type RefusedError struct {
	// Services has the reason for each of these services, and the remedy where there is one. All are in Changed or Removed of the update.
	Services map[state.ServiceName]error
}

func (e *RefusedError) Error() string {
	names := slices.SortedFunc(maps.Keys(e.Services), state.ServiceName.Compare)
	if len(names) == 0 {
		return "no service was refused"
	}
	return fmt.Sprintf("%d services cannot be programmed, the first is %v: %v", len(names), names[0], e.Services[names[0]])
}

// Result reports the outcome of an Apply or Verify. Run ignores the Result of a call that returns an error; [RunOptions].OnAttempt gets
// it.
type Result struct {
	// Written counts the objects that were added, replaced or deleted: objects of the kernel, or entries of the dataplane's own tables.
	Written int
	// Repaired counts the written objects that something else had changed or deleted.
	Repaired int
	// Failed has the reason for each service that is incomplete, and the remedy where there is one.
	Failed map[state.ServiceName]error
}
