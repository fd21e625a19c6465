//go:build !linux

package upstream

// setMark does nothing: packets have no marks here.
func setMark(uintptr, uint32) {}
