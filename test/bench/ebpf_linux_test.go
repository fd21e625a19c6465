package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

// asConnections is set in the environment of the test binary when it is to run [MeasureConnections].
const asConnections = "SWITCHYARD_BENCH_CONNECTIONS"

// connections makes a worker of this test binary.
func connections(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), asConnections+"=1")
	return cmd
}

// TestEBPF measures with small clusters that all variants work, and that their connections went where they should.
func TestEBPF(t *testing.T) {
	netnstest.Need(t)
	var lines, table bytes.Buffer
	r := NewReporter(&lines, &table)
	o := EBPFOptions{
		Options: Options{Services: []int{50, 5}, Endpoints: 2}, Rounds: 1, Slice: 2 * time.Millisecond, Flips: 1000,
		Worker: connections,
	}
	before := benchCgroups(t)
	err := EBPF(t.Context(), r, o)
	for _, no := range []error{unix.EPERM, unix.EACCES, unix.EROFS, ebpf.ErrNotSupported} {
		if errors.Is(err, no) {
			t.Skip(err)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for line := range strings.Lines(lines.String()) {
		var x reported
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		got[cellOf(x.Name, Result{Services: x.Services})] = x.Value
	}
	for _, name := range []string{
		"ebpf/pod-connect/direct//0", "ebpf/pod-connect/conntrack//0", "ebpf/node-connect/nftables//5", "ebpf/node-connect/ebpf//50",
		"ebpf/pod-request/hooks//5", "ebpf/pod-ping/hooks//50", "ebpf/pod-reconnect/hooks//50", "ebpf/pod-unconcerned-udp-connect/hooks//50",
		"ebpf/part-of-nftables/pod-request//5", "ebpf/endpoint-change-p50/own//50", "ebpf/frontend-added-p99/nftables//5",
		"ebpf/cold-load/own//50", "ebpf/read-back/nftables//50", "ebpf/memory//5",
	} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	if got["ebpf/flips//0"] != 1000 || got["ebpf/flips/mixed-reads//0"] != 0 {
		t.Errorf("%v flips, %v mixed reads", got["ebpf/flips//0"], got["ebpf/flips/mixed-reads//0"])
	}
	if after := benchCgroups(t); after != before {
		t.Errorf("there are %d cgroups, %d before", after, before)
	}

	dir := t.TempDir()
	if err := WriteEBPF(dir, r); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "ebpf.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"| direct", "| ebpf 50", "| hooks 5 ", "| request, from a pod, us", "ebpf/over-nftables/pod-connect", "at most 0: ok", "slices of 2 ms"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("ebpf.md does not have %q", part)
		}
	}
}

// benchCgroups returns how many cgroups of this benchmark there are.
func benchCgroups(t *testing.T) int {
	mounted, err := cgroupMount()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(mounted, cgroupPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// TestHooksAreChecked has hooks whose connections went elsewhere.
func TestHooksAreChecked(t *testing.T) {
	var c cgroups
	b := &ebpfBench{options: EBPFOptions{Worker: connections}}
	l, err := b.newLab(t.Context(), 0)
	if err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := errors.Join(l.close(), c.remove()); err != nil {
			t.Error(err)
		}
	}()
	h, err := c.newHooks(l, nothing{})
	if err != nil {
		t.Skip(err)
	}
	h.expected = 1
	if err := h.check(); err == nil || !strings.Contains(err.Error(), "0 connections of 1") {
		t.Errorf("hooks that have translated nothing: %v", err)
	}
	if err := h.close(); err != nil {
		t.Fatal(err)
	}
}
