package balance

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// view has the endpoints of a route in order of their load. Idle endpoints come first. Endpoints with connections begin at the position
// idle, and ejected endpoints at the position in.
type view struct {
	endpoints  []state.Endpoint
	generation uint32 // 0 for no view
	order      order
	idle, in   int
	// busy and out are the endpoints with connections and those that are ejected, by their number of connections.
	busy, out levels
	// unknown is how many of the loads the view does not know of yet: the first ones of all.
	unknown int
	// weighed are the endpoints whose weights are in shares: of those that are not ejected, and of those that are. It is nil without weights.
	weighed []state.Endpoint
	shares  [2]weights
}

// reset empties the view. If it has no content, its allocated memory stays for the next one.
func (v *view) reset() {
	if len(v.order.indexAt) > 0 || len(v.busy) > 0 || len(v.out) > 0 {
		*v = view{}
		return
	}
	*v = view{order: v.order, busy: v.busy, out: v.out, weighed: v.weighed, shares: v.shares} // nothing is ejected
}

// enter gives a load a seat that is in no level yet: the endpoint is idle so far. It reports whether the load had none.
func (v *view) enter(e *load, number int) bool {
	s := &e.seats[number]
	if v.generation == 0 || s.generation == v.generation {
		return false
	}
	*s = seat{generation: v.generation, index: v.find(e.endpoint)}
	return true
}

// find returns the index of an endpoint in the route, -1 if it is not in it.
func (v *view) find(endpoint netip.AddrPort) int {
	i, found := slices.BinarySearchFunc(v.endpoints, endpoint, func(e state.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	if !found {
		return -1
	}
	return i
}

// seated reports whether a load has a seat in the view, of an endpoint of the route.
func (v *view) seated(e *load, number int) bool {
	s := &e.seats[number]
	return v.generation > 0 && s.generation == v.generation && s.index >= 0
}

// lift takes a load out of its place: the endpoint is idle until it is placed again.
func (v *view) lift(e *load, number int) {
	if !v.seated(e, number) {
		return
	}
	s := &e.seats[number]
	if e.out {
		v.out.remove(e, number)
		v.order.swap(v.order.position(s.index), v.in)
		v.in++
		v.move(s.index, 1, 0)
	} else if e.open > 0 {
		v.busy.remove(e, number)
	} else {
		return
	}
	v.order.swap(v.order.position(s.index), v.idle)
	v.idle++
}

// place undoes lift, by the load as it is now.
func (v *view) place(e *load, number int) {
	if !v.seated(e, number) || !e.out && e.open == 0 {
		return
	}
	s := &e.seats[number]
	v.idle--
	v.order.swap(v.order.position(s.index), v.idle)
	if !e.out {
		v.busy.add(e, number)
		return
	}
	v.in--
	v.order.swap(v.order.position(s.index), v.in)
	v.out.add(e, number)
	v.move(s.index, 0, 1)
}

// any returns one of the endpoints that were not tried, and are not ejected unless all are. Each has the same share, or the share of its weight.
func (v *view) any(tried []netip.AddrPort, draw func(n int) int) (endpoint netip.AddrPort, ok bool) {
	if v.isWeighted() {
		return v.byWeight(tried, draw)
	}
	positions := v.positions(tried)
	for _, part := range [][2]int{{0, v.in}, {v.in, len(v.endpoints)}} {
		if p, ok := drawBut(part[0], part[1], positions, draw); ok {
			return v.endpoints[v.order.index(p)].Addr, true
		}
	}
	return endpoint, false
}

// least returns one of the endpoints that were not tried and have the fewest connections, of those that are not ejected unless all are.
func (v *view) least(l *Loads, number int, tried []netip.AddrPort, draw func(n int) int) (endpoint netip.AddrPort, ok bool) {
	if p, ok := drawBut(0, v.idle, v.positions(tried), draw); ok {
		return v.endpoints[v.order.index(p)].Addr, true
	}
	for _, levels := range []levels{v.busy, v.out} {
		for _, level := range levels {
			var slots []int
			for _, endpoint := range tried {
				if e := l.byEndpoint[endpoint]; e != nil && e.open == level.open && v.seated(e, number) {
					if slot := e.seats[number].slot; slot < len(level.loads) && level.loads[slot] == e {
						slots = append(slots, slot)
					}
				}
			}
			slices.Sort(slots)
			if slot, ok := drawBut(0, len(level.loads), slices.Compact(slots), draw); ok {
				return level.loads[slot].endpoint, true
			}
		}
	}
	return endpoint, false
}

// positions returns where endpoints are in the order, sorted. Those that the route does not have are left out.
func (v *view) positions(endpoints []netip.AddrPort) (list []int) {
	for _, endpoint := range endpoints {
		if i := v.find(endpoint); i >= 0 {
			list = append(list, v.order.position(i))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// drawBut returns a random number from a up to b that is not in but, which is sorted. ok is false if there is none.
func drawBut(a, b int, but []int, draw func(n int) int) (n int, ok bool) {
	first, _ := slices.BinarySearch(but, a)
	end, _ := slices.BinarySearch(but, b)
	but = but[first:end]
	if b-a <= len(but) {
		return 0, false
	}
	n = a + draw(b-a-len(but))
	for _, not := range but {
		if n >= not {
			n++
		}
	}
	return n, true
}

// order is a permutation. In the beginning, the index i is at the position i. Only moved indexes take memory.
type order struct{ indexAt, positionOf map[int]int }

func (o *order) index(position int) int {
	if i, moved := o.indexAt[position]; moved {
		return i
	}
	return position
}

func (o *order) position(index int) int {
	if p, moved := o.positionOf[index]; moved {
		return p
	}
	return index
}

// swap exchanges the indexes at two positions.
func (o *order) swap(p, q int) {
	if p == q {
		return
	}
	i, j := o.index(p), o.index(q)
	o.put(p, j)
	o.put(q, i)
}

func (o *order) put(position, index int) {
	if position == index {
		delete(o.indexAt, position)
		delete(o.positionOf, index)
		return
	}
	if o.indexAt == nil {
		o.indexAt, o.positionOf = map[int]int{}, map[int]int{}
	}
	o.indexAt[position], o.positionOf[index] = index, position
}

// levels are loads by their number of connections, the fewest first. With n connections there are no more than the square root of 2n of them.
type levels []*level

type level struct {
	open  int
	loads []*load
}

func (l levels) search(open int) (i int, found bool) {
	return slices.BinarySearchFunc(l, open, func(l *level, open int) int { return cmp.Compare(l.open, open) })
}

func (l *levels) add(e *load, number int) {
	i, found := l.search(e.open)
	if !found {
		*l = slices.Insert(*l, i, &level{open: e.open})
	}
	at := (*l)[i]
	e.seats[number].slot = len(at.loads)
	at.loads = append(at.loads, e)
}

func (l *levels) remove(e *load, number int) {
	i, _ := l.search(e.open)
	at := (*l)[i]
	last, slot := len(at.loads)-1, e.seats[number].slot
	at.loads[slot] = at.loads[last]
	at.loads[slot].seats[number].slot = slot
	at.loads[last] = nil
	if at.loads = at.loads[:last]; last == 0 {
		*l = slices.Delete(*l, i, i+1)
	}
}
