//go:build linux

// Command bench measures Switchyard on this machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/test/bench"
	"github.com/switchyard-net/switchyard/test/netns"
)

func main() {
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
	cmd := &cobra.Command{
		Use:           "bench",
		Short:         "Measure Switchyard on this machine",
		SilenceErrors: true, // main prints them, once
		SilenceUsage:  true,
		Long: `Bench measures one part of Switchyard with synthetic clusters. Each figure is one line of JSON on
stdout, {"name","services","endpoints","value","unit"}. "atMost" is its target, if it has one, and
"missed" says that the target is missed. A table follows on stderr. Parts that need a kernel run in a
network namespace of their own.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newBench("brain", "Services computed from scratch in a second", false, bench.Brain),
		newBench("store", "One changed endpoint, through model, brain and store", false, bench.Store),
		newBenchNFTablesCommand(),
		newBench("memory", "Resident memory with everything programmed", true, bench.Memory),
		newBench("page", "Resident memory with the page open in browsers, for a minute", false, bench.Page),
		newBench("api", "The node-local API: whole states, and one changed endpoint", false, bench.API),
		newBench("churn", "The bytes that a node gets in an hour of a busy cluster", false, bench.Churn),
		newBenchScalingCommand(),
		newBenchEBPFCommand(),
		newBenchUserspaceCommand(),
		newBenchRelayCommand(),
		newBenchAttacksCommand(),
		newNodesCommand(),
		newRelayServeCommand(),
		newConnectionsCommand(),
		newHolderCommand(),
	)
	return cmd
}

func newBench(name, short string, kernel bool, measure func(context.Context, *bench.Reporter, bench.Options) error) *cobra.Command {
	var o bench.Options
	var strict bool
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			for _, n := range o.Services {
				if n < 1 {
					return fmt.Errorf("--services: %d is less than 1", n)
				}
			}
			if o.Endpoints < 0 {
				return fmt.Errorf("--endpoints: %d is less than 0", o.Endpoints)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if kernel {
				if err := enterNamespaces(); err != nil {
					return err
				}
			}
			r := bench.NewReporter(cmd.OutOrStdout(), cmd.ErrOrStderr())
			return errors.Join(measure(cmd.Context(), r, o), r.Close(), judge(r, strict))
		},
	}
	addStrict(cmd, &strict)
	cmd.Flags().IntSliceVar(&o.Services, "services", nil, "numbers of services to measure with (default: the README's)")
	cmd.Flags().IntVar(&o.Endpoints, "endpoints", 0, "endpoints of each service (default 5)")
	return cmd
}

func addStrict(cmd *cobra.Command, strict *bool) {
	cmd.Flags().BoolVar(strict, "strict", false, "end with an error if a figure missed its target: on a quiet machine only")
}

// judge returns an error for figures that missed their target, if that is wanted. Without it they are marked, for other work on the machine
// delays what is measured.
func judge(r *bench.Reporter, strict bool) error {
	if !strict {
		return nil
	}
	return r.Missed()
}

func newBenchNFTablesCommand() *cobra.Command {
	var of bench.NFTablesOptions
	cmd := newBench("nftables", "Cold load, warm restart and single changes in the kernel", true,
		func(ctx context.Context, r *bench.Reporter, o bench.Options) error {
			of.Options = o
			return bench.NFTables(ctx, r, of)
		})
	cmd.Flags().IntSliceVar(&of.Ranges, "ranges", nil, "total numbers of source ranges to measure with (default 1000,100000)")
	cmd.Flags().IntSliceVar(&of.Clients, "clients", nil, "numbers of clients with affinity to measure with (default 1000,1000000)")
	return cmd
}

func newBenchScalingCommand() *cobra.Command {
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

// keepGrowths writes what was measured to a directory, unless its name is empty. After that, it is an error if anything grows faster than it
// may for no known reason. Small sizes show nothing about that.
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

func newBenchEBPFCommand() *cobra.Command {
	var of bench.EBPFOptions
	var dir string
	cmd := newBench("ebpf", "Socket hooks above nftables, compared with nftables and direct connections", true,
		func(ctx context.Context, r *bench.Reporter, o bench.Options) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program, to run it for connections: %w", err)
			}
			of.Options = o
			of.Worker = func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, self, benchConnections) }
			if err := bench.EBPF(ctx, r, of); err != nil || dir == "" {
				return err
			}
			return bench.WriteEBPF(dir, r)
		})
	cmd.Flags().IntVar(&of.Rounds, "rounds", 0, "how often each kind of connection is measured (default 16)")
	cmd.Flags().StringVar(&dir, "out", "", "directory for ebpf.md")
	return cmd
}

func newBenchUserspaceCommand() *cobra.Command {
	var o bench.UserspaceOptions
	var dir string
	var strict bool
	cmd := &cobra.Command{
		Use:   "userspace",
		Short: "The relay of mode userspace, compared with HAProxy, nftables and direct connections",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := enterNamespaces(); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program, to run it for connections: %w", err)
			}
			o.Connections = func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, self, benchConnections) }
			o.Holder = func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, self, benchHolder) }
			r := bench.NewReporter(cmd.OutOrStdout(), cmd.ErrOrStderr())
			result, err := bench.Userspace(cmd.Context(), r, o)
			if err == nil && dir != "" {
				err = bench.WriteUserspace(dir, result)
			}
			return errors.Join(err, r.Close(), judge(r, strict))
		},
	}
	addStrict(cmd, &strict)
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "how often everything is measured (default 8)")
	cmd.Flags().IntVar(&o.Held, "connections", 0, "open connections that memory is measured with (default 10000)")
	cmd.Flags().StringVar(&dir, "out", "", "directory for userspace.md")
	return cmd
}

func newBenchAttacksCommand() *cobra.Command {
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

func newBenchRelayCommand() *cobra.Command {
	nodes := 0
	cmd := newBench("relay", "Relays with thousands of nodes: changes, slow nodes, restarts, replicas", false, func(ctx context.Context, r *bench.Reporter, o bench.Options) error {
		relays, err := benchRelays(o, nodes)
		if err != nil {
			return err
		}
		return bench.Relay(ctx, r, relays)
	})
	cmd.Flags().IntVar(&nodes, "nodes", 0, "number of nodes (default 5000)")
	return cmd
}

// benchRelays has relays and nodes run as processes of this program.
func benchRelays(o bench.Options, nodes int) (bench.RelayOptions, error) {
	self, err := os.Executable()
	if err != nil {
		return bench.RelayOptions{}, fmt.Errorf("find this program, to run it for relays and nodes: %w", err)
	}
	return bench.RelayOptions{
		Options: o, Nodes: nodes,
		Relay: func(ctx context.Context, args ...string) *exec.Cmd {
			return exec.CommandContext(ctx, self, append([]string{benchServe}, args...)...)
		},
		Fleet: func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, self, benchNodes) },
	}, nil
}

// The commands that 'bench relay', 'bench ebpf' and 'bench userspace' run in other processes.
const benchNodes, benchServe, benchConnections, benchHolder = "relay-nodes", "relay-serve", "connections", "dataplane-holder"

func newHolderCommand() *cobra.Command {
	return &cobra.Command{
		Use:    benchHolder,
		Short:  "Program Services, and serve them until stdin ends",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.HoldDataplane(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

func newConnectionsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    benchConnections,
		Short:  "Make and answer connections",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.MeasureConnections(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

func newNodesCommand() *cobra.Command {
	return &cobra.Command{
		Use:    benchNodes,
		Short:  "Follow relays as many nodes",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.FleetNodes(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
