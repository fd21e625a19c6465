package node

import (
	"context"
	"sync/atomic"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/internal/ops/servicehealth"
	"github.com/switchyard-net/switchyard/state"
)

// healthPorts answer load balancers on the health check node ports of services, on the addresses that serve NodePorts.
type healthPorts struct {
	*servicehealth.Server
	addresses *ifaddr.Watcher
	node      atomic.Pointer[state.Node]
	moved     chan struct{} // has a value when node has changed
}

// newHealthPorts returns health ports that serve nowhere yet, with their share of open files.
func newHealthPorts(o servicehealth.Options, files shares) (*healthPorts, error) {
	o.MaxConnections, o.MaxSockets = files.ports, files.portSockets
	addresses, err := ifaddr.Open(ifaddr.Options{Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	return &healthPorts{Server: servicehealth.New(o), addresses: addresses, moved: make(chan struct{}, 1)}, nil
}

// Run serves until ctx ends, and then returns nil. It is called once.
func (h *healthPorts) Run(ctx context.Context) error {
	return together(ctx, []func(context.Context) error{h.Server.Run, h.followAddresses})
}

// attempted notes a call of the dataplane. Only programmed endpoints are reported to load balancers.
func (h *healthPorts) attempted(a backend.Attempt) {
	if a.Update == nil || a.Err != nil {
		return
	}
	h.Update(a.Update)
	if h.node.Swap(a.Update.Node) != a.Update.Node {
		select {
		case h.moved <- struct{}{}:
		default:
		}
	}
}

func (h *healthPorts) followAddresses(ctx context.Context) error {
	defer h.addresses.Close()
	for {
		switch node := h.node.Load(); {
		case node == nil: // nothing is shown yet
		case isEverywhere(*node.NodePorts):
			h.SetAddresses(servicehealth.AllAddresses(families...))
		default:
			h.SetAddresses(node.NodePorts.Select(h.addresses.Addrs(), node))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-h.addresses.Changed():
		case <-h.moved:
		}
	}
}

// isEverywhere reports whether NodePorts are served on all addresses of both families.
func isEverywhere(on state.NodePortAddresses) bool {
	all := map[bool]bool{}
	for _, p := range on.CIDRs {
		if p.Bits() == 0 {
			all[p.Addr().Is4()] = true
		}
	}
	return all[true] && all[false] || !on.Primary && len(on.CIDRs) == 0
}

// problems are the ports that cannot be served.
func (h *healthPorts) problems() (errs []error) {
	for _, p := range h.Problems() {
		errs = append(errs, p)
	}
	return errs
}
