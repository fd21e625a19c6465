// Command switchyard-ebpf programs a node with socket hooks above nftables from the node-local API.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/cmd/internal/dataplane"
)

// version is set by the linker in releases.
var version string

func main() {
	var hooks ebpf.Options
	var namespaces string
	dataplane.Main(dataplane.Program{
		Name: "ebpf", Needs: "It needs CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON. If the kernel refuses the hooks, nftables translates all connections.",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&hooks.CgroupPath, "cgroup-path", "", "cgroup2 directory whose processes connect through hooks (default: the root)")
			f.BoolVar(&hooks.NodeOnly, "node-only", false, "leave the connections of pods to nftables")
			f.StringVar(&namespaces, "namespace-map", "", "pinned map of the network namespaces of this node (default: all of this kernel)")
		},
		Open: func(ctx context.Context, log *slog.Logger) (_ dataplane.Backend, err error) {
			hooks.Logger = log
			if namespaces != "" {
				if hooks.Namespaces, err = ebpf.OpenNamespaces(namespaces); err != nil {
					return nil, fmt.Errorf("--namespace-map: %w", err)
				}
			}
			base, err := nftables.New(ctx, nftables.Options{Logger: log, TakeOver: dataplane.TakeOver, Program: "switchyard-ebpf " + version})
			if err != nil {
				return nil, err
			}
			b, err := ebpf.New(base, hooks)
			if err != nil {
				return nil, errors.Join(err, base.Close())
			}
			return dataplane.Layer{Backend: b, Base: base}, nil
		},
	}, version)
}
