//go:build linux

package netnstest

import (
	"errors"
	"flag"
	"testing"

	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/topology"
)

// Main is for TestMain functions of packages whose tests need network namespaces: os.Exit(netnstest.Main(m)). It is [netns.Main],
// except that with -short it asks for no right.
func Main(m *testing.M) int {
	flag.Parse()
	if testing.Short() {
		return m.Run()
	}
	return netns.Main(m)
}

// New makes an empty network namespace and closes it when the test ends. It skips the test with -short and where the process may
// make none.
func New(t testing.TB) *netns.NS {
	t.Helper()
	Need(t)
	ns, err := netns.New()
	check(t, err)
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// Lab builds two nodes and closes them when the test ends. It skips the test with -short and where the process may make no network
// namespace.
func Lab(t testing.TB, o topology.Options) *topology.Lab {
	t.Helper()
	Need(t)
	l, err := topology.New(t.Context(), o)
	check(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func check(t testing.TB, err error) {
	t.Helper()
	if _, denied := errors.AsType[*netns.PermissionError](err); denied {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}
