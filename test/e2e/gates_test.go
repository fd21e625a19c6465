//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"testing"

	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
)

// TestFeatureGates: config/featuregates.txt is what the release has that everything here is compared with.
func TestFeatureGates(t *testing.T) {
	program, err := controlplane.Binary()
	if err != nil {
		t.Fatal(err)
	}
	want, err := exec.Command(program, "feature-gates").Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../config/featuregates.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("config/featuregates.txt is not of this release: make feature-gates")
	}
}
