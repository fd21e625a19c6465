// Package backend holds what all dataplanes share: the contract, and [Run], which keeps one in step with a feed of states. Each dataplane
// is a package below this one.
//
// Implement [Backend] for a dataplane in the process that computes the state, and the Sink of package client for one that gets the state
// from the node-local API. To run a Backend, start a source with a sink of a store.Store and call [Run] with the store as the feed;
// examples/embed/parts is a complete program. Package node does that and all else that a service proxy needs. Package conformance
// tests a dataplane with real packets.
//
// Package kernel/conntrack deletes flows to endpoints that are gone, as every dataplane on Linux has to.
package backend

import (
	"context"

	"github.com/switchyard-net/switchyard/state"
)

// Backend programs one dataplane. Its methods are called by one goroutine at a time.
type Backend interface {
	// Apply programs u. It is atomic: if it returns an error, the dataplane holds what it did before, and the same or a merged update
	// is applied again later. If u is full, what the dataplane holds beyond u is removed, and only differences are written. The
	// first update of each Run is full. An update may have no services at all, but another Node.
	//
	// An update of the feed may come in several, of which each is atomic ([RunOptions].PartEntries). They have the revision before that update, up to the
	// last one. A large service then has records in between: each frontend is as before or as after, but for the endpoints of a route, which change in
	// parts. A frontend that moves from one service to another does so in one update, which has both. A service that fails midway keeps the record in
	// between that was applied last.
	//
	// A service that cannot be programmed, or removed, is named in the result, keeps what it had, and does not keep others from being
	// programmed. Run retries it with an update that is not full and may have the revision that was applied last: no update may be
	// skipped because of its revision.
	//
	// In a state no two services have the same frontend, but what a service has kept that failed may be another's by now, in the
	// same update or in a later one. The frontend goes to the service that u gives it to, and the one that failed keeps the others.
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

// Result reports what an Apply or Verify did. Run ignores that of a call which returns an error; [RunOptions].OnAttempt gets it.
type Result struct {
	// Written counts the objects that were added, replaced or deleted: those of the kernel, or entries of the dataplane's own tables.
	Written int
	// Repaired counts those of them that had drifted: something else had changed or deleted them.
	Repaired int
	// Failed are the services that could not be programmed, each with the reason and, where there is one, the remedy.
	Failed map[state.ServiceName]error
}
