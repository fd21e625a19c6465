package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/internal/healthz"
	"github.com/switchyard-net/switchyard/internal/reconcile"
	"github.com/switchyard-net/switchyard/internal/servicehealth"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// dataplaneFlags are what the operator decides about programming a node.
type dataplaneFlags struct {
	nodePortAddresses nodePortAddresses
	healthAddress     string
}

func (o *dataplaneFlags) register(f *pflag.FlagSet) {
	o.nodePortAddresses = nodePortAddresses{backend.NodePortAddresses{Primary: true}}
	f.Var(&o.nodePortAddresses, "nodeport-addresses", "where node ports are served: CIDRs of local addresses, or the word primary for the Node's first address of each family")
	f.StringVar(&o.healthAddress, "healthz-bind-address", "127.0.0.1:10256", "address and port of /healthz and /livez; empty for none")
}

// feeding is what a dataplane gets its states from.
type feeding struct {
	feed state.Feed
	// snapshot returns the latest state.
	snapshot func() *store.Snapshot
	// origin is what problems are about: where the states come from.
	origin   string
	problems func() []error
	// grave says that the process is unhealthy as long as there are some.
	grave bool
	// report is told of each status of the dataplane. It must not block, and may be nil.
	report func(applied state.Revision, failed map[state.ServiceName]error)
}

// parts returns the parts of the process that program this node's kernel by nftables, and answer for its health.
func (o *dataplaneFlags) parts(from feeding, detector backend.LocalDetector, stdout io.Writer, log *slog.Logger) ([]func(context.Context) error, error) {
	progress := &progress{feeding: from, out: stdout}
	h := healthz.New(healthz.Options{
		Families: families, Newest: func() state.Revision { return from.snapshot().Revision() },
	})
	nodePorts := func() backend.NodePortAddresses { return o.nodePortAddresses.NodePortAddresses }
	ports, err := newHealthPorts(servicehealth.Options{Logger: log, Healthy: h.Healthy}, nodePorts)
	if err != nil {
		return nil, err
	}
	h.SetNode(healthz.Node{Exists: true})
	if from.grave {
		h.AddFaults(from.origin, from.problems)
	} else {
		h.AddProblems(from.origin, from.problems)
	}
	h.AddFaults("dataplane", progress.failures)
	h.AddFaults("healthCheckNodePorts", ports.problems)
	parts := []func(context.Context) error{ports.Run}
	if o.healthAddress != "" {
		l, err := net.Listen("tcp", o.healthAddress)
		if err != nil {
			return nil, fmt.Errorf("%w; choose another address with --healthz-bind-address", err)
		}
		parts = append(parts, func(ctx context.Context) error { return healthz.Serve(ctx, l, h.Handler(), log) })
	}
	dataplane, err := nftables.New(nftables.Options{Logger: log, LocalDetector: detector, NodePortAddresses: o.nodePortAddresses.NodePortAddresses})
	if err != nil {
		return nil, explain(err)
	}
	onStatus := func(s reconcile.Status) {
		h.Status(s)
		progress.set(s)
	}
	return append(parts, func(ctx context.Context) error {
		err := reconcile.Run(ctx, from.feed, dataplane, reconcile.Options{Logger: log, OnAttempt: ports.attempted, OnStatus: onStatus})
		return errors.Join(err, dataplane.Close())
	}), nil
}

// progress follows the reconciler, and says once that the first state is programmed.
type progress struct {
	feeding
	out io.Writer

	mu   sync.Mutex
	last reconcile.Status
	told bool
}

func (p *progress) set(s reconcile.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = s
	if p.report != nil {
		p.report(s.Applied, s.Failed)
	}
	if p.told || s.Applied == 0 {
		return
	}
	p.told = true
	debug.FreeOSMemory() // reading everything for the first time took far more than keeping it takes
	n := p.snapshot().Len() - len(s.Failed)
	fmt.Fprintf(p.out, "switchyard: node %s routes %d %s\n", p.snapshot().Node().Name, n, map[bool]string{true: "service", false: "services"}[n == 1])
}

// failures are those that the reconciler has not got over yet.
func (p *progress) failures() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	switch {
	case p.last.Err != nil:
		errs = append(errs, p.last.Err)
	case p.last.Applied == 0:
		errs = append(errs, errors.New("nothing is programmed yet"))
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.last.Failed), state.ServiceName.Compare) {
		errs = append(errs, fmt.Errorf("service %v: %w", name, p.last.Failed[name]))
	}
	return errs
}
