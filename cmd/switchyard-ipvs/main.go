// Command switchyard-ipvs programs a node with IPVS above nftables from the node-local API.
package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/cmd/internal/dataplane"
	"github.com/switchyard-net/switchyard/state"
)

// version is set by the linker in releases.
var version string

func main() {
	var o ipvs.Options
	dataplane.Main(dataplane.Program{
		Name: "ipvs", Needs: "It needs CAP_NET_ADMIN, and the kernel modules ip_vs, ip_vs_SCHEDULER and dummy.",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&o.Scheduler, "scheduler", "", "the kernel's name of the scheduler (default: rr)")
			f.BoolVar(&o.StrictARP, "strict-arp", false, "do not answer ARP requests for the addresses of virtual servers")
		},
		Open: func(ctx context.Context, log *slog.Logger) (dataplane.Backend, error) {
			var above atomic.Pointer[ipvs.Backend]
			base, err := nftables.New(ctx, nftables.Options{
				Logger: log, TakeOver: dataplane.TakeOver, Program: "switchyard-ipvs " + version,
				Elsewhere: func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Serves(k) },
				Scheduled: func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Scheduled(k) },
				Schedules: func() bool { b := above.Load(); return b != nil && b.Schedules() },
			})
			if err != nil {
				return nil, err
			}
			o.Logger, o.Commit = log, base.Commit
			b, err := ipvs.New(base, o)
			if err != nil {
				return nil, errors.Join(err, base.Close())
			}
			above.Store(b)
			return dataplane.Layer{Backend: b, Base: base}, nil
		},
	}, version)
}
