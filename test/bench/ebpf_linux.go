package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/internal/ebpf/ebpftest"
	"github.com/switchyard-net/switchyard/state"
)

// EBPF measures socket hooks above nftables, nftables alone, connections without a Service, and hooks alone, in one
// run. It measures connections of a pod and of its node through a cluster IP, and the cost of programming. It fails
// if hooks cannot be attached.
func EBPF(ctx context.Context, r *Reporter, o EBPFOptions) (err error) {
	o.Options = o.withDefaults(10, 10_000, 100_000)
	slices.Sort(o.Services)
	if o.Rounds == 0 {
		o.Rounds = 16
	}
	if o.Slice == 0 {
		o.Slice = 120 * time.Millisecond
	}
	if o.Flips == 0 {
		o.Flips = 10_000_000
	}
	if err := reportLoad(r, "before"); err != nil {
		return err
	}
	b := &ebpfBench{reporter: r, options: o}
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
	for _, l := range b.labs[1:] {
		done := r.Step("ebpf: programming %d services with %d endpoints", l.services, o.Endpoints)
		err := b.programming(ctx, l)
		done()
		if err != nil {
			return err
		}
		runtime.GC()
	}
	if err := b.mixedReads(ctx); err != nil {
		return err
	}
	return reportLoad(r, "after")
}

// reportLoad reports how busy the machine is.
func reportLoad(r *Reporter, when string) error {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	var load float64
	if _, err := fmt.Sscan(string(text), &load); err != nil {
		return fmt.Errorf("load average %q: %w", text, err)
	}
	r.Report(Result{"ebpf/load-average-" + when, 0, 0, load, "tasks"})
	return nil
}

// ebpfBench is what there is while [EBPF] measures.
type ebpfBench struct {
	reporter *Reporter
	options  EBPFOptions
	cgroups  cgroups
	// labs are one without Services in netfilter, then one for each number of Services. All are up at the same time.
	labs     []*ebpfLab
	variants []*variant
}

func (b *ebpfBench) close() error {
	var errs []error
	for _, v := range b.variants {
		errs = append(errs, v.worker.close())
	}
	for _, l := range b.labs {
		errs = append(errs, l.close())
	}
	return errors.Join(append(errs, b.cgroups.remove())...)
}

func (b *ebpfBench) report(name string, services int, value float64, unit string) {
	b.reporter.Report(Result{"ebpf/" + name, services, b.options.Endpoints, value, unit})
}

func (b *ebpfBench) reportAgainst(name string, services int, value float64, unit string, atMost float64) {
	b.reporter.ReportAgainst(Result{"ebpf/" + name, services, b.options.Endpoints, value, unit}, atMost)
}

// variant is a way of connections, and a process that makes them.
type variant struct {
	name     string
	services int
	to       netip.AddrPort
	hooks    *hooks // nil if its process has none
	worker   *connectionWorker
}

// setUp makes all labs and variants. Its loads are the cold loads of the report.
func (b *ebpfBench) setUp(ctx context.Context) error {
	for _, services := range append([]int{0}, b.options.Services...) {
		done := b.reporter.Step("ebpf: setting up a node with %d services", services)
		l, err := b.newLab(ctx, services)
		done()
		if err != nil {
			return err
		}
		b.labs = append(b.labs, l)
	}
	plain, few, many := b.labs[0], b.labs[1], b.labs[len(b.labs)-1]
	errs := []error{b.addVariant(ctx, plain, variantDirect, 0, nil), b.addVariant(ctx, few, variantConntrack, 0, nil)}
	for _, l := range b.labs[1:] {
		errs = append(errs, b.addVariant(ctx, l, variantNFTables, l.services, nil), b.addVariant(ctx, l, variantEBPF, l.services, l.hooks))
	}
	for _, like := range slices.Compact([]*ebpfLab{few, many}) {
		h, err := b.cgroups.newHooks(plain, nothing{})
		if err != nil {
			return err
		}
		plain.alone = append(plain.alone, h)
		if _, err := h.Apply(ctx, like.first); err != nil {
			return err
		}
		errs = append(errs, b.addVariant(ctx, plain, variantHooks, like.services, h))
	}
	return errors.Join(errs...)
}

func (b *ebpfBench) addVariant(ctx context.Context, l *ebpfLab, name string, services int, h *hooks) error {
	v := &variant{name: name, services: services, hooks: h, to: clusterIP}
	if services == 0 {
		v.to = l.server
	}
	var cgroup *os.File
	if h != nil {
		cgroup = h.cgroup
	}
	var err error
	if v.worker, err = startConnectionWorker(b.options.Worker(ctx), cgroup, l.namespaces); err != nil {
		return err
	}
	b.variants = append(b.variants, v)
	return nil
}

// connectionTest is one kind of connections.
type connectionTest struct {
	name, do string
	from     int
	// alone limits it to direct connections and connections of hooks alone; straight makes both go to the pod itself.
	alone, straight bool
}

var connectionTests = []connectionTest{
	{name: "pod-connect", do: doTCPConnect, from: fromPod},
	{name: "node-connect", do: doTCPConnect, from: fromNode},
	{name: "pod-request", do: doRequest, from: fromPod},
	{name: "pod-ping", do: doPing, from: fromPod},
	{name: "pod-reconnect", do: doReconnect, from: fromPod, alone: true},
	{name: "pod-unconcerned-udp-connect", do: doUDPConnect, from: fromPod, alone: true, straight: true},
	{name: "pod-unconcerned-tcp-connect", do: doTCPConnect, from: fromPod, alone: true, straight: true},
}

// turn is a variant and a test, with what was measured.
type turn struct {
	test *connectionTest
	v    *variant
	p10  time.Duration // the least
	rate float64       // the best
}

// connections measures all variants in turn, and compares them.
func (b *ebpfBench) connections(ctx context.Context) error {
	var turns []*turn
	for i := range connectionTests {
		test := &connectionTests[i]
		for _, v := range b.variants {
			if !test.alone || v.name == variantDirect || v.name == variantHooks {
				turns = append(turns, &turn{test, v, math.MaxInt64, 0})
			}
		}
	}
	order := slices.Clone(turns)
	for range b.options.Rounds {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, t := range order {
			if err := b.take(ctx, t); err != nil {
				return fmt.Errorf("%s, %s with %d services: %w", t.test.name, t.v.name, t.v.services, err)
			}
		}
	}
	for _, l := range b.labs {
		for _, h := range l.allHooks() {
			if err := h.check(); err != nil {
				return err
			}
		}
	}
	b.report("slices", 0, float64(b.options.Rounds), "slices")
	b.report("slice", 0, Milliseconds(b.options.Slice), "ms")
	for _, t := range turns {
		b.report(t.test.name+"/"+t.v.name, t.v.services, Microseconds(t.p10), "us")
		if t.test.do == doTCPConnect && !t.test.straight {
			b.report(t.test.name+"-rate/"+t.v.name, t.v.services, t.rate, "1/s")
		}
	}
	b.compare(turns)
	return nil
}

// take measures one slice.
func (b *ebpfBench) take(ctx context.Context, t *turn) error {
	o := connectionOrder{Do: t.test.do, From: t.test.from, To: t.v.to, For: b.options.Slice}
	if t.test.straight {
		o.To = b.labs[0].server
	}
	a, err := t.v.worker.do(ctx, o)
	if err != nil {
		return err
	}
	if t.v.hooks != nil && !t.test.straight {
		t.v.hooks.expected += uint64(a.Connections)
	}
	t.p10, t.rate = min(t.p10, a.P10), max(t.rate, a.Rate)
	return nil
}

// The targets of connections. Differences are in microseconds.
const (
	mostOfHook        = 1.0
	mostWithoutNote   = 0.3
	mostOfUnconcerned = 0.1
	mostOverNFTPod    = -1.0
	mostOverNFTNode   = -3.0
	mostPartOfRequest = 0.98
)

// compare reports differences between variants.
func (b *ebpfBench) compare(turns []*turn) {
	of := func(test, variant string, services int) float64 {
		for _, t := range turns {
			if t.test.name == test && t.v.name == variant && t.v.services == services {
				return Microseconds(t.p10)
			}
		}
		return math.NaN() // all that is asked for is measured
	}
	sizes := b.options.Services
	for _, n := range slices.Compact([]int{sizes[0], sizes[len(sizes)-1]}) {
		over := func(test string) float64 { return of(test, variantHooks, n) - of(test, variantDirect, 0) }
		b.reportAgainst("hooks-over-direct/pod-connect", n, over("pod-connect"), "us", mostOfHook)
		b.reportAgainst("hooks-over-direct/pod-reconnect", n, over("pod-reconnect"), "us", mostWithoutNote)
		b.reportAgainst("hooks-over-direct/pod-unconcerned-udp-connect", n, over("pod-unconcerned-udp-connect"), "us", mostOfUnconcerned)
		b.report("hooks-over-direct/pod-unconcerned-tcp-connect", n, over("pod-unconcerned-tcp-connect"), "us")
	}
	for _, n := range sizes {
		over := func(test string) float64 { return of(test, variantEBPF, n) - of(test, variantNFTables, n) }
		b.reportAgainst("over-nftables/pod-connect", n, over("pod-connect"), "us", mostOverNFTPod)
		b.reportAgainst("over-nftables/node-connect", n, over("node-connect"), "us", mostOverNFTNode)
		b.reportAgainst("part-of-nftables/pod-request", n, of("pod-request", variantEBPF, n)/of("pod-request", variantNFTables, n), "", mostPartOfRequest)
		b.report("over-nftables/pod-ping", n, over("pod-ping"), "us")
	}
}

// The targets of programming: the cost of hooks in addition to nftables.
const (
	mostEndpointChange = 0.5 // microseconds
	mostFrontendAdded  = 2.5
	mostLoadOfService  = 0.002 // milliseconds: 200 for 100,000 services
	mostLoadAtLeast    = 40    // milliseconds, up to 10,000 services
)

// coldLoads and readBacks are how often these are measured.
const coldLoads, readBacks = 5, 3

// programming measures changes in a lab.
func (b *ebpfBench) programming(ctx context.Context, l *ebpfLab) error {
	n := l.services
	if err := b.coldLoads(ctx, l); err != nil {
		return err
	}
	b.report("memory", n, float64(l.hooks.Status().Memory)/(1<<20), "MiB")

	singles := func(records []*state.Service) (us []*state.Update) {
		for _, s := range records {
			us = append(us, &state.Update{Node: l.first.Node, Changed: []*state.Service{s}})
		}
		return us
	}
	var removals []*state.Update
	for _, s := range l.added {
		removals = append(removals, &state.Update{Node: l.first.Node, Removed: []state.ServiceName{s.Name}})
	}
	for _, change := range []struct {
		name    string
		updates []*state.Update
		atMost  float64
	}{
		{"endpoint-change", singles(withNewEndpoint(l.first.Changed)), mostEndpointChange},
		{"frontend-added", singles(l.added), mostFrontendAdded},
		{"frontend-removed", removals, math.Inf(1)},
	} {
		own, base, err := l.timeEach(ctx, change.updates)
		if err != nil {
			return fmt.Errorf("%s: %w", change.name, err)
		}
		if math.IsInf(change.atMost, 1) {
			b.report(change.name+"-p50/own", n, Microseconds(Percentile(own, 50)), "us")
		} else {
			b.reportAgainst(change.name+"-p50/own", n, Microseconds(Percentile(own, 50)), "us", change.atMost)
		}
		b.report(change.name+"-p99/own", n, Microseconds(Percentile(own, 99)), "us")
		b.report(change.name+"-p50/nftables", n, Microseconds(Percentile(base, 50)), "us")
		b.report(change.name+"-p99/nftables", n, Microseconds(Percentile(base, 99)), "us")
	}
	if _, err := l.hooks.Apply(ctx, l.first); err != nil {
		return err
	}
	return b.readBack(ctx, l)
}

// coldLoads has hooks of their own load what the lab has.
func (b *ebpfBench) coldLoads(ctx context.Context, l *ebpfLab) error {
	least := time.Duration(math.MaxInt64)
	for range coldLoads {
		runtime.GC() // what the last load left is not measured
		began := time.Now()
		h, err := b.cgroups.newHooks(l, nothing{})
		if err != nil {
			return err
		}
		_, err = h.Apply(ctx, l.first)
		least = min(least, time.Since(began))
		if err = errors.Join(err, h.check(), h.close()); err != nil {
			return err
		}
	}
	b.reportAgainst("cold-load/own", l.services, Milliseconds(least), "ms", max(mostLoadAtLeast, mostLoadOfService*float64(l.services)))
	b.report("cold-load/nftables", l.services, Milliseconds(l.coldLoad), "ms")
	return nil
}

// readBack has the hooks compare the kernel with what should be in it. For nftables that is a restart: as long as a process owns the tables,
// it need not look.
func (b *ebpfBench) readBack(ctx context.Context, l *ebpfLab) error {
	own := time.Duration(math.MaxInt64)
	for range readBacks {
		runtime.GC()
		began := time.Now()
		result, err := l.hooks.Verify(ctx)
		took := time.Since(began)
		if err != nil {
			return err
		}
		if result.Repaired != 0 {
			return fmt.Errorf("%d elements were repaired that nobody had touched", result.Repaired)
		}
		own = min(own, took-l.base.took)
	}
	b.report("read-back/own", l.services, Milliseconds(own), "ms")
	if err := l.hooks.check(); err != nil {
		return err
	}
	restart, err := l.restart(ctx)
	b.report("read-back/nftables", l.services, Milliseconds(restart), "ms")
	return err
}

// mixedReads changes a route while a reader dawdles, and counts what it finds that never belonged together.
func (b *ebpfBench) mixedReads(ctx context.Context) error {
	defer b.reporter.Step("ebpf: %d flips", b.options.Flips)()
	const dawdle = 20 * time.Microsecond
	reads, err := ebpftest.MixedReads(ctx, b.options.Flips, dawdle)
	if err != nil {
		return err
	}
	b.report("flips", 0, float64(reads.Changes), "flips")
	b.report("flips/reads", 0, float64(reads.Reads), "reads")
	b.reportAgainst("flips/mixed-reads", 0, float64(reads.Mixed+reads.Misses), "reads", 0)
	return nil
}

// timeEach applies each update by itself, and returns how long the hooks and nftables needed for each.
func (l *ebpfLab) timeEach(ctx context.Context, updates []*state.Update) (own, base []time.Duration, err error) {
	for _, u := range updates {
		began := time.Now()
		_, err := l.hooks.Apply(ctx, u)
		took := time.Since(began)
		if err != nil {
			return nil, nil, err
		}
		own, base = append(own, took-l.base.took), append(base, l.base.took)
	}
	return own, base, nil
}

// check returns an error if the hooks are not what connections went through.
func (h *hooks) check() error {
	switch s := h.Status(); {
	case s.State != ebpf.On:
		return fmt.Errorf("hooks are %v, and would not be what is measured: %w", s.State, s.Reason)
	case s.Translated != h.expected:
		return fmt.Errorf("hooks have translated %d connections of %d that were made through them", s.Translated, h.expected)
	}
	return nil
}
