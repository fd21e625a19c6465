package server

import (
	"slices"
	"sync"
)

// newest lets each holder have a few things open, and ends the oldest one if a holder opens one too many. So
// connections that have lost their client, or that another program opened in the holder's name, do not lock the holder
// out.
type newest struct {
	most int
	mu   sync.Mutex
	open map[string][]*place // the oldest first
}

// place is of one thing that is open.
type place struct{ end func() }

// enter adds one thing, which end ends. leave must be called when it has ended.
func (n *newest) enter(holder string, end func()) (leave func()) {
	own := &place{end}
	if oldest := n.add(holder, own); oldest != nil {
		oldest.end()
	}
	return func() { n.remove(holder, own) }
}

// add returns the place that has to be given up for p, if there is one.
func (n *newest) add(holder string, p *place) (oldest *place) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open == nil {
		n.open = make(map[string][]*place)
	}
	own := n.open[holder]
	if len(own) == n.most {
		oldest = own[0]
		own = slices.Delete(own, 0, 1)
	}
	n.open[holder] = append(own, p)
	return oldest
}

// remove gives up a place, if it was not given up before.
func (n *newest) remove(holder string, p *place) {
	n.mu.Lock()
	defer n.mu.Unlock()
	own := slices.DeleteFunc(n.open[holder], func(o *place) bool { return o == p })
	if len(own) == 0 {
		delete(n.open, holder)
		return
	}
	n.open[holder] = own
}
