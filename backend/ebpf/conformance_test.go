//go:build linux

package ebpf_test

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/conformance"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

// pair is socket hooks above nftables.
type pair struct {
	*ebpf.Backend
	base       *nftables.Backend
	namespaces *ebpf.Namespaces
}

// translated counts the connections that the hooks of all pairs have translated.
var translated atomic.Uint64

func (p pair) Close() error {
	translated.Add(p.Status().Translated)
	return errors.Join(p.Backend.Close(), p.base.Close(), p.namespaces.Close())
}

// newPair makes a pair on the node of a lab. It skips the test where hooks cannot be attached.
func newPair(t testing.TB, s conformance.Settings) (backend.Backend, error) {
	namespaces, err := ebpf.NewNamespaces()
	if err != nil {
		t.Skip(err)
	}
	err = s.OnNamespace(func(isNode bool) error {
		cookie, err := ebpf.NamespaceCookie()
		if err != nil {
			return err
		}
		if isNode {
			return namespaces.AddNode(cookie)
		}
		return namespaces.AddPod(cookie)
	})
	if err != nil {
		return nil, err
	}
	base, err := nftables.New(t.Context(), nftables.Options{Logger: s.Logger})
	if err != nil {
		return nil, err
	}
	b, err := ebpf.New(base, ebpf.Options{Logger: s.Logger, Namespaces: namespaces})
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	if status := b.Status(); status.State != ebpf.On {
		t.Fatalf("hooks are %v: %v", status.State, status.Reason)
	}
	return pair{b, base, namespaces}, nil
}

// TestConformance also sees that connections did go through hooks: a pair whose hooks do nothing passes the suite as well.
func TestConformance(t *testing.T) {
	before := translated.Load()
	conformance.Run(t, conformance.Dataplane{
		Name:               "ebpf",
		New:                func(s conformance.Settings) (backend.Backend, error) { return newPair(t, s) },
		KeepsHairpinSource: true,
	})
	if n := translated.Load() - before; n < 1000 {
		t.Errorf("hooks have translated %d connections, want a thousand at least", n)
	}
}
