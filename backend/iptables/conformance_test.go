//go:build linux

package iptables

import (
	"os"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/conformance"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

func TestConformance(t *testing.T) {
	for _, v := range []Variant{Legacy, NFT} {
		t.Run(string(v), func(t *testing.T) {
			conformance.Run(t, conformance.Dataplane{
				Name:         "iptables-" + string(v),
				SharesTables: v == NFT,
				New: func(s conformance.Settings) (backend.Backend, error) {
					return New(t.Context(), Options{Logger: s.Logger, Variant: v, TakeOver: time.Minute})
				},
			})
		})
	}
}
