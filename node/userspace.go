package node

import (
	"context"
	"errors"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/config"
)

// userspaceDataplane is a relay above the nftables dataplane, in terms of the configuration.
type userspaceDataplane struct {
	*userspace.Backend
	base    *nftablesDataplane // nil if the relay listens on addresses of the host
	options DataplaneOptions
	// drain is how long what is open may go on when this process ends.
	drain time.Duration
}

func openUserspace(ctx context.Context, c *config.Config, o DataplaneOptions) (Dataplane, error) {
	d := &userspaceDataplane{options: o, drain: c.Userspace.DrainTimeout.Duration}
	var base backend.Backend
	if len(c.Userspace.Listen) == 0 {
		b, err := nftables.New(ctx, nftablesOptions(c, o))
		if err != nil {
			return nil, err
		}
		d.base = &nftablesDataplane{b, o}
		base = d.base
	}
	var err error
	if d.Backend, err = userspace.New(base, d.relay(c)); err != nil {
		return nil, errors.Join(err, d.closeBase())
	}
	return d, nil
}

// relay returns the options of the relay.
func (d *userspaceDataplane) relay(c *config.Config) userspace.Options {
	o := c.Userspace.Options()
	o.Logger, o.ResetRemoved = d.options.Logger, nftablesOptions(c, d.options).ResetRemoved
	return o
}

// Reconfigure implements [Dataplane].
func (d *userspaceDataplane) Reconfigure(c *config.Config) error {
	if err := d.Backend.Reconfigure(d.relay(c)); err != nil {
		return err
	}
	d.drain = c.Userspace.DrainTimeout.Duration
	if d.base == nil {
		return nil
	}
	return d.base.Reconfigure(c)
}

// Faults implements [Dataplane].
func (d *userspaceDataplane) Faults() []error {
	if d.base == nil {
		return nil
	}
	return d.base.Faults()
}

// Close implements [Dataplane]. nftables takes new connections from then on, and another process may program it, while those that are open end here
// or go over to that process.
func (d *userspaceDataplane) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), d.drain)
	defer cancel()
	err := errors.Join(d.Release(ctx), d.closeBase())
	if drained := d.Drain(ctx); drained != nil {
		d.options.Logger.Warn("what is still open ends with this process", "error", drained)
	}
	return errors.Join(err, d.Backend.Close())
}

func (d *userspaceDataplane) closeBase() error {
	if d.base == nil {
		return nil
	}
	return d.base.Close()
}
