package bench

import (
	"context"
	"errors"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/netns"
)

// Memory measures the resident memory of this process with all parts of a node: model, brain, store, reconciler and
// the nftables dataplane. The whole cluster is programmed in a network namespace of its own. Only the first size is
// measured: memory that a process once had shows in what it has later.
func Memory(ctx context.Context, r *Reporter, o Options) (err error) {
	o = o.withDefaults(10_000)
	services := o.Services[0]
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	dataplane, err := openNFTables(ctx, ns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dataplane.Close()) }()

	s := store.New(store.Options{Brain: brain.Config{NodeName: NodeName}})
	defer s.Close()
	sink := s.Source("bench")
	sink.Update(Cluster(services, o.Endpoints), nil)
	sink.Complete()

	running, stop := context.WithCancel(ctx)
	defer stop()
	applied := make(chan state.Revision, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- backend.Run(running, s, dataplane, backend.RunOptions{OnStatus: func(st backend.Status) {
			if st.Applied > 0 {
				select {
				case applied <- st.Applied:
				default:
				}
			}
		}})
	}()
	select {
	case <-applied:
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	resident.Trim() // as the daemon does once it is up
	rss, err := RSS()
	if err != nil {
		return err
	}
	reportMemory(r, Result{"memory/rss", services, o.Endpoints, MiB(rss), "MiB"})
	stop()
	return <-ended
}

// reportMemory reports resident memory, against its target at the size that this is for.
func reportMemory(r *Reporter, result Result) {
	if result.Services == 10_000 && result.Endpoints == 5 {
		r.ReportAgainst(result, mostMemory)
		return
	}
	r.Report(result)
}

// mostMemory is in MiB.
const mostMemory = 40
