//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/e2e/figures"
)

// start is one start of a proxy on an empty node.
type start struct {
	door    io.Closer // through which the node reaches the API server
	process *controlplane.Process
	dir     string
	// marker is the time from the start of the process until the marker answered. synced is the time until a sample of all services answered,
	// less the duration of as many connections once all services are programmed.
	marker, synced time.Duration
}

// begin starts a proxy on a node that has nothing of it yet, and waits until all services are programmed. The caller ends it.
func begin(ctx context.Context, c *cluster, n *node, p proxy) (s *start, err error) {
	want, err := c.mark(ctx)
	if err != nil {
		return nil, err
	}
	s = &start{}
	if s.door, err = c.plane.Expose(n.Node()); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "proxy"); err != nil {
		return s, err
	}
	began := time.Now()
	if s.process, err = p.start(c, n, s.dir); err != nil {
		return s, err
	}
	m := &measurement{cluster: c, node: n, process: s.process}
	if err := m.until(ctx, want); err != nil {
		return s, err
	}
	s.marker = time.Since(began)
	if err := m.allAnswer(ctx); err != nil {
		return s, err
	}
	all := time.Since(began)
	again := time.Now()
	err = m.allAnswer(ctx)
	s.synced = max(s.marker, all-time.Since(again))
	return s, err
}

// end ends the proxy. It may be called for nil.
func (s *start) end() {
	if s == nil {
		return
	}
	if s.process != nil {
		s.process.Kill()
	}
	s.door.Close()
	_ = os.RemoveAll(s.dir)
}

// starts measures nothing but the time to the first full sync, several times in turn with each proxy, and prints it.
func starts(ctx context.Context, c *cluster, o *options) error {
	proxies := []proxy{upstream(o)}
	for program := range strings.SplitSeq(o.program, ",") {
		proxies = append(proxies, switchyard(o, program))
	}
	proxies = slices.DeleteFunc(proxies, func(p proxy) bool { return !strings.HasPrefix(p.name, o.only) })
	synced, used, served := make([][]time.Duration, len(proxies)), make([][]time.Duration, len(proxies)), make([][]time.Duration, len(proxies))
	peaks := make([][]float64, len(proxies))
	for range o.starts {
		for i, p := range proxies {
			n, err := newNode(ctx, c.options.attempt)
			if err != nil {
				return err
			}
			f, err := startOnce(ctx, c, n, p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			synced[i], peaks[i] = append(synced[i], f.synced), append(peaks[i], f.peak)
			used[i], served[i] = append(used[i], f.used), append(served[i], f.served)
			if err := n.close(); err != nil {
				return err
			}
		}
	}
	fmt.Printf("| of %d starts | shortest | median | factor | peak memory | processor time | and of the control plane |\n|---|---:|---:|---:|---:|---:|---:|\n", o.starts)
	for i, p := range proxies {
		slices.Sort(synced[i])
		slices.Sort(peaks[i])
		slices.Sort(used[i])
		slices.Sort(served[i])
		first, here := synced[0][len(synced[0])/2], synced[i][len(synced[i])/2]
		fmt.Printf("| %s | %.2f s | %.2f s | %.1f | %.0f MiB | %.2f s | %.2f s |\n", p.name, synced[i][0].Seconds(), here.Seconds(),
			first.Seconds()/here.Seconds(), peaks[i][len(peaks[i])/2], used[i][len(used[i])/2].Seconds(), served[i][len(served[i])/2].Seconds())
	}
	return nil
}

// startFigures are the figures of one start.
type startFigures struct {
	synced time.Duration
	peak   float64 // MiB
	// used is the processor time of the proxy, and served the processor time of the control plane during the start.
	// Other work on the machine changes them little.
	used, served time.Duration
}

func startOnce(ctx context.Context, c *cluster, n *node, p proxy) (f startFigures, err error) {
	before, err := c.used()
	if err != nil {
		return f, err
	}
	s, err := begin(ctx, c, n, p)
	defer s.end()
	if err != nil {
		return f, err
	}
	f.synced = s.synced
	after, err := c.used()
	if err != nil {
		return f, err
	}
	f.served = after - before
	if f.used, err = figures.CPU(s.process.PID()); err != nil {
		return f, err
	}
	if f.peak, err = figures.Status(s.process.PID(), "VmHWM"); err != nil {
		return f, err
	}
	logf("%s: marker after %.2f s, all services after %.2f s", p.name, s.marker.Seconds(), s.synced.Seconds())
	return f, nil
}

// used returns the processor time of the control plane so far.
func (c *cluster) used() (total time.Duration, err error) {
	for _, pid := range c.plane.PIDs() {
		here, err := figures.CPU(pid)
		if err != nil {
			return 0, err
		}
		total += here
	}
	return total, nil
}
