//go:build linux

// Command proof injects faults for Switchyard while thousands of connections a second go through it, and counts their outcome.
package main

import (
	"context"
	"encoding/json"
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
			fmt.Fprintf(os.Stderr, "proof: %v\n", err)
			return 1
		}
		return 0
	})
	stop()
	os.Exit(code)
}

var errWrong = errors.New("not all is as promised; see above")

func run(ctx context.Context) error {
	o := chaos.Options{Log: os.Stdout}
	var names, out, beside string
	var soak time.Duration
	flag.StringVar(&o.Source, "source", ".", "root of the repository")
	flag.StringVar(&names, "scenarios", "", "names of the scenarios to run, separated by commas (default: all): "+strings.Join(chaos.Names(), ", "))
	flag.StringVar(&o.Dataplane, "dataplane", "nftables", "dataplane of Switchyard: "+strings.Join(chaos.Dataplanes(), ", "))
	flag.Float64Var(&o.Scale, "scale", 1, "how much happens in each scenario; 1 has a thousand kills")
	flag.IntVar(&o.Rate, "rate", 0, "new connections a second (default: 1200, 400 through a relay)")
	flag.Uint64Var(&o.Seed, "seed", 1, "what decides about all that is random")
	flag.StringVar(&out, "out", "", "page to write")
	flag.StringVar(&beside, "beside", "", "results of another proxy for the page, from 'go run ./proof' in test/e2e")
	flag.DurationVar(&soak, "soak", 0, "change a cluster at random for so long, and run nothing else")
	var build string
	flag.StringVar(&build, "build", "", "build the programs that scenarios start, in this directory, and run nothing")
	flag.StringVar(&o.Programs, "programs", "", "directory of programs that were built with -build (default: they are built)")
	flag.BoolVar(&o.CountsOnly, "counts-only", false, "judge nothing but the outcome of connections: on a machine that is too slow for gaps to tell anything")
	first := flag.Bool("first", true, "let the load run before all other programs on this machine, so that it does not measure them")
	flag.StringVar(&o.Release, "release", "", "program of a release, for the scenarios that go from it to this version and back (default: these are left out)")
	edge := flag.Bool("edge", false, "run the scenarios of the edge: "+strings.Join(chaos.EdgeNames(), ", "))
	flag.IntVar(&o.Connections, "connections", 0, "how many connections are open all the time in the scenarios of the edge (default: 1000)")
	mutants := flag.Bool("mutants", false, "run builds with injected bugs, which the scenarios must notice, and nothing else")
	keep := flag.Bool("keep", false, "keep the logs, and print their path")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; run with -h for usage", flag.Arg(0))
	}
	if names != "" {
		o.Scenarios = strings.Split(names, ",")
	}
	if *edge && o.Release == "" { // built before there is anything that goes first
		var err error
		if _, o.Release, err = upgrade.LastProgram(ctx, o.Source); err != nil {
			return err
		}
	}
	if build != "" {
		o.Dir = build
		if err := os.MkdirAll(build, 0o755); err != nil {
			return err
		}
		if *mutants {
			return chaos.BuildMutants(o)
		}
		return chaos.Build(o)
	}
	findings := &chaos.Findings{Machine: chaos.DescribeMachine(), Dataplane: o.Dataplane, Scale: o.Scale, Rate: chaos.RateOf(o)}
	var err error
	if beside != "" {
		if findings.Upstream, err = readBeside(beside); err != nil {
			return err
		}
	}
	if !*first {
		err = errors.New("the load does not run before all other programs")
	} else if err = chaos.GoFirst(); err != nil {
		err = fmt.Errorf("the load cannot run before all other programs: %w", err)
	}
	if err != nil {
		if out != "" {
			return fmt.Errorf("%w, as it must for a page; run as root, with -first, or without -out", err)
		}
		fmt.Fprintln(os.Stderr, "proof: warning:", err)
	}
	if o.Dir, err = os.MkdirTemp("", "switchyard-proof-"); err != nil {
		return err
	}
	if *keep {
		fmt.Println("logs are kept in", o.Dir)
	} else {
		defer os.RemoveAll(o.Dir)
	}
	began := time.Now()
	defer func() { fmt.Println("took", time.Since(began).Round(time.Second)) }()
	switch {
	case *edge:
		return runEdge(ctx, o, findings, out, *mutants)
	case soak > 0:
		return runSoak(ctx, o, soak)
	case *mutants:
		return runMutants(ctx, o, findings)
	}
	return runAll(ctx, o, findings, out)
}

// runEdge runs the scenarios of the edge, and writes the page, if there is to be one, with the mutants.
func runEdge(ctx context.Context, o chaos.Options, findings *chaos.Findings, out string, mutants bool) (err error) {
	if !mutants {
		if findings.Ours, err = chaos.RunEdge(ctx, o); err != nil {
			return err
		}
	}
	if wrong := findings.Wrong(); out == "" && !mutants {
		return wrong
	}
	findings.Mutants, err = chaos.RunEdgeMutants(ctx, o)
	for _, p := range findings.Mutants {
		if err == nil && !p.Noticed {
			err = fmt.Errorf("the scenario %q does not notice a Switchyard that %s", p.Result.Scenario, p.Bug)
		}
	}
	if out != "" {
		err = errors.Join(err, os.WriteFile(out, []byte(findings.WriteEdge(chaos.ConnectionsOf(o))), 0o644))
	}
	return errors.Join(err, findings.Wrong())
}

// runAll runs scenarios, and writes the page, if there is to be one, with the mutants.
func runAll(ctx context.Context, o chaos.Options, findings *chaos.Findings, out string) (err error) {
	if findings.Ours, err = chaos.Run(ctx, o); err != nil {
		return err
	}
	if out != "" {
		const small = 0.1
		scale := o.Scale
		o.Scale = min(scale, small)
		err = runMutants(ctx, o, findings)
		if err := errors.Join(err, os.WriteFile(out, []byte(findings.Write()), 0o644)); err != nil {
			return err
		}
	}
	for i := range findings.Ours {
		if len(findings.Ours[i].Wrong) > 0 {
			return errWrong
		}
	}
	return nil
}

func runMutants(ctx context.Context, o chaos.Options, findings *chaos.Findings) (err error) {
	if findings.Mutants, err = chaos.RunMutants(ctx, o); err != nil {
		return err
	}
	for _, p := range findings.Mutants {
		if !p.Noticed {
			return fmt.Errorf("the scenario %q does not notice a Switchyard that %s", p.Result.Scenario, p.Bug)
		}
	}
	return nil
}

func runSoak(ctx context.Context, o chaos.Options, long time.Duration) error {
	soaked, err := chaos.Soak(ctx, o, long)
	if err != nil {
		return err
	}
	fmt.Println(soaked)
	if len(soaked.Wrong) > 0 {
		return errWrong
	}
	return nil
}

// readBeside reads what another program has written of its scenarios.
func readBeside(path string) (*chaos.Beside, error) {
	b := &chaos.Beside{}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, b)
	}
	if err != nil {
		return nil, fmt.Errorf("read results of another proxy: %w", err)
	}
	return b, nil
}
