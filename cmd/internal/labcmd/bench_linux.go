package labcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/test/bench"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: cli.LabCommands["bench"],
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchDataplanesCommand())
	return cmd
}

// benchOptions are the flags of 'switchyard bench dataplanes'.
type benchOptions struct {
	bench.DataplanesOptions
	output string
	dir    string
}

func newBenchDataplanesCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "dataplanes",
		Short: "Compare the dataplanes that can run on this machine",
		Long: `Dataplanes measures each dataplane that can run on this machine. It measures how long it takes
to load Services, to change one, and to start again where they are programmed already. It also
measures memory, and connections through a cluster IP and a NodePort, compared with connections
without any dataplane.

It builds nodes in network namespaces of its own, and touches nothing else: run it on a node
to choose the node's mode. A dataplane that cannot run there says why in its row. IPVS needs
its modules loaded: modprobe ip_vs.`,
		Example: `  switchyard bench dataplanes                                      # up to 3 minutes
  switchyard bench dataplanes --services 500 --dataplanes nftables,iptables-nft`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if err := o.check(); err != nil {
				return cli.Usage("switchyard bench dataplanes", err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&o.Services, "services", []int{10, 10_000}, "numbers of Services to measure with")
	f.IntVar(&o.Endpoints, "endpoints", 5, "endpoints of each Service")
	f.StringSliceVar(&o.Names, "dataplanes", bench.DataplaneNames(), "dataplanes to measure")
	f.IntVar(&o.Rounds, "rounds", 5, "how often each kind of connection is measured")
	f.DurationVar(&o.Limit, "limit", 3*time.Minute, "how long all may take; one dataplane takes no more than half of what is left")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	f.StringVar(&o.dir, "out", "", "directory for dataplanes.md")
	cli.Complete(cmd, "dataplanes", bench.DataplaneNames()...)
	cli.Complete(cmd, "output", "table", "json")
	return cmd
}

func (o *benchOptions) check() error {
	for _, n := range o.Services {
		if n < 1 || n > 200_000 {
			return fmt.Errorf("--services: %d is not from 1 to 200000", n)
		}
	}
	for _, name := range o.Names {
		if !slices.Contains(bench.DataplaneNames(), name) {
			return cli.NoneOf("dataplanes", name, bench.DataplaneNames()...)
		}
	}
	switch {
	case o.Endpoints < 1:
		return fmt.Errorf("--endpoints: %d is less than 1", o.Endpoints)
	case o.Rounds < 1:
		return fmt.Errorf("--rounds: %d is less than 1", o.Rounds)
	case o.Limit <= 0:
		return fmt.Errorf("--limit: %v is not greater than 0", o.Limit)
	case o.output != "table" && o.output != "json":
		return cli.NoneOf("output", o.output, "table", "json")
	}
	return nil
}

func (o *benchOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := enterNamespaces(); err != nil {
		return err
	}
	o.Progress = stderr
	report, err := bench.Dataplanes(ctx, o.DataplanesOptions)
	if err != nil {
		return err
	}
	if o.output == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(report)
	} else {
		err = report.WriteTables(stdout)
	}
	if o.dir != "" {
		err = errors.Join(err, bench.WriteDataplanes(o.dir, report))
	}
	return err
}
