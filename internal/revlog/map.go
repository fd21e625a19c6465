package revlog

import (
	"iter"
	"slices"

	"github.com/tidwall/btree"
)

// Key is the key of a [Map].
type Key[K any] interface {
	comparable
	// Compare orders keys.
	Compare(K) int
}

// Map maps keys to values, in the order of the keys. A map that has been shared is never modified. The next version is a
// [Map.Clone], which shares all unchanged entries. The zero value is empty.
type Map[K Key[K], V any] struct {
	tree *btree.BTreeG[entry[K, V]]
}

type entry[K, V any] struct {
	key   K
	value V
}

// Clone returns a map with the same content that may be modified until it is shared. Only one goroutine may clone a map
// at a time; other goroutines may read it at the same time.
func (m Map[K, V]) Clone() Map[K, V] {
	if m.tree != nil {
		return Map[K, V]{m.tree.Copy()}
	}
	less := func(a, b entry[K, V]) bool { return a.key.Compare(b.key) < 0 }
	// Small nodes: a change copies one node of each level.
	return Map[K, V]{btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: 16})}
}

// Set adds or replaces a value.
func (m Map[K, V]) Set(key K, value V) { m.tree.Set(entry[K, V]{key, value}) }

// Delete removes a value, if there is one.
func (m Map[K, V]) Delete(key K) { m.tree.Delete(entry[K, V]{key: key}) }

// Get returns the value of a key, the zero value if there is none.
func (m Map[K, V]) Get(key K) V {
	var item entry[K, V]
	if m.tree != nil {
		item, _ = m.tree.Get(entry[K, V]{key: key})
	}
	return item.value
}

// Len is the number of values.
func (m Map[K, V]) Len() int {
	if m.tree == nil {
		return 0
	}
	return m.tree.Len()
}

// Values are all values, in the order of their keys.
func (m Map[K, V]) Values() iter.Seq[V] {
	return func(yield func(V) bool) {
		if m.tree != nil {
			m.tree.Scan(func(item entry[K, V]) bool { return yield(item.value) })
		}
	}
}

// All returns all values in a slice of their own, in the order of their keys.
func (m Map[K, V]) All() []V { return slices.AppendSeq(make([]V, 0, m.Len()), m.Values()) }

// Outcome looks up keys, in any order and with repetitions, and sorts them in place. changed are the values of the keys
// for which get has one, and removed are the other keys, both in the order of the keys.
func Outcome[K Key[K], V comparable](keys []K, get func(K) V) (changed []V, removed []K) {
	var none V
	slices.SortFunc(keys, K.Compare)
	for _, key := range slices.Compact(keys) {
		if value := get(key); value != none {
			changed = append(changed, value)
		} else {
			removed = append(removed, key)
		}
	}
	return changed, removed
}
