package state

import (
	"iter"
	"slices"
)

// Keep returns u for a consumer that some services stay with as they are, though u may change or remove them. held returns what the consumer has of
// one of them, nil if that is nothing.
//
// Frontends that other services have in u are no longer theirs: a service that loses some is in Changed with the rest of its record. In a full
// update, all services that stay are in Changed.
func (u *Update) Keep(names iter.Seq[ServiceName], held func(ServiceName) *Service) *Update {
	stays := map[ServiceName]bool{}
	for name := range names {
		stays[name] = true
	}
	if len(stays) == 0 {
		return u
	}
	v := *u
	v.Changed = slices.DeleteFunc(slices.Clone(u.Changed), func(s *Service) bool { return stays[s.Name] })
	v.Removed = slices.DeleteFunc(slices.Clone(u.Removed), func(name ServiceName) bool { return stays[name] })
	taken := map[FrontendKey]bool{}
	for _, s := range v.Changed {
		for p, f := range s.Frontends() {
			taken[p.Key(f)] = true
		}
	}
	for name := range stays {
		had := held(name)
		if had == nil {
			continue
		}
		if left := had.Without(taken); left != had || u.Full {
			v.Changed = append(v.Changed, left)
		}
	}
	slices.SortFunc(v.Changed, func(a, b *Service) int { return a.Name.Compare(b.Name) })
	return &v
}
