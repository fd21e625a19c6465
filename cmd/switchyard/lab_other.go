//go:build !linux

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func newLabCommand() *cobra.Command {
	return onlyOnLinux("lab", "Show what manifests do, in a throw-away node")
}

func newBenchCommand() *cobra.Command {
	return onlyOnLinux("bench", "Measure on this machine")
}

func newConformanceCommand() *cobra.Command {
	return onlyOnLinux("conformance", "Check a dataplane with real packets")
}

func hiddenCommands() []*cobra.Command { return nil }

// onlyOnLinux is a command that says why it does nothing here.
func onlyOnLinux(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short + " (Linux only)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("%s needs network namespaces, which %s does not have; run it on Linux, also in a virtual machine or container", name, runtime.GOOS)
		},
	}
}
