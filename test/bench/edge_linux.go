package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/state"
)

// EdgeOptions are how much [Edge] measures. The zero value is useful.
type EdgeOptions struct {
	// Rounds is how often everything is measured. Default: 40.
	Rounds int
	// Packets is the number of packets of each run at the entry node, 2,048 or more. Default: 32,768.
	Packets int
	// Slice is how long each kind of connections is measured in a round. Default: 100 ms. Downloads take 15 times as long.
	Slice time.Duration
	// Out is the directory for edge.md, empty for none.
	Out string
}

const edgeText = `# Comparison of the edge and nftables

Written by ` + "`bench edge --out docs/benchmarks`" + ` (%v). One run of %d rounds, in network namespaces of one machine. Each round measures
everything once, in a random order. [edge.md](../edge.md) describes the edge.

` + edgeMethod + `
## Figures and targets

` + "```\n%s```\n"

// edgeMethod is what the page says about the figures.
const edgeMethod = `- **today** is nftables alone: the entry node masquerades. **tcx** is the edge in front of the same nftables, and **xdp** the edge in the driver.
  The nodes are programmed by the same code as in the program. The entry node has no endpoints.
- **packet** is the time of the entry node for one packet of 64 bytes, in ns. A program sends packets into the node's device as drivers do
  (live frames of BPF_PROG_RUN), and another one drops those that leave. All of that happens on one CPU. **dropped** is the same, but a program drops the
  packets at once. The figures of all other variants are what is more than that. A figure is the least of all windows of 1,024 packets. A run with lost
  packets does not count.
- **64-flows** and **50000-flows** are packets of flows that exist. Each packet of **new-flows** belongs to another flow.
- **connect**, **request** and **ping** are the whole path: a client, the entry node, the node with the endpoint, and a server. Client and server are processes
  on the same CPU. request is a socket, connect, one byte there and back, and reset. ping is one byte there and back on a connection that stays. A time is
  the tenth percentile of a slice, the least of all slices.
- **conntrack** is the most entries that the entry node had after a run or a slice. Its own probes of the other node do not count: they have one entry.
- **download** is what a client gets by one connection, while the entry node sends at most 1 Gbit/s. Answers go through the entry node today, and directly
  with the edge.
- **weight-change** is the time in which the edge takes in a record with one more endpoint. The port has 30 endpoints on 10 nodes, and 1,021 slots.
`

// edgeWays are the variants that connections on the whole path are measured in. A pair of devices copies the kernel's packets for a program in its driver, and
// would be all that is measured of it.
var edgeWays = []string{entryToday, entryTCX}

// Edge measures the edge and nftables alone in one run: packets at the entry node, connections and downloads on the whole path. It also measures changes of
// weights. It fails if the edge cannot run.
func Edge(ctx context.Context, r *Reporter, o EdgeOptions) (err error) {
	setDefault(&o.Rounds, 40)
	setDefault(&o.Packets, 32_768)
	setDefault(&o.Slice, 100*time.Millisecond)
	if o.Packets < 2*frameWindow { // the first window begins at some packet
		return fmt.Errorf("a run of %d packets is too short: send %d or more", o.Packets, 2*frameWindow)
	}
	if err := edge.Available(edge.Settings{Mark: edgeMark, XDP: true}); err != nil {
		return err
	}
	machine, err := thisMachine()
	if err != nil {
		return err
	}
	b := &edgeBench{figures: figures{r, "edge", 1, 1}, o: o, tracked: map[string]int{}}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, part := range []func(context.Context) error{b.setUp, b.rounds, b.downloads, b.changes} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	if machine.LoadAfter, err = loadAverage(); err != nil || o.Out == "" {
		return err
	}
	var list strings.Builder
	if err := writeResults(&list, r.results); err != nil {
		return err
	}
	return writePage(o.Out, "edge.md", fmt.Sprintf(edgeText, &machine, o.Rounds, &list))
}

// edgeBench is what there is while [Edge] measures.
type edgeBench struct {
	figures
	closers
	o       EdgeOptions
	entries []*entryLab
	paths   []*pathLab
	// tracked is the most connections that the entry node tracked, by variant.
	tracked map[string]int
}

// setUp makes all labs, which are there at the same time.
func (b *edgeBench) setUp(ctx context.Context) error {
	defer b.Step("edge: setting up")()
	for _, variant := range []string{entryDropped, entryToday, entryTCX, entryXDP} {
		l, err := newEntryLab(ctx, variant)
		if err != nil {
			return err
		}
		b.add(l.close)
		b.entries = append(b.entries, l)
	}
	for _, variant := range edgeWays {
		l, err := newPathLab(ctx, variant)
		if err != nil {
			return err
		}
		b.add(l.close)
		b.paths = append(b.paths, l)
	}
	return nil
}

// rounds measures packets and connections.
func (b *edgeBench) rounds(ctx context.Context) error {
	defer b.Step("edge: packets and connections, %d rounds", b.o.Rounds)()
	type turn struct {
		name, variant string
		measure       func() (tracked int, err error)
	}
	var turns []turn
	for _, l := range b.entries {
		for i, load := range edgeLoads {
			turns = append(turns, turn{"packet-" + load.name, l.variant, func() (int, error) { return l.measure(i, b.o.Packets) }})
		}
	}
	for _, l := range b.paths {
		for _, test := range edgeTests {
			turns = append(turns, turn{test.name, l.variant, func() (int, error) { return l.measure(ctx, test.name, test.do, b.o.Slice) }})
		}
	}
	for range b.o.Rounds {
		rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
		for _, t := range turns {
			if err := ctx.Err(); err != nil {
				return err
			}
			tracked, err := t.measure()
			if err != nil {
				return fmt.Errorf("%s, %s: %w", t.name, t.variant, err)
			}
			b.tracked[t.variant] = max(b.tracked[t.variant], tracked)
		}
	}
	var errs []error
	for _, l := range b.entries {
		errs = append(errs, l.check())
	}
	for _, l := range b.paths {
		errs = append(errs, l.check())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	b.compare()
	return nil
}

// compare reports figures, and the ratios to nftables alone.
func (b *edgeBench) compare() {
	ratio := func(name, variant string, value, today float64) {
		if variant != entryToday {
			b.report("ratio/"+name+"/"+variant, math.Round(1000*value/today)/1000, "of "+entryToday)
		}
	}
	dropped, entries := b.entries[0], b.entries[1:]
	for _, load := range edgeLoads {
		name, zero := "packet-"+load.name, dropped.least[load.name]
		b.report(name+"/"+entryDropped, zero, "ns")
		for _, l := range entries {
			b.report(name+"/"+l.variant, l.least[load.name]-zero, "ns")
		}
		for _, l := range entries {
			ratio(name, l.variant, l.least[load.name]-zero, entries[0].least[load.name]-zero)
		}
	}
	for _, test := range edgeTests {
		for _, l := range b.paths {
			b.report(test.name+"/"+l.variant, in("us", l.p10[test.name]), "us")
		}
		for _, l := range b.paths {
			ratio(test.name, l.variant, in("us", l.p10[test.name]), in("us", b.paths[0].p10[test.name]))
		}
	}
	for _, l := range entries {
		b.report("conntrack/"+l.variant, float64(b.tracked[l.variant]), "entries")
	}
}

// downloadRounds is how often downloads are measured, for so many slices each: the most counts.
const downloadRounds, downloadSlices = 3, 15

// downloads measures downloads while the entry node's device is slow. It is the last that is measured of connections, because the device stays so.
func (b *edgeBench) downloads(ctx context.Context) error {
	defer b.Step("edge: downloads")()
	most := make([]float64, len(b.paths))
	for _, l := range b.paths {
		if err := l.shape(); err != nil {
			return err
		}
	}
	for range downloadRounds {
		for _, i := range rand.Perm(len(b.paths)) {
			a, _, err := b.paths[i].order(ctx, doDownload, downloadSlices*b.o.Slice)
			if err != nil {
				return fmt.Errorf("download, %s: %w", b.paths[i].variant, err)
			}
			most[i] = max(most[i], a.PerSecond)
		}
	}
	for i, l := range b.paths {
		const bits, giga = 8, 1e9
		b.report("download/"+l.variant, most[i]*bits/giga, "Gbit/s")
	}
	return nil
}

// weightChanges is how many changes of weights are measured.
const weightChanges = 1000

// changes measures changes of one node's weight.
func (b *edgeBench) changes(ctx context.Context) (err error) {
	defer b.Step("edge: changes of weights")()
	endpoints := []int{3, 3, 3, 3, 3, 3, 3, 3, 3, 3}
	objects := edgeObjects(state.TCP, endpoints...)
	before, err := edgeState(ctx, 0, entryTCX, objects)
	if err != nil {
		return err
	}
	endpoints[5]++
	after, err := edgeState(ctx, 0, entryTCX, edgeObjects(state.TCP, endpoints...))
	if err != nil {
		return err
	}
	shares := func(u *state.Update) []state.EdgeShare { return u.Changed[0].Ports[0].Edge.Shares }
	if len(shares(before)) != len(endpoints) || slices.Equal(shares(before), shares(after)) {
		return fmt.Errorf("a change of weights changes no shares: %v and %v", shares(before), shares(after))
	}
	ns, err := newEdgeNamespace()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	n, err := openEdgeNode(ctx, ns, 0, entryTCX, objects)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	var took []time.Duration
	for range weightChanges / 2 {
		for _, changed := range [][]*state.Service{after.Changed, before.Changed} {
			u := &state.Update{Node: before.Node, Changed: changed}
			began := time.Now()
			if err := n.edge.Apply(u, nil); err != nil {
				return err
			}
			took = append(took, time.Since(began))
		}
	}
	f := b.figures
	f.endpoints = 30
	f.times("weight-change", took, "ms")
	return nil
}
