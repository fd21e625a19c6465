package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/configfile"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/internal/source/file"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
)

// runOptions are the flags of 'switchyard run'.
type runOptions struct {
	source    string
	grace     time.Duration
	dry       bool
	node      string
	routing   routingFlags
	dataplane programmingFlags
}

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run --source PATH [--node NAME]",
		Short: "Route this node's connections as manifests say",
		Long: `Run reads Services, EndpointSlices, Nodes and Namespaces from manifests, programs this
node's kernel accordingly, and follows every change of the files. It needs root.

When it is stopped, the kernel keeps routing as before; a new start takes over without
a gap. 'switchyard cleanup' removes everything.

A broken manifest changes nothing until it is fixed. A manifest that loses objects while it is
written in place may be half written. Its objects stay until it has been left alone for
--source-grace. A replacement by a rename, and a deletion, count at once. If the kernel still routes
by an earlier process, a start waits until all manifests are good. It does not know the objects of
the broken ones. A start on an empty kernel begins with the good manifests.`,
		Example: `  switchyard run --source /etc/switchyard --node node-a --cluster-cidr 10.244.0.0/16
  switchyard run --source my-app/ --node node-a --dry-run`,
		Args: cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if o.source == "" {
				return cli.Usage(cmd.CommandPath(), errors.New("--source is missing: name a manifest or a directory of manifests"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.dataplane.file.stdin = standardInput(cmd)
			if o.dry {
				return o.dryRun(cmd)
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.Var((*oncePath)(&o.source), "source", "manifest or directory of manifests to read and follow (required)")
	f.DurationVar(&o.grace, "source-grace", sourceGrace, sourceGraceUsage)
	f.StringVar(&o.node, "node", "", "name of this node in the manifests (default: the host's name)")
	f.BoolVar(&o.dry, "dry-run", false, "print what would be programmed, name what would be left out, and end with 0 if that is nothing, and 1 otherwise. Nothing is asked of the kernel; --source may be - for standard input")
	o.routing.register(f, "")
	o.dataplane.file.dataplanes = configfile.DataplaneKinds()
	o.dataplane.register(f, "of kind KubeProxyConfiguration or of one dataplane's kind, such as NFTablesConfiguration")
	o.dataplane.file.registerAdmin(f)
	cli.Complete(cmd, "logging-format", cli.LogFormats...)
	return cmd
}

func (o *runOptions) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	settings := &o.dataplane.file
	c, err := settings.load()
	if err != nil {
		return err
	}
	if err := errors.Join(settings.log.Check(), settings.checkAdmin(), o.routing.check()); err != nil {
		return cli.Usage("switchyard run", err)
	}
	if err := o.set(c); err != nil {
		return err
	}
	log, v := settings.logger(stdout, stderr, c)
	defer func() { err = cli.InFormat(err, c.Logging.Format) }()
	name, err := nodeOrHost(c.HostnameOverride)
	if err != nil {
		return err
	}
	settings.warn(c, log)
	// Services that a broken manifest lacks must not be removed from a kernel that routes them. Where nothing is
	// routed, some services are better than none. A process that may not read the kernel's rules fails when it
	// programs them.
	held, err := node.Programmed(c, runtime.GOOS)
	options := file.Options{Path: o.source, Whole: held || err != nil, Grace: graceOf(o.grace), Logger: log}
	src, err := file.New(options)
	if err != nil {
		return err
	}
	known, err := checkNode(o.source, name)
	if err != nil {
		return err
	}
	if !known {
		log.Warn("this Node is not in the source: no endpoint is local, and no node port is on a primary address", "source", o.source,
			"node", name, "remedy", "add a Node with this node's name and addresses, or fix the manifest that has it")
	}
	return o.dataplane.run(ctx, node.Options{Config: c, Source: func(*config.Config, string) (model.Source, error) {
		if first := src; first != nil {
			src = nil
			return first, nil
		}
		options.Whole = true // what another configuration takes another source for is routed
		return file.New(options)
	}}, o.set, stdout, log, v)
}

// set gives c what the flags mean that count.
func (o *runOptions) set(c *config.Config) error {
	settings := &o.dataplane.file
	settings.set(c)
	o.routing.set(c, settings.counts)
	if o.node != "" {
		c.HostnameOverride = o.node
	}
	return settings.valid(c)
}

// checkNode finds a misspelt node name before it silently makes every endpoint a remote one, and reports whether the node is
// known. Manifests without any Node are allowed: then nothing is local. So are broken ones, which may be fixed while this runs.
func checkNode(path, name string) (known bool, err error) {
	objs, broken := manifest.Load(path) // the source reports the errors, and keeps reporting them
	var names []string
	for _, o := range objs {
		if n, ok := o.Object.(*corev1.Node); ok {
			names = append(names, n.Name)
		}
	}
	if slices.Contains(names, name) {
		return true, nil
	}
	if len(names) == 0 || broken != nil { // the Node may be in a broken manifest
		return false, nil
	}
	slices.Sort(names)
	return false, fmt.Errorf("there is no Node %q in %s, only %s; choose one of them with --node, or add it", name, path, strings.Join(names, ", "))
}
