package ejection

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/state"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}), 8080)
}

// service returns one with a port of TCP that ejects, and these endpoints.
func service(namespace, name string, endpoints ...int) *state.Service {
	slices.Sort(endpoints)
	var r state.Route
	r.Verdict = state.Forward
	for _, n := range endpoints {
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: at(n)})
	}
	return &state.Service{Name: state.ServiceName{Namespace: namespace, Name: name}, Ports: []state.Port{{
		Name: "p", Protocol: state.TCP, Family: state.IPv4, Ejection: true, Internal: state.Traffic{Inside: r, Outside: r},
	}}}
}

// play is the kernel, the network and the clock around a Watch, in steps of Period.
type play struct {
	t        testing.TB
	watch    *Watch
	now      time.Time
	services map[state.ServiceName]*state.Service
	// suspects have the time since when they are suspected. Endpoints in silent do not answer.
	suspects map[netip.AddrPort]time.Time
	silent   map[netip.AddrPort]bool
	probes   map[netip.AddrPort]time.Time
	timeout  time.Duration
	ejected  map[ruleset.PortEndpoint]bool
	// asked counts probes, and most is how many were under way at most.
	asked map[netip.AddrPort]int
	most  int
}

func newPlay(t testing.TB, services ...*state.Service) *play {
	p := &play{
		t: t, watch: New(), now: noon, services: map[state.ServiceName]*state.Service{}, suspects: map[netip.AddrPort]time.Time{},
		silent: map[netip.AddrPort]bool{}, probes: map[netip.AddrPort]time.Time{}, timeout: time.Second, ejected: map[ruleset.PortEndpoint]bool{},
		asked: map[netip.AddrPort]int{},
	}
	for _, s := range services {
		p.services[s.Name] = s
	}
	return p
}

// silence makes endpoints silent, and suspected: a client has sent its SYN a second time.
func (p *play) silence(endpoints ...int) {
	for _, n := range endpoints {
		p.silent[at(n)] = true
		p.suspect(n)
	}
}

func (p *play) suspect(endpoints ...int) {
	for _, n := range endpoints {
		if _, is := p.suspects[at(n)]; !is {
			p.suspects[at(n)] = p.now
		}
	}
}

// step ends the probes that are due, and lets the watch decide.
func (p *play) step() Output {
	in := Input{Now: p.now, Services: p.services, Probes: true}
	for addr, began := range p.probes {
		switch {
		case !p.silent[addr]:
			in.Results = append(in.Results, Result{addr, Answered})
			delete(p.suspects, addr) // its answer does that
		case p.now.Sub(began) >= p.timeout:
			in.Results = append(in.Results, Result{addr, Silent})
		default:
			continue
		}
		delete(p.probes, addr)
	}
	return p.stepWith(in)
}

func (p *play) stepWith(in Input) Output {
	for addr, since := range p.suspects {
		if age := p.now.Sub(since); age >= ruleset.SuspectTimeout {
			delete(p.suspects, addr)
		} else {
			in.Suspects = append(in.Suspects, ruleset.Suspect{Endpoint: addr, Age: age})
		}
	}
	out := p.watch.Step(in)
	for _, addr := range out.Probe {
		if _, is := p.probes[addr]; is {
			p.t.Fatalf("%v is probed twice at the same time", addr)
		}
		p.probes[addr] = p.now
		p.asked[addr]++
	}
	for _, addr := range out.Forget {
		delete(p.suspects, addr)
	}
	for _, of := range out.Ejected {
		if p.ejected[of] {
			p.t.Fatalf("%v is ejected twice", of)
		}
		p.ejected[of] = true
	}
	for _, of := range out.Returned {
		if !p.ejected[of] {
			p.t.Fatalf("%v returns, and was not ejected", of)
		}
		delete(p.ejected, of)
	}
	if p.most = max(p.most, len(p.probes)); p.most > MaxProbes {
		p.t.Fatalf("%d probes at a time", p.most)
	}
	if got := p.watch.Ejected(); len(got) != len(p.ejected) {
		p.t.Fatalf("%v is ejected, and the steps said %v", got, p.ejected)
	}
	for _, of := range out.Ejected {
		p.checkOthers(of)
	}
	return out
}

// checkOthers checks that a route of an endpoint that is ejected now has another one, which stays.
func (p *play) checkOthers(of ruleset.PortEndpoint) {
	s := p.services[of.Service]
	for _, r := range s.Ports[0].Routes() {
		has := slices.ContainsFunc(r.Endpoints, func(e state.Endpoint) bool { return e.Addr == of.Endpoint })
		if has && slices.ContainsFunc(r.Endpoints, func(e state.Endpoint) bool {
			return !p.ejected[ruleset.PortEndpoint{Service: of.Service, Port: of.Port, Endpoint: e.Addr}]
		}) {
			return
		}
	}
	p.t.Fatalf("%v is ejected, and no other endpoint of its routes is left", of)
}

// run makes steps for a time, and returns the endpoints that are ejected then, with the names of their services.
func (p *play) run(d time.Duration) string {
	for end := p.now.Add(d); p.now.Before(end); p.now = p.now.Add(Period) {
		p.step()
	}
	return p.out()
}

func (p *play) out() string {
	var list []string
	for _, of := range slices.SortedFunc(maps.Keys(p.ejected), ruleset.PortEndpoint.Compare) {
		b := of.Endpoint.Addr().As4()
		list = append(list, fmt.Sprintf("%s %d", of.Service.Name, int(b[2])<<8|int(b[3])))
	}
	return fmt.Sprint(list)
}

func (p *play) expect(when, got, want string) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("%s: %s ejected, want %s", when, got, want)
	}
}

// TestEjects: silent endpoints are ejected 1.5 s after their suspicion if another one answers, and return with their first answer, 5 s after the probe
// before at the latest.
func TestEjects(t *testing.T) {
	for _, c := range []struct {
		endpoints, silent []int
		want              string
	}{
		{[]int{1, 2}, []int{1}, "[web 1]"}, {[]int{1, 2, 3}, []int{2}, "[web 2]"}, {[]int{1, 2, 3}, []int{1, 2}, "[web 1 web 2]"},
		{[]int{1, 2, 3}, []int{1, 3}, "[web 1 web 3]"}, {[]int{1, 2, 3, 4, 5, 6, 7}, []int{1, 2, 3, 4, 5, 6}, "[web 1 web 2 web 3 web 4 web 5 web 6]"},
	} {
		p := newPlay(t, service("test", "web", c.endpoints...))
		p.silence(c.silent...)
		p.expect("before the timeout", p.run(p.timeout), "[]")
		p.expect("after it", p.run(2*Period), c.want)
		p.expect("later", p.run(time.Minute), c.want)
		if list := p.watch.Ejected(); !list[0].Since.Equal(noon) || list[0].Probes < 10 {
			t.Errorf("%+v, want since %v, and more probes", list[0], noon)
		}
		clear(p.silent)
		p.expect("after an answer", p.run(ReturnPeriod+2*Period), "[]")
	}
}

// TestNeverTheLast: an endpoint that is the only one of its route, or the only one that answers, stays, also if it becomes silent last.
func TestNeverTheLast(t *testing.T) {
	p := newPlay(t, service("test", "web", 1))
	p.silence(1)
	p.expect("the only one", p.run(time.Minute), "[]")
	if p.asked[at(1)] > 0 {
		t.Errorf("it is asked %d times, though nothing can follow", p.asked[at(1)])
	}
	p = newPlay(t, service("test", "web", 1, 2, 3))
	p.silence(1, 2, 3)
	for range 60 {
		p.suspect(1, 2, 3)
		p.expect("all are silent: our own network is broken", p.run(time.Second), "[]")
	}
	p = newPlay(t, service("test", "web", 1, 2))
	p.silence(1)
	p.expect("the first one", p.run(2*time.Second), "[web 1]")
	p.silence(2)
	for range 60 {
		p.suspect(2)
		p.expect("the second one", p.run(time.Second), "[web 1]")
	}
	p.silent[at(1)] = false
	p.suspect(2)
	p.run(ReturnPeriod + Period)
	p.suspect(2)
	p.expect("once the first one answers again", p.run(LongestPause+2*time.Second), "[web 2]")
}

// TestProbeDecides: no number of suspicions ejects an endpoint that answers the probe. This is what a flood of SYNs with a TCP MD5 option looks like,
// which the endpoint drops: it is suspected again after each answer.
func TestProbeDecides(t *testing.T) {
	p := newPlay(t, service("test", "web", 1, 2))
	for range 4 * 120 {
		p.suspect(1, 2)
		p.expect("it answers", p.run(Period), "[]")
	}
	// 1 + 2 + 4 + 8 + 16 s, and then every 30 s; each is also asked as the witness of the other.
	if n := p.asked[at(1)]; n > 20 {
		t.Errorf("it was asked %d times in two minutes", n)
	}
}

// TestPauses: the time between two probes of a suspect doubles up to 30 s, and begins again a minute after the last one.
func TestPauses(t *testing.T) {
	p := newPlay(t, service("test", "web", 1, 2))
	var gaps []time.Duration
	var last time.Time
	watch := func(d time.Duration) {
		for end := p.now.Add(d); p.now.Before(end); p.now = p.now.Add(Period) {
			p.suspect(1)
			if before := p.asked[at(1)]; true {
				p.step()
				if p.asked[at(1)] > before {
					if !last.IsZero() {
						gaps = append(gaps, p.now.Sub(last).Truncate(time.Second))
					}
					last = p.now
				}
			}
		}
	}
	watch(100 * time.Second)
	delete(p.suspects, at(1))
	p.run(LongestPause + forgetAfter + time.Second)
	last = time.Time{}
	watch(5 * time.Second)
	want := []time.Duration{1, 2, 4, 8, 16, 30, 30, 1, 2}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(gaps, want) {
		t.Errorf("pauses %v, want %v", gaps, want)
	}
}

// TestLateAnswer: an answer to a client takes the suspicion away while the probe waits. The endpoint is suspected again by another SYN before the probe
// ends, and is not ejected, because the suspicion is younger than the probe.
func TestLateAnswer(t *testing.T) {
	p := newPlay(t, service("test", "web", 1, 2))
	p.silence(1)
	p.run(2 * Period)
	delete(p.suspects, at(1))
	p.expect("the suspicion is gone", p.run(2*time.Second), "[]")
	p = newPlay(t, service("test", "web", 1, 2))
	p.silence(1)
	p.run(2 * Period)
	p.suspects[at(1)] = p.now
	p.expect("it is younger than the probe", p.run(time.Second), "[]")
}

// TestWitnessOfTheRoute: the other endpoint that answers must be in a route with the silent one, of a port that ejects. What another port has decided, also
// of another namespace, concerns this port only.
func TestWitnessOfTheRoute(t *testing.T) {
	web, other := service("test", "web", 1), service("test", "other", 2, 3)
	p := newPlay(t, web, other)
	p.silence(1)
	p.expect("another service answers", p.run(10*time.Second), "[]")

	split := service("test", "web", 1, 2)
	split.Ports[0].External.Inside = service("", "", 3).Ports[0].Internal.Inside
	p = newPlay(t, split)
	p.silence(1, 2)
	p.expect("an endpoint of another route answers", p.run(10*time.Second), "[]")
	p.silent[at(3)] = true
	p.suspect(3)
	p.expect("it is the only one of its route", p.run(10*time.Second), "[]")

	mine, theirs := service("attacker", "mine", 1, 9), service("victim", "theirs", 1, 2)
	theirs.Ports[0].Ejection = false
	p = newPlay(t, mine, theirs)
	p.silence(1)
	p.expect("only one of them ejects", p.run(10*time.Second), "[mine 1]")
	theirs.Ports[0].Ejection = true
	p = newPlay(t, mine, theirs)
	p.silence(1, 2)
	p.expect("no endpoint of the other one answers", p.run(10*time.Second), "[mine 1]")

	udp := service("test", "web", 1, 2)
	udp.Ports[0].Protocol = state.UDP
	p = newPlay(t, udp)
	p.silence(1)
	p.expect("a port of UDP", p.run(10*time.Second), "[]")
}

// TestGoneEndpoints: an endpoint that leaves its port, or whose port no longer ejects, is no longer ejected, and not asked.
func TestGoneEndpoints(t *testing.T) {
	for name, change := range map[string]func(*play){
		"the service is gone":       func(p *play) { clear(p.services) },
		"the endpoint is gone":      func(p *play) { s := service("test", "web", 2, 3); p.services[s.Name] = s },
		"the port no longer ejects": func(p *play) { s := service("test", "web", 1, 2); s.Ports[0].Ejection = false; p.services[s.Name] = s },
		"the port has another name": func(p *play) { s := service("test", "web", 1, 2); s.Ports[0].Name = "q"; p.services[s.Name] = s },
		"the port is of another family": func(p *play) {
			s := service("test", "web", 1, 2)
			s.Ports[0].Family = state.IPv6
			p.services[s.Name] = s
		},
	} {
		p := newPlay(t, service("test", "web", 1, 2))
		p.silence(1)
		p.expect(name+" not yet", p.run(2*time.Second), "[web 1]")
		change(p)
		delete(p.suspects, at(1))
		p.expect(name, p.run(Period), "[]")
		asked := p.asked[at(1)]
		p.run(3 * time.Minute)
		if len(p.watch.endpoints) > 0 || p.asked[at(1)] > asked+1 || !p.watch.IsIdle() {
			t.Errorf("%s: %d endpoints are remembered, and it is asked %d times more", name, len(p.watch.endpoints), p.asked[at(1)]-asked)
		}
	}
}

// TestForgets: suspects from which nothing can follow are taken out of the kernel's set, so that they do not fill it.
func TestForgets(t *testing.T) {
	p := newPlay(t, service("test", "web", 1, 2), service("test", "single", 3))
	p.suspect(2, 3)
	p.suspect(slices.Collect(func(yield func(int) bool) {
		for i := range 4000 {
			if !yield(1000 + i) {
				return
			}
		}
	})...)
	p.step()
	if len(p.suspects) != 1 || p.probes[at(2)].IsZero() {
		t.Errorf("%d suspects are left, and probes %v", len(p.suspects), p.probes)
	}
}

// TestFullShares: a namespace whose endpoints are all silent, and suspected in any number, does not keep the endpoints of another one from being asked, and from
// returning. Probes of one kind leave room for the other.
func TestFullShares(t *testing.T) {
	var many []int
	for i := range 500 {
		many = append(many, 1000+i)
	}
	p := newPlay(t, service("attacker", "many", many...), service("test", "web", 1, 2))
	for _, n := range many {
		p.silent[at(n)] = true
	}
	for range 40 {
		p.suspect(many...)
		p.run(Period)
	}
	p.silence(1)
	for range 6 {
		p.suspect(many...)
		p.run(Period)
	}
	p.expect("1.5 s after its suspicion", p.out(), "[web 1]")
	delete(p.silent, at(1))
	for range 21 {
		p.suspect(many...)
		p.run(Period)
	}
	p.expect("after the period of return", p.out(), "[]")
}

// TestMostEjected: no more than 1,024 endpoints are ejected, and 512 of a namespace.
func TestMostEjected(t *testing.T) {
	var services []*state.Service
	var all []int
	for n := range 3 {
		var endpoints []int
		for i := range 700 {
			endpoints = append(endpoints, 1+n*1000+i)
		}
		services = append(services, service(fmt.Sprint("n", n), "web", endpoints...))
		all = append(all, endpoints[1:]...)
	}
	p := newPlay(t, services...)
	for _, n := range all {
		p.silent[at(n)] = true
	}
	p.timeout = Period
	for i, more := 0, 10; i < 600 && more > 0; i++ {
		if len(p.ejected) >= MaxEjected {
			more--
		}
		clear(p.suspects)
		for addr := range p.probes {
			p.suspects[addr] = p.now.Add(-time.Second)
		}
		for j := range 40 {
			p.suspect(all[(i*40+j)%len(all)])
		}
		p.run(Period)
	}
	by := map[string]int{}
	for of := range p.ejected {
		by[of.Service.Namespace]++
	}
	if len(p.ejected) != MaxEjected || slices.Max(slices.Collect(maps.Values(by))) > MaxNamespaceEjected {
		t.Errorf("%d are ejected, %v", len(p.ejected), by)
	}
	// Memory is bounded by the probes of some minutes.
	if n := len(p.watch.endpoints); n > MaxEjected+4*100*MaxProbes {
		t.Errorf("%d endpoints are remembered", n)
	}
	for addr := range p.silent {
		delete(p.silent, addr)
	}
	clear(p.suspects)
	p.run(2 * time.Minute)
	if len(p.ejected) > 0 || p.watch.probes != 0 || p.watch.kinds != [2]int{} || len(p.watch.spaces)+len(p.watch.ejecting) > 0 || p.watch.ejected != 0 {
		t.Errorf("%d are still ejected: %+v", len(p.ejected), p.watch)
	}
}

// TestMostOfNamespace: the ejected endpoints of a namespace leave room for other namespaces.
func TestMostOfNamespace(t *testing.T) {
	var all []int
	for i := range 700 {
		all = append(all, 1+i)
	}
	p := newPlay(t, service("test", "web", all...))
	for _, n := range all[1:] {
		p.silent[at(n)] = true
	}
	p.timeout = Period
	for i := 0; i < 400 && len(p.ejected) <= MaxNamespaceEjected; i++ {
		for j := range 40 {
			p.suspect(all[1+(i*40+j)%699])
		}
		p.run(Period)
	}
	if len(p.ejected) != MaxNamespaceEjected {
		t.Errorf("%d are ejected", len(p.ejected))
	}
}

// TestFailedProbes: a probe that could not be sent says nothing.
func TestFailedProbes(t *testing.T) {
	p := newPlay(t, service("test", "web", 1, 2))
	p.suspect(1)
	p.step()
	p.now = p.now.Add(time.Second)
	in := Input{Now: p.now, Services: p.services, Probes: true}
	for addr := range p.probes {
		in.Results = append(in.Results, Result{addr, Failed})
	}
	clear(p.probes)
	p.stepWith(in)
	p.expect("probes failed", p.out(), "[]")
	if len(p.probes) > 0 || !p.watch.IsIdle() {
		t.Errorf("probes %v right after the failure", p.probes)
	}
}

// TestHistories: random histories keep the bounds, which play checks in each step: no route loses its last endpoint, only suspects are ejected, and nobody
// is once all answer.
func TestHistories(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 4))
		p := newPlay(t)
		for range 2000 {
			switch n := 1 + rng.IntN(12); rng.IntN(8) {
			case 0:
				var endpoints []int
				for i := range 12 {
					if rng.IntN(3) == 0 {
						endpoints = append(endpoints, i+1)
					}
				}
				s := service(fmt.Sprint("n", rng.IntN(2)), fmt.Sprint("s", rng.IntN(3)), endpoints...)
				if rng.IntN(3) == 0 && len(endpoints) > 1 {
					s.Ports[0].External.Inside = state.Route{Verdict: state.Forward, Endpoints: s.Ports[0].Internal.Inside.Endpoints[:1]}
				}
				p.services[s.Name] = s
			case 1:
				p.silent[at(n)] = true
			case 2:
				delete(p.silent, at(n))
			case 3:
				p.suspect(n)
			case 4:
				delete(p.suspects, at(n))
			}
			before := maps.Clone(p.ejected)
			suspects := maps.Clone(p.suspects)
			p.step()
			for of := range p.ejected {
				if _, suspected := suspects[of.Endpoint]; !before[of] && (!suspected || !p.silent[of.Endpoint]) {
					t.Fatalf("seed %d: %v is ejected: suspected %v, silent %v", seed, of, suspected, p.silent[of.Endpoint])
				}
			}
			p.now = p.now.Add(time.Duration(rng.IntN(400)) * time.Millisecond)
		}
		clear(p.silent)
		if got := p.run(time.Minute); got != "[]" {
			t.Errorf("seed %d: %s are ejected, though all answer", seed, got)
		}
	}
}
