package node

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/store"
)

// ownAddresses tells a store which addresses this node needs for itself, so that no Service takes them by an externalIP.
type ownAddresses struct {
	tell       func(store.Own)
	interfaces *ifaddr.Watcher // nil if they do not count, or cannot be read
	peers      func() (addrs []netip.AddrPort, changed <-chan struct{})
}

// newOwnAddresses looks at the interfaces of the calling thread's network namespace, unless the states are also for other nodes.
func newOwnAddresses(src model.Source, role Role, tell func(store.Own), log *slog.Logger) *ownAddresses {
	o := &ownAddresses{tell: tell, peers: func() ([]netip.AddrPort, <-chan struct{}) { return nil, nil }}
	if p, ok := src.(model.WithPeers); ok {
		o.peers = p.Peers
	}
	if role != Relay {
		var err error
		if o.interfaces, err = ifaddr.Open(ifaddr.Options{Logger: log}); err != nil {
			log.Warn("the addresses of this node's interfaces are not known: Services may take them by externalIPs", "error", err,
				"remedy", "set services.allowedExternalIPs")
		}
	}
	return o
}

// run tells the store of each change until ctx ends.
func (o *ownAddresses) run(ctx context.Context) error {
	var interfacesChanged <-chan struct{} // blocks if they do not count
	if o.interfaces != nil {
		interfacesChanged = o.interfaces.Changed()
	}
	for {
		peersChanged := o.update()
		select {
		case <-ctx.Done():
			return nil
		case <-interfacesChanged:
		case <-peersChanged:
		}
	}
}

// update tells the store the addresses as they are now. The first state must not be without them, so update may run concurrently with
// run.
func (o *ownAddresses) update() (peersChanged <-chan struct{}) {
	var own store.Own
	own.Upstream, peersChanged = o.peers()
	if o.interfaces != nil {
		own.Interfaces = o.interfaces.Addrs()
	}
	o.tell(own)
	return peersChanged
}

func (o *ownAddresses) close() {
	if o.interfaces != nil {
		_ = o.interfaces.Close() // it cannot be closed already
	}
}
