package oracle_test

import (
	"context"
	"flag"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/randcluster"
	"github.com/switchyard-net/switchyard/test/refdataplane"
)

var oneSeed = flag.Int64("seed", -1, "run only the history of this seed, with all questions, and log its steps")

const (
	steps         = 14 // of a history
	questions     = 50 // at most, each time that the feed is read
	enoughTrouble = 3  // histories that fail before the test gives up
)

// TestAgreement runs random histories through the store and the brain, and asks both the oracle and the tracer, which has
// nothing but what the feed handed out, about the same packets.
func TestAgreement(t *testing.T) {
	if *oneSeed >= 0 {
		synctest.Test(t, func(t *testing.T) {
			r := newRun(uint64(*oneSeed), true)
			r.all, r.log = true, t.Logf
			if err := r.play(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
		return
	}

	histories := randcluster.Seeds(500, 50_000)
	var next, asked, failed atomic.Uint64
	var byOutcome [probe.Drop + 1]atomic.Uint64
	var ramping atomic.Uint64
	inBubbles(t, func(t *testing.T) {
		for seed := next.Add(1) - 1; seed < histories && failed.Load() < enoughTrouble; seed = next.Add(1) - 1 {
			r := newRun(seed, true)
			if err := r.play(t.Context()); err != nil {
				failed.Add(1)
				t.Error(err)
			}
			asked.Add(r.asked)
			ramping.Add(r.steps)
			for o, n := range r.byOutcome {
				byOutcome[o].Add(n)
			}
		}
	})
	t.Logf("%d histories, %d questions: %d pass, %d forward, %d reject, %d drop", histories, asked.Load(),
		byOutcome[probe.Pass].Load(), byOutcome[probe.Forward].Load(), byOutcome[probe.Reject].Load(), byOutcome[probe.Drop].Load())
	t.Logf("time alone has led to %d states", ramping.Load())
	if ramping.Load() < histories/20 {
		t.Error("new endpoints hardly ever get older: the histories do not test slow starts")
	}
	for _, o := range []probe.Outcome{probe.Pass, probe.Forward, probe.Reject, probe.Drop} {
		if byOutcome[o].Load() == 0 {
			t.Errorf("no question had the answer %v: the histories do not test what they should", o)
		}
	}
}

// inBubbles runs workers at the same time, each with a clock of its own.
func inBubbles(t *testing.T, work func(*testing.T)) {
	t.Run("workers", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, work)
			})
		}
	})
}

// run is one history on its way through the store.
type run struct {
	seed    uint64
	rng     *rand.Rand // decides about everything but the history
	history *randcluster.History
	opts    randcluster.Options
	store   *store.Store
	sink    model.Sink
	// seen is what the feed has handed out, up to revision.
	seen     *refdataplane.State
	revision state.Revision
	ages     oracle.Ages
	steps    uint64 // states that only the time has led to

	asks      func() error                     // called each time that the feed has been read
	all       bool                             // ask all questions
	log       func(format string, args ...any) // for the steps, or nil
	asked     uint64
	byOutcome [probe.Drop + 1]uint64
}

// newRun begins a history. Some histories have ranges of ports, if those may have some.
func newRun(seed uint64, ranges bool) *run {
	r := &run{seed: seed, rng: rand.New(rand.NewPCG(seed, 1))}
	r.opts = randcluster.Options{
		NodeName:      "node-a",
		DetectLocal:   r.rng.IntN(3) > 0,
		MasqueradeAll: r.rng.IntN(4) == 0,
	}
	if r.rng.IntN(5) == 0 {
		r.opts.ServiceProxyName = "edge"
	}
	if r.rng.IntN(3) == 0 {
		r.opts.NodePortAddrs = func(addr netip.Addr) bool { // every address of node-a
			return slices.Contains([]string{"172.16.0.1", "fd00:16::1", "172.16.9.1", "fd00:16:9::1"}, addr.String())
		}
	}
	if r.rng.IntN(3) == 0 {
		r.opts.AllowedExternalIPs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28"), netip.MustParsePrefix("172.16.0.0/24"), netip.MustParsePrefix("fd00:113::9/128")}
	}
	r.opts.NodeExternalIPs, r.opts.IgnoreExternalIPs = r.rng.IntN(3) == 0, r.rng.IntN(6) == 0
	if r.rng.IntN(4) == 0 {
		r.opts.Budgets = oracle.Budgets{
			Service: []int64{0, 10, 25, 60}[r.rng.IntN(4)], Namespace: []int64{0, 25, 60, 120}[r.rng.IntN(4)], Node: []int64{0, 60, 150}[r.rng.IntN(3)],
		}
	}
	if r.opts.Annotations = seed%2 == 1; r.opts.Annotations {
		r.opts.SlowStarts = []string{"1s", "8s", "8s", "30s", "1m0s", "1h", "500ms", "2h"}
	}
	r.ages.Begun = time.Now()
	r.opts.Ranges = ranges && seed%4 == 1
	if r.rng.IntN(3) == 0 {
		// No history comes to the time at which a node that has just become unready has been so for a day.
		r.opts.NodeHealth = oracle.NodeHealth{Percent: []int{34, 67, 100}[r.rng.IntN(3)], After: 24 * time.Hour, Now: time.Now()}
	}
	r.history = randcluster.New(seed, r.opts)
	r.store = store.New(store.Options{Brain: brain.Config{
		NodeName:          r.opts.NodeName,
		ServiceProxyName:  r.opts.ServiceProxyName,
		LocalDetector:     r.detector(),
		MasqueradeAll:     r.opts.MasqueradeAll,
		ExternalIPs:       r.opts.AllowedExternalIPs,
		NodeExternalIPs:   r.opts.NodeExternalIPs,
		IgnoreExternalIPs: r.opts.IgnoreExternalIPs,
		MaxEntries:        r.opts.Budgets.Service,
		NodeHealth: brain.NodeHealth{
			Enabled: r.opts.NodeHealth.Percent > 0, NotReadyAfter: r.opts.NodeHealth.After, IgnoreAbove: r.opts.NodeHealth.Percent,
		},
	}, Budgets: store.Budgets{PerNamespace: r.opts.Budgets.Namespace, PerNode: r.opts.Budgets.Node}})
	r.sink = r.store.Source("history")
	r.seen = &refdataplane.State{
		Services:      make(map[state.ServiceName]*state.Service),
		NodePortAddrs: r.history.World().NodePortAddrs,
	}
	r.asks = r.ask
	return r
}

// podRanges have the addresses of all pods, and no others.
var podRanges = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/32")}

// detector recognizes pods in one of two ways. By the first one it takes no address for a pod's, as the histories give nodes no ranges.
func (r *run) detector() state.LocalDetector {
	switch {
	case !r.opts.DetectLocal:
		return state.LocalDetector{}
	case r.seed%2 == 0:
		return state.LocalDetector{NodeCIDR: true}
	}
	return state.LocalDetector{ClusterCIDRs: podRanges}
}

// play runs the history. The feed is read only now and then, so that its updates merge a random number of steps.
func (r *run) play(ctx context.Context) error {
	defer r.store.Close()
	complete := r.rng.IntN(3)
	for step := range steps {
		r.pass(step)
		set, deleted := r.history.Step()
		r.logStep(step, set, deleted)
		r.sink.Update(set, deleted)
		if step < complete {
			continue
		}
		if step == complete {
			r.sink.Complete()
		}
		r.ages.Observe(r.history.World(), time.Now())
		if r.rng.IntN(4) == 0 {
			r.pass(step)
		}
		if r.rng.IntN(3) > 0 && step < steps-1 {
			continue
		}
		if err := r.read(ctx); err != nil {
			return fmt.Errorf("seed %d, step %d: %w", r.seed, step, err)
		}
		if err := r.asks(); err != nil {
			return fmt.Errorf("seed %d, step %d: %w", r.seed, step, err)
		}
	}
	if err := r.compareSnapshot(); err != nil {
		return fmt.Errorf("seed %d, at the end: %w", r.seed, err)
	}
	return nil
}

// pass lets some time pass in histories with slow starts. Weights change by themselves then.
func (r *run) pass(step int) {
	if len(r.opts.SlowStarts) == 0 {
		return
	}
	d := []time.Duration{0, 20 * time.Millisecond, 125 * time.Millisecond, time.Second, 3 * time.Second, 4321 * time.Millisecond, 20 * time.Second, 11 * time.Minute}[r.rng.IntN(8)]
	if r.log != nil {
		r.log("step %d: %v pass", step, d)
	}
	before := r.store.Snapshot().Revision()
	time.Sleep(d)
	synctest.Wait()
	r.steps += uint64(r.store.Snapshot().Revision() - before)
}

// world is the cluster as it is now, with the ages of its endpoints.
func (r *run) world() *oracle.World {
	w := r.history.World()
	w.Ages, w.Now = &r.ages, time.Now()
	return w
}

// read takes what is new from the feed.
func (r *run) read(ctx context.Context) error {
	latest := r.store.Snapshot().Revision()
	if latest == 0 {
		return fmt.Errorf("nothing is published although the source is complete")
	}
	if latest == r.revision {
		return nil
	}
	u, err := r.store.Next(ctx, r.revision)
	if err != nil {
		return fmt.Errorf("reading the feed: %w", err)
	}
	if u.Full {
		clear(r.seen.Services)
	}
	for _, s := range u.Changed {
		r.seen.Services[s.Name] = s
	}
	for _, name := range u.Removed {
		delete(r.seen.Services, name)
	}
	r.seen.Node, r.revision = u.Node, u.Revision
	return nil
}

// ask compares the answers of the oracle and of the tracer to random questions, and what packets do not show.
func (r *run) ask() error {
	w := r.world()
	packets := r.history.Packets()
	if !r.all && len(packets) > questions {
		for i := range questions {
			j := i + r.rng.IntN(len(packets)-i)
			packets[i], packets[j] = packets[j], packets[i]
		}
		packets = packets[:questions]
	}
	for _, p := range packets {
		want, got := w.Ask(p), r.seen.Trace(p)
		r.asked++
		r.byOutcome[want.Outcome]++
		if !sameAnswer(want, got) {
			return fmt.Errorf("%v\noracle: %+v\ntracer: %+v\n%s", p, want, got, describe(w, r.seen, p))
		}
	}
	if err := compareHealth(w, r.seen); err != nil {
		return err
	}
	return compareServing(w, r.seen)
}

func sameAnswer(a, b probe.Answer) bool {
	return a.Outcome == b.Outcome && a.Affinity == b.Affinity && a.Balance == b.Balance && a.Ejection == b.Ejection && a.DrainSeconds == b.DrainSeconds &&
		a.Ping == b.Ping && slices.Equal(reduced(a.Choices), reduced(b.Choices))
}

// reduced returns choices with their weights in lowest terms: which ones of the same ratio a record has does not matter.
func reduced(choices []probe.Choice) []probe.Choice {
	divisor := new(big.Int)
	for _, c := range choices {
		divisor.GCD(nil, nil, divisor, big.NewInt(int64(c.Weight)))
	}
	choices = slices.Clone(choices)
	for i := range choices {
		choices[i].Weight /= uint16(max(1, divisor.Int64()))
	}
	return choices
}

// compareHealth compares the health check records of all services.
func compareHealth(w *oracle.World, seen *refdataplane.State) error {
	for _, s := range w.Services {
		port := w.HealthCheckPort(s.Name)
		var got state.HealthCheck
		if rec := seen.Services[s.Name]; rec != nil {
			got = rec.HealthCheck
		}
		if got.Port == 0 && port == 0 {
			continue
		}
		want := state.HealthCheck{
			Port:      port,
			LocalIPv4: w.LocalReady(s.Name, state.IPv4),
			LocalIPv6: w.LocalReady(s.Name, state.IPv6),
		}
		if got != want {
			return fmt.Errorf("health check of %v\noracle: %+v\nrecord: %+v\n%s", s.Name, want, got,
				describe(w, seen, probe.Packet{}, s.Name))
		}
	}
	return nil
}

// compareServing compares the endpoints that may keep the UDP flows that they have, and the TCP connections of ports with a deadline.
func compareServing(w *oracle.World, seen *refdataplane.State) error {
	for name, rec := range seen.Services {
		for i := range rec.Ports {
			p := &rec.Ports[i]
			if p.Protocol != state.UDP && p.DrainSeconds == 0 {
				if len(p.Lingering) > 0 {
					return fmt.Errorf("%v: lingering endpoints of a %v port: %v", name, p.Protocol, p.Lingering)
				}
				continue
			}
			want, got := w.Serving(name, p.Name, p.Protocol, p.Family), keepers(p)
			if !slices.Equal(got, want) {
				return fmt.Errorf("serving endpoints of %v port %q %v %v\noracle: %v\nrecord: %v\n%s", name, p.Name, p.Protocol,
					p.Family, want, got, describe(w, seen, probe.Packet{}, name))
			}
		}
	}
	return nil
}

// keepers lists the endpoints in the routes of a port, each once, and the lingering ones, which must not be among them.
func keepers(p *state.Port) []netip.AddrPort {
	var list []netip.AddrPort
	for _, r := range []state.Route{p.Internal.Inside, p.Internal.Outside, p.External.Inside, p.External.Outside} {
		for _, ep := range r.Endpoints {
			list = append(list, ep.Addr)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	list = slices.Compact(list)
	for _, ep := range p.Lingering {
		list = append(list, ep.Addr)
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// compareSnapshot checks that the merged updates have led to the published state.
func (r *run) compareSnapshot() error {
	snap := r.store.Snapshot()
	n := 0
	for s := range snap.Services() {
		n++
		if got := r.seen.Services[s.Name]; got == nil || !got.Equal(s) {
			return fmt.Errorf("the updates lead to\n%+v\nfor %v, the snapshot has\n%+v", got, s.Name, s)
		}
	}
	if n != len(r.seen.Services) || !snap.Node().Equal(r.seen.Node) {
		return fmt.Errorf("the updates lead to %d services and %+v, the snapshot has %d and %+v", len(r.seen.Services),
			r.seen.Node, n, snap.Node())
	}
	return nil
}

func (r *run) logStep(step int, set []model.Object, deleted []model.Ref) {
	if r.log == nil {
		return
	}
	for _, obj := range set {
		r.log("step %d: set %v %s", step, obj.Ref(), show(obj))
	}
	for _, ref := range deleted {
		r.log("step %d: delete %v", step, ref)
	}
}

// describe shows the objects that may decide about a packet, and the records of the services among them.
func describe(w *oracle.World, seen *refdataplane.State, p probe.Packet, names ...state.ServiceName) string {
	var b strings.Builder
	dst := p.Dst.Addr()
	for _, s := range w.Services {
		byAddr := slices.Contains(slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs), dst)
		byPort := slices.ContainsFunc(s.Ports, func(sp model.ServicePort) bool {
			return sp.NodePort != 0 && sp.NodePort == p.Dst.Port()
		})
		if !byAddr && !byPort && !slices.Contains(names, s.Name) {
			continue
		}
		fmt.Fprintf(&b, "%s\n", show(s))
		for _, slice := range w.Slices {
			if slice.ServiceName() == s.Name {
				fmt.Fprintf(&b, "  %s\n", show(slice))
			}
		}
		if rec := seen.Services[s.Name]; rec != nil {
			fmt.Fprintf(&b, "  record: %s\n", show(rec))
		} else {
			fmt.Fprintf(&b, "  no record\n")
		}
	}
	for _, list := range []any{w.Nodes, w.Namespaces, w.ServiceCIDRs} {
		v := reflect.ValueOf(list)
		for i := range v.Len() {
			fmt.Fprintf(&b, "%s\n", show(v.Index(i).Interface()))
		}
	}
	fmt.Fprintf(&b, "proxy name %q, detect local %v, masquerade all %v, node ports on %v: %v", w.ServiceProxyName,
		w.DetectLocal, w.MasqueradeAll, dst, dst.IsValid() && w.NodePortAddrs(dst))
	return b.String()
}

// show prints what a pointer points to, with the names of its fields.
func show(pointer any) string {
	v := reflect.ValueOf(pointer).Elem()
	return fmt.Sprintf("%s%+v", v.Type().Name(), v.Interface())
}
