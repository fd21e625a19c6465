//go:build linux

package main

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/conformance"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

func TestConformance(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("this dataplane needs the program nft: apt-get install nftables")
	}
	conformance.Run(t, conformance.Dataplane{Name: "nft", Follow: follow, Seeds: 1})
}

func follow(ctx context.Context, api string, s conformance.Settings) error {
	return client.RunSink(ctx, client.Options{Target: api, Name: "nft", Logger: s.Logger}, &dataplane{})
}
