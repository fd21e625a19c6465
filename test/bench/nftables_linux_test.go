package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestNFTablesTargets: figures have their targets at the sizes that these are for, in the units that are reported.
func TestNFTablesTargets(t *testing.T) {
	const none = -1
	for _, c := range []struct {
		name                string
		services, endpoints int
		value               float64
		unit                string
		atMost              float64
		missed              bool
	}{
		{"warm-restart", 100_000, 5, 2, "s", 2, false},
		{"warm-restart", 100_000, 5, 2.1, "s", 2, true},
		{"warm-restart", 100_000, 50, 9, "s", none, false},
		{"warm-restart", 10_000, 5, 9, "s", none, false},
		{"warm-restart-written", 1_000, 5, 0, "elements", 0, false},
		{"warm-restart-written", 100_000, 2, 1, "elements", 0, true},
		{"cold-load", 100_000, 5, 100, "s", none, false},
		{"ranges-1000-load", 10, 5, 9, "s", none, false},
		{"ranges-100000-load", 1_000, 5, 0.9, "s", 1, false},
		{"ranges-100000-load", 1_000, 5, 1.1, "s", 1, true},
		{"ranges-1000-change-p50", 10, 5, 101, "us", 100, true},
		{"ranges-100000-change-p50", 1_000, 5, 99, "us", 100, false},
		{"ranges-100000-change-p50", 1_000, 5, 101, "us", 100, true},
		{"ranges-100000-change-p99", 1_000, 5, 1e6, "us", none, false},
		{"attack-of-1000x1000-ranges-others-p50", 2, 5, 1e6, "ms", none, false},
		{"attack-of-1000x1000-ranges-others-p99", 2, 5, 9, "ms", 10, false},
		{"attack-of-1000x1000-ranges-others-p99", 2, 5, 11, "ms", 10, true},
		{"large-endpoints-20x5000-others-p50", 1, 5, 1e6, "ms", none, false},
		{"large-endpoints-20x5000-others-p99", 1, 5, 9, "ms", 10, false},
		{"large-frontends-100x62-other-programs-p99", 1, 5, 11, "ms", 10, true},
		{"sticky-1000-clients-endpoint-leaves-p99", 1, 5, 1e6, "us", none, false},
		{"sticky-1000000-clients-endpoint-leaves-p99", 1, 5, 999, "us", 1000, false},
		{"sticky-1000000-clients-endpoint-leaves-p99", 1, 5, 1001, "us", 1000, true},
	} {
		var line, table bytes.Buffer
		r := NewReporter(&line, &table)
		reportNFTables(r, c.name, c.services, c.endpoints, c.value, c.unit)
		var got reported
		if err := json.Unmarshal(line.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		want := Result{"nftables/" + c.name, c.services, c.endpoints, c.value, c.unit}
		if got.Result != want || got.Missed != c.missed || (got.AtMost == nil) != (c.atMost == none) || got.AtMost != nil && *got.AtMost != c.atMost {
			t.Errorf("%s with %d services: got %swant at most %v, missed: %v", c.name, c.services, &line, c.atMost, c.missed)
		}
	}
}

// TestNFTablesReports measures with a small cluster that figures get their targets where they are measured.
func TestNFTablesReports(t *testing.T) {
	netnstest.Need(t)
	var lines, table bytes.Buffer
	r := NewReporter(&lines, &table)
	o := NFTablesOptions{Options: Options{Services: []int{10}, Endpoints: 2}, Ranges: []int{}, Clients: []int{}}
	if err := NFTables(t.Context(), r, o); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cold-load": "", "warm-restart": "", "warm-restart-written": `"value":0,"unit":"elements","atMost":0}`} {
		if !strings.Contains(lines.String(), fmt.Sprintf(`{"name":"nftables/%s","services":10,"endpoints":2,`, name)) || !strings.Contains(lines.String(), text) {
			t.Errorf("%s is not reported as %s:\n%s", name, text, &lines)
		}
	}
}
