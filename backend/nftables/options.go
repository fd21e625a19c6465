package nftables

import (
	"log/slog"

	"github.com/switchyard-net/switchyard/backend"
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
