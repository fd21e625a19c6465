//go:build linux

package nftables_test

import (
	"os/exec"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/conformance"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Dataplane{
		Name: "nftables",
		New: func(s conformance.Settings) (backend.Backend, error) {
			return nftables.New(t.Context(), nftables.Options{Logger: s.Logger})
		},
		CheckHost: func(t testing.TB) {
			// An operator's view of the rules must always work, also with the nft of Debian 12.
			nft, err := exec.LookPath("nft")
			if err != nil {
				t.Log("not checked that nft can list the rules: it is not installed")
				return
			}
			if out, err := exec.Command(nft, "list", "ruleset").CombinedOutput(); err != nil {
				t.Errorf("nft list ruleset: %v\n%s", err, out)
			}
		},
	})
}
