package userspace

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestSocketsAreOfTheNamespace: sockets are of the network namespace in which the maker was made, on any goroutine. That is the
// namespace of the process, where no thread of its own is needed, or another one.
func TestSocketsAreOfTheNamespace(t *testing.T) {
	ns := netnstest.New(t)
	cookie := func(fd int, err error) uint64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil {
			t.Skip(err)
		}
		return c
	}
	inside := func(fn func() error) error { return fn() }
	for name, do := range map[string]func(func() error) error{"of the process": inside, "another": ns.Do} {
		var m *maker
		var want uint64
		err := do(func() (err error) {
			fd, err := openSocket(kinds[0])
			want = cookie(fd, err)
			m, err = newMaker(0)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: sockets are made directly: %v", name, m.direct) // threads of other tests may be elsewhere
		for _, k := range kinds {
			if got := cookie(m.socket(k)); got != want {
				t.Errorf("%s: a socket for %v is of the namespace %d, want %d", name, k, got, want)
			}
		}
		m.close()
	}
}

// TestMakerCloses: no socket is left of a maker that was in use until it was closed.
func TestMakerCloses(t *testing.T) {
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	ns := netnstest.New(t)
	before := open()
	for range 50 {
		var m *maker
		if err := ns.Do(func() (err error) { m, err = newMaker(0); return err }); err != nil {
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
