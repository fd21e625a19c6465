package main

import (
	"context"
	"errors"
	"fmt"

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
