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

Outcome of connections through Switchyard during injected faults, written by ` + "`make proof DATAPLANE=%s SCALE=%v`" + `.

`

const how = `
## Method

Each scenario has a lab of network namespaces: a node with the proxy, another node, pods on both, and an external client. Three Services
have eight pods each, and are called over TCP and UDP, IPv4 and IPv6. A pod, which is also an endpoint, and the node call cluster IPs. The
external client and a pod call NodePorts. The external client and the node call a load balancer IP. One Service has client affinity, with
internal and external clients, and one has the traffic policy Local. Each client opens a connection to each address every 10 to 20 ms,
and never waits for earlier ones. Other connections stay open and are always in use. Connections and requests have numbers, which servers
repeat with their own names. Each change makes some pods ready, terminating, or not endpoints; all pods continue to serve. One pod is never
ready, and never allowed.

- **Connections** were tried; **requests** were sent on them.
- **Lost** had no answer within 900 ms, which is less than TCP's first retransmission of a SYN. On an open TCP connection, the limit is 5 s.
  The longest echo shows shorter losses there: TCP retransmits after 200 ms at the earliest.
- **Reset** were refused, ended by anything but the server, or sent to a server that was ending.
- **Wrong endpoint** were answered by an endpoint that the oracle (test/oracle) does not allow. A change begins before the proxy gets the
  update, and ends when a connection to a Service of that update shows it. A connection that was open during that time may follow the old or
  the new state. Clients with affinity that move although their endpoint is allowed also count. So do UDP flows that stay with an endpoint 1
  s after it stopped serving.
- **One state** is the share of new connections without a change in progress, so that a single state judges them.
- **Ended** were closed by their server, or are UDP flows that were deleted because their endpoint was gone.
- **Expected failures** failed as the cluster's state allows. After a flush on an older kernel, connections may fail within 200 ms, which
  includes resets of open ones. Data of an open TCP connection must arrive after the repair. A relay (mode userspace) that is killed ends
  its connections; new ones may fail until the next process serves. Clients with affinity that connect between two processes, and UDP flows
  of the killed process, may get another endpoint. [The scenarios](#the-scenarios) have the numbers.
- **Longest gap** is the longest time without a successful new connection of one client to one address, although it had to succeed. A gap
  begins with the first failed connection, or otherwise with the slow one, and ends with an answer.
- **Longest echo** is the same for requests on open connections. It may be 100 ms, except after a flush on an older kernel.
- **Slowest change** is the longest time from the update to the first connection that shows it, including the time without a process.
- **Over 5 ms** counts slow connections, of 100,000 new ones, without subtraction. It shows effects of the proxy on all packets. A kernel
  without preemption walks its connection tracking table without a pause, which takes 7 to 30 ms here.
- **CPU steal** is the share of the processors that the hypervisor gave to other machines.

A machine with few processors causes gaps of its own. So the load, and a relay in a process, run with priority over all other programs
(SCHED_RR). A control connects from outside and from the other node to a pod there, and never passes the node with the proxy. On each
processor, a thread of the load sleeps for half a millisecond repeatedly. If it wakes up a millisecond late or more, this is a stall. The
waiting time of the control and the stalls, within 10 ms of a gap, are subtracted from the gap. The remaining time is in bold. In
parentheses are the measured gap, and the longest gap of the control. **Excused** is the share of the time that could be subtracted. Above
20%, the machine was too busy. The same applies if a gap of the control has more than 20 ms without a stall. The scenario then runs again,
at most three times, if it has no other fault.

Not covered: SCTP, connections that are closed with FIN, affinity that expires, and Services without endpoints.
[conformance](../conformance) covers them without this load. Clients that reuse a port within 10 s after a reset are not covered either. If
the reset overtook their last packet, Linux sends them to their previous endpoint, regardless of the rules. In the scenarios slow source,
10000 changes, tenants and the flushes, the brain and the store are in the process of the load. The dataplane gets states over the
node-local API.
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
			"This is easier for kube-proxy, because its syncs take longer with more services.\n\n")
		writeTable(&b, u.Results)
	}
	b.WriteString("\n## Longest gaps caused by the proxy\n\n```\n")
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
		b.WriteString("\n## Mutants\n\nA mutant is a Switchyard with an injected bug. It must fail its scenario.\n\n" +
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
