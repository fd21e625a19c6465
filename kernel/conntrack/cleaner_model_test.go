package conntrack

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// world is a random node: services come and go, clients send, the table fails now and then. Like the Cleaner, it
// keeps the rule, but in the plainest form: who may answer which destination, by going through everything.
type world struct {
	r        *rand.Rand
	table    *fakeTable
	cleaner  *Cleaner
	services map[int]*state.Service
	// vanished are the destinations that were frontends at some time since all was clean; they count if they are none now.
	vanished map[netip.AddrPort]bool
	clients  int
	// answers are the answers of answering since the last change.
	answers map[netip.AddrPort]answer
	// queue has what has been committed and not noted.
	queue []change
}

// answer is who may answer flows to a destination. It exists if it is a frontend, and is single if that is no range.
type answer struct {
	endpoints      []netip.AddrPort
	exists, single bool
}

// change is the change of one service in a commit.
type change struct{ old, new *state.Service }

func newWorld(seed uint64) *world {
	w := &world{
		r: rand.New(rand.NewPCG(seed, 1)), table: &fakeTable{old: seed%4 == 0}, services: map[int]*state.Service{},
		vanished: map[netip.AddrPort]bool{}, answers: map[netip.AddrPort]answer{},
	}
	w.cleaner = newCleaner(w.table)
	return w
}

// destinations are all that clients send to: VIPs, a NodePort on two addresses that serve it, and on one that does not.
var destinations = func() []netip.AddrPort {
	var all []netip.AddrPort
	for i := range 40 {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i / 2)}), uint16(53+i%2)))
		all = append(all, netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 15: byte(i / 2)}), uint16(53+i%2)))
	}
	for i := range 4 {
		for _, addr := range []string{"192.168.0.1", "192.168.0.2", "fd00::1"} {
			all = append(all, netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(30000+i)))
		}
	}
	return all
}()

func (w *world) answering(dst netip.AddrPort) answer {
	a, known := w.answers[dst]
	if !known {
		if a = w.served(dst, false); !a.exists {
			a = w.served(dst, true)
		}
		w.answers[dst] = a
	}
	return a
}

// served returns who may answer flows to a single port, or to a range.
func (w *world) served(dst netip.AddrPort, byRange bool) (a answer) {
	for _, s := range w.services {
		for _, p := range s.Ports {
			for _, f := range p.Frontends {
				byAddr := f.Addr == dst.Addr() && f.Port <= dst.Port() && dst.Port() <= max(f.Port, f.LastPort)
				byNodePort := f.Kind == state.NodePort && f.Port == dst.Port() && state.FamilyOf(dst.Addr()) == p.Family && slices.Contains(nodePortAddrs, dst.Addr())
				if p.Protocol != state.UDP || byRange != (f.LastPort != 0) || !byAddr && !byNodePort {
					continue
				}
				a.exists, a.single = true, !byRange
				all := slices.Clone(p.Lingering)
				for _, route := range []state.Route{p.Internal.Inside, p.Internal.Outside, p.External.Inside, p.External.Outside} {
					all = append(all, route.Endpoints...)
				}
				for _, e := range all {
					if byRange {
						e.Addr = netip.AddrPortFrom(e.Addr.Addr(), dst.Port())
					}
					a.endpoints = append(a.endpoints, e.Addr)
				}
			}
		}
	}
	return a
}

func (w *world) endpoints(family state.Family, port uint16) []state.Endpoint {
	var list []state.Endpoint
	for i := range 3 {
		if w.r.IntN(2) == 0 {
			continue
		}
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		if family == state.IPv6 {
			addr = netip.AddrFrom16([16]byte{0xfd, 1, 15: byte(i)})
		}
		list = append(list, state.Endpoint{Addr: netip.AddrPortFrom(addr, port)})
	}
	return list
}

// service makes a random service of destinations that are free.
func (w *world) service(id int, free []netip.AddrPort) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: fmt.Sprint(id)}}
	protocol := state.UDP
	if w.r.IntN(8) == 0 {
		protocol = state.TCP
	}
	taken := map[state.FrontendKey]bool{}
	for range 1 + w.r.IntN(3) {
		if len(free) == 0 {
			break
		}
		dst := free[w.r.IntN(len(free))]
		f := state.Frontend{Kind: state.ClusterIP, Addr: dst.Addr(), Port: dst.Port()}
		if dst.Port() >= 30000 {
			if !slices.Contains(nodePortAddrs, dst.Addr()) {
				continue // free for ever
			}
			f = state.Frontend{Kind: state.NodePort, Port: dst.Port()}
		}
		key := state.FrontendKey{Family: state.FamilyOf(dst.Addr()), Addr: f.Addr, Port: f.Port}
		port := uint16(53)
		if dst.Port() == 53 && w.r.IntN(3) == 0 && !w.hasRange(dst.Addr()) { // and the next port
			f.LastPort, key.LastPort, port = 54, 54, 0
		}
		if taken[key] {
			continue
		}
		taken[key] = true
		p := state.Port{Name: fmt.Sprint(dst), Protocol: protocol, Family: state.FamilyOf(dst.Addr()), Frontends: []state.Frontend{f}}
		p.Internal.Inside.Endpoints = w.endpoints(p.Family, port)
		p.Internal.Outside.Endpoints = w.endpoints(p.Family, port)
		p.External.Inside.Endpoints = w.endpoints(p.Family, port)
		p.External.Outside.Endpoints = w.endpoints(p.Family, port)
		if w.r.IntN(2) == 0 {
			p = state.Port{Name: p.Name, Protocol: p.Protocol, Family: p.Family, Frontends: p.Frontends}
		}
		if w.r.IntN(4) == 0 {
			p.Lingering = w.endpoints(p.Family, port)
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

func (w *world) hasRange(addr netip.Addr) bool {
	for _, s := range w.services {
		for _, f := range s.Frontends() {
			if f.LastPort != 0 && f.Addr == addr {
				return true
			}
		}
	}
	return false
}

// commit changes some services, but none for which a commit waits.
func (w *world) commit(changes int) {
	for _, dst := range destinations {
		if w.answering(dst).exists {
			w.vanished[dst] = true
		}
	}
	before := map[int]*state.Service{}
	for range changes {
		id := w.r.IntN(30)
		if _, seen := before[id]; seen {
			continue
		}
		old := w.services[id]
		before[id] = old
		delete(w.services, id)
		clear(w.answers)
		var s *state.Service
		if w.r.IntN(3) != 0 {
			var free []netip.AddrPort
			for _, dst := range destinations {
				if !w.answering(dst).single {
					free = append(free, dst)
				}
			}
			s = w.service(id, free)
		}
		if w.cleaner.Removing(old, s) != nil {
			s = old
		}
		if s != nil {
			w.services[id] = s
		}
		clear(w.answers)
	}
	for id, old := range before { // in any order
		w.queue = append(w.queue, change{old, w.services[id]})
	}
}

// note lets the Cleaner know of what has been committed.
func (w *world) note() {
	for _, c := range w.queue {
		w.cleaner.Note(c.old, c.new)
	}
	w.queue = nil
}

// send makes flows as a dataplane would: to an endpoint, or past the proxy if the destination is no frontend. After a failure
// nothing goes past it, because the Cleaner may or may not have looked at that destination already.
func (w *world) send(past bool) {
	for _, dst := range destinations {
		a := w.answering(dst)
		endpoints := a.endpoints
		if !a.exists && past {
			endpoints = []netip.AddrPort{dst}
		}
		if len(endpoints) == 0 || w.r.IntN(2) == 0 {
			continue
		}
		w.clients++
		f := flow(dst.String(), endpoints[w.r.IntN(len(endpoints))].String())
		f.Orig.Src = netip.AddrPortFrom(f.Orig.Src.Addr(), uint16(w.clients))
		f.Reply.Dst = f.Orig.Src
		if w.r.IntN(10) == 0 {
			f.Protocol = state.TCP
		}
		w.table.flows = append(w.table.flows, f)
	}
}

// wrong is the rule: whether a flow must be deleted.
func (w *world) wrong(f Flow) bool {
	a := w.answering(f.Orig.Dst)
	if f.Protocol != state.UDP || slices.Contains(a.endpoints, f.Reply.Src) {
		return false
	}
	return a.exists || w.vanished[f.Orig.Dst]
}

// right returns the flows that the rule leaves.
func (w *world) right() []Flow {
	return slices.DeleteFunc(slices.Clone(w.table.flows), w.wrong)
}

func (w *world) restart() {
	w.cleaner = newCleaner(w.table)
	w.commit(1 + w.r.IntN(5))
	w.queue = nil
	clear(w.vanished) // nobody knows of them
	// A range leaves flows alone that somebody else may have translated: those to another port, and those from before the range.
	w.table.flows = slices.DeleteFunc(w.table.flows, func(f Flow) bool {
		a, dst, src := w.answering(f.Orig.Dst), f.Orig.Dst, f.Reply.Src
		return !a.single && src != dst && (!a.exists || src.Port() != dst.Port())
	})
	w.cleaner.NoteAll(func(yield func(*state.Service) bool) {
		for _, s := range w.services {
			if !yield(s) {
				return
			}
		}
	})
}

// without returns what is in a and not in b.
func without(a, b []Flow) []Flow {
	in := map[Flow]bool{}
	for _, f := range b {
		in[f] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(f Flow) bool { return in[f] })
}

func TestAgainstModel(t *testing.T) {
	listings, removals := 0, 0
	for seed := range uint64(100) {
		w := newWorld(seed)
		failed := false
		for round := range 15 {
			if !failed && w.r.IntN(10) == 0 {
				w.restart()
			} else {
				w.commit(1 + w.r.IntN(1+w.r.IntN(10)))
				w.note()
			}
			w.table.fail = func() bool { return w.r.IntN(100) == 0 }
			want := w.right()
			_, err := clean(t.Context(), w.cleaner)
			if failed = err != nil; !failed {
				w.check(t, seed, round, want)
			}
			w.send(!failed)
		}
		listings, removals = listings+len(w.table.filters), removals+len(w.table.removed)
	}
	if listings < 50 || removals < 50 {
		t.Errorf("%d listings and %d deletions by filter, want many of both", listings, removals)
	}
}

// check compares what is left with what the rule leaves.
func (w *world) check(t *testing.T, seed uint64, round int, want []Flow) {
	t.Helper()
	if tooMany, tooFew := without(w.table.flows, want), without(want, w.table.flows); len(tooMany)+len(tooFew) > 0 {
		t.Fatalf("seed %d, round %d:\nwrong and left %v\nright and cut %v", seed, round, tooMany, tooFew)
	}
	clear(w.vanished)
}

// TestCommitsDuringCleaning commits between all steps of a look, and while flows are deleted by filters. A flow must be
// wrong when it is deleted, and wrong flows must be gone after a look without commits.
func TestCommitsDuringCleaning(t *testing.T) {
	for seed := range uint64(30) {
		w := newWorld(seed)
		calm := false
		maybeCommit := func() {
			if !calm && w.r.IntN(3) == 0 {
				w.commit(1 + w.r.IntN(3))
			}
		}
		judge := func(fn func() error) error {
			maybeCommit()
			w.note()
			return fn()
		}
		table := &strictTable{t: t, w: w, deleting: maybeCommit}
		w.cleaner = newCleaner(table)
		for round := range 15 {
			w.commit(1 + w.r.IntN(1+w.r.IntN(10)))
			w.note()
			if _, err := w.cleaner.Clean(t.Context(), judge); err != nil {
				t.Fatal(err)
			}
			w.note()
			calm = true
			want := w.right()
			if _, err := clean(t.Context(), w.cleaner); err != nil {
				t.Fatal(err)
			}
			w.check(t, seed, round, want)
			w.send(true)
			calm = false
		}
	}
}

// strictTable fails if a flow is deleted that is right. deleting is called while flows are being deleted by a filter.
type strictTable struct {
	t        *testing.T
	w        *world
	deleting func()
}

func (s *strictTable) Flows(f Filter, each func([]Flow) error) error {
	return s.w.table.Flows(f, each)
}

func (s *strictTable) Delete(flows ...Flow) (int, error) {
	for _, f := range flows {
		s.mustBeWrong(f)
	}
	return s.w.table.Delete(flows...)
}

func (s *strictTable) DeleteAll(f Filter) (int, error) {
	s.deleting()
	for _, flow := range s.w.table.flows {
		if !s.w.table.old && f.Match(flow) {
			s.mustBeWrong(flow)
		}
	}
	return s.w.table.DeleteAll(f)
}

func (s *strictTable) mustBeWrong(f Flow) {
	if !s.w.wrong(f) {
		s.t.Errorf("right and cut %v", f)
	}
}
