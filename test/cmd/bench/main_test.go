//go:build linux

package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"bench": main}) }

// TestScripts runs the command line as a person would; testdata has one script a file.
func TestScripts(t *testing.T) { testscript.Run(t, testscript.Params{Dir: "testdata"}) }
