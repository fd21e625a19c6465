package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// ebpfLab is a node with two pods, and so many Services in netfilter.
type ebpfLab struct {
	*connectionLab
	services int
	// first is the state of the node, and added are more Services. base is nftables and hooks are above it; all are nil without Services.
	first *state.Update
	added []*state.Service
	base  *timedBackend
	hooks *hooks
	// coldLoad is how long nftables has needed for the first state.
	coldLoad time.Duration
	// alone are hooks without nftables.
	alone []*hooks
}

func (l *ebpfLab) close() (err error) {
	for _, h := range l.alone {
		err = errors.Join(err, h.close())
	}
	return errors.Join(err, l.connectionLab.close())
}

func (l *ebpfLab) allHooks() []*hooks {
	if l.hooks == nil {
		return l.alone
	}
	return append([]*hooks{l.hooks}, l.alone...)
}

// newLab makes a lab with so many Services and the one that is measured, or none at all.
func (b *ebpfBench) newLab(ctx context.Context, services int) (*ebpfLab, error) {
	of, err := newConnectionLab(ctx, b.options.Worker)
	if err != nil {
		return nil, err
	}
	l := &ebpfLab{connectionLab: of, services: services}
	if services > 0 {
		err = b.program(ctx, l)
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// program loads the Services of a lab.
func (b *ebpfBench) program(ctx context.Context, l *ebpfLab) (err error) {
	config := brain.Config{NodeName: NodeName, LocalDetector: labDetector}
	if l.first, l.added, err = records(ctx, config, l.services, b.options.Endpoints, measuredObjects(l.Node().Addrs[0], 0)...); err != nil {
		return err
	}
	l.base = &timedBackend{}
	if err := l.openBase(ctx); err != nil {
		return err
	}
	l.closers = append(l.closers, func() error { return l.base.close() })
	if l.hooks, err = b.cgroups.newHooks(l, l.base); err != nil {
		return err
	}
	l.closers = append(l.closers, l.hooks.close)
	_, err = l.hooks.Apply(ctx, l.first)
	l.coldLoad = l.base.took
	return err
}

// openBase opens the nftables dataplane on the node.
func (l *ebpfLab) openBase(ctx context.Context) error {
	return l.Node().Do(func() error {
		base, err := nftables.New(ctx, nftables.Options{LocalDetector: labDetector})
		if err == nil {
			l.base.Backend, l.base.close = base, base.Close
		}
		return err
	})
}

// restart restarts the nftables dataplane, and returns how long it needs for a state that has not changed. The hooks
// cannot be used after it.
func (l *ebpfLab) restart(ctx context.Context) (time.Duration, error) {
	if err := l.base.close(); err != nil {
		return 0, err
	}
	if err := l.openBase(ctx); err != nil {
		return 0, err
	}
	runtime.GC() // what was there before is not measured
	_, err := l.base.Apply(ctx, l.first)
	return l.base.took, err
}

// timedBackend is a backend, with the time that it took last.
type timedBackend struct {
	backend.Backend
	took  time.Duration
	close func() error
}

func (b *timedBackend) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	began := time.Now()
	result, err := b.Backend.Apply(ctx, u)
	b.took = time.Since(began)
	return result, err
}

func (b *timedBackend) Verify(ctx context.Context) (backend.Result, error) {
	began := time.Now()
	result, err := b.Backend.Verify(ctx)
	b.took = time.Since(began)
	return result, err
}

// nothing is a dataplane that does nothing, below hooks that are measured alone.
type nothing struct{}

func (nothing) Apply(context.Context, *state.Update) (backend.Result, error) {
	return backend.Result{}, nil
}
func (nothing) Verify(context.Context) (backend.Result, error) { return backend.Result{}, nil }
func (nothing) Disturbed() <-chan struct{}                     { return nil }

// hooks are the hooks of one cgroup: only processes in it connect through them, so that other variants on the same
// machine do without.
type hooks struct {
	*ebpf.Backend
	cgroup *os.File
	// expected counts the connections that the processes have made through a cluster IP.
	expected uint64
}

func (h *hooks) close() error { return errors.Join(h.Backend.Close(), h.cgroup.Close()) }

// cgroupPrefix is what the names of cgroups begin with that this makes.
const cgroupPrefix = "switchyard-bench-"

// cgroups are directories for hooks, in one that is made with the first.
type cgroups struct {
	parent string
	made   []string
}

// newHooks attaches hooks on a lab's node, in a cgroup of their own. It fails if they are off.
func (c *cgroups) newHooks(l *ebpfLab, base backend.Backend) (*hooks, error) {
	path, err := c.make()
	if err != nil {
		return nil, err
	}
	h := &hooks{}
	if h.cgroup, err = os.Open(path); err != nil {
		return nil, err
	}
	err = l.Node().Do(func() error {
		h.Backend, err = ebpf.New(base, ebpf.Options{LocalDetector: labDetector, CgroupPath: path})
		return err
	})
	if err != nil {
		return nil, errors.Join(err, h.cgroup.Close())
	}
	if err := h.check(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// make makes a cgroup.
func (c *cgroups) make() (string, error) {
	if c.parent == "" {
		mounted, err := cgroupMount()
		if err != nil {
			return "", err
		}
		if c.parent, err = os.MkdirTemp(mounted, cgroupPrefix); err != nil {
			return "", fmt.Errorf("hooks need a cgroup (root): %w", err)
		}
	}
	path := filepath.Join(c.parent, fmt.Sprint(len(c.made)))
	if err := os.Mkdir(path, 0o755); err != nil {
		return "", err
	}
	c.made = append(c.made, path)
	return path, nil
}

// remove removes all cgroups. The processes in them must have ended.
func (c *cgroups) remove() error {
	if c.parent == "" {
		return nil
	}
	var errs []error
	for _, path := range append(c.made, c.parent) {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}

// cgroupMount returns where the cgroup2 file system is mounted.
func cgroupMount() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// proc(5): ID, parent, device, root, mount point, options, optional fields, "-", type, ...
		mount, fs, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(mount); len(fields) > 4 && strings.HasPrefix(fs, "cgroup2 ") {
			return fields[4], nil
		}
	}
	return "", errors.New("no cgroup2 file system is mounted")
}
