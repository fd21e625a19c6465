//go:build linux

// Command upgrade compares this version with the last release. Package test/upgrade describes how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/test/chaos"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/upgrade"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := netns.Run(func() int {
		if err := run(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "upgrade: %v\n", err)
			return 1
		}
		return 0
	})
	stop()
	os.Exit(code)
}

func run(ctx context.Context) error {
	var root, modes string
	o := chaos.Options{Log: os.Stderr, WithoutGaps: true}
	flag.StringVar(&root, "source", ".", "root of the repository")
	flag.StringVar(&modes, "dataplanes", "nftables,ebpf,iptables-nft,iptables-legacy,userspace", "dataplanes of the grid")
	flag.Float64Var(&o.Scale, "scale", 0.5, "how much happens; 1 is 20 upgrades and 20 downgrades in each mode")
	flag.IntVar(&o.Rate, "rate", 400, "new connections a second")
	flag.Parse()
	o.Source = root
	switch flag.Arg(0) {
	case "record":
		return upgrade.Record(ctx, root)
	case "apidiff":
		return apidiff(ctx, root)
	case "grid":
		return grid(ctx, &o, strings.Split(modes, ","))
	case "program":
		_, program, err := upgrade.LastProgram(ctx, root)
		fmt.Println(program)
		return err
	}
	return errors.New("usage: upgrade [flags] record|apidiff|grid|program")
}

// apidiff prints incompatible changes of the Go packages.
func apidiff(ctx context.Context, root string) error {
	changes, wrong, err := upgrade.Incompatible(ctx, root)
	if err != nil {
		return err
	}
	for _, c := range changes {
		fmt.Println(c)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s\nmake the change compatible; docs/stability.md says which packages may change, and how with a line in %s", strings.Join(wrong, "\n"), upgrade.Accepted)
	}
	return nil
}

// grid goes from the last release to this version and back with each dataplane, and prints a table.
func grid(ctx context.Context, o *chaos.Options, dataplanes []string) error {
	began := time.Now()
	last, program, err := upgrade.LastProgram(ctx, o.Source)
	if err != nil {
		return err
	}
	o.Release = program
	if o.Dir, err = os.MkdirTemp("", "upgrade-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.Dir)
	if err := upgrade.Build(ctx, o.Source, "head", o.Dir+"/switchyard"); err != nil {
		return err
	}
	o.Programs = o.Dir
	if err := chaos.GoFirst(); err != nil {
		fmt.Fprintf(os.Stderr, "upgrade: warning: the load cannot run before all other programs: %v\n", err)
	}
	fmt.Printf("This version and %s (commit %.12s), both ways, under load. %s.\n\n", last.Version, last.Commit, chaos.DescribeMachine())
	fmt.Println("| Mode | What | Connections | Requests | Lost | Reset | Wrong endpoint | Longest gap, ms | Slowest change, s |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	var wrong []string
	for _, name := range dataplanes {
		one := *o
		one.Dataplane, one.Scenarios = name, []string{"release", "mixed versions"}
		results, err := chaos.Run(ctx, one)
		if err != nil {
			return err
		}
		for i := range results {
			r := &results[i]
			c := &r.Report.Counts
			happened, _, _ := strings.Cut(r.Happened, ";")
			fmt.Printf("| %s | %s | %d | %d | %d | %d | %d | %.1f | %.1f |\n", name, happened, c.Connections, c.Requests, c.Lost, c.Reset, c.WrongEndpoint,
				float64(r.Report.New.Ours.Microseconds())/1000, r.Slowest.Seconds())
			for _, w := range r.Wrong {
				wrong = append(wrong, fmt.Sprintf("%s, %s: %s", name, r.Scenario, w))
			}
		}
	}
	fmt.Printf("\nThe grid took %v. By default it leaves out mode ipvs, which needs a kernel with IPVS: run make upgrade-grid-kernel.\n", time.Since(began).Round(time.Second))
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "\n"))
	}
	return nil
}
