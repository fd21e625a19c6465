//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/test/e2e/figures"
)

// loads measures only the processor time under load, of several builds at once. Each serves a node of its own and
// sees the same changes, so that other work on the machine affects all of them.
func loads(ctx context.Context, c *cluster, o *options) error {
	var proxies []proxy
	for program := range strings.SplitSeq(o.program, ",") {
		proxies = append(proxies, switchyard(o, program))
	}
	used := make([][]time.Duration, len(proxies))
	for range o.loads {
		took, err := loadAll(ctx, c, proxies)
		if err != nil {
			return err
		}
		for i := range took {
			used[i] = append(used[i], took[i])
		}
		fmt.Fprintf(os.Stderr, "== processor time %v\n", took)
	}
	fmt.Printf("| of %d loads of %v, %d changes/s | least | median | factor |\n|---|---:|---:|---:|\n", o.loads, o.load, o.rate)
	for i, p := range proxies {
		slices.Sort(used[i])
		first, here := used[0][len(used[0])/2], used[i][len(used[i])/2]
		fmt.Printf("| %s | %.2f s | %.2f s | %.2f |\n", p.name, used[i][0].Seconds(), here.Seconds(), first.Seconds()/here.Seconds())
	}
	return nil
}

// loadAll returns the processor time that each proxy takes for the same changes.
func loadAll(ctx context.Context, c *cluster, proxies []proxy) (took []time.Duration, err error) {
	running := make([]*start, len(proxies))
	for i, p := range proxies {
		n, err := newNode(ctx, c.options.attempt)
		if err != nil {
			return nil, err
		}
		defer n.close()
		running[i], err = begin(ctx, c, n, p)
		defer running[i].end()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	time.Sleep(5 * time.Second) // what the start leaves to be collected
	before, err := usedBy(running)
	if err != nil {
		return nil, err
	}
	changed, err := c.change(ctx)
	if err != nil {
		return nil, err
	}
	if took, err = usedBy(running); err != nil {
		return nil, err
	}
	for i := range took {
		took[i] -= before[i]
	}
	return took, c.restore(ctx, changed)
}

// usedBy returns the processor time of each process so far.
func usedBy(running []*start) (used []time.Duration, err error) {
	for _, s := range running {
		here, err := figures.CPU(s.process.PID())
		if err != nil {
			return nil, err
		}
		used = append(used, here)
	}
	return used, nil
}
