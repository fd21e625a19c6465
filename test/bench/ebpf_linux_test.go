package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestEBPF measures with small clusters that all variants work, and that their connections went where they should.
func TestEBPF(t *testing.T) {
	netnstest.Need(t)
	var lines, table bytes.Buffer
	r := NewReporter(&lines, &table)
	dir := t.TempDir()
	o := EBPFOptions{Options: Options{Services: []int{50, 5}, Endpoints: 2}, Rounds: 1, Slice: 2 * time.Millisecond, Flips: 1000, Out: dir}
	before := benchCgroups(t)
	err := EBPF(t.Context(), r, o)
	if err != nil && cannotHook(err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	checkTargets(t, r, "ebpf")
	got := map[string]float64{}
	for line := range strings.Lines(lines.String()) {
		var x reported
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		got[fmt.Sprintf("%s//%d", x.Name, x.Services)] = x.Value
	}
	for _, name := range []string{
		"ebpf/pod-connect/direct//0", "ebpf/pod-connect/conntrack//0", "ebpf/node-connect/nftables//5", "ebpf/node-connect/ebpf//50",
		"ebpf/pod-request/hooks//5", "ebpf/pod-ping/hooks//50", "ebpf/pod-reconnect/hooks//50", "ebpf/pod-unconcerned-udp-connect/hooks//50",
		"ebpf/part-of-nftables/pod-request//5", "ebpf/endpoint-change-p50/own//50", "ebpf/endpoint-change-p99/nftables//5",
		"ebpf/frontend-added-p99/nftables//5", "ebpf/frontend-removed-p50/own//50", "ebpf/read-back/nftables//50", "ebpf/read-back/own//5",
		"ebpf/cold-load/own//50", "ebpf/cold-load/nftables//5", "ebpf/memory//5",
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

	text, err := os.ReadFile(filepath.Join(dir, "ebpf.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"| direct", "| ebpf 50", "| hooks 5 ", "| request, from a pod, us", "ebpf/over-nftables/pod-connect", "ebpf/pod-reconnect/hooks", "at most -1: ", "at most 0: ok", "slices of 2ms", "least of 1 slices"} {
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

// cannotHook reports whether the system is why hooks could not be attached. The error may come from another process, as text.
func cannotHook(err error) bool {
	for _, no := range []error{unix.EPERM, unix.EACCES, unix.EROFS, ebpf.ErrNotSupported} {
		if strings.Contains(err.Error(), no.Error()) {
			return true
		}
	}
	return false
}

// TestHooksAreChecked has hooks whose connections went elsewhere.
func TestHooksAreChecked(t *testing.T) {
	netnstest.Need(t)
	l, err := newConnectionLab(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}()
	hooks, _, _, err := l.program(t.Context(), HolderOrder{Dataplane: nameOfHooks, Services: 3, Endpoints: 2, Changes: 1})
	if err != nil && cannotHook(err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	v := &variant{hooks: hooks}
	if err := v.check(t.Context()); err != nil {
		t.Errorf("hooks without connections: %v", err)
	}
	v.translated = 1
	if err := v.check(t.Context()); err == nil || !strings.Contains(err.Error(), "0 connections of 1") {
		t.Errorf("hooks that have translated nothing: %v", err)
	}
}
