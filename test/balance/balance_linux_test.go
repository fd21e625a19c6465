package balance

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/test/dataplanes"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// TestMeasure makes few connections: that rows are there, and nothing is wrong. Clients that meet a silent endpoint may wait half as long as without
// ejection, and take 3 s on a quiet machine.
func TestMeasure(t *testing.T) {
	netnstest.Need(t)
	rows, err := Measure(t.Context(), Options{Modes: []string{dataplanes.NFTables, dataplanes.Userspace}, Connections: 500, Sigmas: 6, Wait: time.Minute}, func(r Row) {
		if r.Missing == "" {
			t.Logf("%s, %s: %s", r.Mode, r.Check, r.Got)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string]int{}
	for _, r := range rows {
		if r.Missing == "" {
			measured[r.Mode]++
		}
		if r.Err != nil {
			t.Errorf("%s, %s: wanted %s, got %s: %v", r.Mode, r.Check, r.Wanted, r.Got, r.Err)
		}
	}
	if measured[dataplanes.NFTables] != 14 || measured[dataplanes.Userspace] < 4 {
		t.Errorf("measured by mode: %v", measured)
	}
}

func TestOffBy(t *testing.T) {
	for _, c := range []struct {
		got, connections int
		share, rounding  float64
		off              bool
	}{
		{10_000, 20_000, 0.5, 0, false},
		{10_282, 20_000, 0.5, 0, false}, // the deviation is 70.7
		{10_284, 20_000, 0.5, 0, true},
		{9_716, 20_000, 0.5, 0, true},
		{9_716, 20_000, 0.5, 0.01, false},
		{0, 20_000, 0, 0, false},
		{1, 20_000, 0, 0, true},
	} {
		if err := offBy(c.got, c.connections, c.share, 4, c.rounding); (err != nil) != c.off {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestTable(t *testing.T) {
	rows := []Row{{Mode: "a", Check: "weights", Connections: 7, Wanted: "50%", Got: "51%"}, {Mode: "b", Missing: "this mode has no weights"}}
	var text strings.Builder
	if err := WriteTable(&text, rows); err != nil || !strings.Contains(text.String(), "a     weights  7            50%     51%  ok\n") || Failed(rows) {
		t.Errorf("%v\n%s", err, &text)
	}
	rows[0].Err = offBy(1, 20_000, 0, 4, 0)
	if !Failed(rows) {
		t.Error("an error counts as none")
	}
}
