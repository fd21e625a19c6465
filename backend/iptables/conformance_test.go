//go:build linux

package iptables_test

import (
	"os"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/conformance"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

func TestConformance(t *testing.T) {
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		t.Run(string(v), func(t *testing.T) {
			conformance.Run(t, conformance.Dataplane{
				Name:         "iptables-" + string(v),
				SharesTables: v == iptables.NFT,
				New: func(s conformance.Settings) (backend.Backend, error) {
					return iptables.New(t.Context(), iptables.Options{Logger: s.Logger, Variant: v})
				},
			})
		})
	}
}
