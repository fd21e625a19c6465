// Command switchyard-nftables programs a node with nftables from the node-local API.
package main

import (
	"context"
	"log/slog"

	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/cmd/internal/dataplane"
)

// version is set by the linker in releases.
var version string

func main() {
	dataplane.Main(dataplane.Program{
		Name: "nftables", Needs: "It needs CAP_NET_ADMIN.",
		Open: func(ctx context.Context, log *slog.Logger) (dataplane.Backend, error) {
			return nftables.New(ctx, nftables.Options{Logger: log, TakeOver: dataplane.TakeOver, Program: "switchyard-nftables " + version})
		},
	}, version)
}
