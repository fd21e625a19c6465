// Command switchyard-lab runs the commands lab, conformance and bench of switchyard. Switchyard starts it from its own directory, so that the program of
// a node does not contain them.
package main

import (
	"os"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/cmd/internal/labcmd"
)

// version is set by the linker in releases: -ldflags "-X main.version=v1.2.3".
var version string

func main() { cli.Main(labcmd.New(version), os.Args[1:]) }
