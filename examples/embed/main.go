// Command embed routes the services of a node as 'switchyard run' does, with package node as a library. It is what a program looks like
// that brings a service proxy of its own, such as the agent of a network plugin.
//
// To use an API server instead of manifests, change one line: source/kube has the same interface as
// internal/source/file. Only source/kube needs client-go.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/examples/embed/objects"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
)

func main() {
	manifests := flag.String("manifests", "", "file of manifests with Services and EndpointSlices")
	name := flag.String("node", "", "name of this node")
	pods := flag.String("pods", "", "a source address in this CIDR is a pod's")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *manifests, *name, *pods); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

// run routes until ctx ends. The rules stay, so that traffic does not notice a restart.
func run(ctx context.Context, manifests, name, pods string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c := config.Default()
	c.HostnameOverride = name
	if pods != "" {
		cidr, err := netip.ParsePrefix(pods)
		if err != nil {
			return err
		}
		c.DetectLocal.ClusterCIDRs = []netip.Prefix{cidr}
	}
	n, err := node.New(ctx, node.Options{
		Config: c, Logger: log, Program: "embed",
		Source: func(*config.Config, string) (model.Source, error) {
			return objects.Read(manifests)
		},
		OnReady: func(services int) { fmt.Printf("the kernel routes %d services\n", services) },
	})
	if err != nil {
		return err
	}
	return n.Run(ctx)
}
