//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// result is the measurements of one proxy.
type result struct {
	Name        string  `json:"name"`
	SyncSeconds float64 `json:"sync_seconds"`
	// Changes is the number of single changes that were timed. ChangeP50 and ChangeP99 are the milliseconds from the API server's answer until
	// a connection shows the change. RequestP50 and RequestP99 begin with the request.
	Changes     int     `json:"changes"`
	ChangeP50   float64 `json:"change_p50_ms"`
	ChangeP99   float64 `json:"change_p99_ms"`
	RequestP50  float64 `json:"request_p50_ms"`
	RequestP99  float64 `json:"request_p99_ms"`
	RSSIdle     float64 `json:"rss_idle_mib"`
	RSSLoad     float64 `json:"rss_load_mib"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	LoadChanges int     `json:"load_changes"`
}

// report is the whole comparison: upstream first, then Switchyard.
type report struct {
	Machine     string   `json:"machine"`
	Services    int      `json:"services"`
	Endpoints   int      `json:"endpoints"`
	Rate        int      `json:"rate"`
	LoadSeconds float64  `json:"load_seconds"`
	Results     []result `json:"results"`
}

// rows are the figures, each with the factor by which Switchyard should be better.
var rows = []struct {
	name string
	unit string
	goal float64
	get  func(*result) float64
}{
	{"Start to all services programmed", "s", 20, func(r *result) float64 { return r.SyncSeconds }},
	{"API change to kernel, p50", "ms", 500, func(r *result) float64 { return r.ChangeP50 }},
	{"API change to kernel, p99", "ms", 500, func(r *result) float64 { return r.ChangeP99 }},
	{"... with the API request, p50", "ms", 0, func(r *result) float64 { return r.RequestP50 }},
	{"... with the API request, p99", "ms", 0, func(r *result) float64 { return r.RequestP99 }},
	{"Resident memory, idle", "MiB", 3, func(r *result) float64 { return r.RSSIdle }},
	{"Resident memory, under load", "MiB", 3, func(r *result) float64 { return r.RSSLoad }},
	{"Processor time under load", "s", 5, func(r *result) float64 { return r.CPUSeconds }},
}

// table is the report as a Markdown table.
func (r *report) table() string {
	var b strings.Builder
	a, z := &r.Results[0], &r.Results[1]
	fmt.Fprintf(&b, "| | %s | %s | factor | goal |\n|---|---:|---:|---:|---:|\n", a.Name, z.Name)
	for _, row := range rows {
		goal := "-"
		if row.goal > 0 {
			goal = fmt.Sprintf("%.0f", row.goal)
		}
		before, after := row.get(a), row.get(z)
		fmt.Fprintf(&b, "| %s | %.4g %s | %.3g %s | %.1f | %s |\n", row.name, before, row.unit, after, row.unit, before/after, goal)
	}
	return b.String()
}

// write writes the report as a document and as JSON.
func (r *report) write(document, data string) error {
	text := fmt.Sprintf(`# Comparison with upstream kube-proxy

Written by `+"`make compare`"+`: %d services with %d endpoints each, in a real API server. The proxies ran one after the other, with the same
configuration file and a node of their own. The machine has %s.

%s
- Start to all services programmed: from the start of the process until %d random services answer. The time of the same connections to a
  programmed node is subtracted.
- API change to kernel: one endpoint is replaced by another. The time is from the API server's response until a new connection reaches the
  new endpoint. kube-proxy had %d changes and Switchyard %d, 1.2 s apart.
- Memory: VmRSS of the process five seconds after the sync, and at the end of the load.
- Processor time: user and system time of the process and its nft processes. The load is %.0f s of %d endpoint changes a second (%d and
  %d in total).
- The goals were set for kube-proxy 1.36, which rewrote all rules in 3.3 s for each change. Release 1.37 writes the difference, so the goal
  of 500 for a change is not reached.
`, r.Services, r.Endpoints, r.Machine, r.table(), min(sampled, r.Services), r.Results[0].Changes, r.Results[1].Changes,
		r.LoadSeconds, r.Rate, r.Results[0].LoadChanges, r.Results[1].LoadChanges)
	if err := os.WriteFile(document, []byte(text), 0o644); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(data, append(raw, '\n'), 0o644)
}
