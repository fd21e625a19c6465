// Command switchyard-userspace relays the connections of Services from the node-local API, above nftables.
package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/cmd/internal/dataplane"
)

// version is set by the linker in releases.
var version string

// relay is a relay above nftables. Its connections outlive the lock of the node, so that the next process takes them over.
type relay struct {
	*userspace.Backend
	base    *nftables.Backend
	timeout time.Duration
}

func main() {
	var o userspace.Options
	var policy string
	var timeout time.Duration
	dataplane.Main(dataplane.Program{
		Name: "userspace", Needs: "It needs CAP_NET_ADMIN.",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&policy, "policy", "", "how endpoints are chosen: Random, LeastConnections or PowerOfTwoChoices (default: Random)")
			f.DurationVar(&timeout, "drain-timeout", 10*time.Second, "how long open connections may continue at the end of the process")
		},
		Open: func(ctx context.Context, log *slog.Logger) (dataplane.Backend, error) {
			base, err := nftables.New(ctx, nftables.Options{Logger: log, TakeOver: dataplane.TakeOver, Program: "switchyard-userspace " + version})
			if err != nil {
				return nil, err
			}
			o.Logger, o.Policy = log, userspace.Policy(policy)
			b, err := userspace.New(base, o)
			if err != nil {
				return nil, errors.Join(err, base.Close())
			}
			return &relay{b, base, timeout}, nil
		},
	}, version)
}

// Close hands the connections over to the next process, or waits for their end.
func (r *relay) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	err := errors.Join(r.Release(ctx), r.base.Close())
	if drained := r.Drain(ctx); drained != nil && ctx.Err() == nil {
		err = errors.Join(err, drained)
	}
	return errors.Join(err, r.Backend.Close())
}
