package revlog

import (
	"iter"

	"github.com/tidwall/btree"

	"github.com/switchyard-net/switchyard/state"
)

// ByName maps the names of services to values, ordered by name. A map that has been shared is never modified. The next
// version is a [ByName.Clone], which shares all unchanged entries. The zero value is empty.
type ByName[V any] struct {
	tree *btree.BTreeG[named[V]]
}

type named[V any] struct {
	name  state.ServiceName
	value V
}

// Clone returns a map with the same content that may be modified until it is shared. Only one goroutine may clone a map
// at a time; other goroutines may read it at the same time.
func (m ByName[V]) Clone() ByName[V] {
	if m.tree != nil {
		return ByName[V]{m.tree.Copy()}
	}
	less := func(a, b named[V]) bool { return a.name.Compare(b.name) < 0 }
	// Small nodes: a change copies one node of each level.
	return ByName[V]{btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: 16})}
}

// Set adds or replaces a value.
func (m ByName[V]) Set(name state.ServiceName, value V) { m.tree.Set(named[V]{name, value}) }

// Delete removes a value, if there is one.
func (m ByName[V]) Delete(name state.ServiceName) { m.tree.Delete(named[V]{name: name}) }

// Get returns the value of a service, the zero value if there is none.
func (m ByName[V]) Get(name state.ServiceName) V {
	var item named[V]
	if m.tree != nil {
		item, _ = m.tree.Get(named[V]{name: name})
	}
	return item.value
}

// Len is the number of values.
func (m ByName[V]) Len() int {
	if m.tree == nil {
		return 0
	}
	return m.tree.Len()
}

// Values are all values, ordered by name.
func (m ByName[V]) Values() iter.Seq[V] {
	return func(yield func(V) bool) {
		if m.tree != nil {
			m.tree.Scan(func(item named[V]) bool { return yield(item.value) })
		}
	}
}
