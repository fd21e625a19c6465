//go:build linux

package ebpf_test

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/sockethooks"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

// needHooks skips a test where this process may not attach programs, as in a user namespace.
func needHooks(t testing.TB) {
	t.Helper()
	netnstest.Need(t)
	n, err := ebpf.NewNamespaces()
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
}

// TestConformance also sees that connections did go through hooks: a pair whose hooks do nothing passes the suite as well.
func TestConformance(t *testing.T) {
	needHooks(t)
	var translated atomic.Uint64
	conformance.Run(t, conformance.Dataplane{
		Name: "ebpf",
		New: func(s conformance.Settings) (backend.Backend, error) {
			return sockethooks.NewPair(t.Context(), s.OnNamespace, nftables.Options{Logger: s.Logger}, &translated)
		},
		Limits: []conformance.Limit{conformance.HairpinSourceKept},
	})
	if n := translated.Load(); n < 1000 && !t.Failed() {
		t.Errorf("hooks have translated %d connections, want a thousand at least", n)
	}
}
