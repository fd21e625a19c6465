//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/e2e/figures"
	"github.com/switchyard-net/switchyard/test/e2e/kubeproxy"
)

const (
	// poll is the time between two looks at the kernel.
	poll = 200 * time.Microsecond
	// sampled is how many services are tried to see that all are programmed.
	sampled = 1000
	// waitTimeout is how long a proxy may take for anything.
	waitTimeout = 5 * time.Minute
)

// proxy is a measured proxy.
type proxy struct {
	name    string
	changes int // that are timed one by one
	start   func(c *cluster, n *node, dir string) (*controlplane.Process, error)
}

func upstream(o *options) proxy {
	return proxy{"kube-proxy " + o.release + ", " + o.mode, o.slow, func(c *cluster, n *node, dir string) (*controlplane.Process, error) {
		return kubeproxy.Start(n.Node(), o.proxyOptions(c, dir))
	}}
}

// switchyard is started with the very configuration of kube-proxy.
func switchyard(o *options, program string) proxy {
	name := "Switchyard"
	if program != o.program {
		name += ", " + program // one of several
	}
	return proxy{name, o.changes, func(c *cluster, n *node, dir string) (*controlplane.Process, error) {
		program, err := filepath.Abs(program)
		if err != nil {
			return nil, err
		}
		return kubeproxy.StartProgram(n.Node(), program, "proxy", o.proxyOptions(c, dir))
	}}
}

// proxyOptions are the configuration of both.
func (o *options) proxyOptions(c *cluster, dir string) kubeproxy.Options {
	return kubeproxy.Options{Dir: dir, Kubeconfig: c.plane.Kubeconfig(), Node: nodeName, Mode: o.mode, ClusterCIDRs: podCIDRs}
}

// measure starts a proxy on a node of its own and takes all figures.
func measure(ctx context.Context, c *cluster, p proxy, o *options) (*result, error) {
	n, err := newNode(ctx, c.options.attempt)
	if err != nil {
		return nil, err
	}
	defer n.close()
	logf("%s: first full sync", p.name)
	begun, err := begin(ctx, c, n, p)
	defer begun.end()
	if err != nil {
		return nil, err
	}
	process := begun.process
	m := &measurement{cluster: c, node: n, process: process, rounds: p.changes}
	r := &result{Name: p.name, SyncSeconds: begun.synced.Seconds()}
	time.Sleep(5 * time.Second) // what the start leaves to be collected
	if r.RSSIdle, err = figures.RSS(process.PID()); err != nil {
		return nil, err
	}
	logf("%s: synced after %.2f s; %d changes one by one", p.name, r.SyncSeconds, p.changes)
	if err := m.latencies(ctx, r); err != nil {
		return nil, err
	}
	logf("%s: %d changes a second for %v", p.name, o.rate, o.load)
	return r, m.load(ctx, o, r)
}

// measurement is a proxy at work.
type measurement struct {
	cluster *cluster
	node    *node
	process *controlplane.Process
	rounds  int
}

// errLate reports that a proxy has not programmed a state within waitTimeout.
var errLate = errors.New("the proxy is late")

// until waits until the marker's frontend leads to an address.
func (m *measurement) until(ctx context.Context, want string) error {
	deadline := time.Now().Add(waitTimeout)
	for m.node.answers(ctx, markerFrontend) != want {
		if err := m.process.Failure(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the marker does not lead to %s after %v: %w: %s", want, waitTimeout, errLate, m.process.Tail())
		}
		time.Sleep(poll)
	}
	return nil
}

// allAnswer waits until each of a sample of services answers.
func (m *measurement) allAnswer(ctx context.Context) error {
	deadline := time.Now().Add(waitTimeout)
	for _, i := range m.cluster.rng.Perm(m.cluster.options.services)[:min(sampled, m.cluster.options.services)] {
		for m.node.answers(ctx, frontend(i)) == "" {
			if time.Now().After(deadline) {
				return fmt.Errorf("service %d does not answer after %v", i, waitTimeout)
			}
			time.Sleep(poll)
		}
	}
	return nil
}

// latencies times single changes, with a rest between them: a proxy that has just synced may put the next sync off.
func (m *measurement) latencies(ctx context.Context, r *result) error {
	const rest = 1200 * time.Millisecond
	var sent, accepted []time.Duration
	for range m.rounds {
		time.Sleep(rest)
		start := time.Now()
		want, err := m.cluster.mark(ctx)
		if err != nil {
			return err
		}
		answered := time.Now()
		if err := m.until(ctx, want); err != nil {
			return err
		}
		sent, accepted = append(sent, time.Since(start)), append(accepted, time.Since(answered))
	}
	r.Changes = m.rounds
	r.RequestP50, r.RequestP99 = figures.Percentile(sent, 0.50), figures.Percentile(sent, 0.99)
	r.ChangeP50, r.ChangeP99 = figures.Percentile(accepted, 0.50), figures.Percentile(accepted, 0.99)
	return nil
}

// load changes endpoints of random services at a steady rate, and takes processor time and memory.
func (m *measurement) load(ctx context.Context, o *options, r *result) error {
	before, err := figures.CPU(m.process.PID())
	if err != nil {
		return err
	}
	changed, err := m.cluster.change(ctx)
	if err != nil {
		return err
	}
	after, err := figures.CPU(m.process.PID())
	if err != nil {
		return err
	}
	r.CPUSeconds = (after - before).Seconds()
	if r.RSSLoad, err = figures.RSS(m.process.PID()); err != nil {
		return err
	}
	for _, n := range changed {
		r.LoadChanges += n
	}
	return m.cluster.restore(ctx, changed)
}

// change changes endpoints of random services at the rate of the load, for as long. It returns how often it changed each of them.
func (c *cluster) change(ctx context.Context) (changed map[int]int, err error) {
	ticker := time.NewTicker(time.Second / time.Duration(c.options.rate))
	defer ticker.Stop()
	slots := make(chan struct{}, writers)
	errs := make(chan error, 1)
	changed = map[int]int{}
	start := time.Now()
	for time.Since(start) < c.options.load {
		<-ticker.C
		i := c.rng.IntN(c.options.services)
		changed[i]++
		slice := c.slice(i, changed[i])
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			if err := c.client.Replace(ctx, slice); err != nil {
				select {
				case errs <- err:
				default:
				}
			}
		}()
	}
	select {
	case err = <-errs:
	default:
	}
	return changed, err
}

// restore takes changes back: the next proxy finds the cluster as this one did.
func (c *cluster) restore(ctx context.Context, changed map[int]int) error {
	for i := range changed {
		if err := c.client.Replace(ctx, c.slice(i, 0)); err != nil {
			return err
		}
	}
	return nil
}
