// Command switchyard is a node-local service proxy for Kubernetes.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

func main() {
	args := proxyArgs(os.Args)
	if runtime.GOOS == "linux" && isForLab(args) {
		fmt.Fprintf(os.Stderr, "switchyard: %v\n", startLab(args))
		os.Exit(cli.ExitError)
	}
	cli.Main(newRoot(), args)
}

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Run(ctx, newRoot(), args, stdout, stderr)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "switchyard",
		Short: "A node-local service proxy for Kubernetes",
		Long: `Switchyard routes the connections of a Kubernetes node to the endpoints of Services.

Start with 'switchyard lab': it builds a throw-away node, runs ordinary manifests in it
and shows who answers whom.`,
		Args: cobra.NoArgs,
	}
	cli.WithVersion(root, version)
	root.AddCommand(
		newRunCommand(), newProxyCommand(), newServeCommand(), newApplyCommand(),
		newGetCommand(), newTopCommand(), newExplainCommand(), newDoctorCommand(), newKubectlCommand(),
		newCleanupCommand(), newConfigCommand(), newVersionCommand(), newManualCommand(),
	)
	root.AddCommand(newLabCommands()...)
	return root
}
