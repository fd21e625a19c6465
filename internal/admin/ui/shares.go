package ui

// shares counts the part of each namespace in a common budget. A namespace gets more as long as it holds less than is free. So one namespace alone
// gets half, and others always find room. The zero value is empty.
type shares struct {
	all int
	of  map[string]int
}

// take takes one for a namespace, if there is room.
func (s *shares) take(namespace string, room int) bool {
	if s.of[namespace] >= room-s.all {
		return false
	}
	if s.of == nil {
		s.of = map[string]int{}
	}
	s.all++
	s.of[namespace]++
	return true
}

// give gives one back.
func (s *shares) give(namespace string) {
	s.all--
	if s.of[namespace]--; s.of[namespace] == 0 {
		delete(s.of, namespace)
	}
}
