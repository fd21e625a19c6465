package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
)

// ebpfDataplane is socket hooks above the nftables dataplane, in terms of the configuration. The kernel may refuse the hooks: then nftables
// does all of it, and that is no fault.
type ebpfDataplane struct {
	*ebpf.Backend
	options    DataplaneOptions
	namespaces *ebpf.Namespaces // nil if all that the kernel has are this node's
	base       *nftablesDataplane
}

func openEBPF(_ context.Context, c *config.Config, o DataplaneOptions, base *nftablesDataplane) (Dataplane, error) {
	d := &ebpfDataplane{options: o, base: base}
	var err error
	if path := c.EBPF.NamespaceMap; path != "" {
		if d.namespaces, err = ebpf.OpenNamespaces(path); err != nil {
			return nil, fmt.Errorf("ebpf.namespaceMap: %w; pin the map first, or leave the field out", err)
		}
	}
	if d.Backend, err = ebpf.New(base, d.hooks(c)); err != nil {
		return nil, errors.Join(err, d.closeNamespaces())
	}
	return d, nil
}

// hooks returns the options of the hooks.
func (d *ebpfDataplane) hooks(c *config.Config) ebpf.Options {
	o := ebpf.Options{
		Logger: d.options.Logger, CgroupPath: c.EBPF.CgroupPath, NodeOnly: !c.EBPF.Pods, Namespaces: d.namespaces,
		Counters: countsIn(c), UpstreamMark: UpstreamMark(c),
	}
	for _, port := range c.EBPF.MeshPorts {
		o.MeshPorts = append(o.MeshPorts, uint16(port))
	}
	o.EndRemoved = nftablesOptions(c, d.options).ResetRemoved
	return o
}

// Reconfigure implements [Dataplane].
func (d *ebpfDataplane) Reconfigure(c *config.Config) error {
	d.Backend.Reconfigure(d.hooks(c))
	return nil
}

// Problems implements [backend.Reporter]: it returns why the hooks do not do all that they can, and the problems of nftables.
func (d *ebpfDataplane) Problems() []error {
	problems := d.base.Problems()
	if s := d.Status(); s.State != ebpf.On {
		problems = append(problems, fmt.Errorf("%v: %w; nftables translates these connections", s.State, s.Reason))
	}
	return problems
}

// measured returns how the hooks are doing, for the metrics.
func (d *ebpfDataplane) measured() metrics.SocketHooks {
	s := d.Status()
	return metrics.SocketHooks{
		State: s.State.String(), Frontends: s.Frontends, Memory: s.Memory, Translated: s.Translated, Mesh: s.Mesh,
	}
}

// Close implements [Dataplane]. nftables translates the connections of the hooks from then on.
func (d *ebpfDataplane) Close() error {
	return errors.Join(d.Backend.Close(), d.closeNamespaces())
}

func (d *ebpfDataplane) closeNamespaces() error {
	if d.namespaces == nil {
		return nil
	}
	return d.namespaces.Close()
}
