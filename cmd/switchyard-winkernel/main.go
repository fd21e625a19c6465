// Command switchyard-winkernel programs a Windows node with load balancers of the host network service from the node-local API. It is experimental.
package main

import (
	"context"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/cmd/internal/dataplane"
	"github.com/switchyard-net/switchyard/internal/winkernel"
)

// version is set by the linker in releases.
var version string

func main() {
	var c winkernel.Config
	var healthz uint16
	dataplane.Main(dataplane.Program{
		Name: "winkernel", Needs: "It needs the rights of an administrator.",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&c.NetworkName, "network-name", "", "HNS network of the node (default: the environment variable KUBE_NETWORK)")
			f.TextVar(&c.SourceVIP, "source-vip", c.SourceVIP, "source address of packets to remote endpoints in overlay networks")
			f.BoolVar(&c.EnableDSR, "enable-dsr", false, "let answers go to clients directly")
			f.StringVar(&c.RootHNSEndpointName, "root-hns-endpoint-name", "", "HNS endpoint of the root network namespace in L2 bridge networks")
			f.BoolVar(&c.ForwardHealthCheckVIP, "forward-healthcheck-vip", false, "also serve health check ports on load balancer addresses")
			f.Uint16Var(&healthz, "healthz-port", 0, "port of /healthz that health checks of load balancers go to, 0 for none")
		},
		Open: func(_ context.Context, log *slog.Logger) (dataplane.Backend, error) {
			return winkernel.New(winkernel.Options{Config: c, HealthzPort: healthz, Logger: log})
		},
	}, version)
}
