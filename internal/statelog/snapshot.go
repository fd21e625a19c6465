// Package statelog holds the states of one node under revisions, and hands out what changed between any two of them.
package statelog

import (
	"iter"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/switchyard-net/switchyard/state"
)

// Snapshot is one published state. It is immutable and costs nothing to keep but the records that have changed since.
type Snapshot struct {
	revision state.Revision
	node     *state.Node
	records  *iradix.Tree[*state.Service]
}

// Revision is the revision of the state, 0 if nothing has been published yet.
func (s *Snapshot) Revision() state.Revision { return s.revision }

// Node is this node, never nil.
func (s *Snapshot) Node() *state.Node { return s.node }

// Len is the number of services.
func (s *Snapshot) Len() int { return s.records.Len() }

// Get returns a service's record, or nil if there is none.
func (s *Snapshot) Get(name state.ServiceName) *state.Service {
	record, _ := s.records.Get(Key(name))
	return record
}

// Services are all records, ordered by name.
func (s *Snapshot) Services() iter.Seq[*state.Service] {
	return func(yield func(*state.Service) bool) {
		it := s.records.Root().Iterator()
		for _, record, ok := it.Next(); ok; _, record, ok = it.Next() {
			if !yield(record) {
				return
			}
		}
	}
}

// Key orders like [state.ServiceName.Compare]: Kubernetes' names have no byte 0.
func Key(name state.ServiceName) []byte {
	k := make([]byte, 0, len(name.Namespace)+1+len(name.Name))
	k = append(k, name.Namespace...)
	k = append(k, 0)
	return append(k, name.Name...)
}
