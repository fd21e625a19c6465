// Package sockethooks makes socket hooks above nftables, on a node of a topology. The nodes of a topology share one kernel, so that hooks
// must know their network namespaces.
package sockethooks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/test/topology"
)

// OnNamespace calls fn inside the network namespace of a node, which isNode says, and of each pod on it, now and when pods are added.
type OnNamespace func(fn func(isNode bool) error) error

// Of returns the namespaces of the node under test.
func Of(l *topology.Lab) OnNamespace {
	return func(fn func(isNode bool) error) error {
		return l.OnHost(func(h *topology.Host) error { return h.Do(func() error { return fn(h == l.Node()) }) })
	}
}

// Namespaces returns the set of these namespaces. The caller must close it.
func Namespaces(on OnNamespace) (*ebpf.Namespaces, error) {
	n, err := ebpf.NewNamespaces()
	if err != nil {
		return nil, err
	}
	err = on(func(isNode bool) error {
		cookie, err := ebpf.NamespaceCookie()
		if err != nil {
			return err
		}
		if isNode {
			return n.AddNode(cookie)
		}
		return n.AddPod(cookie)
	})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Pair is socket hooks with nftables below.
type Pair struct {
	*ebpf.Backend
	Base       *nftables.Backend
	namespaces *ebpf.Namespaces
	translated *atomic.Uint64
}

// NewPair makes a pair in the calling thread's network namespace, whose hooks are attached. If base has ResetRemoved, the pair also ends
// connections of the node through hooks, and hooks ignore connections of pods. If base has Counters, the pair counts these connections.
// When the pair is closed, translated gets the number of connections that the hooks have translated.
func NewPair(ctx context.Context, on OnNamespace, base nftables.Options, translated *atomic.Uint64) (*Pair, error) {
	p := &Pair{translated: translated}
	var err error
	if p.namespaces, err = Namespaces(on); err != nil {
		return nil, err
	}
	base.OnGone = func(endpoints []netip.AddrPort) { p.Gone(endpoints) }
	if p.Base, err = nftables.New(ctx, base); err != nil {
		return nil, errors.Join(err, p.namespaces.Close())
	}
	hooks := ebpf.Options{Logger: base.Logger, Namespaces: p.namespaces, Counters: base.Counters, EndRemoved: base.ResetRemoved}
	p.Backend, err = ebpf.New(p.Base, hooks)
	if err != nil {
		return nil, errors.Join(err, p.Base.Close(), p.namespaces.Close())
	}
	if s := p.Status(); s.State != ebpf.On {
		return nil, errors.Join(fmt.Errorf("socket hooks are %v: %w", s.State, s.Reason), p.Close())
	}
	return p, nil
}

// Close closes both.
func (p *Pair) Close() error {
	p.translated.Add(p.Status().Translated)
	return errors.Join(p.Backend.Close(), p.Base.Close(), p.namespaces.Close())
}

// Pin makes a set one that other processes can open, until remove is called, and returns its path. Below dir, a file system is mounted for it.
func Pin(n *ebpf.Namespaces, dir string) (path string, remove func() error, err error) {
	dir = filepath.Join(dir, "bpf")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", nil, err
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return "", nil, fmt.Errorf("mount a bpf file system on %s: %w", dir, os.NewSyscallError("mount", err))
	}
	remove = func() error {
		return errors.Join(os.NewSyscallError("umount", unix.Unmount(dir, unix.MNT_DETACH)), os.Remove(dir))
	}
	path = filepath.Join(dir, "namespaces")
	if err := n.Pin(path); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return path, remove, nil
}
