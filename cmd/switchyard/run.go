package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/health"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/internal/reconcile"
	"github.com/switchyard-net/switchyard/source/file"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// runOptions are the flags of 'switchyard run'.
type runOptions struct {
	source            string
	node              string
	clusterCIDRs      prefixes
	masqueradeAll     bool
	nodePortAddresses nodePortAddresses
	serviceProxyName  string
	healthAddress     string
	log               logFlags
}

func newRunCommand() *cobra.Command {
	o := runOptions{nodePortAddresses: nodePortAddresses{backend.NodePortAddresses{Primary: true}}}
	cmd := &cobra.Command{
		Use:   "run --source PATH [--node NAME]",
		Short: "Route this node's connections as manifests say",
		Long: `Run reads Services, EndpointSlices, Nodes and Namespaces from manifests, programs this
node's kernel accordingly, and follows every change of the files. It needs root.

When it is stopped, the kernel keeps routing as before; a new start takes over without
a gap. 'switchyard cleanup' removes everything.`,
		Example: `  switchyard run --source /etc/switchyard --node node-a --cluster-cidr 10.244.0.0/16`,
		Args:    cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if o.source == "" {
				return &usageError{cmd.CommandPath(), errors.New("--source is missing: name a manifest or a directory of manifests")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.source, "source", "", "manifest or directory of manifests to read and follow (required)")
	f.StringVar(&o.node, "node", "", "name of this node in the manifests (default: the host's name)")
	f.Var(&o.clusterCIDRs, "cluster-cidr", "addresses of all pods; who connects from elsewhere is masqueraded on cluster IPs")
	f.BoolVar(&o.masqueradeAll, "masquerade-all", false, "masquerade all connections to cluster IPs")
	f.Var(&o.nodePortAddresses, "nodeport-addresses", "where node ports are served: CIDRs of local addresses, or the word primary for the Node's first address of each family")
	f.StringVar(&o.serviceProxyName, "service-proxy-name", "", "handle the Services with this value of the label service.kubernetes.io/service-proxy-name, instead of those without it")
	f.StringVar(&o.healthAddress, "healthz-bind-address", "127.0.0.1:10256", "address and port of /healthz and /livez; empty for none")
	o.log.register(f)
	return cmd
}

func (o *runOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	log, err := o.log.logger(stderr)
	if err != nil {
		return &usageError{"switchyard run", err}
	}
	if o.node == "" {
		if o.node, err = os.Hostname(); err != nil {
			return fmt.Errorf("find this node's name: %w; give it with --node", err)
		}
		o.node = strings.ToLower(o.node)
	}
	src, err := file.New(file.Options{Path: o.source, Logger: log})
	if err != nil {
		return err
	}
	known, err := checkNode(o.source, o.node)
	if err != nil {
		return err
	}
	if !known {
		log.Warn("there is no Node in the source: no endpoint is local, and no node port is on a primary address", "source", o.source,
			"remedy", "add a Node with this node's name and addresses")
	}
	parts, err := o.parts(src, stdout, log)
	if err != nil {
		return err
	}
	return together(ctx, parts)
}

// parts wires the process: the source, the store, the dataplane with its reconciler, and health.
func (o *runOptions) parts(src *file.Source, stdout io.Writer, log *slog.Logger) ([]func(context.Context) error, error) {
	detector := backend.LocalDetector{ClusterCIDRs: o.clusterCIDRs}
	st := store.New(store.Options{Logger: log, Brain: brain.Config{
		NodeName: o.node, ServiceProxyName: o.serviceProxyName, MasqueradeAll: o.masqueradeAll,
		DetectLocal: brain.Families{IPv4: detector.Detects(state.IPv4), IPv6: detector.Detects(state.IPv6)},
	}})
	sink := st.Source("file")
	progress := &progress{out: stdout, node: o.node, store: st}
	var parts []func(context.Context) error
	if o.healthAddress != "" {
		l, err := net.Listen("tcp", o.healthAddress)
		if err != nil {
			return nil, fmt.Errorf("%w; choose another address with --healthz-bind-address", err)
		}
		var h health.Health
		h.Add("source", src.Problems)
		h.Add("dataplane", progress.problems)
		parts = append(parts, func(ctx context.Context) error { return h.Serve(ctx, l) })
	}
	dataplane, err := nftables.New(nftables.Options{Logger: log, LocalDetector: detector, NodePortAddresses: o.nodePortAddresses.NodePortAddresses})
	if err != nil {
		return nil, explain(err)
	}
	return append(parts,
		func(ctx context.Context) error { return src.Run(ctx, sink) },
		func(ctx context.Context) error {
			err := reconcile.Run(ctx, st, dataplane, reconcile.Options{Logger: log, OnStatus: progress.set})
			return errors.Join(err, dataplane.Close())
		}), nil
}

// checkNode finds a misspelt node name before it silently makes every endpoint a remote one, and says whether the node is
// known. Manifests without any Node are allowed: then nothing is local.
func checkNode(path, name string) (known bool, err error) {
	objs, _ := manifest.Load(path) // what is wrong with them, the source reports and keeps reporting
	var names []string
	for _, o := range objs {
		if n, ok := o.Object.(*corev1.Node); ok {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 || slices.Contains(names, name) {
		return len(names) > 0, nil
	}
	slices.Sort(names)
	return false, fmt.Errorf("there is no Node %q in %s, only %s; choose one of them with --node, or add it", name, path, strings.Join(names, ", "))
}

// progress follows the reconciler, and says once that the first state is programmed.
type progress struct {
	out   io.Writer
	node  string
	store *store.Store

	mu   sync.Mutex
	last reconcile.Status
	told bool
}

func (p *progress) set(s reconcile.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = s
	if p.told || s.Applied == 0 {
		return
	}
	p.told = true
	debug.FreeOSMemory() // reading everything for the first time took far more than keeping it takes
	n := p.store.Snapshot().Len() - len(s.Failed)
	fmt.Fprintf(p.out, "switchyard: node %s routes %d %s\n", p.node, n, map[bool]string{true: "service", false: "services"}[n == 1])
}

// problems are the failures that the reconciler has not got over yet.
func (p *progress) problems() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	switch {
	case p.last.Err != nil:
		errs = append(errs, p.last.Err)
	case p.last.Applied == 0:
		errs = append(errs, errors.New("nothing is programmed yet"))
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.last.Failed), state.ServiceName.Compare) {
		errs = append(errs, fmt.Errorf("service %v: %w", name, p.last.Failed[name]))
	}
	return errs
}
