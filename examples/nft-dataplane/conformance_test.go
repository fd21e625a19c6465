//go:build linux

package main

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
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
	d := dataplane{pods: join(s.LocalDetector.ClusterCIDRs), nodePorts: join(s.NodePortAddresses.CIDRs)}
	switch l := s.LocalDetector; {
	case d.pods != "":
	case l.NodeCIDR:
		d.pods = "node"
	case l.BridgeInterface != "":
		d.pods = "dev:" + l.BridgeInterface
	case l.InterfacePrefix != "":
		d.pods = "dev:" + l.InterfacePrefix + "*"
	}
	if s.NodePortAddresses.Primary {
		d.nodePorts = "primary"
	}
	return client.RunSink(ctx, client.Options{Target: api, Name: "nft", Logger: s.Logger}, &d)
}

func join(prefixes []netip.Prefix) string {
	var list []string
	for _, p := range prefixes {
		list = append(list, p.String())
	}
	return strings.Join(list, ",")
}
