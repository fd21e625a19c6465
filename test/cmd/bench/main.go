//go:build linux

// Command bench measures Switchyard on this machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/source/relay"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/test/bench"
	"github.com/switchyard-net/switchyard/test/netns"
)

func main() {
	bench.RunRelay = runRelay
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if code, ok := errors.AsType[exitCode](err); ok {
		os.Exit(int(code))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// exitCode is the exit code of this program, run again in another namespace.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// enterNamespaces returns nil in a process that may make network namespaces. Where only a user namespace gives that right,
// it runs this program again in one and returns that program's exit code.
func enterNamespaces() error {
	err := netns.Check()
	if _, ok := errors.AsType[*netns.PermissionError](err); !ok {
		return err
	}
	code, err := netns.Reexec()
	if err != nil {
		return fmt.Errorf("%w; or run it with sudo", err)
	}
	return exitCode(code)
}

func newCommand() *cobra.Command {
	if work := bench.Worker(); work != nil {
		return &cobra.Command{SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return work() }}
	}
	cmd := &cobra.Command{
		Use:           "bench",
		Short:         "Measure Switchyard on this machine",
		SilenceErrors: true, // main prints them, once
		SilenceUsage:  true,
		Long: `Bench measures one part of Switchyard with synthetic clusters. Each figure is one line of JSON on
stdout, {"name","services","endpoints","value","unit"}. "atMost" is its target, if it has one, and
"missed" says that the target is missed. A table follows on stderr. Parts that need a kernel run in a
network namespace of their own. The parts brain, store, api, churn and page run 'go test -bench' in
the source tree, and print the format of benchstat.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newGoTest("brain", "Services computed from scratch in a second"),
		newGoTest("store", "One changed endpoint, through model, brain and store"),
		newBench("nftables", "Cold load, warm restart and single changes in the kernel", true, bench.NFTables),
		newReporting("tenants", "Source ranges and remembered clients, which single tenants can have many of", true, bench.Tenants),
		newBench("memory", "Resident memory with everything programmed", true, bench.Memory),
		newGoTest("page", "Resident memory with the page open in browsers, for a minute"),
		newGoTest("api", "The node-local API: whole states, and one changed endpoint"),
		newGoTest("churn", "The bytes that a node gets in an hour of a busy cluster"),
		newScaling(), newEBPF(), newUserspace(), newRelay(), newAttacks(), newBalance(), newEdge(),
	)
	return cmd
}

// newGoTest returns the command that runs a benchmark of Go, which needs no other process. It takes arguments of 'go test'.
func newGoTest(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:   name + " [-- FLAG...]",
		Short: short,
		Long:  short + ", by 'go test -bench'. Flags after -- are its own, such as -count 10 for benchstat.",
		RunE: func(cmd *cobra.Command, args []string) error {
			pattern := "^Benchmark" + benchmarks[name] + "$"
			test := exec.CommandContext(cmd.Context(), "go", append([]string{"test", "github.com/switchyard-net/switchyard/test/bench", "-run", "^$", "-bench", pattern}, args...)...)
			test.Stdout, test.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return test.Run()
		},
	}
}

// benchmarks are the names of benchmarks of Go, without Benchmark, by command.
var benchmarks = map[string]string{"brain": "Brain", "store": "Store", "api": "API", "churn": "Churn", "page": "Page"}

// newBench returns the command that measures a part.
func newBench(name, short string, kernel bool, measure func(context.Context, *bench.Reporter, bench.Options) error) *cobra.Command {
	var o bench.Options
	cmd := newReporting(name, short, kernel, func(ctx context.Context, r *bench.Reporter) error { return measure(ctx, r, o) })
	addSizes(cmd, &o)
	return cmd
}

// newReporting returns a command that measures with a reporter.
func newReporting(name, short string, kernel bool, measure func(context.Context, *bench.Reporter) error) *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if kernel {
				if err := enterNamespaces(); err != nil {
					return err
				}
			}
			r := bench.NewReporter(cmd.OutOrStdout(), cmd.ErrOrStderr())
			err := errors.Join(measure(cmd.Context(), r), r.Close())
			if strict { // without it misses are only marked, because other work on the machine delays the measured operations
				err = errors.Join(err, r.Missed())
			}
			return err
		},
	}
	addStrict(cmd, &strict)
	return cmd
}

func addStrict(cmd *cobra.Command, strict *bool) {
	cmd.Flags().BoolVar(strict, "strict", false, "end with an error if a figure missed its target: on a quiet machine only")
}

func addSizes(cmd *cobra.Command, o *bench.Options) {
	cmd.PreRunE = func(*cobra.Command, []string) error {
		for _, n := range o.Services {
			if n < 1 {
				return fmt.Errorf("--services: %d is less than 1", n)
			}
		}
		if o.Endpoints < 0 {
			return fmt.Errorf("--endpoints: %d is less than 0", o.Endpoints)
		}
		return nil
	}
	cmd.Flags().IntSliceVar(&o.Services, "services", nil, "numbers of services to measure with (default: the README's)")
	cmd.Flags().IntVar(&o.Endpoints, "endpoints", 0, "endpoints of each service (default 5)")
}

func newScaling() *cobra.Command {
	var o bench.ScalingOptions
	var dir string
	cmd := &cobra.Command{
		Use:   "scaling",
		Short: "How the time of every operation grows with everything that there may be many of",
		Long: `Scaling measures every operation with ten times more and more of everything that objects or
packets can make more of. Each is one line of JSON on stdout; a table follows on stderr, which
marks what grows faster than it may, and why. It ends with an error that names what does so for
no known reason. It takes up to 8 minutes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := enterNamespaces(); err != nil {
				return err
			}
			all, err := bench.Scaling(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), o)
			if err != nil {
				return err
			}
			return keepGrowths(dir, all, o.Quick)
		},
	}
	cmd.Flags().BoolVar(&o.Quick, "quick", false, "measure small sizes only: it shows that all operations work, and nothing about how they grow")
	cmd.Flags().StringVar(&o.Only, "only", "", "one part (brain, store, cluster, wire, server, relay, nftables, conntrack) or dimension")
	cmd.Flags().StringVar(&dir, "out", "", "directory for scaling.md")
	return cmd
}

// keepGrowths writes the measurements to a directory, unless its name is empty. After that, it returns an error if any
// time grows faster than allowed, without a known reason. Small sizes show nothing about growth.
func keepGrowths(dir string, all []bench.Growth, quick bool) error {
	var err error
	if dir != "" {
		err = bench.WriteGrowths(dir, all)
	}
	if !quick {
		err = errors.Join(err, bench.Unexplained(all))
	}
	return err
}

func newEBPF() *cobra.Command {
	var o bench.EBPFOptions
	cmd := newReporting("ebpf", "Socket hooks above nftables, compared with nftables and direct connections", true,
		func(ctx context.Context, r *bench.Reporter) error { return bench.EBPF(ctx, r, o) })
	addSizes(cmd, &o.Options)
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "how often each kind of connection is measured (default 16)")
	cmd.Flags().StringVar(&o.Out, "out", "", "directory for ebpf.md")
	return cmd
}

func newUserspace() *cobra.Command {
	var o bench.UserspaceOptions
	cmd := newReporting("userspace", "The relay of mode userspace, compared with HAProxy, nftables and direct connections", true,
		func(ctx context.Context, r *bench.Reporter) error { return bench.Userspace(ctx, r, o) })
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "how often everything is measured (default 8)")
	cmd.Flags().IntVar(&o.Held, "connections", 0, "open connections that memory is measured with (default 10000)")
	cmd.Flags().StringVar(&o.Out, "out", "", "directory for userspace.md")
	return cmd
}

func newRelay() *cobra.Command {
	nodes := 0
	cmd := newBench("relay", "Relays with thousands of nodes: changes, slow nodes, restarts, replicas", false,
		func(ctx context.Context, r *bench.Reporter, o bench.Options) error {
			return bench.Relay(ctx, r, o, nodes)
		})
	cmd.Flags().IntVar(&nodes, "nodes", 0, "number of nodes (default 5000)")
	return cmd
}

func newBalance() *cobra.Command {
	var o bench.BalanceOptions
	cmd := newReporting("balance", "Packets with weights, refused shares, hashes and ejection, and next to them, compared with none (2 minutes)", true,
		func(ctx context.Context, r *bench.Reporter) error { return bench.Balance(ctx, r, o) })
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "how often everything is measured (default 40)")
	cmd.Flags().IntVar(&o.Packets, "packets", 0, "packets of each measurement (default 5000)")
	return cmd
}

func newEdge() *cobra.Command {
	var o bench.EdgeOptions
	cmd := newReporting("edge", "Connections that nodes hand over to each other, compared with nftables alone (2 minutes; root)", true,
		func(ctx context.Context, r *bench.Reporter) error { return bench.Edge(ctx, r, o) })
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "how often everything is measured (default 40)")
	cmd.Flags().IntVar(&o.Packets, "packets", 0, "packets of each run at the entry node, 2048 or more (default 32768)")
	cmd.Flags().StringVar(&o.Out, "out", "", "directory for edge.md")
	return cmd
}

func newAttacks() *cobra.Command {
	var o bench.AttackOptions
	var strict bool
	cmd := &cobra.Command{
		Use:   "attacks",
		Short: "The effect of attacks on other tenants: changes, connections, memory, descriptors",
		Long: `Attacks runs the program on a throw-away node with 200 Services, and has attackers do what they may.
It measures how long other tenants' changes and connections take. A table has a row for each attack.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := enterNamespaces(); err != nil {
				return err
			}
			return bench.Attacks(cmd.Context(), cmd.OutOrStdout(), o, strict)
		},
	}
	addStrict(cmd, &strict)
	cmd.Flags().StringVar(&o.Program, "program", "bin/switchyard", "program under attack")
	cmd.Flags().StringVar(&o.Dataplane, "dataplane", "nftables", "mode of the program")
	cmd.Flags().StringVar(&o.Only, "only", "", "one attack, in addition to the baseline")
	cmd.Flags().StringVar(&o.During, "during", "", "upgrade or switch, to have another process or dataplane take over under each attack")
	cmd.Flags().IntVar(&o.Memory, "memory", 0, "limit of the program's memory in MiB (default 1000)")
	return cmd
}

// runRelay is a relay until ctx ends, as 'switchyard serve --nodes' is.
func runRelay(ctx context.Context, o bench.RelayOptions) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c := config.Default()
	c.MetricsBindAddress = netip.AddrPort{}
	c.API.Listen, c.API.TLSCertFile, c.API.TLSKeyFile, c.API.ClientCAFile = []string{o.Listen}, o.Cert, o.Key, o.ClientCA
	var err error
	if c.HealthzBindAddress, err = netip.ParseAddrPort(o.Health); err != nil {
		return err
	}
	n, err := node.New(ctx, node.Options{
		Config: c, Role: node.Relay, Logger: log,
		Source: func(*config.Config, string) (model.Source, error) {
			return relay.New(relay.Options{Targets: []string{o.Above}, Logger: log})
		},
	})
	if err != nil {
		return err
	}
	return n.Run(ctx)
}
