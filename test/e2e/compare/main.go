//go:build linux

// Command compare measures upstream kube-proxy and Switchyard on the same cluster, one after the other on the same machine. It measures the
// time to the first full sync and the time from a change in the API to the kernel. It also measures memory, and processor time under steady
// change. kube-proxy runs in its nftables mode unless -mode says otherwise. The command prints a table, and writes compare.md and
// compare.json to the given directory.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/e2e/figures"
	"github.com/switchyard-net/switchyard/test/netns"
)

// options are the sizes of the measurement.
type options struct {
	services  int
	endpoints int
	changes   int           // single changes that are timed, of Switchyard
	slow      int           // the same, of upstream, which takes seconds for one
	rate      int           // changes a second under load
	load      time.Duration // how long
	program   string        // Switchyard's; with starts or loads also several, separated by commas
	starts    int           // if not 0, nothing but the start is measured, so often
	loads     int           // if not 0, nothing but the processor time under load is measured, so often
	out       string
	only      string        // the proxy that is measured, empty for both
	mode      string        // of both proxies
	sizes     string        // numbers of services, of modes other than nftables
	attempt   time.Duration // of a connection
	release   string        // of kube-proxy
}

func main() {
	var o options
	flag.IntVar(&o.services, "services", 10000, "number of services")
	flag.IntVar(&o.endpoints, "endpoints", 5, "endpoints of each of them")
	flag.IntVar(&o.changes, "changes", 300, "changes that are timed one by one with Switchyard")
	flag.IntVar(&o.slow, "slow-changes", 40, "changes that are timed one by one with kube-proxy")
	flag.IntVar(&o.rate, "rate", 100, "changes a second under load")
	flag.DurationVar(&o.load, "load", time.Minute, "how long the load lasts")
	flag.StringVar(&o.program, "switchyard", "../../bin/switchyard", "Switchyard's program; with -starts or -loads also several, separated by commas")
	flag.IntVar(&o.starts, "starts", 0, "measure only the time to the first full sync, this often, and write nothing")
	flag.IntVar(&o.loads, "loads", 0, "measure only the processor time under load, this often, of all Switchyard's programs at once, and write nothing")
	flag.StringVar(&o.out, "out", "../../docs/benchmarks", "directory for compare.md and compare.json")
	flag.StringVar(&o.only, "only", "", "measure only the proxy whose name begins like this, and write nothing")
	flag.StringVar(&o.mode, "mode", "nftables", "nftables, or iptables or ipvs, of which compare-MODE.md shows how they grow")
	flag.StringVar(&o.sizes, "sizes", "10,1000,10000", "numbers of services, of modes other than nftables")
	flag.DurationVar(&o.attempt, "attempt", 20*time.Millisecond, "how long a connection may take: longer on an emulated machine, with figures that are less exact")
	flag.Parse()
	os.Exit(netns.Main(run{&o}))
}

// run is the program in the form that netns.Main takes.
type run struct{ *options }

func (r run) Run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := compare(ctx, r.options); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		return 1
	}
	return 0
}

// compare measures both and writes what came out.
func compare(ctx context.Context, o *options) error {
	var err error
	if o.release, err = controlplane.Release(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "compare")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.mode != "nftables" {
		return compareMode(ctx, o, dir)
	}
	c, err := newCluster(ctx, dir, o)
	if err != nil {
		return err
	}
	defer c.stop()
	if o.starts > 0 {
		return starts(ctx, c, o)
	}
	if o.loads > 0 {
		return loads(ctx, c, o)
	}
	r := report{Machine: figures.Machine(), Services: o.services, Endpoints: o.endpoints, Rate: o.rate, LoadSeconds: o.load.Seconds()}
	for _, p := range []proxy{upstream(o), switchyard(o, o.program)} {
		if !strings.HasPrefix(p.name, o.only) {
			continue
		}
		result, err := measure(ctx, c, p, o)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		r.Results = append(r.Results, *result)
	}
	if o.only != "" {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	fmt.Print(r.table())
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	return r.write(filepath.Join(o.out, "compare.md"), filepath.Join(o.out, "compare.json"))
}
