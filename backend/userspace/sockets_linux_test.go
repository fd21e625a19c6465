package userspace

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMakerCloses: no socket is left of a maker that was in use until it was closed.
func TestMakerCloses(t *testing.T) {
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := open()
	for range 50 {
		m, err := newMaker()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range kinds {
			for range 4 {
				fd, err := m.socket(k)
				if err != nil {
					t.Fatal(err)
				}
				unix.Close(fd)
			}
		}
		m.close()
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors are open, and %d were before", after, before)
	}
}
