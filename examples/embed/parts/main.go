// Command parts routes the services of a node with the parts of package node: a source, the store with its brain, and
// a dataplane. It is for programs that bring a dataplane of their own, which implements backend.Backend, or that want
// neither the API nor metrics.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/examples/embed/objects"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

func main() {
	manifests := flag.String("manifests", "", "file of manifests with Services and EndpointSlices")
	node := flag.String("node", "", "name of this node")
	pods := flag.String("pods", "", "a source address in this CIDR is a pod's")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *manifests, *node, *pods); err != nil {
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

// run routes until ctx ends. The rules stay, so that traffic does not notice a restart.
func run(ctx context.Context, manifests, node, pods string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var detector state.LocalDetector
	if pods != "" {
		cidr, err := netip.ParsePrefix(pods)
		if err != nil {
			return err
		}
		detector.ClusterCIDRs = []netip.Prefix{cidr}
	}

	// The source delivers objects,
	src, err := objects.Read(manifests)
	if err != nil {
		return err
	}
	// the store lets the brain compute their routing on this node,
	states := store.New(store.Options{Logger: log, Brain: brain.Config{NodeName: node, LocalDetector: detector}})
	defer states.Close()
	sink := states.Source("manifests")
	// and the dataplane programs that.
	dataplane, err := nftables.New(ctx, nftables.Options{Logger: log})
	if err != nil {
		return err
	}
	defer dataplane.Close()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	delivered := make(chan error, 1)
	go func() {
		delivered <- src.Run(ctx, sink)
		cancel()
	}()
	err = backend.Run(ctx, states, dataplane, backend.RunOptions{Logger: log, OnStatus: func(s backend.Status) {
		if s.Applied > 0 && s.Pending.IsZero() {
			fmt.Printf("the kernel shows revision %d\n", s.Applied)
		}
	}})
	cancel()
	return errors.Join(err, <-delivered)
}
