package store

import (
	"math"
	"slices"
)

// Budgets limit the entries of many services together, as [brain.MaxEntries] counts them. They keep one owner's
// services from filling a node's kernel and memory at the expense of other owners. 0 means no limit.
//
// Within a namespace, services come in order of age, oldest first; services of the same age come by name. The first
// service that exceeds the budget is routed as far as there is room, like a service that is too large by itself. The
// services after it are not routed at all. So a new service never displaces one that had room. An old service that
// grows may displace younger services of its namespace.
//
// The namespaces, each within its budget, may want more than the node's budget together. Then the namespace budget is
// lowered by a quarter until they fit. So a namespace with a small demand loses nothing, regardless of the demand of
// the other namespaces.
//
// The result depends only on the objects, not on their history. It is the same on all nodes, and after a restart.
type Budgets struct{ PerNamespace, PerNode int64 }

// ledger knows the wanted entries of each service, of each namespace and in all, and which services get less. A change
// costs O(log n) with n services in the namespace, plus the services for which something changes.
type ledger struct {
	budgets  Budgets
	accounts map[string]*account // by namespace
	// levels are the limits that namespaces may have, the highest first. level is the current one.
	levels  []level
	level   int
	touched []*account // since the last call of finalize
}

// level is a bound for each namespace, and what all of them may have together then.
type level struct{ limit, sum int64 }

// account is a namespace.
type account struct {
	name  string
	total int64 // entries wanted by its services
	// order has the services in their order. It is nil as long as there has been room for all of them.
	order   *order
	cut     cut
	touched bool
}

// cut finds the services of a namespace that get less than they want. One service gets the remaining room, and the
// services after it get none.
type cut struct {
	some  bool // there are any
	at    rank
	room  int64
	limit int64 // of the namespace, which problems name
}

func newLedger(b Budgets) ledger {
	l := ledger{accounts: make(map[string]*account)}
	l.reset(b)
	return l
}

// reset changes the budgets.
func (l *ledger) reset(b Budgets) {
	l.budgets, l.levels, l.level = b, nil, 0
	limit := int64(math.MaxInt64)
	switch {
	case b.PerNamespace > 0:
		limit = b.PerNamespace
	case b.PerNode > 0:
		limit = b.PerNode
	}
	l.levels = append(l.levels, level{limit: limit})
	for b.PerNode > 0 && limit > 0 {
		limit -= max(1, limit/4)
		l.levels = append(l.levels, level{limit: limit})
	}
	for _, a := range l.accounts {
		total := a.total
		a.total = 0
		l.add(a, total)
	}
}

// set takes down how many entries a service wants.
func (l *ledger) set(svc *service, entries int64) {
	if entries == svc.entries {
		return
	}
	a := l.accounts[svc.name.Namespace]
	if a == nil {
		a = &account{name: svc.name.Namespace}
		l.accounts[a.name] = a
	}
	l.add(a, entries-svc.entries)
	svc.entries = entries
	if a.order != nil {
		a.order.set(svc, entries)
	}
}

func (l *ledger) add(a *account, entries int64) {
	for i := range l.levels {
		lv := &l.levels[i]
		lv.sum += min(a.total+entries, lv.limit) - min(a.total, lv.limit)
	}
	a.total += entries
	l.touch(a)
}

func (l *ledger) touch(a *account) {
	if !a.touched {
		a.touched = true
		l.touched = append(l.touched, a)
	}
}

// finalize decides again which services get less, and calls changed with each service for which that changes. of
// returns the services of a namespace.
func (l *ledger) finalize(of func(namespace string) map[string]*service, changed func(*service)) {
	if now := l.fitting(); now != l.level {
		lower := min(l.levels[now].limit, l.levels[l.level].limit)
		for _, a := range l.accounts {
			if a.total > lower {
				l.touch(a)
			}
		}
		l.level = now
	}
	for _, a := range l.touched {
		a.touched = false
		a.finalize(l.levels[l.level].limit, of, changed)
		if a.total == 0 {
			delete(l.accounts, a.name)
		}
	}
	l.touched = nil
}

// fitting returns the highest level with which all namespaces together fit into the budget of the node.
func (l *ledger) fitting() int {
	if l.budgets.PerNode <= 0 {
		return 0
	}
	return slices.IndexFunc(l.levels, func(lv level) bool { return lv.sum <= l.budgets.PerNode })
}

func (a *account) finalize(limit int64, of func(string) map[string]*service, changed func(*service)) {
	if a.order == nil {
		if a.total <= limit {
			return
		}
		a.order = &order{}
		for _, svc := range of(a.name) {
			a.order.set(svc, svc.entries)
		}
	}
	was := a.cut
	a.cut = cut{}
	if svc, room := a.order.reach(limit); svc != nil {
		a.cut = cut{some: true, at: rankOf(svc), room: room, limit: limit}
	}
	if a.cut != was {
		a.each(was, a.cut, changed)
	}
	if a.total <= limit-limit/4 {
		a.order = nil // not at once, or a namespace that goes up and down would be put in order each time
	}
}

// each calls do with the services from one cut to the other, including the services at the cuts. If the limits differ,
// it also calls do with the services after both.
func (a *account) each(x, y cut, do func(*service)) {
	first, last := x, y
	if !x.some || y.some && y.at.compare(x.at) < 0 {
		first, last = y, x
	}
	a.order.from(first.at, func(svc *service) bool {
		if last.some && first.limit == last.limit && rankOf(svc).compare(last.at) > 0 {
			return false
		}
		do(svc)
		return true
	})
}

// room returns how many entries of a service may be routed, and whether that is less than it wants.
func (l *ledger) room(svc *service) (room int64, short bool) {
	a := l.accounts[svc.name.Namespace]
	if a == nil || !a.cut.some || svc.entries == 0 {
		return svc.entries, false
	}
	switch c := rankOf(svc).compare(a.cut.at); {
	case c < 0:
		return svc.entries, false
	case c == 0:
		return a.cut.room, true
	}
	return 0, true
}

// limit returns the current limit of namespaces, and whether the budget of the node sets it.
func (l *ledger) limit() (limit int64, ofNode bool) {
	return l.levels[l.level].limit, l.level > 0 || l.budgets.PerNamespace <= 0
}
