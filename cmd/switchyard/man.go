package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// newManualCommand is for those who package the program.
func newManualCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "manual DIR",
		Short: "Write man pages, shell completions and a page of all commands",
		Long: `Manual makes a directory with the files that packages of this program install. These are man1 with a
man page for each command, completions for bash, zsh and fish, and commands.md.`,
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return writeManual(cmd.Root(), args[0]) },
	}
}

func writeManual(root *cobra.Command, dir string) error {
	for _, sub := range []string{"man1", "completions"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	var page strings.Builder
	page.WriteString("# Commands\n\nEach command, as `--help` prints it. Man pages and shell completions are made with it.\n")
	err := cli.WritePage(dir, &page, root)
	for _, c := range cli.Listed(root) {
		if err == nil {
			err = writePages(dir, &page, c)
		}
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "commands.md"), []byte(page.String()), 0o644); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{
		"switchyard.bash": func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"_switchyard":     root.GenZshCompletion,
		"switchyard.fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
	} {
		var b strings.Builder
		if err := write(&b); err != nil {
			return fmt.Errorf("completion %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "completions", name), []byte(b.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writePages writes the pages of a command and its subcommands. Switchyard-lab writes the pages of its own commands.
func writePages(dir string, page io.Writer, c *cobra.Command) error {
	if _, forLab := cli.LabCommands[c.Name()]; !forLab || runtime.GOOS != "linux" {
		return cli.WriteManual(dir, page, c)
	}
	path, err := labProgram(c.Name())
	if err != nil {
		return err
	}
	cmd := exec.Command(path, "manual", dir, c.Name())
	cmd.Stdout, cmd.Stderr = page, os.Stderr
	if err := cmd.Run(); err != nil {
		return labError(err, path)
	}
	return nil
}
