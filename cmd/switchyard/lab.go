package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// newLabCommands returns the commands of switchyard-lab, for the list of commands.
func newLabCommands() (list []*cobra.Command) {
	for name, short := range cli.LabCommands {
		if runtime.GOOS != "linux" {
			short += " (Linux only)"
		}
		list = append(list, &cobra.Command{
			Use: name, Short: short, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error { return startLab(append([]string{name}, args...)) },
		})
	}
	return list
}

// isForLab reports whether switchyard-lab runs a command line: one of its commands, help about one, or the completion of its arguments.
func isForLab(args []string) bool {
	switch {
	case len(args) > 1 && args[0] == "help":
		args = args[1:]
	// The last argument is the word to complete. Switchyard itself completes the names of commands.
	case len(args) > 2 && slices.Contains([]string{cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}, args[0]):
		args = args[1:]
	}
	return len(args) > 0 && cli.LabCommands[args[0]] != ""
}

// startLab replaces this process by switchyard-lab with the same arguments. It returns only if that fails.
func startLab(args []string) error {
	path, err := labProgram(args[0])
	if err != nil {
		return err
	}
	return labError(syscall.Exec(path, append([]string{path}, args...), os.Environ()), path)
}

// labProgram returns the path of switchyard-lab for a command. It is in the directory of this program. PATH does not count, because anybody may have
// put a program of that name there.
func labProgram(command string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("%s needs network namespaces, which %s does not have; run it on Linux, also in a virtual machine or container", command, runtime.GOOS)
	}
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", fmt.Errorf("find the directory of this program, to start %s: %w", cli.Lab, err)
	}
	return filepath.Join(filepath.Dir(self), cli.Lab), nil
}

// labError returns the error of a start of switchyard-lab, with the remedy.
func labError(err error, path string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing: it runs the commands lab, conformance and bench; install it in the directory of switchyard ('make build' builds both)", path)
	}
	return fmt.Errorf("start %s: %w", path, err)
}
