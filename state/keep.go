package state

import (
	"iter"
	"slices"
)

// Keep returns u for a consumer in which some services stay as they are, even if u changes or removes them. held returns the record that the consumer
// has of a service, nil if it has none.
//
// A service that stays loses the frontends that other services have in u. Then Changed has the rest of its record. In a full update, Changed has all
// services that stay.
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
