// Package cli has the common parts of the programs switchyard and switchyard-lab: exit codes, errors, flags and man pages.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/internal/plaintext"
)

// Exit codes.
const (
	ExitOK    = 0
	ExitError = 1
	ExitUsage = 2
)

// Lab is the name of the program with the commands in LabCommands.
const Lab = "switchyard-lab"

// LabObjects is the command of switchyard-lab that prints the objects which the lab makes of manifests.
const LabObjects = "lab-objects"

// LabCommands are the commands of switchyard-lab, each with its short help. Users call them as commands of switchyard.
var LabCommands = map[string]string{
	"bench":       "Measure on this machine",
	"conformance": "Check a dataplane in any language with real packets",
	"lab":         "Show what manifests do, in a throw-away node",
}

// Main runs a program with arguments, and ends the process with its exit code. A second signal ends the process at once.
func Main(root *cobra.Command, args []string) {
	if _, err := limitMemory(memlimit.FromCgroup); err != nil {
		report(os.Stderr, formatIn(args), slog.LevelWarn, "continuing without a memory limit", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second signal ends the process at once
	code := Run(ctx, root, args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Run executes a command line and returns the exit code. It removes control characters from the output, because objects and files may contain some.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	out, notes := plaintext.NewWriter(stdout), plaintext.NewWriter(stderr)
	code := execute(ctx, root, args, out, notes)
	if err := errors.Join(out.Flush(), notes.Flush()); err != nil && code == ExitOK {
		return ExitError
	}
	return code
}

func execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	asUsage(root)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SilenceErrors, root.SilenceUsage = true, true // they are printed here, once
	cmd, err := root.ExecuteContextC(ctx)
	if code, ok := errors.AsType[ExitCode](err); ok {
		return int(code)
	}
	if err == nil {
		return ExitOK
	}
	format := formatOf(cmd, args, err)
	report(stderr, format, slog.LevelError, "command failed", err)
	if usage, ok := errors.AsType[*usageError](err); ok {
		if format == textFormat {
			fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", usage.command)
		}
		return ExitUsage
	}
	return ExitError
}

// WithVersion lets a root command print the version with the flag --version, and its help otherwise. The command's field Version is not used, because
// cobra prints it with package text/template. A program that links this package keeps the exported methods of all types.
func WithVersion(root *cobra.Command, version string) {
	show := root.Flags().BoolP("version", "v", false, "version for switchyard")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*show {
			return cmd.Help()
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), VersionText(version))
		return err
	}
}

// usageError is a mistake in the command line.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Usage returns err as a mistake in the command line of a command, such as "switchyard run".
func Usage(command string, err error) error { return &usageError{command, err} }

// asUsage marks mistakes in the flags and arguments of a command and its subcommands. Subcommands come first, because they inherit the command's
// function for wrong flags.
func asUsage(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		asUsage(sub)
	}
	own := cmd.FlagErrorFunc()
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return Usage(c.CommandPath(), explainFlag(c, own(c, err))) })
	args := cmd.Args
	if args == nil {
		args = cobra.ArbitraryArgs
	}
	cmd.Args = func(c *cobra.Command, list []string) error {
		if err := args(c, list); err != nil {
			return Usage(c.CommandPath(), explainArgs(c, list, err))
		}
		return nil
	}
}

// ExitCode is an error that ends the program with a code and without a message.
type ExitCode int

func (e ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }
