package ruleset

import "github.com/switchyard-net/switchyard/state"

// everything is how far to reach for all that is expected.
func everything(want Desired) int { return len(want.Services) + 1 }

// expectation yields the elements that the kernel most likely holds: the elements of the state, in slots that are filled without gaps.
// Other elements take longer to read.
type expectation struct {
	previous *Mirror
	// kernel has the small sets of the kernel, which have the classes of weighted routes.
	kernel *kernelState
	want   Desired
	p      *Plan
	at     int // of everything(want)
}

// expect returns the expected contents of the kernel before the comparison.
func expect(s *Settings, previous *Mirror, ks *kernelState, want Desired) expectation {
	p := newPlan(s, previous, NewMirror())
	for i := range ks.tables {
		if sk := ks.tables[i].skeleton; sk != nil {
			p.shape.merge(shapeOf(ks.tables[i].family, sk.Sets()))
		}
	}
	p.reserve(want.Services, previous)
	return expectation{previous: previous, kernel: ks, want: want, p: p}
}

func (x *expectation) more() bool { return x.at < everything(x.want) }

// next returns the next service or, after the last one, the node ports, and all its elements, which are valid until next is called again.
func (x *expectation) next() (expected, *renderer) {
	at, r := x.at, &x.p.new
	x.at++
	r.reset()
	if at == len(x.want.Services) {
		r.own = append(r.own, nodePortElements(x.want.NodePorts)...)
		return expected{isOther: true}, r
	}
	s := x.want.Services[at]
	previous := x.previous.services[s.Name]
	before := previous
	if shared := x.p.shared(s); before.record == nil && shared.Features()&state.Weights != 0 {
		before = x.kernel.fromKernel(shared)
	}
	next := expected{
		applied: x.p.lay(s, &before, previous.numbers, func(s *state.Service) []placement { return placeService(before, s) }),
		// Preserved elements may be anywhere in a set.
		isOther: !x.want.Preserved.none(),
	}
	if previous.record == nil && next.fillHoles() {
		next.isOther = true
	}
	r.whole(&next.applied)
	return next, r
}
