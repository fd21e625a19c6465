package ledger_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// item is a connection.
type item struct {
	owner ledger.Owner
	used  time.Duration
	place ledger.Place[*item]
	taken int // as how many-th
}

func (i *item) Used() time.Duration { return i.used }

func owner(namespace, service, client string) ledger.Owner {
	return ledger.Owner{Service: state.ServiceName{Namespace: namespace, Name: service}, Client: ledger.ClientOf(netip.MustParseAddr(client))}
}

// crowd fills a room.
type crowd struct {
	room *ledger.Room[*item]
	most int
	in   []*item
	n    int
}

// come has one more item come, and returns the one that had to go, nil if there was room.
func (c *crowd) come(o ledger.Owner, now time.Duration) *item {
	c.n++
	i := &item{owner: o, used: now, taken: c.n}
	c.room.Take(&i.place, i, o)
	c.in = append(c.in, i)
	gone, _ := c.room.MakeRoom(c.most, &i.place, time.Unix(0, 0).Add(now))
	c.in = slices.DeleteFunc(c.in, func(i *item) bool { return i == gone })
	return gone
}

func (c *crowd) held(is func(ledger.Owner) bool) (n int) {
	for _, i := range c.in {
		if is(i.owner) {
			n++
		}
	}
	return n
}

// TestAttackerHasOwnPlaces: an attacker fills a room, with one client or many, by one Service or many, at an own Service or at
// another's. The attacker takes no place of owners that have fewer.
func TestAttackerHasOwnPlaces(t *testing.T) {
	for name, attack := range map[string]func(n int) ledger.Owner{
		"one client":        func(int) ledger.Owner { return owner("evil", "a", "10.1.0.1") },
		"many clients":      func(n int) ledger.Owner { return owner("evil", "a", fmt.Sprintf("10.2.%d.%d", n/250, n%250)) },
		"many services":     func(n int) ledger.Owner { return owner("evil", fmt.Sprint(n), "10.1.0.1") },
		"both":              func(n int) ledger.Owner { return owner("evil", fmt.Sprint(n), fmt.Sprintf("10.2.%d.%d", n/250, n%250)) },
		"one /64":           func(n int) ledger.Owner { return owner("good", "web", fmt.Sprintf("2001:db8::%x", n)) },
		"a service of good": func(int) ledger.Owner { return owner("good", "web", "10.1.0.1") },
	} {
		c := &crowd{room: ledger.NewRoom[*item](), most: 100}
		for n := range 20 {
			if gone := c.come(owner("good", "web", fmt.Sprintf("10.0.0.%d", n)), 0); gone != nil {
				t.Fatal("there is room")
			}
		}
		for n := range 1000 {
			c.come(attack(n), time.Duration(n))
		}
		for n := range 10 {
			c.come(owner("good", "api", fmt.Sprintf("10.0.1.%d", n)), 2000)
		}
		good := c.held(func(o ledger.Owner) bool { return strings.HasPrefix(o.Client.String(), "10.0.") })
		if good != 30 || c.room.Len() != c.most {
			t.Errorf("%s: %d of 30 are left of others, and %d in all", name, good, c.room.Len())
		}
		note := c.room.Note()
		if note.Ended != 930 || note.Held < 1 {
			t.Errorf("%s: %+v", name, note)
		}
		if err := note.Problem("things", "f", c.most, note.At); err == nil || !strings.Contains(err.Error(), note.Heaviest.Service.String()) {
			t.Error(err)
		}
		if err := note.Problem("things", "f", c.most, note.At.Add(time.Minute)); err != nil {
			t.Error(err)
		}
	}
}

// TestRoomHistory: in random histories, the item that has to go is the one that a search through all of them finds.
func TestRoomHistory(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c := &crowd{room: ledger.NewRoom[*item](), most: 40}
	for step := range 20000 {
		now := time.Duration(step)
		switch rng.IntN(4) {
		case 0: // leaves
			if len(c.in) > 0 {
				n := rng.IntN(len(c.in))
				i := c.in[n]
				c.room.Leave(&i.place)
				c.room.Leave(&i.place) // counts once
				c.in = slices.Delete(c.in, n, n+1)
			}
		case 1: // is used
			if len(c.in) > 0 {
				c.in[rng.IntN(len(c.in))].used = now
			}
		default:
			o := owner(fmt.Sprint(rng.IntN(3)), fmt.Sprint(rng.IntN(3)), fmt.Sprintf("10.0.0.%d", rng.IntN(3)))
			before := append(slices.Clone(c.in), &item{owner: o, used: now, taken: c.n + 1})
			gone := c.come(o, now)
			if gone == nil {
				if len(before) > c.most {
					t.Fatalf("step %d: nothing goes of %d", step, len(before))
				}
				continue
			}
			left, own := before, true // own is set as long as the new one is among left
			for _, part := range []func(ledger.Owner) string{
				func(o ledger.Owner) string { return o.Service.Namespace },
				func(o ledger.Owner) string { return o.Service.Name },
				func(o ledger.Owner) string { return o.Client.String() },
			} {
				counts := map[string]int{}
				for _, i := range left {
					counts[part(i.owner)]++
				}
				most := 0
				for _, n := range counts {
					most = max(most, n)
				}
				if counts[part(gone.owner)] != most {
					t.Fatalf("step %d: one of %v goes, of %v", step, gone.owner, counts)
				}
				if own = own && part(gone.owner) == part(o); !own && slices.ContainsFunc(left, func(i *item) bool { return i.owner == o }) && counts[part(o)] == most {
					t.Fatalf("step %d: one of %v goes, and %v has as many", step, gone.owner, o)
				}
				left = slices.DeleteFunc(slices.Clone(left), func(i *item) bool { return part(i.owner) != part(gone.owner) })
			}
			least := slices.MinFunc(left, func(a, b *item) int { return cmp.Compare(a.used, b.used) })
			if gone.used != least.used {
				t.Fatalf("step %d: one goes that was used at %v, and another one was at %v", step, gone.used, least.used)
			}
		}
		if c.room.Len() != len(c.in) {
			t.Fatalf("step %d: %d are held, want %d", step, c.room.Len(), len(c.in))
		}
	}
}

func BenchmarkRoom(b *testing.B) {
	var owners []ledger.Owner
	for n := range 500 {
		owners = append(owners, owner(fmt.Sprint(n%50), fmt.Sprint(n), "10.0.0.1"))
	}
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := ledger.NewRoom[*item]()
			come := func(n int) {
				i := &item{used: time.Duration(n)}
				c.Take(&i.place, i, owners[n%500])
			}
			for i := range n {
				come(i)
			}
			for i := 0; b.Loop(); i++ {
				come(i)
				c.MakeRoom(n, nil, time.Time{})
			}
		})
	}
}

// ports returns a request for a port with so many endpoints.
func request(name string, endpoints int) *balance.Request {
	r := &balance.Request{Port: &plan.Port{ID: plan.PortID{Port: name}, Port: &state.Port{}}, Route: &state.Route{}}
	for i := range endpoints {
		r.Route.Endpoints = append(r.Route.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)})
	}
	return r
}

// TestPortsDoNotWait: while the endpoints of one port are looked at, another port chooses.
func TestPortsDoNotWait(t *testing.T) {
	var loads ledger.Loads
	large, small := request("large", 1000), request("small", 10)
	now := time.Unix(0, 0)
	chosen := false
	_, ok := loads.Choose(balance.LeastConnections, large, now, func(n int) int { // within the choice for the large port
		_, chosen = loads.Choose(balance.LeastConnections, small, now, rand.IntN)
		return rand.IntN(n)
	})
	if !ok || !chosen {
		t.Error("no endpoint")
	}
}

// TestLoadsAreForgotten: a port is remembered as long as it has connections or has failed, from many goroutines.
func TestLoadsAreForgotten(t *testing.T) {
	var loads ledger.Loads
	rule := balance.Ejection{Failures: 2, Time: time.Second}
	now := time.Unix(0, 0)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for n := range 500 {
				r := request(fmt.Sprint((g+n)%3), 5)
				e, ok := loads.Choose(balance.LeastConnections, r, now, rand.IntN)
				if !ok {
					t.Error("no endpoint")
				}
				loads.Dialed(r.Port.ID, e, n%2 == 0, rule, now)
				loads.End(r.Port.ID, e)
				loads.Dialed(r.Port.ID, e, true, rule, now)
			}
		})
	}
	all.Wait()
	if n, failing := loads.Len(); n != 0 || failing != 0 {
		t.Errorf("%d ports and %d failures are remembered", n, failing)
	}
}

// TestFailuresAreBounded: of too many endpoints that have failed, those are forgotten that failed first.
func TestFailuresAreBounded(t *testing.T) {
	var loads ledger.Loads
	rule := balance.Ejection{Failures: 1, Time: time.Hour}
	now := time.Unix(0, 0)
	const most = 1 << 16
	r := request("web", most+100)
	for _, e := range r.Route.Endpoints {
		if !loads.Dialed(r.Port.ID, e.Addr, false, rule, now) {
			t.Fatal("not ejected")
		}
	}
	if _, failing := loads.Len(); failing != most {
		t.Errorf("%d failures are remembered, want %d", failing, most)
	}
	for n := range 500 {
		e, ok := loads.Choose(balance.Random, r, now, rand.IntN)
		if n < 200 {
			continue // the first choices come to know of all failures, a part at a time
		}
		if !ok || slices.IndexFunc(r.Route.Endpoints, func(o state.Endpoint) bool { return o.Addr == e }) >= 100 {
			t.Fatalf("%v is chosen, which has failed", e)
		}
	}
}
