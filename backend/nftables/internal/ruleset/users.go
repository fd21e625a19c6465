package ruleset

import (
	"maps"
	"slices"
)

// changeUsers plans the elements that get their first user, and those that lose their last one. users are how many they have, and by is what changes.
func changeUsers[K interface {
	comparable
	element() element
}](p *Plan, users, by map[K]int32, compare func(a, b K) int) {
	if len(by) == 0 {
		return
	}
	for _, k := range slices.SortedFunc(maps.Keys(by), compare) { // the same change makes the same batch
		before := users[k]
		switch after := before + by[k]; {
		case before == 0 && after > 0:
			p.add(k.element())
		case before > 0 && after == 0:
			p.del(k.element())
		}
	}
}

// commitUsers changes how many users elements have. It makes the map if it is nil and there is something to count.
func commitUsers[K comparable](users *map[K]int32, by map[K]int32) {
	for k, d := range by {
		n := (*users)[k] + d
		if n == 0 {
			delete(*users, k)
			continue
		}
		if *users == nil {
			*users = map[K]int32{}
		}
		(*users)[k] = n
	}
}
