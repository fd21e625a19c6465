package node

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/state"
)

// ipvsDataplane is IPVS above the nftables dataplane, in terms of the configuration.
type ipvsDataplane struct {
	*ipvs.Backend
	base nftablesDataplane
}

func openIPVS(ctx context.Context, c *config.Config, o DataplaneOptions) (Dataplane, error) {
	d := &ipvsDataplane{base: nftablesDataplane{options: o}}
	options := nftablesOptions(c, o)
	var above atomic.Pointer[ipvs.Backend]
	options.Elsewhere = func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Serves(k) }
	var err error
	if d.base.Backend, err = nftables.New(ctx, options); err != nil {
		return nil, err
	}
	own := ipvsOptions(c, o)
	own.Commit = d.base.Commit
	if d.Backend, err = ipvs.New(d.base, own); err != nil {
		return nil, errors.Join(err, d.base.Close())
	}
	above.Store(d.Backend)
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
	if err := d.Backend.Reconfigure(ipvsOptions(c, d.base.options)); err != nil {
		return err
	}
	return d.base.Reconfigure(c)
}

// Faults implements [Dataplane].
func (d *ipvsDataplane) Faults() []error { return d.base.Faults() }

// Close implements [Dataplane].
func (d *ipvsDataplane) Close() error { return errors.Join(d.Backend.Close(), d.base.Close()) }
