// Package backend has the contract of dataplanes, [Backend], and [Run], which keeps one in step with a feed of states. Each dataplane
// is a package below this one.
//
// Implement [Backend] for a dataplane in the process that computes the state, and the Sink of package client for one that gets the state
// from the node-local API. To run a Backend, start a source with a sink of a store.Store and call [Run] with the store as the feed;
// examples/embed/parts is a complete program. Package node does that and all else that a service proxy needs. Package conformance
// tests a dataplane with real packets.
//
// Run owns what dataplanes have in common: it retries with a growing pause, cuts large updates into parts, and keeps the last good record of each
// service. A dataplane never has to decide which service gets a frontend. What it may be able to do beside Apply and Verify is in small
// interfaces, which it need not implement: [Inspector], [Counter], [Reporter], [FlowKeeper] and [Drainer].
//
// What a dataplane needs of the kernel beside its own rules is in kernel/staleflows, which deletes flows to endpoints that are gone,
// and kernel/ifaddr, which follows the machine's addresses for [state.NodePortAddresses].
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
	// If u is full, its services are all that the dataplane is to hold, and what it holds beyond them is removed, also what an earlier process has left
	// ([state.Update.Gone]). Only differences are written. The first update of each Run is full. An update may have no services, but another Node.
	//
	// After u, no two services have the same frontend. If one gets a frontend that another one had, both are in u.
	//
	// If a service of u cannot be programmed, or removed, Apply leaves it as it is and returns a [RefusedError]; whether it has programmed others does
	// not matter. It is called again at once with an update in which that service has its last good record, or is missing. Its new record is in
	// Refused. If the dataplane has no record of it, what an earlier process has left of it may stay. Run retries the new record later.
	//
	// A dataplane without transactions cannot always leave a service as it is. It takes u over, and names in [Result].Failed the services that it
	// does not serve as u says. Run retries them with an update that may have the revision that was applied last.
	//
	// A large update comes in several, as [RunOptions].PartEntries says. Each is complete in itself, and a dataplane need not know of it. They have the
	// revision before that update, up to the last one.
	//
	// ctx ends when Run's context ends. Apply may ignore that, or return its error.
	Apply(ctx context.Context, u *state.Update) (Result, error)
	// Verify compares all that the dataplane holds with what was last applied and repairs any difference. Services that cannot be
	// repaired are named in the result. It does nothing before the first Apply.
	Verify(ctx context.Context) (Result, error)
	// Disturbed returns a channel that gets a value when something outside changed the dataplane, or what it depends on (interface
	// addresses), so that a Verify should come soon. It may return nil. Run calls it once, and receives at any time: what comes during a
	// Verify asks for another one. The channel needs room for one value, for there may be no Run, and a send must not block. It stays open
	// for a later Run.
	Disturbed() <-chan struct{}
}

// None is a dataplane that takes every state and holds nothing: the base of a layer that has no other one.
type None struct{}

// Apply implements [Backend].
func (None) Apply(context.Context, *state.Update) (Result, error) { return Result{}, nil }

// Verify implements [Backend].
func (None) Verify(context.Context) (Result, error) { return Result{}, nil }

// Disturbed implements [Backend].
func (None) Disturbed() <-chan struct{} { return nil }

// RefusedError is what [Backend].Apply returns if some services cannot be programmed, and the others can.
type RefusedError struct {
	// Services are those that cannot be programmed, out of Changed and Removed of the update, each with the reason and, where there is one, the remedy.
	Services map[state.ServiceName]error
}

func (e *RefusedError) Error() string {
	names := slices.SortedFunc(maps.Keys(e.Services), state.ServiceName.Compare)
	if len(names) == 0 {
		return "no service was refused"
	}
	return fmt.Sprintf("%d services cannot be programmed, the first is %v: %v", len(names), names[0], e.Services[names[0]])
}

// Result reports what an Apply or Verify did. Run ignores that of a call which returns an error; [RunOptions].OnAttempt gets it.
type Result struct {
	// Written counts the objects that were added, replaced or deleted: those of the kernel, or entries of the dataplane's own tables.
	Written int
	// Repaired counts those of them that had drifted: something else had changed or deleted them.
	Repaired int
	// Failed are the services that are not programmed as they are to be, each with the reason and, where there is one, the remedy.
	Failed map[state.ServiceName]error
}
