//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// saturated is how many idle processors are too few for figures of latency: programs wait for a processor.
const saturated = 0.2

// report is one run.
type report struct {
	Command       string  `json:"command"`
	Machine       string  `json:"machine"`
	Busy          bool    `json:"busy"`    // other programs needed the processors when the run began
	Release       string  `json:"release"` // of kube-proxy and the control plane
	Services      int     `json:"services"`
	Endpoints     int     `json:"endpoints"`
	Seconds       float64 `json:"seconds"` // of each rolling update
	SettleSeconds float64 `json:"settle_seconds"`
	Minutes       float64 `json:"minutes"` // of the whole run
	Rows          []row   `json:"rows"`
}

// table is the report as a Markdown table.
func (r *report) table() string {
	var b strings.Builder
	b.WriteString("| | nodes | changes/s | latency by the kernel, p50 / p99 | by metrics | changes seen | CPUs: proxies, control plane, relay, idle | MiB a node: program, total | watches |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i := range r.Rows {
		x := &r.Rows[i]
		relay := "-"
		if x.RelayMemory > 0 {
			relay = fmt.Sprintf("%.2f", x.Relay)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %.2f, %.2f, %s, %s | %.0f, %.0f | %d |\n",
			x.Program, x.nodes(), x.rates(), x.Kernel, x.Metric, x.seen(), x.Proxies, x.Server, relay, x.idle(), x.Resident, x.Machine, x.Watches)
		if x.Simulated > 0 {
			fmt.Fprintf(&b, "| ... simulated nodes, until decoded | %d | | %s | | %s | %.2f in all of them | | |\n", x.Simulated, x.Received,
				percent(x.Arrivals, x.Changes*x.Simulated), x.Harness)
		}
	}
	return b.String()
}

func (x *row) nodes() string {
	if x.Simulated > 0 {
		return fmt.Sprintf("%d of %d", x.Nodes, x.Nodes+x.Simulated)
	}
	return fmt.Sprint(x.Nodes)
}

// rates are the changes that were asked for, and those that the API server took if these are fewer.
func (x *row) rates() string {
	if made := float64(x.Changes) / x.Seconds; made < 0.9*x.Rate {
		return fmt.Sprintf("%g asked, %.3g made", x.Rate, made)
	}
	return fmt.Sprintf("%g", x.Rate)
}

// seen is the part of the changes that the watched kernels and the metrics have.
func (x *row) seen() string {
	wanted := x.Changes * x.Sampled
	return percent(wanted-x.Missing, wanted) + ", " + percent(x.Observations, x.Changes*x.Nodes)
}

func (x *row) idle() string {
	if x.Idle < saturated {
		return fmt.Sprintf("**%.2f**", x.Idle)
	}
	return fmt.Sprintf("%.2f", x.Idle)
}

func percent(part, all int) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g %%", 100*float64(part)/float64(all))
}

// String prints both percentiles with the same unit.
func (l latency) String() string {
	if l.P99 >= 1000 {
		return fmt.Sprintf("%.2f / %.2f s", l.P50/1000, l.P99/1000)
	}
	return fmt.Sprintf("%.3g / %.3g ms", l.P50, l.P99)
}

// text is the report as a page.
func (r *report) text() string {
	return fmt.Sprintf(`# Network programming latency of many nodes

Written by `+"`%s`"+` in test/e2e, in %.0f minutes. `+"`make scale FULL=1`"+` is the full measurement, and `+"`make scale`"+` a shorter
one, which writes nothing.

Each proxy is a real process in its own network namespace. All of them follow one kube-apiserver %s with etcd. It has %d Services with
%d endpoints, 2 to 10 each. **Proxies, API server and benchmark share one machine.** It has %s.%s

A rolling update lasts %.0f s. It replaces one endpoint after another, in 8 Services at a time. Each replacement is one write of an
EndpointSlice. [SIG Scalability's latency](https://github.com/kubernetes/community/blob/master/sig-scalability/slos/network_programming_latency.md)
begins with the change, whose time is in the annotation endpoints.kubernetes.io/last-change-trigger-time. It ends when the rules are in the
kernel. The benchmark itself writes the slices, so the latency excludes the EndpointSlice controller.

%s
- Latency by the kernel: the kernels of up to %d nodes report each new rule and set element, as `+"`nft monitor`"+` shows them. All changes count.
- Latency by metrics: the histograms of all nodes. Values inside a bucket are interpolated. The first bucket of kube-proxy's
  kubeproxy_network_programming_duration_seconds ends at 250 ms. The buckets of switchyard_network_programming_duration_seconds start at 1 ms
  and double.
- Changes seen: the share of the changes in the watched kernels, and in the metrics, at most %.0f s after the update. Switchyard's metric counts
  several changes of a Service once if it programs them together.
- CPUs: the mean number of processors that were busy during the update, and that were idle. A **bold** number means a saturated machine: programs
  wait for the processors that they share. Such a latency shows the work of all nodes together, not the time of one node.
- MiB a node: the mean resident memory of the program. The total is what a node takes of the machine, with its rules in the kernel.
- Watches: the watches that nodes and the relay have open at the API server.
- Simulated nodes follow the relay with the client library and their own certificates. They decode each change and program nothing.
- kube-proxy syncs at most once a second, which is its default. A smaller number of its nodes is the number that fits into memory.
`, r.Command, r.Minutes, r.Release, r.Services, r.Endpoints, r.Machine, r.warning(), r.Seconds, r.table(), r.sampled(), r.SettleSeconds)
}

// warning is a sentence about a machine that was not idle.
func (r *report) warning() string {
	if !r.Busy {
		return ""
	}
	return "\n\n**Other programs kept the machine busy, so these figures are not clean.** Repeat the run on an idle machine."
}

// sampled is the greatest number of watched nodes.
func (r *report) sampled() (n int) {
	for i := range r.Rows {
		n = max(n, r.Rows[i].Sampled)
	}
	return n
}

// write writes the report as a page and as JSON.
func (r *report) write(dir string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(dir, "scale")
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(name+".md", []byte(r.text()), 0o644), os.WriteFile(name+".json", append(raw, '\n'), 0o644))
}
