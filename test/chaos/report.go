//go:build linux

package chaos

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Findings are all that a report is written of.
type Findings struct {
	// Machine describes what the scenarios ran on.
	Machine string
	// Dataplane, Scale and Rate are the fields of [Options].
	Dataplane string
	Scale     float64
	Rate      int
	Ours      []Result
	// Upstream are kube-proxy's results, of the scenarios in which it can take part. It may be nil.
	Upstream *Beside
	Mutants  []Mutant
}

// The type holds the results of another proxy.
type Beside struct {
	Machine string
	Scale   float64
	Rate    int
	Results []Result
}

// DescribeMachine names what figures depend on.
func DescribeMachine() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	load, _ := os.ReadFile("/proc/loadavg")
	average, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%d CPUs, Linux %s, %s, load average before the run %s",
		runtime.NumCPU(), unix.ByteSliceToString(name.Release[:]), runtime.Version(), average)
}

const intro = `# Proof: mode %s

The outcome of connections through Switchyard while faults are injected. ` + "`make proof DATAPLANE=%s SCALE=%v`" + ` writes this page.

`

const how = `
## How it is counted

Each scenario has a lab of network namespaces: a node with the proxy, another node, pods on both, a client outside. Three services of
eight pods each are called over TCP and UDP, IPv4 and IPv6. A pod, which is also an endpoint, and the node call cluster IPs. A client outside and a pod call NodePorts. A client outside and the node call a load balancer's IP. One service has client affinity, with
clients inside and outside, one externalTrafficPolicy Local. New connections are made at a steady pace, without waiting for earlier ones. Each client connects to each address every 10 to 20 ms. Others stay open and are used all the time. Connections and requests
have numbers, and servers name themselves and repeat the numbers. Each change makes some pods ready, terminating, or no endpoints,
while they all go on serving; one pod is never ready, and never allowed.

- **Connections** were tried; **requests** are those on them.
- **Lost** had no answer within 900 ms, which is less than TCP's first retransmission of a SYN. On an open TCP connection it is 5 s. The longest echo shows shorter losses there, as TCP sends nothing again within 200 ms.
- **Reset** were refused, or ended by somebody other than the server, or given to a server that was ending.
- **Wrong endpoint** counts those answered by an endpoint that the oracle (test/oracle) does not allow. A change begins before the proxy gets the update. It ends when a connection to a service of that update shows the change. A connection that was open
  at some moment of that time may go by the old or the new state. A client with affinity that moves although its endpoint is
  still allowed counts here. So does a UDP flow that is still with an endpoint 1 s after the endpoint stopped serving. **One
  state** is the share of new connections that no change was under way for, so that a single state judges them.
- A relay in a process (mode userspace) ends with its connections when it is killed. From the kill until the next process serves, connections may fail; those
  count as expected failures. Clients with affinity that come between two processes, and flows of datagrams whose process was killed, may get
  another endpoint. "Here" below has how many there were, and how many were handed over. Such a process runs before all others, as packets do in the
  kernel.
- **Ended** were closed by their server, or are UDP flows that were deleted because their endpoint was gone, perhaps before the first answer.
- **Expected failures** failed as the cluster's state allows. In the scenario of the flush on an older kernel, they may fail within 200 ms after all rules were deleted. That includes resets
  of open connections, since the kernel translates no packets while there are no rules for it. Data that an open TCP connection has sent must arrive after the repair.
- **Longest gap**: the longest time in which no new connection of one client to one address succeeded although it had to. It is the time from the beginning of a connection to its answer. After failures, it is the time from the first failure's beginning to the answer of a later connection.
- **Longest echo** is the same for requests on open connections. It may be 100 ms, but after a flush on an older kernel.
- **Slowest change** is the longest time from the update to the first connection that shows it. It includes the time in which the proxy did not run.

A machine with few processors makes gaps of its own. The load runs before all other programs (SCHED_RR). A control runs at the same time: connections from outside and from the other node to a pod there. Their packets never reach the node with the proxy. On each processor, a thread of the load repeatedly sleeps for half a millisecond. If it wakes up a millisecond late or more, it notes a stall. The time in which the control waited or a processor stalled, during a gap or within 10 ms of it, is subtracted from the gap. The rest is in bold. In parentheses are the gap as it was measured, and the longest one of the
control in the whole scenario. **Excused** is the share of the time that could be taken off: what happens then is not seen in
gaps. The machine was too busy for a judgement if it is more than 20%. The same holds if a gap of the control has more than 20 ms without a stall. Then the scenario is run again, three times at most, if nothing else was wrong. **CPU steal** is the share of
the processors that the machine under this one gave to others. The number of connections over 5 ms, of 100,000 new ones, is reported without subtraction, for the proxy and for the control. Effects of the proxy on all packets, such as a processor that is busy in the kernel, must show there. A kernel that is not preemptible walks its connection tracking table without a pause, for itself or for a process that lists it. Here this takes 7 to 30 ms.

Not in it: SCTP, connections that are closed with FIN, affinity that expires, Services without endpoints. The suite in
[conformance](../conformance) has them, without this load. Clients that reuse a port within 10 s after a reset are not in it either. If the reset had overtaken their last packet, Linux sends them to their previous endpoint, whatever the rules are. In the scenarios of the slow source, the 10,000 changes and the flushes, brain and store are in the load's process. The dataplane gets states over the node-local API.
`

// Write returns the report as a page in Markdown.
func (f *Findings) Write() string {
	var b strings.Builder
	fmt.Fprintf(&b, intro, f.Dataplane, f.Dataplane, f.Scale)
	fmt.Fprintf(&b, "Measured on %s. Scale %v, %d new connections a second.\n", f.Machine, f.Scale, f.Rate)
	wrong := 0
	for i := range f.Ours {
		wrong += len(f.Ours[i].Wrong)
	}
	b.WriteString("\n## Switchyard\n\n")
	writeTable(&b, f.Ours)
	if wrong > 0 {
		b.WriteString("\nNot as promised:\n\n")
		for i := range f.Ours {
			for _, w := range f.Ours[i].Wrong {
				fmt.Fprintf(&b, "- %s: %s\n", f.Ours[i].Scenario, w)
			}
		}
	}
	if u := f.Upstream; u != nil {
		b.WriteString("\n## Upstream kube-proxy, nftables mode\n\n")
		fmt.Fprintf(&b, "Measured on %s. Scale %v, %d new connections a second. ", u.Machine, u.Scale, u.Rate)
		b.WriteString("The scenarios are the same on a smaller scale, with a real API server on the machine, and without services that have no clients. " +
			"That is easier for it: its syncs take the longer the more services there are.\n\n")
		writeTable(&b, u.Results)
	}
	b.WriteString("\n## Longest gaps that are the proxy's\n\n```\n")
	writeBars(&b, "Switchyard", f.Ours)
	if f.Upstream != nil {
		writeBars(&b, "kube-proxy", f.Upstream.Results)
	}
	b.WriteString("```\n")
	b.WriteString("\n## The scenarios\n\n")
	for i := range f.Ours {
		fmt.Fprintf(&b, "- **%s**: %s Here: %s.\n", f.Ours[i].Scenario, aboutOf(f.Ours[i].Scenario), f.Ours[i].Happened)
	}
	if len(f.Mutants) > 0 {
		b.WriteString("\n## Mutants\n\nA mutant, a Switchyard with an injected bug, must fail its scenario.\n\n" +
			"| Switchyard that ... | Scenario | Lost | Reset | Wrong endpoint | Longest gap, ms | Noticed |\n|---|---|---:|---:|---:|---:|---|\n")
		for _, p := range f.Mutants {
			c := &p.Result.Report.Counts
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | **%s** | %s |\n", p.Bug, p.Result.Scenario, c.Lost, c.Reset, c.WrongEndpoint,
				milliseconds(p.Result.Report.New.Ours), yes(p.Noticed))
		}
	}
	b.WriteString(how)
	return b.String()
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "**no**"
}

func aboutOf(name string) string {
	for i := range scenarios {
		if scenarios[i].name == name {
			return scenarios[i].about
		}
	}
	return ""
}

func writeTable(b *strings.Builder, results []Result) {
	b.WriteString("| Scenario | Connections | Requests | Lost | Reset | Wrong endpoint | Ended | Expected failures | Longest gap, ms | Longest echo, ms | " +
		"Over 5 ms, of 100,000 | Excused | CPU steal | One state | Slowest change |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i := range results {
		r := &results[i]
		c := &r.Report.Counts
		gap := func(ours, longest, control time.Duration) string {
			return fmt.Sprintf("**%s** (%s, control %s)", milliseconds(ours), milliseconds(longest), milliseconds(control))
		}
		n, e := &r.Report.New, &r.Report.Established
		over := func(n, of int) string { return fmt.Sprintf("%.1f", float64(n)*100_000/float64(max(of, 1))) }
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %d | %d | %s | %s | %s (control %s) | %.1f%% | %.1f%% | %.0f%% | %.2f s |\n", r.Scenario, c.Connections, c.Requests,
			c.Lost, c.Reset, c.WrongEndpoint, c.Ended, c.ExpectedFailures, gap(n.Ours, n.Longest, n.Control), gap(e.Ours, e.Longest, e.Control),
			over(n.Slow, c.Connections), over(n.ControlSlow, r.Report.Control.Connections), 100*r.excused(n), 100*r.CPUSteal, 100*r.strict(), r.Slowest.Seconds())
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()*1e3) }

// writeBars draws gaps on a logarithmic scale: each step is half as long again.
func writeBars(b *strings.Builder, who string, results []Result) {
	for i := range results {
		r := &results[i]
		bar := 0
		for limit := 500 * time.Microsecond; limit < r.Report.New.Ours; limit += limit / 2 {
			bar++
		}
		fmt.Fprintf(b, "%-10s  %-22s  %8s ms  %s\n", who, r.Scenario, milliseconds(r.Report.New.Ours), strings.Repeat("#", bar))
	}
}
