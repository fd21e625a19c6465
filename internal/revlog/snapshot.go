// Package revlog holds the states of one node under revisions, and hands out what changed between any two of them.
package revlog

import (
	"iter"

	"github.com/switchyard-net/switchyard/state"
)

// Snapshot is one published state. It is immutable and costs nothing to keep but the records that have changed since.
type Snapshot struct {
	revision state.Revision
	node     *state.Node
	records  ByName[*state.Service]
}

// Revision is the revision of the state, 0 if nothing has been published yet.
func (s *Snapshot) Revision() state.Revision { return s.revision }

// Node is this node, never nil.
func (s *Snapshot) Node() *state.Node { return s.node }

// Len is the number of services.
func (s *Snapshot) Len() int { return s.records.Len() }

// Get returns a service's record, or nil if there is none.
func (s *Snapshot) Get(name state.ServiceName) *state.Service { return s.records.Get(name) }

// Services are all records, ordered by name.
func (s *Snapshot) Services() iter.Seq[*state.Service] { return s.records.Values() }
