package bench

import (
	"bytes"
	"errors"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

func dataplanesOptions(names ...string) DataplanesOptions {
	return DataplanesOptions{
		Options: Options{Services: []int{20, 3}, Endpoints: 2}, Names: names, Rounds: 1, Slice: 2 * time.Millisecond,
	}
}

// TestDataplanes: what runs here has every figure for each number of Services, and what does not says why, once.
func TestDataplanes(t *testing.T) {
	netnstest.Need(t)
	before := benchCgroups(t)
	o := dataplanesOptions(append(DataplaneNames(), "nothing")...)
	var progress bytes.Buffer
	o.Progress = &progress
	r, err := Dataplanes(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]DataplaneRow{}
	for _, row := range r.Rows {
		rows[row.Dataplane] = append(rows[row.Dataplane], row)
	}
	for _, name := range o.Names {
		of := rows[name]
		switch {
		case len(of) == 1 && of[0].Missing != "":
			t.Logf("%s: %s", name, of[0].Missing)
			if name == "nftables" || name == "userspace" {
				t.Errorf("%s is missing", name)
			}
			continue
		case len(of) != 2 || of[0].Services != 3 || of[1].Services != 20:
			t.Fatalf("%s has the rows %+v, want one for 3 Services and one for 20", name, of)
		case name == "nothing":
			t.Error("a dataplane that does not exist was measured")
		}
		for _, row := range of {
			p := row.Programming
			checkPositive(t, name, p.ColdLoad, p.WarmRestart, p.ChangeP50, p.ChangeP99, p.Memory, float64(p.Changes))
			checkPaths(t, name, &row.Paths)
		}
	}
	checkPaths(t, "direct", &r.Direct)
	if !strings.Contains(progress.String(), "nftables: 20 services ...\n") {
		t.Errorf("the progress is\n%s", &progress)
	}
	if after := benchCgroups(t); after != before {
		t.Errorf("there are %d cgroups, %d before", after, before)
	}

	dir := t.TempDir()
	if err := WriteDataplanes(dir, r); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "dataplanes.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"| nftables", "| direct", "| nothing | 3 | no dataplane is named \"nothing\" |", r.Kernel} {
		if !strings.Contains(string(text), part) {
			t.Errorf("dataplanes.md does not have %q:\n%s", part, text)
		}
	}
}

func checkPaths(t *testing.T, name string, p *Paths) {
	t.Helper()
	for _, f := range []ConnectionFigures{p.ClusterIP, p.NodePort} {
		checkPositive(t, name, f.PerSecond, f.RequestP50, f.RequestP99, f.PingP50, f.PingP99)
	}
}

func checkPositive(t *testing.T, name string, figures ...float64) {
	t.Helper()
	if slices.ContainsFunc(figures, func(f float64) bool { return f <= 0 || f == math.MaxFloat64 }) {
		t.Errorf("%s has %v", name, figures)
	}
}

// TestEndOfTime: rows without enough time say so, and nothing is left running.
func TestEndOfTime(t *testing.T) {
	netnstest.Need(t)
	o := dataplanesOptions("nftables", "userspace")
	o.Limit = time.Nanosecond
	r, err := Dataplanes(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if !strings.Contains(row.Missing, "no time") {
			t.Errorf("%+v", row)
		}
	}
	checkPaths(t, "direct", &r.Direct)
}

// TestConnectionsGoThroughTheDataplane: a frontend answers while its dataplane holds it, so that what is measured is what is meant.
func TestConnectionsGoThroughTheDataplane(t *testing.T) {
	netnstest.Need(t)
	o := dataplanesOptions("nftables")
	b := &dataplaneBench{options: o.withDefaults(), clients: 1}
	row := DataplaneRow{Dataplane: "nftables", Services: 3}
	n, err := b.program(t.Context(), &row)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.close(); err != nil {
			t.Error(err)
		}
	}()
	ask := func(to netip.AddrPort, from int) error {
		answer, err := n.clients[0].connect(t.Context(), ConnectionOrder{Do: doRequest, From: from, To: to, For: time.Nanosecond})
		if err == nil && (answer.Times == 0 || answer.P50 == 0) {
			t.Errorf("an order whose time is over at once has the answer %+v", answer)
		}
		return err
	}
	if err := errors.Join(ask(n.clusterIP, fromPod), ask(n.nodePort, fromOutside)); err != nil {
		t.Fatal(err)
	}
	if n.clusterIP.Addr() == labServer || n.nodePort.Addr() == labServer {
		t.Errorf("connections go to the server itself, at %v and %v", n.clusterIP, n.nodePort)
	}
}
