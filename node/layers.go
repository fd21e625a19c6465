package node

import (
	"context"
	"net/netip"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/state"
)

// Abilities of the dataplanes of this program that other dataplanes or the metrics use. Package backend has the abilities of any dataplane.

// drainer is a dataplane that is retired, and not closed, when another mode takes its place.
type drainer interface {
	Dataplane
	backend.Drainer
}

// relaying is a relay in this process.
type relaying interface {
	drainer
	Lingering(s *state.Service) *state.Service
	Amounts() (connections, flows userspace.Amount)
	Release(ctx context.Context) error
	drain(ctx context.Context) error
}

// hooked has socket hooks, which count for themselves.
type hooked interface {
	HookCounts(keys []state.FrontendKey) ([]backend.Counts, error)
	measured() metrics.SocketHooks
}

// ender ends connections of its own to endpoints that are gone.
type ender interface {
	Gone(endpoints []netip.AddrPort)
}

// scheduling has virtual servers, whose flows are no other dataplane's to delete.
type scheduling interface {
	Serves(k state.FrontendKey) bool
	Scheduled(k state.FrontendKey) bool
	Schedules() bool
}

// loopback may serve NodePorts on loopback addresses.
type loopback interface{ ServesLoopback() bool }

// invalidDropping counts the invalid packets that it has dropped.
type invalidDropping interface{ DroppedInvalid() (uint64, error) }

// localRejecting counts the refused packets to NodePorts on loopback addresses.
type localRejecting interface {
	LocalRejects() ([]nftables.LocalReject, error)
}

var (
	_ drainer         = (*ipvsDataplane)(nil)
	_ scheduling      = (*ipvsDataplane)(nil)
	_ relaying        = (*userspaceDataplane)(nil)
	_ hooked          = (*ebpfDataplane)(nil)
	_ ender           = (*ebpfDataplane)(nil)
	_ invalidDropping = (*iptablesDataplane)(nil)
	_ loopback        = (*iptablesDataplane)(nil)
	_ loopback        = (*nftablesDataplane)(nil)
	_ localRejecting  = (*nftablesDataplane)(nil)
)

// inUse returns the dataplane that takes new connections, nil if there is none. Any goroutine may call it.
func (n *Node) inUse() Dataplane {
	if s, ok := n.dataplane.(*switchable); ok {
		return s.inUse()
	}
	return n.dataplane
}

// problemsIn returns the problems of the dataplane in use if mode is the name of its mode in the metrics.
func (n *Node) problemsIn(mode string) []error {
	if d, ok := n.inUse().(backend.Reporter); ok && n.proxyMode() == mode {
		return d.Problems()
	}
	return nil
}
