package ruleset

// everything is how far to reach for all that is expected.
func everything(want Desired) int { return len(want.Services) + 1 }

// expectation yields the elements that there most likely are: those that the state has, in slots that are filled without gaps. What it
// does not foresee takes longer to read.
type expectation struct {
	former *Mirror
	want   Desired
	p      *Plan
	at     int // of everything(want)
}

// expect returns what is expected in the kernel before it is compared.
func expect(s *Settings, former *Mirror, ks *kernelState, want Desired) expectation {
	p := newPlan(s, former, NewMirror())
	for i := range ks.tables {
		if sk := ks.tables[i].skeleton; sk != nil {
			p.shape.merge(shapeOf(ks.tables[i].family, sk.Sets()))
		}
	}
	p.keepNumbers(want.Services, former)
	return expectation{former: former, want: want, p: p}
}

func (x *expectation) more() bool { return x.at < everything(x.want) }

// next yields the elements of the next service or, after the last one, those of the node ports.
func (x *expectation) next(yield func(*element)) {
	at := x.at
	x.at++
	if at == len(x.want.Services) {
		for _, a := range x.want.NodePorts {
			e := newSharedKey(nodePortIPs, a).element()
			yield(&e)
		}
		return
	}
	s := x.want.Services[at]
	former := x.former.services[s.Name]
	next := applied{record: s, places: placeService(former, s), numbers: x.p.number(s.Name, former.numbers, s)}
	if former.record == nil {
		next.fillHoles()
	}
	x.p.new.reset()
	x.p.new.whole(&next)
	for i := range x.p.new.own {
		yield(&x.p.new.own[i])
	}
	for _, k := range x.p.new.shared {
		e := k.element()
		yield(&e)
	}
}
