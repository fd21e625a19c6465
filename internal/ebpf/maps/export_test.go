//go:build linux

package maps

import "github.com/switchyard-net/switchyard/state"

// ReuseAtOnce makes what was used usable again without a grace period.
func (t *Tables) ReuseAtOnce() {
	t.grace.mu.Lock()
	t.grace.free = append(t.grace.free, t.grace.retired...)
	t.grace.retired = nil
	t.grace.mu.Unlock()
	t.Reclaim()
}

// Slots returns the number of slots of a family that were ever used, and of those that wait to be used again.
func (t *Tables) Slots(f state.Family) (used uint32, free int) {
	for n, list := range t.freeSlots[familyOf(f)] {
		free += n * len(list)
	}
	return t.nextSlot[familyOf(f)], free
}

// Routes is Slots for routes.
func (t *Tables) Routes() (used uint32, free int) { return t.nextRoute, len(t.freeRoutes) }

// Index and Base return where a place is.
func (p Place) Index() uint32 { return p.index }
func (p Place) Base() uint32  { return p.base }
