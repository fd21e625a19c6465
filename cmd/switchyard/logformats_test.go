package main

import (
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
)

// TestLogFormats: flags and the configuration have the same formats.
func TestLogFormats(t *testing.T) {
	if !slices.Equal(cli.LogFormats, config.LogFormats) {
		t.Errorf("flags have %q, the configuration has %q", cli.LogFormats, config.LogFormats)
	}
}
