package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker in releases: -ldflags "-X main.version=v1.2.3".
var version string

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}

// versionText is what 'switchyard version' prints: with the commit, if the go command knew it.
func versionText() string {
	text := fmt.Sprintf("switchyard %s %s %s/%s", currentVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info, ok := debug.ReadBuildInfo(); ok {
		text += commitOf(info)
	}
	return text
}

// commitOf names the commit that a program was built from, empty if it is not known.
func commitOf(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	switch revision := settings["vcs.revision"]; {
	case revision == "":
		return ""
	case settings["vcs.modified"] == "true":
		return " commit " + revision + " with changes"
	default:
		return " commit " + revision
	}
}

// programName is how this process is called where others see it.
func programName() string { return "switchyard " + currentVersion() }

// currentVersion is the version that the linker set, else the module's version as the go command knows it, which names the commit.
func currentVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "unknown"
}
