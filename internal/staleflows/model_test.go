package staleflows

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/internal/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// world is a random node: services come and go, clients send, the table fails now and then. Beside the Cleaner, it keeps
// the rule in the plainest form: who may answer which destination, by going through everything.
type world struct {
	r        *rand.Rand
	table    *fakeTable
	cleaner  *Cleaner
	services map[int]*state.Service
	// vanished are the destinations that were frontends at some time since all was clean; they count if they are none now.
	vanished map[netip.AddrPort]bool
	clients  int
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

// answering returns who may answer flows to dst; exists says whether it is a frontend.
func (w *world) answering(dst netip.AddrPort) (endpoints []netip.AddrPort, exists bool) {
	for _, s := range w.services {
		for _, p := range s.Ports {
			for _, f := range p.Frontends {
				byAddr := f.Addr == dst.Addr() && f.Port == dst.Port()
				byNodePort := f.Kind == state.NodePort && f.Port == dst.Port() && state.FamilyOf(dst.Addr()) == p.Family && nodePortAddr(dst.Addr())
				if p.Protocol != state.UDP || !byAddr && !byNodePort {
					continue
				}
				exists = true
				for _, route := range []state.Route{p.Internal.Inside, p.Internal.Outside, p.External.Inside, p.External.Outside} {
					for _, e := range route.Endpoints {
						endpoints = append(endpoints, e.Addr)
					}
				}
				for _, e := range p.Lingering {
					endpoints = append(endpoints, e.Addr)
				}
			}
		}
	}
	return endpoints, exists
}

func (w *world) endpoints(family state.Family) []state.Endpoint {
	var list []state.Endpoint
	for i := range 3 {
		if w.r.IntN(2) == 0 {
			continue
		}
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		if family == state.IPv6 {
			addr = netip.AddrFrom16([16]byte{0xfd, 1, 15: byte(i)})
		}
		list = append(list, state.Endpoint{Addr: netip.AddrPortFrom(addr, 53)})
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
			if !nodePortAddr(dst.Addr()) {
				continue // free for ever
			}
			f = state.Frontend{Kind: state.NodePort, Port: dst.Port()}
		}
		key := state.FrontendKey{Family: state.FamilyOf(dst.Addr()), Addr: f.Addr, Port: f.Port}
		if taken[key] {
			continue
		}
		taken[key] = true
		p := state.Port{Name: fmt.Sprint(dst), Protocol: protocol, Family: state.FamilyOf(dst.Addr()), Frontends: []state.Frontend{f}}
		p.Internal.Inside.Endpoints = w.endpoints(p.Family)
		p.Internal.Outside.Endpoints = w.endpoints(p.Family)
		p.External.Inside.Endpoints = w.endpoints(p.Family)
		p.External.Outside.Endpoints = w.endpoints(p.Family)
		if w.r.IntN(2) == 0 {
			p = state.Port{Name: p.Name, Protocol: p.Protocol, Family: p.Family, Frontends: p.Frontends}
		}
		if w.r.IntN(4) == 0 {
			p.Lingering = w.endpoints(p.Family)
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// commit changes some services, and notes it if the Cleaner is there to see it.
func (w *world) commit(changes int, note bool) {
	for _, dst := range destinations {
		if _, exists := w.answering(dst); exists {
			w.vanished[dst] = true
		}
	}
	before := map[int]*state.Service{}
	for range changes {
		id := w.r.IntN(30)
		if _, seen := before[id]; seen {
			continue
		}
		before[id] = w.services[id]
		delete(w.services, id)
		if w.r.IntN(3) == 0 {
			continue
		}
		var free []netip.AddrPort
		for _, dst := range destinations {
			if _, exists := w.answering(dst); !exists {
				free = append(free, dst)
			}
		}
		w.services[id] = w.service(id, free)
	}
	if note {
		for id, old := range before { // in any order
			w.cleaner.Note(old, w.services[id])
		}
	}
}

// send makes flows as a dataplane would: to an endpoint, or past the proxy if the destination is no frontend. After a failure
// nothing goes past it, because the Cleaner may or may not have looked at that destination already.
func (w *world) send(past bool) {
	for _, dst := range destinations {
		endpoints, exists := w.answering(dst)
		if !exists && past {
			endpoints = []netip.AddrPort{dst}
		}
		if len(endpoints) == 0 || w.r.IntN(2) == 0 {
			continue
		}
		w.clients++
		f := flow(dst.String(), endpoints[w.r.IntN(len(endpoints))].String())
		f.Orig.Src = netip.AddrPortFrom(f.Orig.Src.Addr(), uint16(w.clients))
		if w.r.IntN(10) == 0 {
			f.Protocol = state.TCP
		}
		w.table.flows = append(w.table.flows, f)
	}
}

// right returns the flows that the rule leaves.
func (w *world) right() []conntrack.Flow {
	var left []conntrack.Flow
	for _, f := range w.table.flows {
		endpoints, exists := w.answering(f.Orig.Dst)
		ok := slices.Contains(endpoints, f.Reply.Src)
		if !exists {
			ok = !w.vanished[f.Orig.Dst]
		}
		if ok || f.Protocol != state.UDP {
			left = append(left, f)
		}
	}
	return left
}

func (w *world) restart() {
	w.cleaner = New(w.table, Options{NodePortAddr: nodePortAddr})
	w.commit(1+w.r.IntN(5), false)
	clear(w.vanished) // nobody knows of them
	w.cleaner.NoteAll(func(yield func(*state.Service) bool) {
		for _, s := range w.services {
			if !yield(s) {
				return
			}
		}
	})
}

// without returns what is in a and not in b.
func without(a, b []conntrack.Flow) []conntrack.Flow {
	in := map[conntrack.Flow]bool{}
	for _, f := range b {
		in[f] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(f conntrack.Flow) bool { return in[f] })
}

func TestAgainstModel(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := &world{
			r: r, table: &fakeTable{}, services: map[int]*state.Service{}, vanished: map[netip.AddrPort]bool{},
		}
		w.cleaner = New(w.table, Options{NodePortAddr: nodePortAddr})
		failed := false
		for round := range 15 {
			if !failed && r.IntN(10) == 0 {
				w.restart()
			} else {
				w.commit(1+r.IntN(10), true)
			}
			w.table.fail = func() bool { return r.IntN(100) == 0 }
			want := w.right()
			_, err := w.cleaner.Clean(t.Context())
			if failed = err != nil; !failed {
				if tooMany, tooFew := without(w.table.flows, want), without(want, w.table.flows); len(tooMany)+len(tooFew) > 0 {
					t.Fatalf("seed %d, round %d:\nwrong and left %v\nright and cut %v", seed, round, tooMany, tooFew)
				}
				clear(w.vanished)
			}
			w.send(!failed)
		}
	}
}
