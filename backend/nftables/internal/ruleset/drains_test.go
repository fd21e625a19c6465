//go:build linux

package ruleset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// newDrainer is a resetter for deadlines only.
func newDrainer() *resetter {
	r := &resetter{NewMirror(), NewResets(0), noon}
	r.resets.UseDeadlines()
	return r
}

// deadlines returns the ways to endpoints with a deadline, each with the seconds from noon on.
func (r *resetter) deadlines() map[string]int {
	all := map[string]int{}
	for w, v := range r.resets.drains.held.all() {
		all[fmt.Sprintf("%v>%v", w.frontend.addrPort(), w.endpoint.addrPort())] = int(v.deadline.Sub(noon) / time.Second)
	}
	return all
}

func (r *resetter) expectDeadlines(t *testing.T, when string, want map[string]int) {
	t.Helper()
	if got := r.deadlines(); !maps.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", when, got, want)
	}
}

func draining(p state.Port, seconds uint32, lingering ...state.Endpoint) state.Port {
	p.DrainSeconds, p.Lingering = seconds, lingering
	return p
}

// TestDeadlines goes through the ways in which an endpoint ceases to get connections of a service, and gets them again.
func TestDeadlines(t *testing.T) {
	one, two, three := endpointsOf(state.IPv4, 1, 1), endpointsOf(state.IPv4, 1, 2), endpointsOf(state.IPv4, 1, 3)
	const a3, a2 = "10.96.0.1:80>10.244.0.3:8080", "10.96.0.1:80>10.244.0.2:8080"
	const b3 = "10.96.0.2:80>10.244.0.3:8080"
	remove := func(name string) *state.Update {
		u := delta()
		u.Removed = append(u.Removed, serviceOf(name).Name)
		return u
	}
	a := func(seconds uint32, internal, external []state.Endpoint, lingering ...state.Endpoint) *state.Service {
		return serviceOf("a", draining(tcpPort(1, internal, external), seconds, lingering...))
	}
	b := func(seconds uint32, to []state.Endpoint) *state.Service {
		return serviceOf("b", draining(tcpPort(2, to, to), seconds))
	}
	r := newDrainer()
	none := map[string]int{}
	r.apply(delta(a(30, three, three), b(0, three)))
	r.apply(delta(a(30, two, three)))
	r.expectDeadlines(t, "it is in another route of the port", none)
	r.apply(delta(a(30, two, two, three[2])))
	r.expectDeadlines(t, "it has left a service, and is in another one", map[string]int{a3: 30})
	r.now = noon.Add(10 * time.Second)
	r.apply(delta(a(60, two, two)))
	r.expectDeadlines(t, "the endpoint no longer serves, and the deadline of others changes", map[string]int{a3: 30})
	r.apply(delta(b(0, two)))
	r.expectDeadlines(t, "it leaves a service without a deadline", map[string]int{a3: 30})
	r.apply(delta(a(60, three, two)))
	r.expectDeadlines(t, "it is back", none)
	r.apply(delta(a(60, two, two, three[2])))
	r.expectDeadlines(t, "it leaves again", map[string]int{a3: 70})
	r.apply(delta(a(0, two, two)))
	r.expectDeadlines(t, "the annotation is removed", none)
	r.apply(delta(a(5, one, one), b(20, three)))
	r.expectDeadlines(t, "the annotation comes with the change", map[string]int{a2: 15})
	u := remove("b")
	u.Changed = delta(serviceOf("c", tcpPort(2, three, three))).Changed
	r.apply(u)
	r.expectDeadlines(t, "another service takes its frontends over, with the endpoints", map[string]int{a2: 15})
	u = remove("c")
	u.Changed = delta(b(20, three)).Changed
	r.apply(u)
	r.apply(remove("b"))
	want := map[string]int{a2: 15, b3: 30, "10.96.0.2:80>10.244.0.1:8080": 30, "10.96.0.2:80>10.244.0.2:8080": 30}
	r.expectDeadlines(t, "a service is deleted", want)
	r.apply(delta(b(0, three[2:])))
	delete(want, b3)
	r.expectDeadlines(t, "it is there again with one of the endpoints", want)
	udp := draining(tcpPort(3, three, three), 20)
	udp.Protocol = state.UDP
	r.apply(delta(serviceOf("d", udp)))
	r.apply(remove("d"))
	r.expectDeadlines(t, "UDP has no connections to reset", want)
	r.now = noon.Add(30*time.Second + GoneTimeout)
	r.resets.Expire(r.now).Commit()
	r.expectDeadlines(t, "after the time-out", none)
	if s := &r.resets.drains.state[0]; s.count != 0 || len(s.namespaces) != 0 || len(r.resets.Exists()) != 0 {
		t.Errorf("left over: %+v, %v", s, r.resets.Exists())
	}
	if len(r.resets.serving) != 0 || len(r.resets.left) != 0 || len(r.resets.gone) != 0 {
		t.Error("endpoints without a deadline are counted")
	}
}

// TestDeadlinesOfNodePorts: connections to NodePorts came to an address that served them.
func TestDeadlinesOfNodePorts(t *testing.T) {
	two := endpointsOf(state.IPv4, 1, 2)
	r := newDrainer()
	show := func(u *state.Update, nodePorts ...string) {
		var list []netip.Addr
		for _, a := range nodePorts {
			list = append(list, netip.MustParseAddr(a))
		}
		p := r.mirror.Change(testSettings(), u, list)
		s := r.resets.After(p, nil)
		r.resets.Clear(s, r.now).Commit()
		r.mirror = p.Commit()
		s.Commit()
		change, _ := r.resets.Lost(r.now)
		change.Commit()
	}
	service := func(n int) *state.Update { return delta(serviceOf("a", draining(tcpPort(1, two[:n], two[:n]), 9))) }
	show(service(2), "192.0.2.1", "192.0.2.2", "2001:db8::1")
	show(service(1), "192.0.2.1", "2001:db8::1")
	r.expectDeadlines(t, "gone", map[string]int{
		"10.96.0.1:80>10.244.0.2:8080": 9, "192.0.2.1:30001>10.244.0.2:8080": 9, "192.0.2.2:30001>10.244.0.2:8080": 9,
	})
	show(service(2), "192.0.2.1")
	r.expectDeadlines(t, "back, when the node has lost an address", map[string]int{})
}

// TestDeadlinesOfHistories compares random histories with the definition: a way that was open and is closed by a change has the deadline of its
// service, until it is open again.
func TestDeadlinesOfHistories(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		some := func() (list []state.Endpoint) {
			for _, e := range endpointsOf(state.IPv4, 1, 5) {
				if rng.IntN(2) == 0 {
					list = append(list, e)
				}
			}
			return list
		}
		services := map[string]state.Port{}
		open := func() map[string]bool {
			all := map[string]bool{}
			for _, p := range services {
				for _, r := range p.Routes() {
					for _, e := range r.Endpoints {
						all[fmt.Sprintf("%v:80>%v", p.Frontends[0].Addr, e.Addr)] = true
					}
				}
			}
			return all
		}
		r, want := newDrainer(), map[string]int{}
		for step := range 40 {
			r.now = r.now.Add(time.Second)
			was, u := open(), delta()
			seconds, kept := map[string]uint32{}, map[string]bool{} // by frontend; whether a frontend had and has its port
			for n := range 3 {
				name := fmt.Sprint(n)
				before, had := services[name]
				switch rng.IntN(3) {
				case 0:
					if had {
						u.Removed = append(u.Removed, serviceOf(name).Name)
						seconds[before.Frontends[0].Addr.String()] = before.DrainSeconds
						delete(services, name)
					}
				case 1:
					p := draining(tcpPort(n, some(), some()), uint32(rng.IntN(2)*rng.IntN(9)))
					p.Frontends = p.Frontends[:1]
					p.External = state.Traffic{Inside: p.External.Inside, Outside: p.External.Outside, Masquerade: p.External.Masquerade}
					seconds[p.Frontends[0].Addr.String()], kept[p.Frontends[0].Addr.String()] = p.DrainSeconds, had
					services[name] = p
					u.Changed = append(u.Changed, serviceOf(name, p))
				}
			}
			r.apply(u)
			now := open()
			for w := range was {
				frontend := w[:len("10.96.0.0")]
				if _, held := want[w]; !now[w] && !held && seconds[frontend] > 0 {
					want[w] = int(r.now.Add(time.Duration(seconds[frontend])*time.Second).Sub(noon) / time.Second)
				}
			}
			maps.DeleteFunc(want, func(w string, _ int) bool { return now[w] })
			if got := r.deadlines(); !maps.Equal(got, want) {
				t.Fatalf("seed %d, step %d: got %v, want %v", seed, step, got, want)
			}
		}
	}
}

// TestDeadlineBudgets: no namespace takes more than its part of the elements.
func TestDeadlineBudgets(t *testing.T) {
	r := newDrainer()
	many := make([]state.Endpoint, MaxDrained)
	for i := range many {
		many[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
	}
	show := func(namespace string, n, count int) *state.Update {
		p := draining(tcpPort(n, nil, nil), 30)
		p.Frontends = p.Frontends[:1]
		p.Internal = state.Traffic{Inside: state.Route{Verdict: state.Reject}, Outside: state.Route{Verdict: state.Reject}}
		if count > 0 {
			p.Internal = state.Traffic{Inside: forward(many[:count]), Outside: forward(many[:count])}
		}
		s := serviceOf("s", p)
		s.Name.Namespace = namespace
		return delta(s)
	}
	for n := range 6 {
		namespace := fmt.Sprint("ns", n)
		count := MaxDrainedOf
		if n == 0 {
			count += 3
		}
		r.apply(show(namespace, n, count))
		r.apply(show(namespace, n, 0))
		held, dropped := min((n+1)*MaxDrainedOf, MaxDrained), 3+max(0, (n-3)*MaxDrainedOf)
		if got := r.resets.drains.state[0].count; got != held || r.resets.Dropped.Deadlines != dropped {
			t.Errorf("namespace %d: %d deadlines, %d dropped, want %d and %d", n, got, r.resets.Dropped.Deadlines, held, dropped)
		}
	}
	r.apply(show("ns1", 1, MaxDrainedOf))
	r.apply(show("ns4", 4, 1))
	r.apply(show("ns4", 4, 0))
	if got := r.resets.drains.state[0].namespaces; got["ns1"] != 0 || got["ns4"] != 1 {
		t.Errorf("what is back makes no room: %v", got)
	}
}

// TestInheritedDeadlineBudgets: a restart keeps the deadlines that are in the kernel, but a namespace has no more than its part of them.
func TestInheritedDeadlineBudgets(t *testing.T) {
	r := newDrainer()
	in := Found{Family: state.IPv4, Elems: map[string][]nft.Elem{}}
	const surplus, few = 3, 2
	for i := range MaxDrainedOf + surplus + few {
		namespace := "many"
		if i < few {
			namespace = "few"
		}
		w := way{endpointKeyOf(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)), endpointKeyOf(netip.MustParseAddrPort("10.96.0.1:80"))}
		in.Elems[SetDrained] = append(in.Elems[SetDrained], nft.Elem{Key: w.key(), Expires: millis(time.Hour), Comment: namespace + "/s"})
		in.Elems[SetDraining] = append(in.Elems[SetDraining], nft.Elem{Key: w.key(), Expires: millis(time.Minute)})
	}
	for range 2 { // what is held already takes no more room
		p := r.resets.Compare(&Serving{r: r.resets}, []Found{in}, true, r.now)
		if len(p.delDrained) != surplus {
			t.Errorf("%d deadlines are deleted, want %d", len(p.delDrained), surplus)
		}
	}
	if s := r.resets.drains.state[0]; !maps.Equal(s.namespaces, map[string]int{"many": MaxDrainedOf, "few": few}) || s.count != MaxDrainedOf+few {
		t.Errorf("deadlines of namespaces: %v, %d in all", s.namespaces, s.count)
	}
	if got := r.resets.Dropped.Deadlines; got != 2*surplus {
		t.Errorf("%d deadlines are counted as dropped, want %d", got, 2*surplus)
	}
}

// TestWayKeys: keys of both families are as wide as the keys of the sets, and lead back.
func TestWayKeys(t *testing.T) {
	for _, f := range families {
		list := endpointsOf(f, 7, 2)
		w := way{endpointKeyOf(list[0].Addr), endpointKeyOf(list[1].Addr)}
		if back, ok := wayOf(f, w.key()); !ok || back != w || w.family() != f {
			t.Errorf("%v becomes %v", w, back)
		}
		sets := resetSets(f, resetRules{drains: true})
		if len(sets) != 2 || len(w.key()) != nft.Width(sets[0].Key) || !slices.Equal(sets[0].Key, sets[1].Key) {
			t.Errorf("%v: keys have %d bytes, sets are %v", f, len(w.key()), sets)
		}
		if _, ok := wayOf(f, w.key()[1:]); ok {
			t.Error("a short key is taken")
		}
	}
}
