package ruleset

import (
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

// edgeShape is a shape with classes of the edge view.
func edgeShape() *shape {
	s := &shape{edge: true}
	for _, sp := range []space{service, nodePort} {
		s.needs(state.IPv4, setID{space: sp, view: edge, kind: endpoints, arg: exactClass})
		s.needs(state.IPv4, setID{space: sp, view: edge, kind: shares, arg: shareClasses[1]})
	}
	return s
}

// TestShapeOfEdge: the shape of a restart follows from the sets. Without the edge there are none for it, also where an earlier process had some.
func TestShapeOfEdge(t *testing.T) {
	names := func(f state.Family, s *shape) (names []string) {
		for _, id := range setIDs(f, s) {
			names = append(names, id.name())
		}
		return names
	}
	for _, f := range families {
		s := edgeShape()
		all := names(f, s)
		if got := shapeOf(f, all); !got.equal(s) {
			t.Errorf("%v: the shape is %+v, and was %+v", f, got, *s)
		}
		off := newPlan(testSettings(), NewMirror(), NewMirror()).shape
		off.merge(*s)
		without := names(f, &off)
		if !slices.Equal(without, names(f, &shape{})) {
			t.Errorf("%v: without the edge there are sets %v", f, without)
		}
		of := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(without, name) })
		if len(of) == 0 || slices.ContainsFunc(of, func(name string) bool {
			return !strings.Contains(name, "edge-") && !strings.Contains(name, "handed-over")
		}) {
			t.Errorf("%v: the sets of the edge are %v", f, of)
		}
	}
}

// handedOverService is a service with an edge on this node.
func handedOverService(name string, n int, local state.Route, shares ...uint32) *state.Service {
	r := forward(endpointsOf(state.IPv4, 1, 9))
	p := state.Port{
		Name: "p", Protocol: state.TCP, Family: state.IPv4, Edge: &state.Edge{Local: local},
		Frontends: []state.Frontend{{Kind: state.LoadBalancer, Addr: addr("203.0.113.1"), Port: uint16(n)}, {Kind: state.NodePort, Port: uint16(30_000 + n)}},
		External:  state.Traffic{Inside: r, Outside: r, Masquerade: state.MasqueradeAlways},
	}
	for i, w := range shares {
		p.Edge.Shares = append(p.Edge.Shares, state.EdgeShare{Node: uint32(i), Weight: w})
	}
	return serviceOf(name, p)
}

// TestEdgeChanges: a change of the record changes the elements that it is about, and no others.
func TestEdgeChanges(t *testing.T) {
	three, two := forward(endpointsOf(state.IPv4, 1, 3)), forward(endpointsOf(state.IPv4, 1, 2))
	except, plain := handedOverService("web", 80, two, 1), handedOverService("web", 80, three)
	except.Ports[0].Edge.Except = state.KindsOf(state.NodePort)
	plain.Ports[0].Edge = nil
	for _, c := range []struct {
		name     string
		from, to *state.Service
		changes  int // of elements of both frontends
	}{
		{"nothing", handedOverService("web", 80, three, 1, 2), handedOverService("web", 80, three, 1, 2), 0},
		{"the shares", handedOverService("web", 80, three, 1, 2), handedOverService("web", 80, three, 2, 1, 1), 0},
		{"the first shares", handedOverService("web", 80, three), handedOverService("web", 80, three, 1), 2},
		{"the last share goes", handedOverService("web", 80, three, 1), handedOverService("web", 80, three), 2},
		{"an endpoint goes", handedOverService("web", 80, three, 1), handedOverService("web", 80, two, 1), 2 * 3}, // its slot, and the class
		{"the last endpoints go", handedOverService("web", 80, two, 1), handedOverService("web", 80, state.Route{Verdict: state.Drop}, 1), 2 * 4},
		{"the edge comes", plain, handedOverService("web", 80, two, 1), 2 * 4},
		{"the edge goes", handedOverService("web", 80, two, 1), plain, 2 * 4},
		{"a kind of frontends goes", handedOverService("web", 80, two, 1), except, 4},
	} {
		o := withTestEdge(testSettings())
		m := elementsOnly(NewMirror(), o, delta(c.from), nil).Commit()
		p := elementsOnly(m, o, delta(c.to), nil)
		if n := p.elements(); n != c.changes {
			t.Errorf("%s: %d elements change, want %d", c.name, n, c.changes)
		}
		for _, s := range p.order {
			if s.set.view != edge && s.set.kind != slots && s.set.kind != handedOver {
				t.Errorf("%s: set %s changes", c.name, s.set.name())
			}
		}
	}
}

// TestEdgeSlots: the slots of weights in the edge view count, too. A service without room for them shares its connections evenly in this view as well.
func TestEdgeSlots(t *testing.T) {
	const class = 64
	o := withTestEdge(testSettings())
	for frontends, fits := range map[int]bool{1: true, apportion.MaxServiceSlots / class: true, apportion.MaxServiceSlots/class + 1: false} {
		s := handedOverService("web", 80, weightedRoute(0, 3, 1), 1)
		p := &s.Ports[0]
		p.Frontends = nil
		for i := range frontends {
			p.Frontends = append(p.Frontends, state.Frontend{Kind: state.ExternalIP, Addr: addr("203.0.113.1"), Port: uint16(1 + i)})
		}
		m := elementsOnly(NewMirror(), o, delta(s), nil).Commit()
		want := frontends * class
		if a := m.services[s.Name]; fits != (a.slots == want) || fits != (a.lacks == 0) || fits != a.record.Ports[0].Edge.Local.Weighted() || m.Record(s.Name) != s {
			t.Errorf("%d frontends have %d slots of %d, and lack %d", frontends, a.slots, want, a.lacks)
		}
	}
}
