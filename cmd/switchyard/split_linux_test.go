package main

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestConformanceOfApply sends packets through what a process of 'switchyard apply' programs that has no configuration at all: it
// recognizes pods by the names of their interfaces, and serves NodePorts where it must, because the API says so.
func TestConformanceOfApply(t *testing.T) {
	netnstest.Need(t)
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	conformance.RunStories(t, conformance.Dataplane{Name: "switchyard apply", Detector: "prefix:pod", Follow: applyProcess})
}

// applyProcess runs the program until ctx ends, in the network namespace of the calling thread.
func applyProcess(ctx context.Context, api string, _ conformance.Settings) error {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "apply", "nftables", "--api", api)
	cmd.Args[0] = "switchyard" // by which TestMain knows what to be
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); ctx.Err() == nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
