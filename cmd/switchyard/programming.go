package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/node"
)

// programmingFlags are what the operator decides about programming a node.
type programmingFlags struct {
	file     fileFlags
	takeOver time.Duration

	node *node.Node // once it is made
}

// takeOverFlag lets a command wait for its predecessor.
func takeOverFlag(f *pflag.FlagSet, wait *time.Duration) {
	f.DurationVar(wait, "take-over", 2*time.Second, "how long to wait until another process that programs this kernel has ended, before giving up; the kernel goes on routing until then")
}

func (o *programmingFlags) register(f *pflag.FlagSet, kinds string) {
	takeOverFlag(f, &o.takeOver)
	o.file.health.AddrPort = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), config.HealthzPort)
	o.file.register(f, kinds)
}

// run programs this node until ctx ends, and says when it routes. With a file, it replaces kube-proxy in everything
// that the file has settings for. override is the daemon's override.
func (o *programmingFlags) run(ctx context.Context, options node.Options, override func(*config.Config) error, stdout io.Writer, log *slog.Logger, v *verbosity) (err error) {
	options.Logger, options.Program, options.Version, options.TakeOver = log, programName(), currentVersion(), o.takeOver
	options.Memory = processMemory()
	options.StrictHealth, options.FieldName, options.ReplaceKubeProxy = true, o.file.fieldName, len(o.file.paths) > 0
	options.LogLinesSuppressed = v.limiter.Suppressed
	options.OnReady = func(services int) {
		fmt.Fprintf(stdout, "switchyard: node %s routes %d %s\n", o.node.Name(), services, map[bool]string{true: "service", false: "services"}[services == 1])
	}
	if o.node, err = node.New(ctx, options); err != nil {
		return explainStart(err)
	}
	return (&daemon{&o.file.configFiles, override, log, v, o.node}).run(ctx)
}
