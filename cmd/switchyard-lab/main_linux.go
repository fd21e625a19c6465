// Command switchyard-lab has the commands of switchyard that run on no node of a cluster: lab, conformance and bench. The program switchyard starts
// it for them.
package main

import (
	"os"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/cmd/internal/labcmd"
)

// version is set by the linker in releases: -ldflags "-X main.version=v1.2.3".
var version string

func main() { cli.Main(labcmd.New(version), os.Args[1:]) }
