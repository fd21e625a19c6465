// Package labcmd has the commands of the program switchyard-lab: the lab, the conformance suite and the measurements.
package labcmd

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/lab"
	"github.com/switchyard-net/switchyard/lab/inputs"
	"github.com/switchyard-net/switchyard/test/bench"
)

// New returns the root command. Its name is switchyard, because users call its commands by that program. In a process that a
// benchmark has started, the command does that work.
func New(version string) *cobra.Command {
	if work := bench.Worker(); work != nil {
		return &cobra.Command{Use: "switchyard", RunE: func(*cobra.Command, []string) error { return work() }}
	}
	root := &cobra.Command{
		Use:   "switchyard",
		Short: "The laboratory of Switchyard",
		Long: `Switchyard-lab has the commands lab, conformance and bench. The program switchyard starts it
for these commands, from its own directory.`,
		Args:              cobra.NoArgs,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	cli.WithVersion(root, version)
	root.AddCommand(newLabCommand(), newConformanceCommand(), newBenchCommand(), newManualCommand(), newKustomizeCommand(), newObjectsCommand())
	return root
}

// newManualCommand returns the command that 'switchyard manual' runs for each command of this program.
func newManualCommand() *cobra.Command {
	return &cobra.Command{
		Use: "manual DIR COMMAND", Short: "Write man pages of a command into DIR/man1, and print its section of the page of all commands", Hidden: true,
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

// newKustomizeCommand returns the command that the lab runs to build a Kustomize directory.
func newKustomizeCommand() *cobra.Command {
	return &cobra.Command{
		Use: kustomizeName + " DIR", Short: "Build a Kustomize directory for the lab", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return inputs.Build(args[0], cmd.OutOrStdout()) },
	}
}

// newObjectsCommand returns the command that 'switchyard explain --lab' runs.
func newObjectsCommand() *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use: cli.LabObjects + " PATH...", Short: "Print the objects that the lab makes of manifests", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := inputs.New(inputs.Options{Paths: args, Stdin: cmd.InOrStdin(), Namespace: namespace, Command: kustomizeCommand})
			if err != nil {
				return err
			}
			objects, errs := lab.Objects(in.Load())
			for _, err := range errs {
				fmt.Fprintln(cmd.ErrOrStderr(), "switchyard: ignored:", err)
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of objects that name none")
	return cmd
}
