package least

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

func endpoints(n int) (list []state.Endpoint) {
	for i := range n {
		list = append(list, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 80)})
	}
	return list
}

func service(list []state.Endpoint) *state.Service {
	to := state.Route{Verdict: state.Forward, Endpoints: list}
	return &state.Service{Name: state.ServiceName{Namespace: "default", Name: "web"}, Ports: []state.Port{{
		Name: "http", Protocol: state.TCP, Family: state.IPv4, Balance: state.LeastConnections, Internal: state.Traffic{Inside: to, Outside: to},
	}}}
}

// slotsOf returns the slots of the endpoints, and fails unless they are all that there are.
func slotsOf(t *testing.T, c *Controller, s *state.Service) (slots []int) {
	t.Helper()
	r, sum := &c.Shares(s).Ports[0].Internal.Inside, 0
	for _, e := range r.Endpoints {
		slots = append(slots, int(e.Weight))
		sum += int(e.Weight)
	}
	if sum+int(r.Refused) != Slots || slices.Min(slots) < 1 {
		t.Fatalf("slots are %v, and %d are refused", slots, r.Refused)
	}
	return slots
}

// world is a simulation of connections: a queue of their ends. It knows of the controller only the slots that are drawn from.
type world struct {
	rng  *rand.Rand
	open []int
	ends ends
	now  float64
}

type end struct {
	at float64
	of int
}

type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// run begins connections at a rate until a time. Each goes to the endpoint of a slot that is drawn, which holds it for a time of its own on average.
func (w *world) run(until, rate float64, slots []int, holds func(endpoint int) float64) {
	for next := w.now + w.rng.ExpFloat64()/rate; next < until; next += w.rng.ExpFloat64() / rate {
		w.endBefore(next)
		n := w.rng.IntN(Slots)
		for i, has := range slots {
			if n -= has; n < 0 {
				w.open[i]++
				heap.Push(&w.ends, end{next + w.rng.ExpFloat64()*holds(i), i})
				break
			}
		}
	}
	w.endBefore(until)
	w.now = until
}

func (w *world) endBefore(at float64) {
	for len(w.ends) > 0 && w.ends[0].at < at {
		w.open[heap.Pop(&w.ends).(end).of]--
	}
}

// simulate returns how many connections each endpoint has on average in the last quarter of so many periods of a second. With step unset, the controller
// does nothing.
func simulate(t *testing.T, s *state.Service, periods int, rate float64, steps bool, holds func(endpoint int) float64) (means []float64, moved float64) {
	c := &Controller{}
	list := s.Ports[0].Internal.Inside.Endpoints
	w := &world{rng: rand.New(rand.NewPCG(1, 2)), open: make([]int, len(list))}
	means = make([]float64, len(list))
	for period := range periods {
		slots := slotsOf(t, c, s)
		w.run(float64(period+1), rate, slots, holds)
		counts := Counts{}
		for i, n := range w.open {
			counts[Endpoint{state.TCP, list[i].Addr}] = n
			if period >= periods*3/4 {
				means[i] += float64(n) / float64(periods-periods*3/4)
			}
		}
		if !steps {
			continue
		}
		c = c.Step([]*state.Service{s}, counts)
		for i, n := range slotsOf(t, c, s) {
			moved += float64(max(0, n-slots[i])) / float64(periods)
		}
	}
	return means, moved
}

// spread returns how many connections the last endpoint has, and how many the others have on average.
func spread(means []float64) (last, others float64) {
	n := len(means) - 1
	for _, m := range means[:n] {
		others += m / float64(n)
	}
	return means[n], others
}

// TestSlowEndpoint: an endpoint that holds connections ten times as long soon has as many as the others, instead of ten times as many. Endpoints that are
// alike stay so.
func TestSlowEndpoint(t *testing.T) {
	for _, c := range []struct {
		n       int
		rate    float64
		usual   float64
		slower  float64
		periods int
		without [2]float64 // the least and the most of the last one's in relation to the others', without the controller
		with    [2]float64
	}{
		{10, 60, 1.9, 10, 96, [2]float64{7, 13}, [2]float64{0.6, 1.4}},
		{10, 60, 1.9, 1, 96, [2]float64{0.7, 1.4}, [2]float64{0.7, 1.4}},
		{10, 600, 0.2, 10, 60, [2]float64{7, 13}, [2]float64{0.6, 1.4}},
		{3, 30, 20, 5, 400, [2]float64{4, 6}, [2]float64{0.6, 1.5}},
		{100, 600, 2, 10, 200, [2]float64{7, 13}, [2]float64{0.5, 4.5}}, // with one slot of 256, and 2.6 on average
	} {
		holds := func(i int) float64 {
			if i == c.n-1 {
				return c.usual * c.slower
			}
			return c.usual
		}
		for steps, want := range map[bool][2]float64{false: c.without, true: c.with} {
			means, moved := simulate(t, service(endpoints(c.n)), c.periods, c.rate, steps, holds)
			last, others := spread(means)
			t.Logf("%d endpoints, %v times as slow, controlled %t: %.1f on the slow one, %.1f on the others, most %.1f; %.1f slots moved a period",
				c.n, c.slower, steps, last, others, slices.Max(means), moved)
			if ratio := last / others; ratio < want[0] || ratio > want[1] {
				t.Errorf("%d endpoints, controlled %t: the last one has %.2f times the others' connections, want %v", c.n, steps, ratio, want)
			}
		}
	}
}

// TestWeights: connections are as many as weights ask for, and a refused share stays what it is.
func TestWeights(t *testing.T) {
	s := service(endpoints(4))
	for i := range s.Ports[0].Internal.Inside.Endpoints {
		s.Ports[0].Internal.Inside.Endpoints[i].Weight = uint16(1 + 2*(i%2)) // 1, 3, 1, 3
	}
	for _, refused := range []uint32{0, 8} {
		s.Ports[0].Internal.Inside.Refused, s.Ports[0].Internal.Outside.Refused = refused, refused
		means, _ := simulate(t, s, 200, 80, true, func(i int) float64 { return []float64{2, 2, 2, 10}[i] })
		for i, m := range means {
			want := (means[0] + means[2]) / 2 * float64(1+2*(i%2))
			if m < want*0.7 || m > want*1.4 {
				t.Errorf("connections are %.1f with the weights 1, 3, 1 and 3", means)
			}
		}
		c := &Controller{}
		c = c.Step([]*state.Service{s}, Counts{Endpoint{state.TCP, endpoints(4)[1].Addr}: 1000})
		if got := c.Shares(s).Ports[0].Internal.Inside.Refused; got != refused*16 {
			t.Errorf("%d of 256 slots are refused, want half", got)
		}
	}
}

// TestBounds: no count gives an endpoint nothing or everything, and one that an attacker fills gets connections again.
func TestBounds(t *testing.T) {
	s := service(endpoints(8))
	c := &Controller{}
	flooded := Counts{Endpoint{state.TCP, endpoints(8)[0].Addr}: 1 << 28}
	for range 1000 {
		c = c.Step([]*state.Service{s}, flooded)
	}
	if slots := slotsOf(t, c, s); slots[0] != 1 || slices.Max(slots) > 37 {
		t.Errorf("with a flood to the first: %v", slots)
	}
	for range 40 {
		c = c.Step([]*state.Service{s}, Counts{})
	}
	if slots := slotsOf(t, c, s); slices.Min(slots) < 30 {
		t.Errorf("40 periods after the flood, without connections: %v", slots)
	}
	idle := Counts{}
	for _, e := range endpoints(8)[1:] {
		idle[Endpoint{state.TCP, e.Addr}] = 1 << 28
	}
	for range 1000 {
		c = c.Step([]*state.Service{s}, idle)
	}
	if slots := slotsOf(t, c, s); float64(slots[0])/float64(slots[1]) > mostFactor/leastFactor || slices.Min(slots) < 1 {
		t.Errorf("with a flood to all others: %v", slots)
	}
}

// TestShares: what does not ask is left as it is, and so is what has no use for shares. Routes that are equal stay so.
func TestShares(t *testing.T) {
	c := &Controller{}
	for name, change := range map[string]func(*state.Port){
		"another balance": func(p *state.Port) { p.Balance = state.HashClient },
		"affinity":        func(p *state.Port) { p.Affinity = 1 },
	} {
		s := service(endpoints(3))
		if change(&s.Ports[0]); c.Shares(s) != s {
			t.Errorf("%s: the record has changed", name)
		}
	}
	for _, n := range []int{0, 1, MaxEndpoints + 1} {
		s := service(endpoints(n))
		if got := c.Shares(s); got != s {
			t.Errorf("%d endpoints: the record has changed", n)
		}
		if crowded := Crowded(&s.Ports[0], &s.Ports[0].Internal.Inside); crowded != (n > MaxEndpoints) {
			t.Errorf("%d endpoints are too many: %t", n, crowded)
		}
	}
	s := service(endpoints(MaxEndpoints))
	before := s.Ports[0].Internal.Inside.Endpoints[0]
	got := c.Shares(s)
	if p := &got.Ports[0]; &p.Internal.Inside.Endpoints[0] != &p.Internal.Outside.Endpoints[0] || s.Ports[0].Internal.Inside.Endpoints[0] != before {
		t.Error("equal routes are no longer one, or the record was changed")
	}
	if got.Features()&^state.Weights != state.Balances {
		t.Errorf("the record has the features %v", got.Features())
	}
}

// TestFollows: an endpoint that comes has the mean share, and those that stay keep theirs. A service that goes is forgotten. While shares are even, nothing
// is lost.
func TestFollows(t *testing.T) {
	c := &Controller{}
	list := endpoints(6)
	s := service(list[:5])
	for range 20 {
		c = c.Step([]*state.Service{s}, Counts{Endpoint{state.TCP, list[2].Addr}: 100})
	}
	few := slotsOf(t, c, s)
	c = c.Even()
	if even := slotsOf(t, c, s); slices.Max(even)-slices.Min(even) > 1 {
		t.Errorf("even shares are %v", even)
	}
	if again := slotsOf(t, &Controller{routes: c.routes}, s); !slices.Equal(again, few) || few[2] > few[1]/2 {
		t.Errorf("%v after even shares, %v before", again, few)
	}
	c = &Controller{routes: c.routes}
	more := slotsOf(t, c, service(list))
	if more[5] < 30 || more[2] > few[2] {
		t.Errorf("%v with one more, %v before", more, few)
	}
	counts := Counts{}
	Targets(counts, s)
	want := Counts{}
	for _, e := range list[:5] {
		want[Endpoint{state.TCP, e.Addr}] = 0
	}
	if !maps.Equal(counts, want) {
		t.Errorf("counted are %v", counts)
	}
	if c = c.Step(nil, nil); len(c.routes) != 0 {
		t.Errorf("%d routes are remembered of services that are gone", len(c.routes))
	}
}

// BenchmarkStep is a step of 100 services, and their shares.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var services []*state.Service
			counts := Counts{}
			for i := range 100 {
				s := service(endpoints(n))
				s.Name.Name = fmt.Sprint(i)
				services = append(services, s)
			}
			for _, e := range endpoints(n) {
				counts[Endpoint{state.TCP, e.Addr}] = rand.IntN(100)
			}
			c := &Controller{}
			for b.Loop() {
				c = c.Step(services, counts)
				for _, s := range services {
					c.Shares(s)
				}
			}
		})
	}
}
