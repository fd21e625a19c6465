package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestTargetsOfSizes: figures have their targets at the sizes that these are for.
func TestTargetsOfSizes(t *testing.T) {
	const none = -1
	for _, c := range []struct {
		name                string
		services, endpoints int
		value, atMost       float64
		missed              bool
	}{
		{"nftables/warm-restart", 100_000, 5, 2, 2, false},
		{"nftables/warm-restart", 100_000, 5, 2.1, 2, true},
		{"nftables/warm-restart", 100_000, 50, 9, none, false},
		{"nftables/warm-restart", 10_000, 5, 9, none, false},
		{"nftables/warm-restart-written", 1_000, 5, 0, 0, false},
		{"nftables/warm-restart-written", 100_000, 2, 1, 0, true},
		{"nftables/cold-load", 100_000, 5, 100, none, false},
		{"memory/rss", 10_000, 5, 40, 40, false},
		{"memory/rss", 10_000, 5, 40.1, 40, true},
		{"memory/rss", 10_000, 50, 400, none, false},
		{"memory/rss", 100_000, 5, 400, none, false},
		{"ebpf/cold-load/own", 100_000, 5, 201, 200, true},
		{"ebpf/over-nftables/pod-connect", 17, 5, -1.1, -1, false},
	} {
		var line, table bytes.Buffer
		want := Result{c.name, c.services, c.endpoints, c.value, "s"}
		NewReporter(&line, &table).Report(want)
		var got reported
		if err := json.Unmarshal(line.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if got.Result != want || got.Missed != c.missed || (got.AtMost == nil) != (c.atMost == none && c.name != "ebpf/over-nftables/pod-connect") || got.AtMost != nil && *got.AtMost != c.atMost {
			t.Errorf("%s with %d services: got %swant at most %v, missed: %v", c.name, c.services, &line, c.atMost, c.missed)
		}
	}
}

// checkTargets wants each target of a part to be the target of a reported figure.
func checkTargets(t *testing.T, r *Reporter, part string) {
	t.Helper()
	for target := range targets {
		name, _, _ := strings.Cut(target, " ") // without its size
		if strings.HasPrefix(name, part+"/") && !slices.ContainsFunc(r.results, func(x reported) bool { return x.Name == name }) {
			t.Errorf("%s has a target, and is not reported", name)
		}
	}
}

// TestTenants measures small clusters in place of the large ones: all figures that have targets are there.
func TestTenants(t *testing.T) {
	netnstest.Need(t)
	r := NewReporter(&bytes.Buffer{}, &bytes.Buffer{})
	for _, c := range tenantCases {
		small := c.cluster
		small.services, small.ports, small.ranges, small.sticky = min(small.services, 2), min(small.ports, 2), min(small.ranges, 3), min(small.sticky, 10)
		if err := measureTenant(t.Context(), figures{r, "tenants", 1, small.endpoints}, c.name, small); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
	}
	checkTargets(t, r, "tenants")
}

// TestNFTablesReports measures with a small cluster that figures get their targets where they are measured.
func TestNFTablesReports(t *testing.T) {
	netnstest.Need(t)
	var lines, table bytes.Buffer
	r := NewReporter(&lines, &table)
	o := Options{Services: []int{10}, Endpoints: 2}
	if err := NFTables(t.Context(), r, o); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cold-load": "", "warm-restart": "", "warm-restart-written": `"value":0,"unit":"elements","atMost":0}`} {
		if !strings.Contains(lines.String(), fmt.Sprintf(`{"name":"nftables/%s","services":10,"endpoints":2,`, name)) || !strings.Contains(lines.String(), text) {
			t.Errorf("%s is not reported as %s:\n%s", name, text, &lines)
		}
	}
	checkTargets(t, r, "nftables")
}
