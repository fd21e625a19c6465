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
	Machine       string  `json:"machine"`
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
	b.WriteString("| | nodes | changes/s | latency by the kernel, p50 / p99 | by metrics | changes seen | CPUs: proxies, control plane, relay, idle | MiB a node: program, in all | watches |\n" +
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
	return fmt.Sprintf(`# Network programming latency on many nodes

Written by `+"`make scale FULL=1`"+` in %.0f minutes. `+"`make scale`"+` alone is a shorter run, which writes nothing. Every proxy is a real process in a network
namespace of its own, with a link to one real kube-apiserver %s and etcd. The cluster has %d Services with %d endpoints, 2 to 10 each.
**All of this shares one machine**: %s.

A rolling update replaces one endpoint after another for %.0f s, in 8 Services at a time, each by one write of an EndpointSlice. The write carries
its time in the annotation endpoints.kubernetes.io/last-change-trigger-time. [The latency](https://github.com/kubernetes/community/blob/master/sig-scalability/slos/network_programming_latency.md)
is the time from there until the rules are in the kernel. The endpoints come from the benchmark, so the time of the EndpointSlice controller is
not in it.

%s
- By the kernel: a sample of up to %d nodes, by the kernel's own reports of new rules and set elements (as `+"`nft monitor`"+` shows them), all changes.
- By metrics: all nodes. kube-proxy's kubeproxy_network_programming_duration_seconds, whose least bucket ends at 250 ms, and Switchyard's
  switchyard_network_programming_duration_seconds, whose buckets double from 1 ms. Values between the ends of a bucket are interpolated.
- Changes seen: those that the sampled kernels had %.0f s after the update, and the observations of the metric, of the changes times the nodes.
  Switchyard counts changes of a Service that it programs together once.
- CPUs: processors that were busy during the update, of all proxies, of API server and etcd, and of the relay. In rows with a **bold** number of idle
  processors, programs wait for the two that all of them share. Their latencies tell how much work there is, and not how long one node takes.
- Memory: the mean resident memory of a proxy's process, and what a node takes of the machine with its rules in the kernel.
- Watches: those that are open at the API server. Its own are among them.
- Simulated nodes follow the relay with the client library and certificates of their own. They decode each change, and program nothing.
- kube-proxy syncs once a second at most, as by default. The number of its nodes is what fits into the memory, if that is less than was asked for.
`, r.Minutes, r.Release, r.Services, r.Endpoints, r.Machine, r.Seconds, r.table(), r.sampled(), r.SettleSeconds)
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
