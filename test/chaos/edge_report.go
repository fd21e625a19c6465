//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// noLookups are edits by which programs take the connections of packets for unknown, where another node has not handed them over.
var noLookups = edit{"internal/edge/programs/programs_linux.go", "	spec.Maps[\"slots\"].MaxEntries = s.Slots\n", `	for _, p := range spec.Programs {
		function := ""
		for i := range p.Instructions {
			ins := &p.Instructions[i]
			if ins.Symbol() != "" {
				function = ins.Symbol()
			}
			if ins.IsKfuncCall() && function != "decide_taken_in" {
				if p.Instructions[i].Reference() == "bpf_skb_ct_lookup" {
					*ins = asm.Mov.Imm(asm.R0, 0)
				}
			}
		}
	}
	spec.Maps["slots"].MaxEntries = s.Slots
`}

// bad is the effect of a bug on open connections.
func bad(_ *kind, r *Result) bool { return r.Report.Bad() > 0 }

var forgetful = &variant{name: "forgetful", what: "forgets the earlier owners of slots", edits: []edit{
	{"internal/edge/plan/slots.go", "	return Owned(to) | w.without(Owned(to))<<16\n", "	return Owned(to)\n"},
}}

var unlooking = &variant{name: "no-lookup", what: "hands over connections that its netfilter has", edits: []edit{
	noLookups, {"internal/edge/programs/programs_linux.go", "	\"github.com/cilium/ebpf\"\n", "	\"github.com/cilium/ebpf\"\n	\"github.com/cilium/ebpf/asm\"\n"},
}}

var undrained = &variant{name: "no-drain", what: "lets go of connections that it has handed over as soon as the edge no longer serves their frontend", edits: []edit{
	{"internal/edge/ports_linux.go", "	if p.settings.Drain == 0 || ", "	if p.settings.Drain >= 0 || "},
}}

// edgeMutants are builds with bugs that scenarios of the edge must notice.
var edgeMutants = []mutant{
	{forgetful, "weights", bad, onNFT},
	{forgetful, "drains", bad, onNFT},
	{&variant{name: "own-tables", what: "computes another table at node a", edits: []edit{
		{"internal/edge/ports_linux.go", "	for i, share := range p.maker.Table(p.settings.TableSize, shares) {\n", `	for i, share := range p.maker.Table(p.settings.TableSize, shares) {
		if strings.Contains(fmt.Sprint(os.Args), "/a/config.yaml") {
			share = uint16(len(shares)) - 1 - share
		}
`},
		{"internal/edge/ports_linux.go", "	\"iter\"\n	\"slices\"\n", "	\"iter\"\n	\"os\"\n	\"slices\"\n	\"strings\"\n"},
	}}, "first node killed", bad, onNFT},
	{&variant{name: "no-guard", what: "has no guard", edits: []edit{
		{"backend/nftables/internal/ruleset/edge.go", "lacksMark(sk.settings.Edge), one(nft.Jump(chainEdgeUnknown)),", "lacksMark(sk.settings.Edge), one(nft.Return()),"},
	}}, "program killed", bad, onNFT},
	{&variant{name: "flush-tracked", what: "has the kernel forget all connections when it starts", edits: []edit{
		{"internal/edge/edge_linux.go", "	e.peers = newPeers(e.maps, &e.settings)\n", "	_ = netlink.ConntrackTableFlush(netlink.ConntrackTable)\n	e.peers = newPeers(e.maps, &e.settings)\n"},
	}}, "process killed", bad, onNFT},
	{undrained, "annotations", bad, onNFT},
	{unlooking, "upgrade", bad, onNFT},
	{unlooking, "on and off", bad, onNFT},
	{undrained, "on and off", bad, onNFT},
}

// RunEdgeMutants runs scenarios of the edge that must notice a bug, each with a Switchyard that has the bug. It uses the options as [RunEdge] does, with at most a
// fifth of what happens and 200 connections.
func RunEdgeMutants(ctx context.Context, o Options) ([]Mutant, error) {
	if _, err := o.fill(); err != nil {
		return nil, err
	}
	o.Scale, o.Connections = min(o.Scale, 0.2), min(o.Connections, 200)
	b := newBuilder(&o)
	var list []Mutant
	for _, p := range edgeMutants {
		if len(o.Scenarios) > 0 && !slices.Contains(o.Scenarios, p.scenario) {
			continue
		}
		i := slices.IndexFunc(edgeScenarios, func(s edgeScenario) bool { return s.name == p.scenario })
		r, err := runEdgeScenario(ctx, &o, b, &edgeScenarios[i], p.variant)
		if r == nil || ctx.Err() != nil {
			return list, fmt.Errorf("scenario %q with a Switchyard that %s: %w", p.scenario, p.variant.what, err)
		}
		if err != nil { // what was waited for did not happen
			r.Wrong = append(r.Wrong, err.Error())
		}
		noticed := p.noticed(nil, r) && r.Report.Control.Bad() == 0
		list = append(list, Mutant{Bug: p.variant.what, Noticed: noticed, Result: *r})
		fmt.Fprintf(o.Log, "mutant: %s; noticed: %v\n%v\n", p.variant.what, noticed, r)
	}
	return list, nil
}

// ConnectionsOf returns how many connections are open all the time in the scenarios of the edge with these options.
func ConnectionsOf(o Options) int {
	_, _ = o.fill() // an unknown dataplane changes nothing
	return o.Connections
}

// Wrong returns what is not as promised, nil if all is.
func (f *Findings) Wrong() error {
	var errs []error
	for i := range f.Ours {
		for _, w := range f.Ours[i].Wrong {
			errs = append(errs, fmt.Errorf("%s: %s", f.Ours[i].Scenario, w))
		}
	}
	return errors.Join(errs...)
}

const edgeHow = `
## Method

A client outside, a router and four nodes are network namespaces. Each node has a process of Switchyard, which follows one API server. Nodes
write their annotations there. The router sends packets for a load balancer IP to node a, or to d. Nodes a, b and c have pods with endpoints of
one Service, and policy Cluster. The client keeps %d connections of TCP open, half of them over IPv6. On each, it sends a line %v after the last
answer. It also opens 200 connections a second, TCP and UDP, and keeps 40 flows of UDP.

- **Lost** had no answer within 900 ms, which is less than TCP's first retransmission of a SYN. On an open TCP connection, the limit is 5 s.
- **Reset** were refused, or ended by anything but the server.
- **Wrong endpoint** were answered by another endpoint than before, or by one that the oracle (test/oracle) does not allow for a new connection. While nodes
  apply a change, one may hand a connection over to another whose endpoints all terminate. These may serve it. Answers
  to an open connection also have the client's address as the server sees it. It must be the client's own if the edge was on when the connection was opened.
- **Expected failures** are new connections, and flows of UDP. They may fail while packets come in at a node that is dead, and while the process of a node
  with endpoints is dead. Open connections of TCP have no expected failures.
- **Outage** is the longest time after a fault in which no packet of open connections that it hits was served. 100 more connections are idle until the fault. Then
  one sends a request every 20 ms. An answer before TCP sends the request again shows the end. It may be 1 s.
- **Longest gap** is the longest time that a request on an open connection waited for its answer. TCP sends a lost request again after 0.2, 0.6 and 1.4 s. So
  a gap may be 1.5 s long where something is killed, and 0.1 s elsewhere. **New** is the longest time without a successful new connection.
- **Control** are connections from the client to a pod of node d, without a virtual address. Times in which the control or a sleeping thread of the load
  waited are subtracted. The remaining time is in bold. In parentheses are the measured gap, and the longest gap of the control.
  0.0 stands for less than 1 ms.

[proof.md](proof.md) describes the load and these figures in more detail.
`

// WriteEdge returns the report of the scenarios of the edge as a page in Markdown.
func (f *Findings) WriteEdge(connections int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Proof: the edge\n\nOutcome of %d open connections and of new ones through the [edge](edge.md) during injected faults, written by `make proof-edge`.\n\n"+
		"Measured on %s. Scale %v.\n\n", connections, f.Machine, f.Scale)
	b.WriteString("| Scenario | Connections | Requests | Lost | Reset | Wrong endpoint | Expected failures | Outage, ms | Longest gap, ms | New, ms |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i := range f.Ours {
		r := &f.Ours[i]
		c, n, e := &r.Report.Counts, &r.Report.New, &r.Report.Established
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %s | **%s** (%s, control %s) | **%s** (%s, control %s) |\n", r.Scenario, c.Connections, c.Requests, c.Lost, c.Reset,
			c.WrongEndpoint, c.ExpectedFailures, milliseconds(r.Outage), milliseconds(e.Ours), milliseconds(e.Longest), milliseconds(e.Control), milliseconds(n.Ours), milliseconds(n.Longest), milliseconds(n.Control))
	}
	if err := f.Wrong(); err != nil {
		b.WriteString("\nNot as promised:\n\n- " + strings.ReplaceAll(err.Error(), "\n", "\n- ") + "\n")
	}
	b.WriteString("\n## The scenarios\n\n")
	for i := range f.Ours {
		for j := range edgeScenarios {
			if st := &edgeScenarios[j]; st.name == f.Ours[i].Scenario {
				fmt.Fprintf(&b, "- **%s**: %s Here: %s.\n", st.name, st.about, f.Ours[i].Happened)
			}
		}
	}
	if len(f.Mutants) > 0 {
		b.WriteString("\n## Mutants\n\nA mutant is a Switchyard with an injected bug. It must fail its scenario. These runs have fewer connections, and less happens.\n\n" +
			"| Switchyard that ... | Scenario | Lost | Reset | Wrong endpoint | Noticed |\n|---|---|---:|---:|---:|---|\n")
		for _, p := range f.Mutants {
			c := &p.Result.Report.Counts
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %s |\n", p.Bug, p.Result.Scenario, c.Lost, c.Reset, c.WrongEndpoint, yes(p.Noticed))
		}
	}
	fmt.Fprintf(&b, edgeHow, connections, edgePause)
	return b.String()
}
