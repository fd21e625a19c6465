package node

import (
	"context"

	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/config"
)

// ipvsDataplane is IPVS above the nftables dataplane, in terms of the configuration.
type ipvsDataplane struct {
	*ipvs.Backend
	options DataplaneOptions
}

func openIPVS(_ context.Context, c *config.Config, o DataplaneOptions, base *nftablesDataplane) (Dataplane, error) {
	d := &ipvsDataplane{options: o}
	own := ipvsOptions(c, o)
	own.Commit = o.commit
	var err error
	d.Backend, err = ipvs.New(aboveBase(base), own)
	if err != nil {
		return nil, err
	}
	return d, nil
}

func ipvsOptions(c *config.Config, o DataplaneOptions) ipvs.Options {
	return ipvs.Options{
		Logger: o.Logger, MasqueradeBit: new(int(c.MasqueradeBit())), Scheduler: c.IPVS.Scheduler, ExcludeCIDRs: c.IPVS.ExcludeCIDRs,
		StrictARP: c.IPVS.StrictARP, TCPTimeout: c.IPVS.TCPTimeout.Duration, TCPFinTimeout: c.IPVS.TCPFinTimeout.Duration,
		UDPTimeout: c.IPVS.UDPTimeout.Duration, ResetRemoved: nftablesOptions(c, o).ResetRemoved,
	}
}

// Reconfigure implements [Dataplane]. IPVS may lack the scheduler: then nothing has changed yet.
func (d *ipvsDataplane) Reconfigure(c *config.Config) error {
	return d.Backend.Reconfigure(ipvsOptions(c, d.options))
}
