package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestChangeBeforeTheWatch changes the configuration file after the process has read it and before it watches it, as happens
// while a daemon is made anew.
func TestChangeBeforeTheWatch(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(bit int32) {
		text := fmt.Sprintf("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nnftables: {masqueradeBit: %d}\n", bit)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := parse(t, "--config", file)
	write(10)
	c, _, err := p.config()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := &daemon{flags: p, c: c, log: slog.New(slog.DiscardHandler)}
	for _, bit := range []int32{11, 12} {
		write(bit)
		next, err := d.awaitConfig(ctx)
		if err != nil || next == nil {
			t.Fatalf("masqueradeBit %d: got %v, %v", bit, next, err)
		}
		if got := next.NFTables.MasqueradeBit; got != bit {
			t.Errorf("masqueradeBit is %d, want %d", got, bit)
		}
		d = &daemon{flags: p, c: next, log: d.log}
	}
}
