package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// version is set by the linker in releases: -ldflags "-X main.version=v1.2.3".
var version string

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), cli.VersionText(version))
			return err
		},
	}
}

// programName is how this process is called where others see it.
func programName() string { return "switchyard " + currentVersion() }

// currentVersion is the version of this program.
func currentVersion() string { return cli.Version(version) }
