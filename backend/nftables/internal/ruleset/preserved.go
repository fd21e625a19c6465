package ruleset

import (
	"maps"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// Preserved are elements that stay though no service of the state has them, because the kernel does not take what would replace them.
// They are not written again if something else deletes them.
type Preserved struct {
	// Services are records that the kernel refuses. The kernel's elements of their frontends stay.
	Services map[state.ServiceName]*state.Service
	// Lost are services whose records here match the state, but whose elements something else has deleted, and the kernel has no room for
	// them. Each comparison tries them again.
	Lost map[state.ServiceName]error
	// All is set if all elements stay, except elements of frontends that services of the state have. The mirror is incomplete then: the
	// next change compares it with the kernel.
	All bool
	// frontends are the frontends of Services, once Concerns has needed them. Each change of Services makes another Preserved.
	frontends map[elementKey]bool
}

// none reports whether nothing is preserved.
func (s *Preserved) none() bool { return !s.All && len(s.Services) == 0 }

// After returns the preserved elements once u is applied. There are none if u is full. The maps are new.
func (s *Preserved) After(u *state.Update) Preserved {
	next := Preserved{Services: map[state.ServiceName]*state.Service{}, Lost: map[state.ServiceName]error{}}
	if u.Full {
		return next
	}
	next.All = s.All
	maps.Copy(next.Services, s.Services)
	maps.Copy(next.Lost, s.Lost)
	forget := func(name state.ServiceName) {
		delete(next.Services, name)
		delete(next.Lost, name)
	}
	for _, s := range u.Changed {
		forget(s.Name)
	}
	for _, name := range u.Removed {
		forget(name)
	}
	return next
}

// Concerns reports whether an update changes preserved elements, which the mirror does not show. Its cost depends on the size of the
// update. Only the first call also depends on the number of preserved elements.
func (s *Preserved) Concerns(u *state.Update) bool {
	if s.All {
		return true
	}
	if len(s.Services) == 0 {
		return false
	}
	if s.frontends == nil {
		s.frontends = map[elementKey]bool{}
		for _, service := range s.Services {
			addFrontends(s.frontends, service)
		}
	}
	for _, name := range u.Removed {
		if s.Services[name] != nil {
			return true
		}
	}
	return slices.ContainsFunc(u.Changed, func(service *state.Service) bool {
		return s.Services[service.Name] != nil || s.hasFrontendOf(service)
	})
}

func (s *Preserved) hasFrontendOf(service *state.Service) bool {
	for p, f := range service.Frontends() {
		for k := range frontendKeys(p, f) {
			if s.frontends[k] {
				return true
			}
		}
	}
	return false
}

func addFrontends(set map[elementKey]bool, s *state.Service) {
	for p, f := range s.Frontends() {
		for k := range frontendKeys(p, f) {
			set[k] = true
		}
	}
}

// keptFrontends decides which frontends' elements stay though no service of the state has them.
type keptFrontends struct {
	all           bool
	owned, theirs map[elementKey]bool
	// numbers are the numbers of their lists and ports.
	numbers map[uint32]bool
}

// preserveNumbers finds the preserved elements of frontends, and reserves their numbers.
func (p *Plan) preserveNumbers(ks *kernelState, want Desired) *keptFrontends {
	if !want.Preserved.All && len(want.Preserved.Services) == 0 {
		return nil
	}
	kept := &keptFrontends{
		all: want.Preserved.All, owned: map[elementKey]bool{}, theirs: map[elementKey]bool{}, numbers: map[uint32]bool{},
	}
	for _, s := range want.Services {
		addFrontends(kept.owned, s)
	}
	for _, s := range want.Preserved.Services {
		addFrontends(kept.theirs, s)
	}
	for range 2 { // the number of a range leads to others
		for k, data := range ks.elements {
			if k.set.kind.givesNumber() && kept.has(k) {
				kept.numbers[numberOf(data)] = true
				p.m.numbers[numberOf(data)] = struct{}{}
			}
		}
	}
	return kept
}

// has reports whether an element stays, which nothing in the state needs.
func (f *keptFrontends) has(k elementKey) bool {
	switch {
	case k.set.isNumbered():
		return f.numbers[k.numberIn()]
	case k.set.space == global:
		return f.all
	}
	frontend := k.frontend()
	return !f.owned[frontend] && (f.all || f.theirs[frontend])
}

// without returns numbers that a service may keep. It may not share one with a frontend that stays as it is.
func (f *keptFrontends) without(numbers map[owner]uint32) map[owner]uint32 {
	if f == nil {
		return numbers
	}
	numbers = maps.Clone(numbers)
	maps.DeleteFunc(numbers, func(_ owner, n uint32) bool { return f.numbers[n] })
	return numbers
}

// preserve removes the preserved elements from ks.
func (p *Plan) preserve(ks *kernelState, want Desired, frontends *keptFrontends) {
	p.m.Preserved = want.Preserved
	if frontends == nil {
		return
	}
	for k, data := range ks.elements {
		if frontends.has(k) {
			p.keep(ks, element{k.family, k.set, k.key, data})
		}
	}
	slices.SortFunc(p.kept, func(a, b element) int { return a.id().compare(b.id()) }) // the same change makes the same batch
	p.preservePings(ks, want)
	// The kept elements need some elements that services share.
	used := map[sharedKey]bool{}
	for i := range p.kept {
		if e := &p.kept[i]; e.set.kind == slots || e.set.kind == hashSlots {
			used[newSharedKey(hairpin, decodeEndpoint(e.family, e.data).Addr())] = true
		}
	}
	for _, s := range want.Preserved.Services {
		for _, f := range s.Frontends() {
			if f.LastPort != 0 {
				used[newSharedKey(rangeIPs, f.Addr)] = true
			}
			if f.Kind == state.ClusterIP {
				used[newSharedKey(clusterIPs, f.Addr)] = true
			} else if f.Kind != state.NodePort {
				used[newSharedKey(externalIPs, f.Addr)] = true
			}
		}
	}
	for k := range used {
		e := k.element()
		data, left := ks.elements[e.id()]
		if left {
			e.data = data
			p.keep(ks, e)
		}
		if left || p.refs[k] > 0 {
			p.refs[k]++ // so that it stays when no other service needs it
		}
	}
}

// keep takes an element off ks that stays.
func (p *Plan) keep(ks *kernelState, e element) {
	p.kept = append(p.kept, e)
	p.shape.needs(e.family, e.set)
	delete(ks.elements, e.id())
}
