package node

import (
	"context"

	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/config"
)

// iptablesDataplane is the iptables dataplane, in terms of the configuration.
type iptablesDataplane struct {
	*iptables.Backend
	options DataplaneOptions
}

func openIPTables(ctx context.Context, c *config.Config, o DataplaneOptions, _ *nftablesDataplane) (Dataplane, error) {
	d := &iptablesDataplane{options: o}
	var err error
	if d.Backend, err = iptables.New(ctx, d.of(c)); err != nil {
		return nil, err
	}
	return d, nil
}

// Reconfigure implements [Dataplane].
func (d *iptablesDataplane) Reconfigure(c *config.Config) error {
	return d.Backend.Reconfigure(d.of(c))
}

// of returns the options of the dataplane. LocalhostNodePorts is a part of the states' NodePort addresses.
func (d *iptablesDataplane) of(c *config.Config) iptables.Options {
	if c.ResetConnectionsToRemovedEndpoints {
		d.options.Logger.Warn("resetConnectionsToRemovedEndpoints has no effect in mode iptables", "remedy", "set mode to nftables, or the field to false")
	}
	return iptables.Options{
		Logger: d.options.Logger, Locked: true, OnFlowsCut: d.options.OnFlowsCut, Scheduled: d.options.scheduled,
		OnRules: d.options.OnIPTablesRules, OnProgress: d.options.OnProgress, MasqueradeBit: new(int(c.MasqueradeBit())), UpstreamMark: UpstreamMark(c),
		Counters: countsIn(c),
	}
}

// droppedInvalid returns how many packets of forwarded connections mode iptables has dropped because they were invalid.
func (n *Node) droppedInvalid() uint64 {
	d, ok := n.inUse().(invalidDropping)
	if !ok {
		return 0
	}
	packets, err := d.DroppedInvalid()
	if err != nil {
		n.log.Warn("cannot read back how many invalid packets were dropped", "error", err)
	}
	return packets
}
