//go:build linux

package nft

import (
	"errors"
	"testing"
)

// TestDumpIsRepeatedAfterResize: a dump is made again while elements come twice, unless it is always the same ones.
func TestDumpIsRepeatedAfterResize(t *testing.T) {
	broken := errors.New("broken")
	one, other := Elem{Key: []byte{1}}, Elem{Key: []byte{2}}
	for _, c := range []struct {
		name  string
		read  func(n int) ([]Elem, error) // the n-th time
		reads int
		fails bool
	}{
		{"each once", func(int) ([]Elem, error) { return []Elem{one, other}, nil }, 1, false},
		{"resized during the dump", func(n int) ([]Elem, error) {
			if n <= 3 {
				return []Elem{one, one}, nil
			}
			return []Elem{one, other}, nil
		}, 4, false},
		{"resized all the time", func(n int) ([]Elem, error) {
			if n%2 == 0 {
				return []Elem{one, one, other}, nil
			}
			return []Elem{one, other, other}, nil
		}, dumpAttempts, true},
		{"one is there twice", func(int) ([]Elem, error) { return []Elem{other, one, other}, nil }, quietAttempts + 1, false},
		{"one is there twice, and a resize", func(n int) ([]Elem, error) {
			if n == quietAttempts+1 {
				return []Elem{one, one, other, other}, nil
			}
			return []Elem{other, one, other}, nil
		}, quietAttempts + 3, false},
		{"fails", func(int) ([]Elem, error) { return nil, broken }, 1, true},
	} {
		var elems []Elem
		reads := 0
		err := whole(func() (err error) {
			reads++
			elems, err = c.read(reads)
			return err
		}, func() []uint64 { return repeated(elems) })
		if (err != nil) != c.fails || reads != c.reads {
			t.Errorf("%s: %v after %d reads, want %d", c.name, err, reads, c.reads)
		}
	}
}
