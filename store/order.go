package store

import (
	"cmp"
	"math/rand/v2"
)

// rank is the place of a service in its namespace: the oldest first, then by name.
type rank struct {
	born int64
	name string
}

func rankOf(svc *service) rank { return rank{svc.born, svc.name.Name} }

func (r rank) compare(o rank) int {
	return cmp.Or(cmp.Compare(r.born, o.born), cmp.Compare(r.name, o.name))
}

// order holds services by rank, and the entries that they want. It is a treap whose nodes know the sum of their
// subtree. Changing one service and finding where a sum is reached both cost O(log n).
type order struct{ root *orderNode }

type orderNode struct {
	svc         *service
	entries     int64 // of svc, as last set
	sum         int64 // of the node and all below it
	priority    uint32
	left, right *orderNode
}

func (n *orderNode) total() int64 {
	if n == nil {
		return 0
	}
	return n.sum
}

func (n *orderNode) update() { n.sum = n.left.total() + n.entries + n.right.total() }

// set inserts or moves a service, or changes its entries. With 0 entries the service is removed.
func (o *order) set(svc *service, entries int64) {
	before, rest := split(o.root, rankOf(svc), false)
	_, after := split(rest, rankOf(svc), true)
	var node *orderNode
	if entries > 0 {
		node = &orderNode{svc: svc, entries: entries, sum: entries, priority: rand.Uint32()}
	}
	o.root = merge(merge(before, node), after)
}

// split parts the services that come before a rank, and with or at it, from the others.
func split(n *orderNode, at rank, with bool) (before, after *orderNode) {
	if n == nil {
		return nil, nil
	}
	if c := rankOf(n.svc).compare(at); c < 0 || c == 0 && with {
		n.right, after = split(n.right, at, with)
		before = n
	} else {
		before, n.left = split(n.left, at, with)
		after = n
	}
	n.update()
	return before, after
}

// merge joins two parts, the first before the second.
func merge(a, b *orderNode) *orderNode {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		a.right = merge(a.right, b)
		a.update()
		return a
	}
	b.left = merge(a, b.left)
	b.update()
	return b
}

// reach returns the first service at which the sum of entries exceeds limit, and the room that is left for it. It
// returns none if the sum of all services does not exceed limit.
func (o *order) reach(limit int64) (svc *service, left int64) {
	for n := o.root; n != nil; {
		switch before := n.left.total(); {
		case before > limit:
			n = n.left
		case before+n.entries > limit:
			return n.svc, limit - before
		default:
			limit -= before + n.entries
			n = n.right
		}
	}
	return nil, 0
}

// from calls do with each service from a rank on, in order, as long as it returns true.
func (o *order) from(at rank, do func(*service) bool) {
	var walk func(n *orderNode) bool
	walk = func(n *orderNode) bool {
		if n == nil {
			return true
		}
		if rankOf(n.svc).compare(at) < 0 {
			return walk(n.right)
		}
		return walk(n.left) && do(n.svc) && walk(n.right)
	}
	walk(o.root)
}
