package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// needEdge skips a test where the edge cannot run.
func needEdge(t *testing.T) {
	t.Helper()
	netnstest.Need(t)
	err := edge.Available(edge.Settings{Mark: edgeMark, XDP: true})
	if refused, ok := errors.AsType[*ebpf.VerifierError](err); ok {
		t.Fatalf("%+v", refused)
	}
	if err != nil {
		t.Skip(err)
	}
}

// TestEdge measures little: all figures that have targets are there, and packets went where they should. Nothing is tracked with the edge.
func TestEdge(t *testing.T) {
	needEdge(t)
	var lines, table bytes.Buffer
	r := NewReporter(&lines, &table)
	dir := t.TempDir()
	if err := Edge(t.Context(), r, EdgeOptions{Rounds: 2, Packets: 8192, Slice: 10 * time.Millisecond, Out: dir}); err != nil {
		t.Fatal(err)
	}
	checkTargets(t, r, "edge")
	got := map[string]float64{}
	for line := range strings.Lines(lines.String()) {
		var x reported
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		got[x.Name] = x.Value
	}
	for _, name := range []string{
		"edge/packet-64-flows/dropped", "edge/packet-64-flows/today", "edge/packet-50000-flows/today", "edge/packet-new-flows/today", "edge/packet-new-flows/tcx",
		"edge/connect/today", "edge/connect/tcx", "edge/request/tcx", "edge/ping/tcx", "edge/weight-change-p99", "edge/download/today",
	} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	if got["edge/conntrack/today"] < 49_950 || got["edge/conntrack/tcx"] != 0 || got["edge/conntrack/xdp"] != 0 {
		t.Errorf("the entry node tracked %v connections today, %v and %v with the edge", got["edge/conntrack/today"], got["edge/conntrack/tcx"], got["edge/conntrack/xdp"])
	}
	if today, direct := got["edge/download/today"], got["edge/download/tcx"]; today > 1.1 || direct < today {
		t.Errorf("downloads have %v Gbit/s today, by an entry node that sends 1 Gbit/s, and %v with the edge", today, direct)
	}
	text, err := os.ReadFile(filepath.Join(dir, "edge.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"One run of 2 rounds", edgeMethod, "edge/ratio/connect/tcx", "at most 0.92: ", "edge/conntrack/tcx", "at most 0: ok"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("edge.md does not have %q", part)
		}
	}
}

// TestEntryLoads: an entry node without the edge tracks the flows of each load, and nothing else.
func TestEntryLoads(t *testing.T) {
	needEdge(t)
	l := entryLabOf(t, entryToday)
	const packets = 2 * frameWindow
	for i, load := range edgeLoads {
		var tracked int
		var err error
		for range 20 { // a busy machine loses packets
			before := l.lost
			if tracked, err = l.measure(i, packets); l.lost == before {
				break
			}
		}
		if want := cmp.Or(load.flows, packets); err != nil || tracked > want || tracked < want-want/1000 { // masquerading finds no free port for a few
			t.Errorf("%s: %d connections are tracked, want %d: %v", load.name, tracked, want, err)
		}
	}
	if err := l.check(); err != nil {
		t.Error(err)
	}
}

// TestEdgeIsChecked: packets that are lost, and packets that the edge has not handed over, are errors.
func TestEdgeIsChecked(t *testing.T) {
	needEdge(t)
	l := entryLabOf(t, entryTCX)
	if err := l.check(); err == nil || !strings.Contains(err.Error(), "packets were lost in each run") {
		t.Errorf("without a run: %v", err)
	}
	for i := range edgeLoads {
		if _, err := l.measure(i, 2*frameWindow); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.check(); err != nil {
		t.Error(err)
	}
	u, err := edgeState(t.Context(), 0, entryTCX, edgeObjects(state.UDP, 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	u.Changed = nil
	if err := l.node.edge.Apply(u, nil); err != nil { // netfilter has all packets from now on
		t.Fatal(err)
	}
	if _, err := l.measure(0, 2*frameWindow); err != nil {
		t.Fatal(err)
	}
	if err := l.check(); err == nil || !strings.Contains(err.Error(), "were handed over") {
		t.Errorf("packets that netfilter served count as packets of the edge: %v", err)
	}
}

// TestEdgePaths: the second node tracks the connections of the last order, and the first one does without the edge. The server sees the first node without
// the edge, and the client with it.
func TestEdgePaths(t *testing.T) {
	needEdge(t)
	ctx := context.Background() // the processes end at the end
	for _, variant := range edgeWays {
		l, err := newPathLab(ctx, variant)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := l.close(); err != nil {
				t.Error(err)
			}
		})
		for range 2 {
			a, tracked, err := l.order(ctx, doRequest, 10*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			want := a.Connections
			if variant != entryToday {
				want = 0
			}
			if tracked != want || a.Connections == 0 {
				t.Errorf("%s: the first node tracks %d connections of %d, want %d", variant, tracked, a.Connections, want)
			}
		}
		if err := l.check(); err != nil {
			t.Error(err)
		}
	}
}

func entryLabOf(t *testing.T, variant string) *entryLab {
	t.Helper()
	l, err := newEntryLab(t.Context(), variant)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	return l
}
