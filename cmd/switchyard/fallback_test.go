package main

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// TestFallbackFollowsTheConfiguration: what the states of a running fallback say changes with the configuration, so that it stays what
// the dataplane goes by. The next fallback begins with the last configuration.
func TestFallbackFollowsTheConfiguration(t *testing.T) {
	relay := &state.Node{Name: "n", LocalDetector: &state.LocalDetector{BridgeInterface: "cni0"}}
	configured := func(cidr, proxy string) *config.Config {
		c := config.Default()
		c.HostnameOverride, c.ServiceProxyName = "n", proxy
		if cidr != "" {
			c.DetectLocal.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix(cidr)}
		}
		return c
	}
	f := &localFallback{last: func() *state.Node { return relay }, log: slog.New(slog.DiscardHandler), config: configured("", "")}
	f.store = store.New(store.Options{Brain: f.brain()})
	running := f.store
	running.Source("kube").Complete()
	expect := func(want string) {
		t.Helper()
		if got := running.Snapshot().Node().LocalDetector.String(); got != want {
			t.Errorf("pods are recognized by %s, want %s", got, want)
		}
	}
	expect("BridgeInterface cni0")
	f.reconfigure(configured("10.244.0.0/16", "other"))
	expect("ClusterCIDR 10.244.0.0/16")
	if b := f.brain(); b.ServiceProxyName != "" {
		t.Errorf("the services of %q are routed, which are not followed", b.ServiceProxyName)
	}
	f.reconfigure(configured("", "other"))
	expect("BridgeInterface cni0")

	f.store = nil
	f.reconfigure(configured("10.0.0.0/8", "other"))
	expect("BridgeInterface cni0")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, wait := f.start(ctx)
	if err := wait(); err == nil {
		t.Error("a fallback follows an API server that nothing names")
	}
	if b := f.brain(); b.ServiceProxyName != "other" || b.LocalDetector.String() != "ClusterCIDR 10.0.0.0/8" || f.store != nil {
		t.Errorf("the next fallback went by %+v", b)
	}
}
