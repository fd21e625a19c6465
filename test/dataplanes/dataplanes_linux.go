package dataplanes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/state"
)

// The names of dataplanes. IPTables is whichever variant the node uses. Socket hooks are not here: they need to know whose sockets are the node's.
const (
	NFTables       = "nftables"
	IPTables       = "iptables"
	IPTablesLegacy = "iptables-legacy"
	IPTablesNFT    = "iptables-nft"
	IPVS           = "ipvs"
	Userspace      = "userspace"
)

// Dataplane is a backend that holds on to something.
type Dataplane interface {
	backend.Backend
	io.Closer
}

// Options are what all dataplanes are opened with. The zero value is useful.
type Options struct {
	Logger        *slog.Logger
	LocalDetector state.LocalDetector
}

// Open opens a dataplane in the calling thread's network namespace. It can be used from any thread afterwards. IPVS and userspace come with nftables below.
func Open(ctx context.Context, name string, o Options) (Dataplane, error) {
	// A program that is being started also has, for a moment, the sockets of the previous dataplane, and with them
	// its lock.
	const takeOver = time.Minute
	base := nftables.Options{Logger: o.Logger, LocalDetector: o.LocalDetector, TakeOver: takeOver}
	tables := iptables.Options{Logger: o.Logger, LocalDetector: o.LocalDetector, TakeOver: takeOver}
	switch name {
	case NFTables:
		return nftables.New(ctx, base)
	case IPTables:
		return iptables.New(ctx, tables)
	case IPTablesLegacy:
		tables.Variant = iptables.Legacy
		return iptables.New(ctx, tables)
	case IPTablesNFT:
		tables.Variant = iptables.NFT
		return iptables.New(ctx, tables)
	case IPVS:
		return openIPVS(ctx, base)
	case Userspace:
		return openUserspace(ctx, base)
	}
	return nil, fmt.Errorf("no dataplane is named %q", name)
}

// pair is a dataplane above another one.
type pair struct {
	Dataplane
	base io.Closer
}

// Features implements [backend.Featured].
func (p pair) Features() state.Features { return backend.FeaturesOf(p.Dataplane) }

// Close closes both.
func (p pair) Close() error { return errors.Join(p.Dataplane.Close(), p.base.Close()) }

func openIPVS(ctx context.Context, o nftables.Options) (Dataplane, error) {
	var above atomic.Pointer[ipvs.Backend]
	o.Elsewhere = func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Serves(k) }
	o.Scheduled = func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Scheduled(k) }
	o.Schedules = func() bool { b := above.Load(); return b != nil && b.Schedules() }
	base, err := nftables.New(ctx, o)
	if err != nil {
		return nil, err
	}
	b, err := ipvs.New(base, ipvs.Options{Logger: o.Logger, Commit: base.Commit})
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	above.Store(b)
	return pair{b, base}, nil
}

func openUserspace(ctx context.Context, o nftables.Options) (Dataplane, error) {
	base, err := nftables.New(ctx, o)
	if err != nil {
		return nil, err
	}
	b, err := userspace.New(base, userspace.Options{Logger: o.Logger})
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	return pair{b, base}, nil
}
