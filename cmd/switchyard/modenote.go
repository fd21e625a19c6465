package main

import (
	"fmt"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/node"
)

// modeNote returns the warning or the refusal of 'switchyard proxy' at its start because of the mode of c. It is empty
// if there is none.
func modeNote(c *config.Config) string {
	platform := "linux"
	if c.Mode == config.ModeKernelspace {
		platform = "windows"
	}
	mode, err := node.SelectMode(c, platform)
	switch {
	case err != nil:
		return "'switchyard proxy' does not start with it: " + err.Error()
	case c.Mode != "" && mode != c.Mode:
		return fmt.Sprintf("mode: %s has no dataplane in this release, and %s takes its place: set mode to %s, or leave it blank", c.Mode, mode, mode)
	}
	return ""
}
