// Command switchyard-iptables programs a node with iptables and IP sets from the node-local API.
package main

import (
	"context"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/cmd/internal/dataplane"
)

// version is set by the linker in releases.
var version string

func main() {
	var variant string
	dataplane.Main(dataplane.Program{
		Name: "iptables", Needs: "It needs CAP_NET_ADMIN, CAP_NET_RAW and the programs of iptables.",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&variant, "variant", "", "legacy or nft (default: the variant that this node uses)")
		},
		Open: func(ctx context.Context, log *slog.Logger) (dataplane.Backend, error) {
			return iptables.New(ctx, iptables.Options{
				Logger: log, Variant: iptables.Variant(variant), TakeOver: dataplane.TakeOver, Program: "switchyard-iptables " + version,
			})
		},
	}, version)
}
