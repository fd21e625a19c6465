package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/node"
)

func newCleanupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that Switchyard has put into this kernel",
		Long: `Cleanup removes Switchyard's tables from this node's kernel. Connections through Services
end or fail from then on, unless another proxy takes over. Nothing else is touched. It
needs root, and may be repeated. On Windows it removes what is on the HNS network that the
environment variable KUBE_NETWORK names ('switchyard proxy --cleanup' also takes --network-name).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			removed, err := node.Cleanup(cmd.Context(), config.Default(), runtime.GOOS)
			if err != nil {
				return withRemedy(err)
			}
			text := "switchyard: there was nothing to remove"
			if removed {
				text = "switchyard: removed everything from this kernel"
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
}
