//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/switchyard-net/switchyard/test/e2e/figures"
)

// rest is how long the machine rests before a rolling update, and between two looks at counters that may still grow.
const rest = 5 * time.Second

// row is what was measured in one rolling update.
type row struct {
	Program   string  `json:"program"`
	Nodes     int     `json:"nodes"`
	Simulated int     `json:"simulated_nodes,omitempty"`
	Rate      float64 `json:"rate"` // changes a second that were asked for
	Seconds   float64 `json:"seconds"`
	Changes   int     `json:"changes"`
	// Kernel is the latency by the kernels of Sampled nodes. Missing counts the changes that a kernel did not get in time, for each node.
	Kernel  latency `json:"kernel"`
	Sampled int     `json:"sampled_nodes"`
	Missing int     `json:"missing"`
	// Metric is the latency by the metrics of all proxies, with so many observations.
	Metric       latency `json:"metric"`
	Observations int     `json:"observations"`
	// Received is the latency until simulated nodes had decoded a change, with so many arrivals.
	Received latency `json:"received,omitzero"`
	Arrivals int     `json:"arrivals,omitempty"`
	// The mean number of processors that were busy with each.
	Proxies float64 `json:"proxies_cpus"`
	Server  float64 `json:"control_plane_cpus"` // API server and etcd
	Relay   float64 `json:"relay_cpus,omitempty"`
	Harness float64 `json:"harness_cpus"` // this process, with its simulated nodes
	Idle    float64 `json:"idle_cpus"`
	// Resident is the mean memory of a proxy. Machine is the memory of a node, with its rules in the kernel. RelayMemory is the relay's. In MiB.
	Resident    float64 `json:"resident_mib"`
	Machine     float64 `json:"machine_mib"`
	RelayMemory float64 `json:"relay_mib,omitempty"`
	Watches     int     `json:"watches"` // that nodes and the relay have open at the API server
	// Start is how long all proxies took to start, four at a time.
	Start float64 `json:"start_seconds"`
}

// latency is percentiles in milliseconds.
type latency struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

func percentiles(list []time.Duration) latency {
	return latency{figures.Percentile(list, 0.50), figures.Percentile(list, 0.99)}
}

// setup is what a rolling update is measured on.
type setup struct {
	cluster *cluster
	kind    kind
	fleet   *fleet
	relay   *relay     // nil if there is none
	nodes   *simulated // nil if there are none
	options *options
}

// measure makes a rolling update and returns what it cost.
func (s *setup) measure(ctx context.Context, rate float64) (r row, err error) {
	time.Sleep(rest) // garbage of the start is collected
	r = row{Program: s.kind.name, Nodes: len(s.fleet.proxies), Rate: rate, Start: s.fleet.started.Seconds()}
	if r.Watches, err = s.cluster.watches(ctx); err != nil {
		return r, err
	}
	r.Watches -= s.cluster.own
	if r.Resident, r.Machine, err = s.fleet.memory(); err != nil {
		return r, err
	}
	both, fine, err := s.fleet.histograms(ctx)
	if err != nil {
		return r, err
	}
	if s.nodes != nil {
		s.nodes.reset()
		r.Simulated = int(s.nodes.served.Load())
	}
	watched, err := s.watchKernels()
	defer func() {
		for _, a := range watched {
			err = errors.Join(err, a.close())
		}
	}()
	if err != nil {
		return r, err
	}
	r.Sampled = len(watched)
	logf("%s, %d nodes: %g changes a second for %v", s.kind.name, r.Nodes, rate, s.options.length)
	before, err := s.used()
	if err != nil {
		return r, err
	}
	u, err := s.cluster.roll(ctx, rate, s.options.length)
	if err != nil {
		return r, err
	}
	after, err := s.used()
	if err != nil {
		return r, err
	}
	after.since(before, u.took, &r)
	r.Seconds, r.Changes = u.took.Seconds(), len(u.triggers)
	s.settle(ctx, u, watched)
	var took []time.Duration
	for _, a := range watched {
		here, missing := a.latencies(u)
		took, r.Missing = append(took, here...), r.Missing+missing
	}
	r.Kernel = percentiles(took)
	if err := s.finish(ctx, &r, both, fine); err != nil {
		return r, err
	}
	logf("%s, %d nodes: %d changes; kernel p50 %.0f ms, p99 %.0f ms; %.2f processors idle", s.kind.name, r.Nodes, r.Changes, r.Kernel.P50, r.Kernel.P99, r.Idle)
	return r, nil
}

// watchKernels watches the kernels of a sample of nodes, spread over the order of their start.
func (s *setup) watchKernels() (watched []*arrivals, err error) {
	n := min(s.options.sample, len(s.fleet.proxies))
	for i := range n {
		a, err := watchKernel(s.fleet.proxies[i*len(s.fleet.proxies)/n].ns)
		if err != nil {
			return watched, err
		}
		watched = append(watched, a)
	}
	return watched, nil
}

// settle waits until the watched kernels and the simulated nodes have all changes, for as long as the options allow.
func (s *setup) settle(ctx context.Context, u *update, watched []*arrivals) {
	for deadline := time.Now().Add(s.options.settle); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(lookAgain) {
		missing := 0
		for _, a := range watched {
			_, n := a.latencies(u)
			missing += n
		}
		if s.nodes != nil {
			missing += max(0, len(u.triggers)*int(s.nodes.served.Load())-s.nodes.arrived())
		}
		if missing == 0 {
			return
		}
	}
}

// finish takes the counts of proxies and simulated nodes since two histograms, once the counts of the proxies have stopped.
func (s *setup) finish(ctx context.Context, r *row, both, fine histogram) error {
	for deadline := time.Now().Add(s.options.settle); ; time.Sleep(rest) {
		nowBoth, nowFine, err := s.fleet.histograms(ctx)
		if err != nil {
			return err
		}
		d := nowBoth.since(both)
		before := r.Observations
		r.Observations = int(d.count())
		if own := nowFine.since(fine); own.count() > 0 {
			d = own
		}
		r.Metric = latency{d.quantile(0.50), d.quantile(0.99)}
		if wanted := r.Changes * r.Nodes; r.Observations >= wanted || r.Observations == before && before > 0 || time.Now().After(deadline) {
			break
		}
	}
	if s.nodes != nil {
		s.nodes.mu.Lock()
		defer s.nodes.mu.Unlock()
		r.Arrivals, r.Received = len(s.nodes.took), percentiles(s.nodes.took)
	}
	return nil
}

// use is processor time so far.
type use struct {
	proxies, server, relay, harness, idle time.Duration
	relayMemory                           float64
}

func (s *setup) used() (u use, err error) {
	if u.proxies, err = s.fleet.cpu(); err != nil {
		return u, err
	}
	for _, pid := range s.cluster.plane.PIDs() {
		here, err := figures.CPU(pid)
		if err != nil {
			return u, err
		}
		u.server += here
	}
	if s.relay != nil {
		if u.relay, err = figures.CPU(s.relay.process.PID()); err != nil {
			return u, errors.Join(err, s.relay.process.Failure())
		}
		if u.relayMemory, err = figures.RSS(s.relay.process.PID()); err != nil {
			return u, err
		}
	}
	if u.harness, err = figures.CPU(os.Getpid()); err != nil {
		return u, err
	}
	u.idle, err = figures.Idle()
	return u, err
}

// since writes the difference from an earlier use into a row.
func (u use) since(before use, took time.Duration, r *row) {
	of := func(now, before time.Duration) float64 { return (now - before).Seconds() / took.Seconds() }
	r.Proxies, r.Server, r.Relay = of(u.proxies, before.proxies), of(u.server, before.server), of(u.relay, before.relay)
	r.Harness, r.RelayMemory = of(u.harness, before.harness), u.relayMemory
	r.Idle = min(of(u.idle, before.idle), float64(runtime.NumCPU()))
}
