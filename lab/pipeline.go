//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// pipeline is the way of objects into the kernel of one node. It has a store with a brain for the node, a dataplane, and maybe the edge.
type pipeline struct {
	node      string
	dataplane Dataplane  // nil if it could not be made
	edge      *edge.Edge // nil if there is none
	store     *store.Store
	sink      model.Sink
	stop      context.CancelFunc
	done      sync.WaitGroup
	status    status
}

// start starts the pipeline. onAttempt is as in [backend.RunOptions]. The pipeline must be closed, also after an error.
func (p *pipeline) start(ctx context.Context, o *Options, s *stage, onAttempt func(backend.Attempt)) error {
	p.status.init()
	err := s.node(p.node).Do(func() (err error) {
		d, err := o.Dataplane(s.lab)
		if err != nil {
			return err // d may be a typed nil
		}
		p.dataplane = d
		if o.Edge {
			settings := edgeSettings
			settings.Logger = o.Logger
			p.edge, err = edge.Open(settings)
		}
		return err
	})
	if err != nil {
		return err
	}
	p.store = store.New(store.Options{Brain: brain.Config{
		NodeName: p.node, LocalDetector: state.LocalDetector{ClusterCIDRs: s.podCIDRs()}, NodePorts: state.NodePortAddresses{Primary: true},
		Edge: brain.Edge{Enabled: o.Edge, Annotated: true},
	}, Logger: o.Logger})
	p.sink = p.store.Source("lab")
	var b backend.Backend = p.dataplane
	if p.edge != nil {
		b = withEdge{b, p.edge}
	}
	ctx, p.stop = context.WithCancel(ctx)
	p.done.Go(func() {
		p.status.fail(backend.Run(ctx, p.store, b, backend.RunOptions{Logger: o.Logger, OnStatus: p.status.set, OnAttempt: onAttempt}))
	})
	return nil
}

// close stops the pipeline.
func (p *pipeline) close() error {
	if p.stop != nil {
		p.stop()
	}
	p.done.Wait()
	var errs []error
	if p.edge != nil {
		errs = append(errs, p.edge.Close())
	}
	if p.dataplane != nil {
		errs = append(errs, p.dataplane.Close())
	}
	return errors.Join(errs...)
}

// wait returns when the kernel has what the store has, with the services that could not be programmed. By then, all nodes answer the edge: on a busy machine, the
// first edge probes others for long before the last one is there.
func (p *pipeline) wait(ctx context.Context) error {
	if err := p.status.wait(ctx, p.store.Snapshot().Revision()); err != nil || p.edge == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	for {
		silent := p.edge.Silent()
		if len(silent) == 0 {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the edge gets no answers from %s", strings.Join(silent, ", "))
		}
	}
}
