// Command switchyard is a node-local service proxy for Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/internal/plaintext"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() {
	limitMemory(memlimit.FromCgroup, os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second signal ends the process at once
	code := run(ctx, proxyArgs(os.Args), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes the command line and returns the exit code. What people read on their terminals is clean,
// whatever objects and files say.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out, notes := plaintext.NewWriter(stdout), plaintext.NewWriter(stderr)
	code := execute(ctx, args, out, notes)
	if err := errors.Join(out.Flush(), notes.Flush()); err != nil && code == exitOK {
		return exitError
	}
	return code
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "switchyard: %v\n", err)
	if usage, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", usage.command)
		return exitUsage
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "switchyard",
		Short: "A node-local service proxy for Kubernetes",
		Long: `Switchyard routes the connections of a Kubernetes node to the endpoints of Services.

Start with 'switchyard lab': it builds a throw-away node, runs ordinary manifests in it
and shows who answers whom.`,
		Args:          cobra.NoArgs,
		Version:       versionText(),
		SilenceErrors: true, // run prints them, once
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(
		newRunCommand(), newProxyCommand(), newServeCommand(), newApplyCommand(),
		newGetCommand(), newTopCommand(), newExplainCommand(), newDoctorCommand(), newKubectlCommand(),
		newLabCommand(), newConformanceCommand(), newBenchCommand(), newCleanupCommand(), newConfigCommand(), newVersionCommand(), newManualCommand(),
	)
	root.AddCommand(hiddenCommands()...)
	asUsage(root)
	return root
}

// usageError is a mistake in the command line.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// asUsage marks what is wrong with the flags and arguments of a command and those below it.
func asUsage(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return &usageError{c.CommandPath(), explainFlag(c, err)} })
	args := cmd.Args
	if args == nil {
		args = cobra.ArbitraryArgs
	}
	cmd.Args = func(c *cobra.Command, list []string) error {
		if err := args(c, list); err != nil {
			return &usageError{c.CommandPath(), explainArgs(c, list, err)}
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		asUsage(sub)
	}
}

// exitCode ends the program with a code, after everything there is to say has been said.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }
