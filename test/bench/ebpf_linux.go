package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/internal/ebpf/ebpftest"
)

// EBPFOptions specifies what [EBPF] measures.
type EBPFOptions struct {
	// Options has numbers of services, 10, 10,000 and 100,000 by default.
	Options
	// Rounds is how many slices are measured of each kind of connection. Default: 16.
	Rounds int
	// Slice is how long each slice is. Default: 120 ms.
	Slice time.Duration
	// Flips is how often a route is changed while a reader dawdles. Default: 10,000,000.
	Flips int
	// Out is the directory for ebpf.md, empty for none.
	Out string
}

// The variants of connections that are compared.
const (
	variantDirect    = "direct"    // to the pod, without netfilter
	variantConntrack = "conntrack" // to the pod, on a node whose rules make the kernel track connections
	variantNFTables  = "nftables"
	variantEBPF      = "ebpf"  // hooks above nftables
	variantHooks     = "hooks" // hooks alone: nobody on the node tracks connections
)

const ebpfText = `# Comparison of socket hooks and nftables

Written by ` + "`bench ebpf --out docs/benchmarks`" + ` (%v).
This is one run, in network namespaces of one machine.

- **direct** and **conntrack** are connections to the pod itself. Only with conntrack, the node has rules that make the kernel track
  connections.
- All other columns are connections to the cluster IP of a Service with %d endpoints. The number in the title is the number of Services.
- **nftables** and **ebpf** are clients on the same node, with the same rules. The cgroup of the ebpf clients has hooks, and the cgroup of
  the nftables clients has none.
- **hooks** has no nftables rules, so the kernel does not track connections.
- Each client is a separate process. All nodes are up at the same time, and variants take turns at random in slices of %v.
- A time is the tenth percentile of a slice, the least of %d slices. Other work on the machine only adds to a time, so compare differences.
- A rate is for one thread that makes sockets, connects and resets them. It is the rate of the fastest 100 connections in a row.
- **request** makes a socket, connects, sends one byte, receives one byte, and resets. **ping** sends and receives one byte on an open
  connection.
- The programming time of hooks is the time of hooks and nftables together minus the time of nftables, for each change.

## Connections

%s
## Programming and targets

**own** is the time of the hooks, and **nftables** is the time of nftables for the same change. The figures are the median and the 99th
percentile of up to %d changes in a row. A cold load of hooks also makes programs and maps. Reading back compares the kernel with its
desired contents. For nftables, **read-back** is a restart, because a process that owns the tables need not read them.

- **hooks-over-direct** and **over-nftables** are differences of figures in the table above and of the tests reconnect and unconcerned.
- **reconnect** is the connect of a socket that was connected before. The socket already has the note that getpeername reads, so the hook
  only overwrites it. This omits most of the cost of getpeername.
- **unconcerned** is the cost for clients that connect to a pod itself.
- The targets of programming are for bare maps. The measurement includes the work that keeps hooks consistent with nftables. This work
  covers the settings of the node, the plan of a Service, and its contents in the maps.
- **flips** changes a route to other endpoints again and again. One time out of 16, the reader waits for 20 µs between the route and its
  slot.

` + "```\n%s```\n"

// connectionTest is one kind of connections.
type connectionTest struct {
	name, do string
	from     int
	// title is the one of its row in the table, empty if it has none.
	title string
	// straight makes connections go to the pod itself.
	straight bool
}

var connectionTests = []connectionTest{
	{name: "pod-connect", do: doTCPConnect, from: fromPod, title: "connect, from a pod, us"},
	{name: "node-connect", do: doTCPConnect, from: fromNode, title: "connect, from the node, us"},
	{name: "pod-request", do: doRequest, from: fromPod, title: "request, from a pod, us"},
	{name: "pod-ping", do: doPing, from: fromPod, title: "ping, from a pod, us"},
	{name: "pod-reconnect", do: doReconnect, from: fromPod},
	{name: "pod-unconcerned-udp-connect", do: doUDPConnect, from: fromPod, straight: true},
	{name: "pod-unconcerned-tcp-connect", do: doTCPConnect, from: fromPod, straight: true},
}

// variant is a way of connections, and a process that makes them.
type variant struct {
	name       string
	services   int
	to         netip.AddrPort
	worker     *worker
	hooks      *worker                           // nil if its process has none
	translated uint64                            // connections that the hooks must have translated
	p10        map[*connectionTest]time.Duration // the least
	rate       map[*connectionTest]float64       // the best
}

// measured reports whether a variant has connections of a kind: some are for direct connections and connections of hooks alone.
func (v *variant) measured(t *connectionTest) bool {
	return t.title != "" || v.name == variantDirect || v.name == variantHooks
}

// EBPF measures socket hooks above nftables, nftables alone, connections without a Service, and hooks alone, in one
// run. It measures connections of a pod and of its node through a cluster IP, and the cost of programming. It fails
// if hooks cannot be attached.
func EBPF(ctx context.Context, r *Reporter, o EBPFOptions) (err error) {
	o.Options = o.withDefaults(10, 10_000, 100_000)
	slices.Sort(o.Services)
	setDefault(&o.Rounds, 16)
	setDefault(&o.Slice, 120*time.Millisecond)
	setDefault(&o.Flips, 10_000_000)
	machine, err := thisMachine()
	if err != nil {
		return err
	}
	b := &ebpfBench{Reporter: r, o: o}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.setUp(ctx); err != nil {
		return err
	}
	done := r.Step("ebpf: connections")
	err = b.connections(ctx)
	done()
	if err != nil {
		return err
	}
	listed := len(r.results)
	b.compare()
	for _, x := range b.programmed {
		r.Report(x)
	}
	if err := b.mixedReads(ctx); err != nil {
		return err
	}
	if machine.LoadAfter, err = loadAverage(); err != nil || o.Out == "" {
		return err
	}
	var list strings.Builder
	if err := writeResults(&list, r.results[listed:]); err != nil {
		return err
	}
	return writePage(o.Out, "ebpf.md", fmt.Sprintf(ebpfText, &machine, measuredEndpoints, o.Slice, o.Rounds, b.table(), nodeChanges, &list))
}

// ebpfBench is what there is while [EBPF] measures.
type ebpfBench struct {
	*Reporter
	closers
	o          EBPFOptions
	server     netip.AddrPort
	variants   []*variant
	programmed []Result
}

func (b *ebpfBench) at(services int) figures {
	return figures{b.Reporter, "ebpf", services, b.o.Endpoints}
}

// setUp makes a node without Services in netfilter, then one for each number of Services. All are up at the same time.
func (b *ebpfBench) setUp(ctx context.Context) error {
	plain, err := newConnectionLab(ctx)
	if err != nil {
		return err
	}
	b.add(plain.close)
	b.server = plain.server
	if err := b.variant(ctx, plain, variantDirect, 0, "", nil); err != nil {
		return err
	}
	for i, services := range b.o.Services {
		done := b.Step("ebpf: setting up a node with %d services", services)
		err := b.setUpServices(ctx, plain, i, services)
		done()
		if err != nil {
			return err
		}
	}
	return nil
}

// setUpServices makes a node with so many Services, the i-th number of them.
func (b *ebpfBench) setUpServices(ctx context.Context, plain *connectionLab, i, services int) error {
	l, err := newConnectionLab(ctx)
	if err != nil {
		return err
	}
	b.add(l.close)
	order := HolderOrder{Dataplane: nameOfEBPF, Services: services, Endpoints: b.o.Endpoints, Changes: nodeChanges, Parts: true}
	hooks, answer, cgroup, err := l.program(ctx, order)
	if err != nil {
		return err
	}
	b.programmed = append(b.programmed, answer.Parts...)
	if i == 0 {
		err = b.variant(ctx, l, variantConntrack, 0, "", nil)
	}
	err = errors.Join(err, b.variant(ctx, l, variantNFTables, services, "", nil), b.variant(ctx, l, variantEBPF, services, cgroup, hooks))
	if err == nil && (i == 0 || i == len(b.o.Services)-1) {
		order.Dataplane, order.Parts = nameOfHooks, false
		if hooks, _, cgroup, err = plain.program(ctx, order); err == nil {
			err = b.variant(ctx, plain, variantHooks, services, cgroup, hooks)
		}
	}
	return err
}

func (b *ebpfBench) variant(ctx context.Context, l *connectionLab, name string, services int, cgroup string, hooks *worker) (err error) {
	v := &variant{name: name, services: services, to: clusterIP, hooks: hooks, p10: map[*connectionTest]time.Duration{}, rate: map[*connectionTest]float64{}}
	if services == 0 {
		v.to = l.server
	}
	b.variants = append(b.variants, v)
	v.worker, err = l.worker(ctx, cgroup)
	return err
}

// connections measures all variants in turn.
func (b *ebpfBench) connections(ctx context.Context) error {
	type turn struct {
		v    *variant
		test *connectionTest
	}
	var turns []turn
	for i := range connectionTests {
		for _, v := range b.variants {
			if v.measured(&connectionTests[i]) {
				turns = append(turns, turn{v, &connectionTests[i]})
			}
		}
	}
	order := slices.Clone(turns)
	for range b.o.Rounds {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, t := range order {
			if err := b.slice(ctx, t.v, t.test); err != nil {
				return fmt.Errorf("%s, %s with %d services: %w", t.test.name, t.v.name, t.v.services, err)
			}
		}
	}
	for _, v := range b.variants {
		if err := v.check(ctx); err != nil {
			return err
		}
	}
	for _, t := range turns {
		if t.test.title == "" {
			continue // it is among the differences
		}
		f := b.at(t.v.services)
		f.report(t.test.name+"/"+t.v.name, in("us", t.v.p10[t.test]), "us")
		if t.test.do == doTCPConnect {
			f.report(t.test.name+"-rate/"+t.v.name, t.v.rate[t.test], "1/s")
		}
	}
	return nil
}

// mixedReads changes a route while a reader dawdles, and counts answers with parts of different versions.
func (b *ebpfBench) mixedReads(ctx context.Context) error {
	defer b.Step("ebpf: %d flips", b.o.Flips)()
	reads, err := ebpftest.MixedReads(ctx, b.o.Flips, 20*time.Microsecond)
	if err != nil {
		return err
	}
	f := b.at(0)
	f.report("flips", float64(reads.Changes), "flips")
	f.report("flips/reads", float64(reads.Reads), "reads")
	f.report("flips/mixed-reads", float64(reads.Mixed+reads.Misses), "reads")
	return nil
}

// slice measures one slice.
func (b *ebpfBench) slice(ctx context.Context, v *variant, test *connectionTest) error {
	o := ConnectionOrder{Do: test.do, From: test.from, To: v.to, For: b.o.Slice}
	if test.straight {
		o.To = b.server
	}
	a, err := v.worker.connect(ctx, o)
	if err != nil {
		return err
	}
	if !test.straight {
		v.translated += uint64(a.Connections)
	}
	if least, ok := v.p10[test]; !ok || a.P10 < least {
		v.p10[test] = a.P10
	}
	v.rate[test] = max(v.rate[test], a.Rate)
	return nil
}

// check returns an error if hooks are not what connections went through.
func (v *variant) check(ctx context.Context) error {
	if v.hooks == nil {
		return nil
	}
	var translated uint64
	err := v.hooks.do(ctx, "Translated", false, &translated)
	if err == nil && translated != v.translated {
		err = fmt.Errorf("hooks have translated %d connections of %d that were made through them", translated, v.translated)
	}
	return err
}

// compare reports differences between variants.
func (b *ebpfBench) compare() {
	of := func(test, name string, services int) float64 {
		for _, v := range b.variants {
			for t, p10 := range v.p10 {
				if t.name == test && v.name == name && v.services == services {
					return in("us", p10)
				}
			}
		}
		return math.NaN() // all that is asked for is measured
	}
	for _, v := range b.variants {
		f, n := b.at(v.services), v.services
		for i := range connectionTests {
			if t := &connectionTests[i]; t.title == "" && v.measured(t) {
				f.report(t.name+"/"+v.name, in("us", v.p10[t]), "us")
			}
		}
		switch v.name {
		case variantHooks:
			for _, test := range []string{"pod-connect", "pod-reconnect", "pod-unconcerned-udp-connect", "pod-unconcerned-tcp-connect"} {
				f.report("hooks-over-direct/"+test, of(test, variantHooks, n)-of(test, variantDirect, 0), "us")
			}
		case variantEBPF:
			for _, test := range []string{"pod-connect", "node-connect", "pod-ping"} {
				f.report("over-nftables/"+test, of(test, variantEBPF, n)-of(test, variantNFTables, n), "us")
			}
			f.report("part-of-nftables/pod-request", of("pod-request", variantEBPF, n)/of("pod-request", variantNFTables, n), "")
		}
	}
}

// table is the table of connections.
func (b *ebpfBench) table() *markdownTable {
	titles := []string{""}
	for _, v := range b.variants {
		title := v.name
		if v.services > 0 {
			title += " " + short(v.services)
		}
		titles = append(titles, title)
	}
	t := table(titles...)
	row := func(title string, value func(*variant) float64) {
		cells := []string{title}
		for _, v := range b.variants {
			cells = append(cells, readable(value(v)))
		}
		t.row(cells...)
	}
	for i := range connectionTests {
		if test := &connectionTests[i]; test.title != "" {
			row(test.title, func(v *variant) float64 { return in("us", v.p10[test]) })
		}
	}
	for i, title := range []string{"connections in a second, from a pod, 1/s", "connections in a second, from the node, 1/s"} {
		row(title, func(v *variant) float64 { return v.rate[&connectionTests[i]] })
	}
	return t
}
