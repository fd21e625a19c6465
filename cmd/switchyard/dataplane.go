package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/internal/httpserver"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/ops/healthz"
	"github.com/switchyard-net/switchyard/ops/servicehealth"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// dataplaneFlags are what the operator decides about programming a node.
type dataplaneFlags struct {
	nodePortAddresses nodePortAddresses
	healthAddress     string
	takeOver          time.Duration
}

// takeOverFlag lets a command wait for its predecessor.
func takeOverFlag(f *pflag.FlagSet, wait *time.Duration) {
	f.DurationVar(wait, "take-over", 2*time.Second, "how long to wait until another process that programs this kernel has ended, before giving up; the kernel goes on routing meanwhile")
}

func (o *dataplaneFlags) register(f *pflag.FlagSet) {
	o.nodePortAddresses = nodePortAddresses{backend.NodePortAddresses{Primary: true}}
	f.Var(&o.nodePortAddresses, "nodeport-addresses", "where node ports are served: CIDRs of local addresses, or the word primary for the Node's first address of each family")
	takeOverFlag(f, &o.takeOver)
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
	// objects returns the problems of single objects, where the states are made here. It may be nil.
	objects func() []error
	// report is told of each status of the dataplane. It must not block, and may be nil.
	report func(applied state.Revision, failed map[state.ServiceName]error)
}

// parts returns the parts of the process that program this node's kernel by nftables, and answer for its health.
func (o *dataplaneFlags) parts(ctx context.Context, from feeding, detector backend.LocalDetector, stdout io.Writer, log *slog.Logger) ([]func(context.Context) error, error) {
	// Before anything is served: a predecessor that is still running uses the same ports.
	dataplane, err := nftables.New(ctx, nftables.Options{
		Logger: log, LocalDetector: detector, NodePortAddresses: o.nodePortAddresses.NodePortAddresses,
		TakeOver: o.takeOver, Program: programName(),
	})
	if err != nil {
		return nil, explainStart(err)
	}
	parts, err := o.servedBy(dataplane, from, stdout, log)
	if err != nil {
		return nil, errors.Join(err, dataplane.Close())
	}
	return parts, nil
}

// servedBy returns the parts of the process for a dataplane, which they close.
func (o *dataplaneFlags) servedBy(dataplane *nftables.Backend, from feeding, stdout io.Writer, log *slog.Logger) ([]func(context.Context) error, error) {
	progress := &progress{feeding: from, out: stdout}
	h := healthz.New(healthz.Options{
		Families: families, Newest: func() state.Revision { return from.snapshot().Revision() },
	})
	nodePorts := func() backend.NodePortAddresses { return o.nodePortAddresses.NodePortAddresses }
	files := openShares(log)
	ports, err := newHealthPorts(servicehealth.Options{Logger: log, Healthy: h.Healthy}, files, nodePorts)
	if err != nil {
		return nil, err
	}
	h.SetNode(healthz.Node{Exists: true})
	if from.grave {
		h.AddFaults(from.origin, from.problems)
	} else {
		h.AddProblems(from.origin, from.problems)
	}
	if from.objects != nil {
		h.AddProblems("objects", from.objects)
	}
	h.AddFaults("dataplane", progress.status.faults)
	h.AddFaults("tables", dataplane.Faults)
	h.AddProblems("services", progress.status.problems)
	h.AddProblems("healthCheckNodePorts", ports.problems)
	parts := []func(context.Context) error{ports.Run}
	if o.healthAddress != "" {
		l, err := net.Listen("tcp", o.healthAddress)
		if err != nil {
			return nil, fmt.Errorf("%w; choose another address with --healthz-bind-address", err)
		}
		parts = append(parts, serveHealth(l, h, files, log))
	}
	onStatus := func(s backend.Status) {
		h.Status(s)
		progress.set(s)
	}
	return append(parts, func(ctx context.Context) error {
		err := backend.Run(ctx, from.feed, dataplane, backend.RunOptions{Logger: log, OnAttempt: ports.attempted, OnStatus: onStatus})
		return errors.Join(err, dataplane.Close())
	}), nil
}

// serveHealth returns the part of a process that answers for its health.
func serveHealth(l net.Listener, h *healthz.Health, files shares, log *slog.Logger) func(context.Context) error {
	o := httpserver.Options{Connections: new(connections).pool("health", files.health, files.healthOwn, log), Logger: log}
	return func(ctx context.Context) error { return httpserver.Serve(ctx, l, h.Handler(), o) }
}

// progress follows the reconciler, and says once that the first state is programmed.
type progress struct {
	feeding
	out    io.Writer
	status dataplaneStatus
	begun  bool // used by the reconciler's goroutine only
}

func (p *progress) set(s backend.Status) {
	p.status.set(s)
	if p.report != nil {
		p.report(s.Applied, s.Failed)
	}
	if p.begun || s.Applied == 0 {
		return
	}
	p.begun = true
	resident.Trim() // reading everything for the first time took far more than keeping it takes
	n := p.snapshot().Len() - len(s.Failed)
	fmt.Fprintf(p.out, "switchyard: node %s routes %d %s\n", p.snapshot().Node().Name, n, map[bool]string{true: "service", false: "services"}[n == 1])
}
