package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/ops/metrics"
)

// ebpfDataplane is socket hooks above the nftables dataplane, in terms of the configuration. The kernel may refuse the hooks: then nftables
// does all of it, and that is no fault.
type ebpfDataplane struct {
	*ebpf.Backend
	base       nftablesDataplane
	namespaces *ebpf.Namespaces // nil if all that the kernel has are this node's
}

func openEBPF(ctx context.Context, c *config.Config, o DataplaneOptions) (Dataplane, error) {
	d := &ebpfDataplane{base: nftablesDataplane{options: o}}
	var err error
	if path := c.EBPF.NamespaceMap; path != "" {
		if d.namespaces, err = ebpf.OpenNamespaces(path); err != nil {
			return nil, fmt.Errorf("ebpf.namespaceMap: %w; pin the map first, or leave the field out", err)
		}
	}
	options := nftablesOptions(c, o)
	options.OnGone = d.gone
	if d.base.Backend, err = nftables.New(ctx, options); err != nil {
		return nil, errors.Join(err, d.closeNamespaces())
	}
	if d.Backend, err = ebpf.New(d.base, d.hooks(c)); err != nil {
		return nil, errors.Join(err, d.base.Close(), d.closeNamespaces())
	}
	return d, nil
}

// hooks returns the options of the hooks.
func (d *ebpfDataplane) hooks(c *config.Config) ebpf.Options {
	o := ebpf.Options{
		Logger: d.base.options.Logger, CgroupPath: c.EBPF.CgroupPath, NodeOnly: !c.EBPF.Pods, Namespaces: d.namespaces,
	}
	for _, port := range c.EBPF.MeshPorts {
		o.MeshPorts = append(o.MeshPorts, uint16(port))
	}
	if nftablesOptions(c, d.base.options).ResetRemoved {
		o.ResetFlows = d.base.ResetFlows
	}
	return o
}

// gone has connections reset that hooks have translated to endpoints which are gone. nftables calls it, in Apply.
func (d *ebpfDataplane) gone(endpoints []netip.AddrPort) { d.Gone(endpoints) }

// Reconfigure implements [Dataplane].
func (d *ebpfDataplane) Reconfigure(c *config.Config) error {
	if err := d.base.Reconfigure(c); err != nil {
		return err
	}
	d.Backend.Reconfigure(d.hooks(c))
	return nil
}

// Faults implements [Dataplane]. Hooks that are off are none: see [ebpfDataplane.problems].
func (d *ebpfDataplane) Faults() []error { return d.base.Faults() }

// problems is why the hooks do not do all that they can.
func (d *ebpfDataplane) problems() []error {
	if s := d.Status(); s.State != ebpf.On {
		return []error{fmt.Errorf("%v: %w; nftables translates these connections", s.State, s.Reason)}
	}
	return nil
}

// measured returns how the hooks are doing, for the metrics.
func (d *ebpfDataplane) measured() metrics.SocketHooks {
	s := d.Status()
	return metrics.SocketHooks{
		State: s.State.String(), Frontends: s.Frontends, Memory: s.Memory, Translated: s.Translated, Mesh: s.Mesh,
	}
}

// Close implements [Dataplane]. The hooks are gone first: what they did, nftables does from then on.
func (d *ebpfDataplane) Close() error {
	return errors.Join(d.Backend.Close(), d.base.Close(), d.closeNamespaces())
}

func (d *ebpfDataplane) closeNamespaces() error {
	if d.namespaces == nil {
		return nil
	}
	return d.namespaces.Close()
}
