package nftables

import (
	"log/slog"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// Options are the settings of the dataplane. The zero value is useful.
type Options struct {
	// Logger takes what an operator may want to know. Nothing is logged if it is nil.
	Logger *slog.Logger
	// LocalDetector tells connections of pods from others.
	LocalDetector backend.LocalDetector
	// NodePortAddresses are the addresses on which NodePorts are served.
	NodePortAddresses backend.NodePortAddresses
	// MasqueradeBit is the number of the bit of packet marks, 0 to 31, that marks connections for masquerading between two
	// hooks. Default 14, as kube-proxy's.
	MasqueradeBit *int
	// OnFlowsCut is told of each round in which stale flows of a family were looked for: how long it took, and how many were
	// deleted. It is called by a goroutine of its own and must return soon. It may be nil.
	OnFlowsCut func(f state.Family, took time.Duration, deleted int)
}

// defaultMasqueradeBit is kube-proxy's default for masqueradeBit.
const defaultMasqueradeBit = 14

// mark returns the packet mark's bit.
func (o *Options) mark() uint32 {
	if o.MasqueradeBit == nil {
		return 1 << defaultMasqueradeBit
	}
	return 1 << *o.MasqueradeBit
}
