// Package labcmd has the commands of the program switchyard-lab: the lab, the conformance suite and the measurements.
package labcmd

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/lab/inputs"
)

// New returns the root command. It is called switchyard, as people call these commands.
func New(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "switchyard",
		Short: "The laboratory of Switchyard",
		Long: `The program switchyard-lab has the commands lab, conformance and bench. The program switchyard starts it
for them, from its own directory.`,
		Args:              cobra.NoArgs,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	cli.WithVersion(root, version)
	root.AddCommand(newLabCommand(), newConformanceCommand(), newBenchCommand(), newManualCommand(), newKustomizeCommand())
	return root
}

// newManualCommand is for 'switchyard manual'.
func newManualCommand() *cobra.Command {
	return &cobra.Command{
		Use: "manual DIR COMMAND", Short: "Write man pages of a command into DIR/man1, and print its part of the page of all commands", Hidden: true,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[1]
			i := slices.IndexFunc(cmd.Root().Commands(), func(c *cobra.Command) bool { return c.Name() == name })
			if _, ok := cli.LabCommands[name]; !ok || i < 0 {
				return fmt.Errorf("%s: there is no such command; name one of %s", name, strings.Join(slices.Sorted(maps.Keys(cli.LabCommands)), ", "))
			}
			return cli.WriteManual(args[0], cmd.OutOrStdout(), cmd.Root().Commands()[i])
		},
	}
}

// newKustomizeCommand is what the lab runs itself.
func newKustomizeCommand() *cobra.Command {
	return &cobra.Command{
		Use: kustomizeName + " DIR", Short: "Build a Kustomize directory for the lab", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return inputs.Build(args[0], cmd.OutOrStdout()) },
	}
}
