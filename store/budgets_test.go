package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// naiveRooms describes how much of each service may be routed, by going over all of them.
func naiveRooms(services []*service, b Budgets) map[*service]int64 {
	byNamespace := map[string][]*service{}
	for _, s := range services {
		byNamespace[s.name.Namespace] = append(byNamespace[s.name.Namespace], s)
	}
	limit := b.PerNamespace
	if limit == 0 {
		limit = max(b.PerNode, 1<<40)
		if b.PerNode > 0 {
			limit = b.PerNode
		}
	}
	for b.PerNode > 0 {
		var all int64
		for _, list := range byNamespace {
			var sum int64
			for _, s := range list {
				sum += s.entries
			}
			all += min(sum, limit)
		}
		if all <= b.PerNode {
			break
		}
		limit -= max(1, limit/4)
	}
	rooms := map[*service]int64{}
	for _, list := range byNamespace {
		slices.SortFunc(list, func(a, b *service) int { return rankOf(a).compare(rankOf(b)) })
		left := limit
		for _, s := range list {
			rooms[s] = min(s.entries, left)
			if left -= s.entries; left < 0 {
				left = 0
			}
		}
	}
	return rooms
}

// TestLedgerAgainstRecount lets services come, grow, shrink and go at random, and compares with a recount each time. Each
// service whose room changes must have been named.
func TestLedgerAgainstRecount(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 7))
		budgets := func() Budgets {
			return Budgets{PerNamespace: []int64{0, 1, 7, 20, 50}[rng.IntN(5)], PerNode: []int64{0, 1, 9, 40, 100}[rng.IntN(5)]}
		}
		b := budgets()
		l := newLedger(b)
		var services []*service
		for i := range 12 {
			services = append(services, &service{
				name: state.ServiceName{Namespace: string(rune('a' + i%3)), Name: fmt.Sprint(i)}, born: int64(rng.IntN(3)),
			})
		}
		of := func(namespace string) map[string]*service {
			all := map[string]*service{}
			for _, s := range services {
				if s.name.Namespace == namespace {
					all[s.name.Name] = s
				}
			}
			return all
		}
		known := map[*service]int64{}
		for range 40 {
			named := map[*service]bool{}
			for range 1 + rng.IntN(3) {
				s := services[rng.IntN(len(services))]
				if rng.IntN(5) == 0 { // created again
					l.set(s, 0)
					s.born = int64(rng.IntN(3))
				}
				l.set(s, []int64{0, 1, 3, 8, 30}[rng.IntN(5)])
				named[s] = true
			}
			if rng.IntN(10) == 0 {
				b = budgets()
				l.reset(b)
			}
			l.finalize(of, func(s *service) { named[s] = true })
			for s, want := range naiveRooms(services, b) {
				room, short := l.room(s)
				if room != want || short != (want < s.entries) {
					t.Fatalf("seed %d, %+v: %v born %d with %d entries has room for %d (short: %v), want %d", seed, b, s.name, s.born, s.entries, room, short, want)
				}
				if known[s] != room && !named[s] {
					t.Fatalf("seed %d: the room of %v changed unnoticed", seed, s.name)
				}
				known[s] = room
			}
		}
		for _, s := range services {
			l.set(s, 0)
		}
		l.finalize(of, func(*service) {})
		for _, lv := range l.levels {
			if lv.sum != 0 || len(l.accounts) > 0 {
				t.Fatalf("seed %d: of nothing, %d are left, and %d accounts", seed, lv.sum, len(l.accounts))
			}
		}
	}
}
