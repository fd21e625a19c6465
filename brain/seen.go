package brain

// seen is a set. A set with few keys, as most services have, needs no memory of its own.
type seen[K comparable] struct {
	few  [4]K
	n    int
	many map[K]struct{} // all of them if they are not few
}

// add reports whether k is new to the set, which then has it.
func (s *seen[K]) add(k K) bool {
	if s.many == nil {
		for i := range s.n {
			if s.few[i] == k {
				return false
			}
		}
		if s.n < len(s.few) {
			s.few[s.n] = k
			s.n++
			return true
		}
		s.many = make(map[K]struct{})
		for _, f := range s.few {
			s.many[f] = struct{}{}
		}
	}
	if _, has := s.many[k]; has {
		return false
	}
	s.many[k] = struct{}{}
	return true
}
