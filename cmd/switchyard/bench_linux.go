package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/internal/bench"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure Switchyard on this machine",
		Long: `Bench measures one part of Switchyard with synthetic clusters. Each figure is one line of
JSON on stdout, {"name","services","endpoints","value","unit"}; a table follows on stderr.
What needs a kernel is measured in a network namespace of its own.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newBench("brain", "Services computed from scratch in a second", false, bench.Brain),
		newBench("store", "One changed endpoint, through model, brain and store", false, bench.Store),
		newBench("nftables", "Cold load, warm restart and single changes in the kernel", true, bench.NFTables),
		newBench("memory", "Resident memory with everything programmed", true, bench.Memory),
		newBench("api", "The node-local API: whole states, and one changed endpoint", false, bench.API),
		newBench("churn", "What a node is sent of an hour of a busy cluster", false, bench.Churn),
		newBenchRelayCommand(),
		newBenchNodesCommand(),
	)
	return cmd
}

func newBench(name, short string, kernel bool, measure func(context.Context, *bench.Reporter, bench.Options) error) *cobra.Command {
	var o bench.Options
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			for _, n := range o.Services {
				if n < 1 {
					return &usageError{cmd.CommandPath(), fmt.Errorf("--services: %d is less than 1", n)}
				}
			}
			if o.Endpoints < 0 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--endpoints: %d is less than 0", o.Endpoints)}
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
			return errors.Join(measure(cmd.Context(), r, o), r.Close())
		},
	}
	cmd.Flags().IntSliceVar(&o.Services, "services", nil, "numbers of services to measure with (default: those of the README)")
	cmd.Flags().IntVar(&o.Endpoints, "endpoints", 0, "endpoints of each service (default 5)")
	return cmd
}

func newBenchRelayCommand() *cobra.Command {
	nodes := 0
	cmd := newBench("relay", "One relay with thousands of nodes", false, func(ctx context.Context, r *bench.Reporter, o bench.Options) error {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program, to run it for the nodes: %w", err)
		}
		return bench.Relay(ctx, r, bench.RelayOptions{Options: o, Nodes: nodes, Clients: func(ctx context.Context, target string, nodes int) *exec.Cmd {
			return exec.CommandContext(ctx, self, "bench", benchNodes, "--target", target, "--nodes", strconv.Itoa(nodes))
		}})
	})
	cmd.Flags().IntVar(&nodes, "nodes", 0, "number of nodes (default 5000)")
	return cmd
}

// benchNodes is the command that 'bench relay' runs in another process.
const benchNodes = "relay-nodes"

func newBenchNodesCommand() *cobra.Command {
	var target string
	var nodes int
	cmd := &cobra.Command{
		Use:    benchNodes,
		Short:  "Follow a relay as many nodes",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.RelayClients(cmd.Context(), target, nodes, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&target, "target", "", "where the relay is")
	cmd.Flags().IntVar(&nodes, "nodes", 0, "number of nodes")
	return cmd
}
