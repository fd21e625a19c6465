//go:build linux

// Command nft-dataplane programs the kernel from the node-local API with the program nft, and writes all rules again
// with each change. The only part of Switchyard that it uses is the client module, and it passes the conformance
// suite.
//
// It is made to be read. Writing everything for each change takes a second for 2,000 services, and longer with
// affinity, for which each endpoint has a set. This program also does not notice when another program deletes its
// rules. backend/nftables shows how to support a hundred thousand services and repair rules. It does not answer on
// health check node ports either. It needs root and nft 1.0.6 or later.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/switchyard-net/switchyard/client"
)

func main() {
	var d dataplane
	o := client.Options{Name: "nft-dataplane", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flag.StringVar(&o.Target, "api", client.DefaultTarget, "where the node-local API is served")
	flag.Func("socket-user", "a user who may serve it on a unix socket, by name or number, in addition to root and this process's user; may be repeated", func(u string) error {
		o.SocketUsers = append(o.SocketUsers, u)
		return nil
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := client.RunSink(ctx, o, &d); err != nil {
		fmt.Fprintln(os.Stderr, "nft-dataplane:", err)
		os.Exit(1)
	}
}
