package winkernel

import (
	"context"
	"errors"
	"fmt"

	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Cleanup removes all that a service proxy has made on the network of c, Switchyard or kube-proxy, and reports whether there was anything.
// Connections through load balancers end.
func Cleanup(ctx context.Context, c Config) (removed bool, err error) {
	o, h, err := connect(c)
	if err != nil {
		return false, err
	}
	return removeAll(ctx, h, o.Config.NetworkName)
}

// Programmed reports whether HNS holds anything that Cleanup would remove. Where nothing names a network, there is none to look at.
func Programmed(c Config) (bool, error) {
	if networkOf(&c) == "" {
		return false, nil
	}
	o, h, err := connect(c)
	if err != nil {
		return false, err
	}
	t, err := leftovers(h, o.Config.NetworkName)
	return err == nil && len(t.Retire())+len(t.Sweep()) > 0, err
}

func connect(c Config) (Options, hns, error) {
	o, err := Options{Config: c}.complete()
	if err != nil {
		return o, nil, err
	}
	h, err := dial()
	if err != nil {
		return o, nil, fmt.Errorf("winkernel: %w", err)
	}
	return o, h, nil
}

// leftovers returns a table without services, of what HNS holds on a network.
func leftovers(h hns, network string) (*plan.Table, error) {
	t, id := plan.NewTable(), ""
	switch n, err := h.Network(network); {
	case err == nil:
		id = n.ID
	case !errors.Is(err, plan.ErrNoNetwork): // without its network, load balancers may still be there
		return nil, fmt.Errorf("reading HNS network %q: %w", network, err)
	}
	endpoints, err := h.Endpoints()
	if err != nil {
		return nil, fmt.Errorf("reading endpoints of HNS: %w", err)
	}
	lbs, err := h.LoadBalancers()
	if err != nil {
		return nil, fmt.Errorf("reading load balancers of HNS: %w", err)
	}
	t.Hold(id, endpoints, lbs)
	return t, nil
}

// removeAll removes what a service proxy has made on a network. A failed call is followed by another reading and
// another attempt.
func removeAll(ctx context.Context, h hns, network string) (removed bool, err error) {
	for range 1 + maxReads {
		b := open(Options{}, h)
		if b.table, err = leftovers(h, network); err != nil {
			return removed, err
		}
		run := &round{ctx: ctx, b: b}
		if err := run.stages(); err != nil {
			return removed, err
		}
		removed = removed || run.written > 0
		if !run.unsure {
			return removed, nil
		}
		err = run.errs[state.ServiceName{}]
	}
	return removed, err
}
