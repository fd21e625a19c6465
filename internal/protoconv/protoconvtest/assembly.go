// Package protoconvtest puts updates together from their messages, for the tests of the packages that make them.
package protoconvtest

import (
	"fmt"
	"slices"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

// Assembly puts updates together from their parts. The zero Assembly is ready for the first part.
type Assembly struct {
	// Node is the node after the last whole update, nil if none has been named yet. A client that resumes sets the one it has.
	Node *state.Node

	parts  int
	update *state.Update
	node   *state.Node
	failed map[state.ServiceName]error
}

// Received is a whole update.
type Received struct {
	// Update leads to the state at Position, but for the services in Failed: they are neither changed nor removed.
	Update *state.Update
	// Position is what to resume from once the update has been taken.
	Position protoconv.Position
	// Failed are services that are there but cannot be read, with the reasons. A client that has an earlier record of such a service
	// leaves it as it is. Nil if there are none.
	Failed map[state.ServiceName]error
}

// Add adds the next part. It returns the update with its last part, and nil before. An error is about the whole update,
// and the Assembly can no longer be used.
func (a *Assembly) Add(m *localnetv1.WatchResponse) (*Received, error) {
	if a.parts == 0 {
		a.update, a.node, a.failed = &state.Update{Full: m.GetFull()}, a.Node, nil
	}
	a.parts++
	u := a.update
	if m.GetFull() != u.Full {
		return nil, fmt.Errorf("update: part %d: full is %v, which it is not in the parts before; it must be the same in all", a.parts, m.GetFull())
	}
	if m.GetNode() != nil {
		if a.parts > 1 {
			return nil, fmt.Errorf("update: part %d: node is set; it belongs into the first part", a.parts)
		}
		var err error
		if a.node, err = protoconv.ParseNode(m.GetNode()); err != nil {
			return nil, fmt.Errorf("update: %w", err)
		}
	} else if a.parts == 1 && (u.Full || a.node == nil) {
		return nil, fmt.Errorf("update: part 1: node is not set; it must be in the first update and in full ones")
	}
	u.Changed = slices.Grow(u.Changed, len(m.GetChanged()))
	for _, c := range m.GetChanged() {
		s, err := protoconv.ParseService(c)
		if err == nil {
			u.Changed = append(u.Changed, s)
			continue
		}
		if a.failed == nil {
			a.failed = make(map[state.ServiceName]error)
		}
		name := state.ServiceName{Namespace: c.GetNamespace(), Name: c.GetName()}
		if _, twice := a.failed[name]; twice {
			return nil, errTwice(name)
		}
		a.failed[name] = err
	}
	for _, n := range m.GetRemoved() {
		u.Removed = append(u.Removed, protoconv.ParseServiceName(n))
	}
	for i, t := range m.GetTriggers() {
		if err := t.CheckValid(); err != nil {
			return nil, fmt.Errorf("update: part %d: triggers[%d] is not a time: %w", a.parts, i, err)
		}
		u.Triggers = append(u.Triggers, t.AsTime())
	}
	if m.GetPosition() == nil {
		return nil, nil
	}
	return a.finish(protoconv.ParsePosition(m.GetPosition()))
}

// finish checks the whole.
func (a *Assembly) finish(at protoconv.Position) (*Received, error) {
	u := a.update
	if at.Revision == 0 {
		return nil, fmt.Errorf("update: position.rev is 0; revisions begin at 1")
	}
	if u.Full && len(u.Removed)+len(u.Triggers) > 0 {
		return nil, fmt.Errorf("update: it is full, but has %d removed services and %d triggers; it must have none", len(u.Removed), len(u.Triggers))
	}
	u.Revision, u.Node = at.Revision, a.node
	byName := func(x, y *state.Service) int { return x.Name.Compare(y.Name) }
	if !slices.IsSortedFunc(u.Changed, byName) {
		slices.SortFunc(u.Changed, byName)
	}
	if !slices.IsSortedFunc(u.Removed, state.ServiceName.Compare) {
		slices.SortFunc(u.Removed, state.ServiceName.Compare)
	}
	for i := 1; i < len(u.Changed); i++ {
		if u.Changed[i].Name == u.Changed[i-1].Name {
			return nil, errTwice(u.Changed[i].Name)
		}
	}
	for _, s := range u.Changed {
		if _, twice := a.failed[s.Name]; twice {
			return nil, errTwice(s.Name)
		}
	}
	for i, n := range u.Removed {
		if i > 0 && n == u.Removed[i-1] {
			return nil, fmt.Errorf("update: service %v occurs twice in removed; it must occur once", n)
		}
		_, failed := a.failed[n]
		if _, changed := slices.BinarySearchFunc(u.Changed, n, func(s *state.Service, n state.ServiceName) int { return s.Name.Compare(n) }); changed || failed {
			return nil, fmt.Errorf("update: service %v is both in changed and in removed", n)
		}
	}
	r := &Received{Update: u, Position: at, Failed: a.failed}
	a.Node = a.node
	a.parts, a.update, a.failed = 0, nil, nil
	return r, nil
}

func errTwice(name state.ServiceName) error {
	return fmt.Errorf("update: service %v occurs twice in changed; it must occur once", name)
}
