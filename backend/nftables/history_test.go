//go:build linux

package nftables

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

var oneSeed = flag.Int64("seed", -1, "run only the history of this seed")

// TestHistories applies random histories to the kernel while one operation in ten fails. At the end of each the kernel must hold
// exactly what a fresh start would write.
func TestHistories(t *testing.T) {
	if *oneSeed >= 0 {
		if _, err := playHistory(t, netnstest.New(t), uint64(*oneSeed)); err != nil {
			t.Fatal(err)
		}
		return
	}
	histories := randcluster.Seeds(60, 2000)
	var next, failures, lost, restarts, remembered, resets, deadlines, tables atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		ns := netnstest.New(t)
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < int64(histories) && !t.Failed(); seed = next.Add(1) - 1 {
				r, err := playHistory(t, ns, uint64(seed))
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
				failures.Add(int64(r.kernel.failures))
				lost.Add(int64(r.kernel.lost))
				restarts.Add(int64(r.restarts))
				remembered.Add(int64(len(r.remembered)))
				resets.Add(int64(r.resets))
				deadlines.Add(int64(r.deadlines))
				tables.Add(int64(r.tables))
			}
		})
	}
	wg.Wait()
	t.Logf("%d histories, %d injected failures, %d of them after the commit, %d restarts, %d clients remembered, %d endpoints gone, %d ways with a deadline, %d tables of hashes",
		histories, failures.Load(), lost.Load(), restarts.Load(), remembered.Load(), resets.Load(), deadlines.Load(), tables.Load())
	if failures.Load() == 0 || lost.Load() == 0 || restarts.Load() == 0 || remembered.Load() == 0 || resets.Load() == 0 || deadlines.Load() == 0 || tables.Load() == 0 {
		t.Error("something that was to be tested never happened")
	}
}

// historyRun is one history on its way into the kernel.
type historyRun struct {
	t       testing.TB
	ns      *netns.NS
	rng     *rand.Rand
	history *randcluster.History
	store   *store.Store
	sink    model.Sink
	options Options
	limits  ruleset.Limits

	// shared is set if others can change our tables.
	shared   bool
	observer *nft.Conn
	kernel   *faulty
	backend  *Backend
	applied  state.Revision
	// features is what records get in addition, by [withFeatures], 0 for nothing.
	features uint64
	flows    *flowTable
	// remembered are injected clients, by family and key.
	remembered map[string]nft.Elem

	restarts, resets int
	deadlines        int // at most at a time
	tables           int // of hashes
}

func playHistory(t testing.TB, ns *netns.NS, seed uint64) (*historyRun, error) {
	r := &historyRun{t: t, ns: ns, rng: rand.New(rand.NewPCG(seed, 2)), remembered: map[string]nft.Elem{}}
	pods := r.rng.IntN(3) > 0
	opts := randcluster.Options{DetectLocal: pods, MasqueradeAll: r.rng.IntN(4) == 0, Annotations: seed%3 > 0}
	if pods {
		r.options.LocalDetector.ClusterCIDRs = []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:244::/32")}
	}
	r.options.NodePortAddresses = state.NodePortAddresses{Primary: r.rng.IntN(2) == 0}
	r.options.ResetRemoved = seed%3 == 0
	if seed%5 < 3 {
		r.options.Edge = edgeMark
	}
	if seed%4 > 0 {
		r.features = seed
	}
	r.history = randcluster.New(seed, opts)
	r.store = store.New(store.Options{Brain: brain.Config{
		NodeName: "node-a", LocalDetector: r.options.LocalDetector, NodePorts: r.options.NodePortAddresses, MasqueradeAll: opts.MasqueradeAll,
		TCPLingers: r.options.ResetRemoved,
	}})
	defer r.store.Close()
	r.sink = r.store.Source("history")
	r.observer = dial(t, ns)
	r.kernel, r.shared = &faulty{rng: r.rng}, seed%2 == 0
	ways := slices.Sorted(maps.Keys(waysToRead))
	r.limits = waysToRead[ways[r.rng.IntN(len(ways))]]
	r.flows = &flowTable{rng: r.rng}
	netnstest.Do(t, ns, func() error { _, err := Cleanup(t.Context()); return err })
	r.start()
	defer func() { closeBackend(r.backend) }()
	return r, r.play()
}

// start opens the dataplane and starts it.
func (r *historyRun) start() {
	r.restarts++
	r.kernel.rate = 0 // a process that does not come up is started again
	r.backend = openBackend(r.t, r.ns, r.options, func(c *nft.Conn) kernel {
		if r.kernel.kernel = c; r.shared {
			r.kernel.kernel = sharedKernel{c}
		}
		return r.kernel
	})
	r.kernel.rate, r.backend.limits = 0.1, r.limits
	// The kernel's table takes 10 ms to list, whatever is in it.
	r.backend.cutter.Close()
	r.backend.cutter = conntrack.NewCutter(r.flows, conntrack.CutterOptions{Logger: slog.New(slog.DiscardHandler)}) // not started: the test cuts
	r.flows.flows = nil                                                                                             // what was noted is gone, and so may be their frontends
	r.applied = 0
}

// flowTable is a connection tracking table of which one operation in ten fails.
type flowTable struct {
	rng   *rand.Rand
	flows []conntrack.Flow
}

func (f *flowTable) Flows(filter conntrack.Filter, each func([]conntrack.Flow) error) error {
	found := slices.DeleteFunc(slices.Clone(f.flows), func(flow conntrack.Flow) bool { return !filter.Match(flow) })
	for flows := range slices.Chunk(found, 10) {
		if err := each(flows); err != nil {
			return err
		}
	}
	if f.rng.IntN(10) == 0 {
		return errInjected
	}
	return nil
}

func (f *flowTable) DeleteAll(filter conntrack.Filter) (int, error) {
	if f.rng.IntN(10) == 0 {
		return 0, errInjected
	}
	before := len(f.flows)
	f.flows = slices.DeleteFunc(f.flows, filter.Match)
	return before - len(f.flows), nil
}

func (f *flowTable) Delete(flows ...conntrack.Flow) (deleted int, err error) {
	for _, flow := range flows {
		if f.rng.IntN(10) == 0 {
			err = errInjected
			continue
		}
		before := len(f.flows)
		f.flows = slices.DeleteFunc(f.flows, func(other conntrack.Flow) bool { return other == flow })
		deleted += before - len(f.flows)
	}
	return deleted, err
}

// connect adds flows to the endpoints that are programmed now.
func (r *historyRun) connect() {
	for _, record := range r.backend.mirror.Records() {
		eachUDPFrontend(record, func(dst netip.AddrPort, endpoints []state.Endpoint) {
			for _, e := range endpoints {
				src := netip.AddrPortFrom(e.Addr.Addr(), uint16(1024+r.rng.IntN(60_000)))
				r.flows.flows = append(r.flows.flows, conntrack.Flow{
					Family: state.FamilyOf(dst.Addr()), Protocol: state.UDP,
					Orig:  conntrack.Tuple{Src: src, Dst: dst},
					Reply: conntrack.Tuple{Src: e.Addr, Dst: src},
				})
			}
		})
	}
}

// eachUDPFrontend calls fn with the frontends of a service that have an address, and all endpoints that may serve their flows.
func eachUDPFrontend(s *state.Service, fn func(netip.AddrPort, []state.Endpoint)) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Protocol != state.UDP {
			continue
		}
		serving := slices.Concat(p.Internal.Inside.Endpoints, p.Internal.Outside.Endpoints, p.External.Inside.Endpoints,
			p.External.Outside.Endpoints, p.Lingering)
		for _, f := range p.Frontends {
			if f.Kind == state.NodePort {
				continue
			}
			at := serving
			if f.LastPort != 0 { // the flows keep their port
				at = slices.Clone(serving)
				for i := range at {
					at[i].Addr = netip.AddrPortFrom(at[i].Addr.Addr(), f.Port)
				}
			}
			fn(netip.AddrPortFrom(f.Addr, f.Port), at)
		}
	}
}

// checkFlows checks that no flow leads to where it would not begin now.
func (r *historyRun) checkFlows(snapshot *store.Snapshot) error {
	serving := map[netip.AddrPort][]state.Endpoint{}
	for s := range r.services(snapshot) {
		eachUDPFrontend(s, func(dst netip.AddrPort, endpoints []state.Endpoint) { serving[dst] = endpoints })
	}
	for _, f := range r.flows.flows {
		if !slices.ContainsFunc(serving[f.Orig.Dst], func(e state.Endpoint) bool { return e.Addr == f.Reply.Src }) {
			return fmt.Errorf("a flow to %v still goes to %v, out of %v", f.Orig.Dst, f.Reply.Src, serving[f.Orig.Dst])
		}
	}
	return nil
}

func (r *historyRun) play() error {
	const steps = 20
	for step := range steps {
		r.sink.Update(r.history.Step())
		switch step {
		case 0, 1:
			continue
		case 2:
			r.sink.Complete()
		}
		switch r.rng.IntN(20) {
		case 0:
			closeBackend(r.backend)
			r.start()
		case 1:
			r.applied = 0 // the feed hands out a full state
		case 2:
			foreignCommit(r.t, r.observer)
		case 3, 4:
			if _, err := r.backend.Verify(r.t.Context()); err != nil && !isInjected(err) {
				return fmt.Errorf("step %d: Verify: %w", step, err)
			}
		case 5, 6, 7:
			if err := r.remember(); err != nil {
				return err
			}
			r.connect()
		}
		if r.rng.IntN(4) == 0 && step < steps-1 {
			continue // what has changed is merged into the next update
		}
		if err := r.apply(); err != nil && !isInjected(err) {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	for r.applied != r.store.Snapshot().Revision() {
		if err := r.apply(); err != nil && !isInjected(err) {
			return err
		}
	}
	return r.check()
}

// next returns the next update of the feed.
func (r *historyRun) next(from state.Revision) (*state.Update, error) {
	u, err := r.store.Next(r.t.Context(), from)
	if err != nil {
		return nil, err
	}
	next := *u
	next.Changed = nil
	for _, s := range u.Changed {
		next.Changed = append(next.Changed, r.dressed(s))
	}
	return &next, nil
}

// services yields the services of a snapshot.
func (r *historyRun) services(snapshot *store.Snapshot) iter.Seq[*state.Service] {
	return func(yield func(*state.Service) bool) {
		for s := range snapshot.Services() {
			if !yield(r.dressed(s)) {
				return
			}
		}
	}
}

// dressed returns a record with features.
func (r *historyRun) dressed(s *state.Service) *state.Service {
	if s = withFeatures(s, r.features); r.options.Edge != 0 {
		s = withEdge(s, r.features)
	}
	return s
}

func isInjected(err error) bool { return errors.Is(err, errInjected) }

// apply takes the next update, if there is one, as the reconciler does.
func (r *historyRun) apply() error {
	if r.applied == r.store.Snapshot().Revision() {
		return nil
	}
	u, err := r.next(r.applied)
	if err != nil {
		return err
	}
	result, err := r.backend.Apply(r.t.Context(), u)
	if err != nil {
		return err
	}
	if err := r.backend.cutter.Cut(r.t.Context()); err != nil && !isInjected(err) {
		return err
	}
	if len(result.Failed) > 0 {
		return fmt.Errorf("services failed: %v", result.Failed)
	}
	r.applied = u.Revision
	return nil
}

// remember injects clients of random endpoints of ports with affinity, as rules do it.
func (r *historyRun) remember() error {
	var batch nft.Batch
	for _, f := range families {
		if ok, err := r.observer.HasTable(table(f)); err != nil || !ok {
			return err
		}
		elems, err := r.observer.Elems(table(f), "endpoint-numbers")
		if err != nil {
			return err
		}
		slices.SortFunc(elems, func(a, b nft.Elem) int { return slices.Compare(a.Key, b.Key) })
		for _, e := range elems {
			client := slices.Repeat([]byte{byte(r.rng.IntN(200))}, nodeAddr(f).BitLen()/8)
			injected := nft.Elem{Key: append(e.Key[:4:4], client...), Data: e.Data, Timeout: 3_600_000, Expires: 3_000_000}
			if key := fmt.Sprintf("%v %x", f, injected.Key); r.rng.IntN(2) == 0 && r.remembered[key].Key == nil {
				r.remembered[key] = injected
				batch.AddElem(table(f), affinitySet, injected)
			}
		}
	}
	commit := r.kernel.kernel.Commit // as rules do it, also in an owned table
	if r.shared {
		commit = r.observer.Commit
	}
	return commit(&batch)
}

// check compares the kernel with the last state.
func (r *historyRun) check() error {
	ctx, snapshot := r.t.Context(), r.store.Snapshot()
	for { // what failed is cut later
		if err := r.backend.cutter.Cut(ctx); err == nil {
			break
		} else if !isInjected(err) {
			return err
		}
	}
	// The dataplane is sure of what the kernel holds: a comparison must agree.
	r.kernel.rate = 0
	verify(r.t, r.backend) // adds the endpoints and deadlines of resets that could not be added
	r.backend.guard.raise(foreignChange)
	result, err := r.backend.Verify(ctx)
	if err != nil || result.Repaired != 0 || result.Written != 0 {
		return fmt.Errorf("Verify with a comparison: %+v, %v", result, err)
	}
	for range 20 { // deletions that failed are tried again
		if result := verify(r.t, r.backend); result.Written != 0 {
			return fmt.Errorf("another Verify: %+v", result)
		}
	}
	closeBackend(r.backend)
	if err := r.checkFlows(snapshot); err != nil {
		return err
	}
	if err := r.checkSlots(snapshot); err != nil {
		return err
	}
	if err := r.checkResets(snapshot); err != nil {
		return err
	}
	deadlines, err := r.checkDeadlines(snapshot)
	if err != nil {
		return err
	}
	if err := r.checkRemembered(); err != nil {
		return err
	}
	if err := r.checkNumbers(snapshot); err != nil {
		return err
	}
	before := dump(r.t, r.observer)
	open := newBackend
	if r.shared {
		open = newSharedBackend
	}
	fresh := open(r.t, r.ns, r.options)
	defer closeBackend(fresh)
	u, err := r.next(0)
	if err != nil {
		return err
	}
	result, err = fresh.Apply(ctx, u)
	// Without deadlines, a start rewrites the tables of resets without their rules.
	if err != nil || result.Written != 0 && deadlines {
		return fmt.Errorf("a fresh start: %+v, %v; changed %v", result, err, changesBetween(before, dump(r.t, r.observer)))
	}
	return nil
}

// checkResets checks that connections are reset to no endpoint that serves, and counts the others.
func (r *historyRun) checkResets(snapshot *store.Snapshot) error {
	reset := resetDump(r.t, r.observer)
	r.resets = len(reset)
	if r.resets > 0 && !r.options.ResetRemoved {
		return fmt.Errorf("connections are reset without the option, to %v", reset)
	}
	for s := range r.services(snapshot) {
		for i := range s.Ports {
			p := &s.Ports[i]
			if p.Protocol != state.TCP {
				continue
			}
			for _, e := range slices.Concat(p.Internal.Inside.Endpoints, p.Internal.Outside.Endpoints, p.External.Inside.Endpoints,
				p.External.Outside.Endpoints, p.Lingering) {
				if _, is := reset[fmt.Sprintf("%v %x", resetTable(p.Family), appendKey(e.Addr))]; is {
					return fmt.Errorf("connections to %v are reset, which serves %v", e.Addr, s.Name)
				}
			}
		}
	}
	return nil
}

// checkDeadlines checks that no connections that come now will be reset, counts the ways on which others will be, and reports whether there are
// deadlines, or may be.
func (r *historyRun) checkDeadlines(snapshot *store.Snapshot) (any bool, err error) {
	held := map[string]bool{}
	for _, tb := range ruleset.ResetTables() {
		for _, set := range []string{ruleset.SetDrained, ruleset.SetDraining} {
			elems, err := r.observer.Elems(tb, set)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return false, err
			}
			for _, e := range elems {
				held[string(e.Key)] = true
			}
		}
	}
	r.deadlines = max(r.deadlines, len(held))
	for s := range r.services(snapshot) {
		for i := range s.Ports {
			p := &s.Ports[i]
			any = any || p.DrainSeconds > 0
			if p.Protocol != state.TCP {
				continue
			}
			for _, f := range p.Frontends {
				addrs := []netip.Addr{f.Addr}
				if f.Kind == state.NodePort {
					addrs = r.backend.mirror.NodePorts()
				}
				for _, e := range slices.Concat(p.Internal.Inside.Endpoints, p.Internal.Outside.Endpoints, p.External.Inside.Endpoints, p.External.Outside.Endpoints) {
					for _, a := range addrs {
						if held[string(append(appendKey(e.Addr), appendKey(netip.AddrPortFrom(a, f.Port))...))] {
							return any, fmt.Errorf("connections through %v port %d to %v are reset, which serves %v", a, f.Port, e.Addr, s.Name)
						}
					}
				}
			}
		}
	}
	return any || len(held) > 0 || !r.options.ResetRemoved, nil
}

// checkSlots compares the slots of every frontend with its endpoints, straight from the kernel.
func (r *historyRun) checkSlots(snapshot *store.Snapshot) error {
	all, tables := map[state.Family]holdings{}, map[state.Family]map[string]*state.Route{}
	count := 0
	for _, f := range families {
		tables[f] = map[string]*state.Route{}
		all[f] = held(r.t, r.observer, f)
		count += len(all[f]["service-slots"]) + len(all[f]["node-port-slots"]) + len(all[f]["range-slots"])
	}
	for s := range r.services(snapshot) {
		for i := range s.Ports {
			p := &s.Ports[i]
			for j := range p.Frontends {
				n, err := checkSlotsOf(all[p.Family], p, &p.Frontends[j], tables[p.Family])
				if err != nil {
					return fmt.Errorf("%v frontend %+v: %w", s.Name, p.Frontends[j], err)
				}
				count -= n
			}
		}
	}
	if count != 0 {
		return fmt.Errorf("%d slots too many", count)
	}
	for f, of := range tables {
		for k := range all[f]["hash-slots"] {
			if of[k[:4]] == nil {
				return fmt.Errorf("table %x is left, which no frontend has", k[:4])
			}
		}
	}
	r.tables += len(tables[state.IPv4])
	return nil
}

// checkSlotsOf returns how many slots a frontend has, if all of them are right.
func checkSlotsOf(h holdings, p *state.Port, f *state.Frontend, tables map[string]*state.Route) (count int, err error) {
	t := &p.Internal
	if f.Kind != state.ClusterIP {
		t = &p.External
	}
	space, key, err := spaceAndKey(h, p, f)
	if err != nil {
		return 0, err
	}
	width := 0 // of an endpoint's port
	if space == "range-" {
		width = 4
	}
	type view struct {
		name     string
		offset   uint32 // of the slots to draw from
		numbered uint32 // of those with the numbers of endpoints
		route    *state.Route
	}
	views := []view{{"", 0, numberedSlots, &t.Inside}}
	if t.Masquerade == state.MasqueradeNode || !t.Inside.Equal(&t.Outside) {
		views = []view{{"outside-", 1 << 16, numberedSlots | 1<<28, &t.Outside}, {"inside-", 2 << 16, numberedSlots | 2<<28, &t.Inside}}
	}
	isHandedOver := false
	if p.Edge.Takes(f.Kind) {
		views = append(views, view{name: "edge-", offset: 3 << 16, route: &p.Edge.Local})
		isHandedOver = len(p.Edge.Shares) > 0
		if _, drops := h[space+"edge-drop"][key]; drops != (p.Edge.Local.Verdict == state.Drop) {
			return 0, fmt.Errorf("connections that others hand over are dropped: %v", drops)
		}
	}
	if _, is := h[space+"handed-over"][key]; is != isHandedOver {
		return 0, fmt.Errorf("its connections are handed over: %v, want %v", is, isHandedOver)
	}
	slot := func(index uint32) string {
		e := h[space+"slots"][string(binary.NativeEndian.AppendUint32([]byte(key), index))]
		if e == nil {
			return ""
		}
		return string(append(slices.Clip(e), make([]byte, width)...))
	}
	for _, v := range views {
		class := classIn(h, space+v.name, key)
		has := map[string]int{}
		for i := range class {
			if e := slot(v.offset + i); e != "" {
				has[e]++
			} else if i == 0 && len(v.route.Endpoints) > 0 {
				return 0, fmt.Errorf("slot %d is empty", v.offset)
			}
		}
		if isHashed(p, v.route) {
			if err := checkHashed(h, space+v.name, key, p, v.route, tables); err != nil || class != 1 {
				return 0, fmt.Errorf("class %d: %w", class, err)
			}
			count++
			continue
		}
		drawn, err := checkShares(p, v.route, has, int(class))
		if err != nil {
			return 0, err
		}
		count += drawn
		if p.Affinity == 0 {
			continue
		}
		port := string(h[space+"sticky"][key])
		for _, e := range v.route.Endpoints {
			want := endpointBytes(e.Addr)
			number := h["endpoint-numbers"][port+string(want)]
			if len(number) == 0 {
				return 0, fmt.Errorf("endpoint %v has no number", e.Addr)
			}
			at := v.numbered | binary.NativeEndian.Uint32(number)
			if got := slot(at); got != string(want) {
				return 0, fmt.Errorf("slot %#x has %x, want %x", at, got, want)
			}
		}
		count += len(v.route.Endpoints)
	}
	return count, nil
}

// spaceAndKey returns the prefix of the sets of a frontend, and its key there. The key of a range is the number to which a few of its ports lead. The
// ports next to them must lead elsewhere.
func spaceAndKey(h holdings, p *state.Port, f *state.Frontend) (space, key string, err error) {
	switch {
	case f.Kind == state.NodePort:
		return "node-port-", string(frontendKeyOf(p, f)), nil
	case f.LastPort == 0:
		return "service-", string(frontendKeyOf(p, f)), nil
	}
	number := func(port int) string {
		for length := range 17 {
			at := state.Frontend{Addr: f.Addr, Port: uint16(port >> (16 - length) << (16 - length))}
			if n := h[fmt.Sprintf("service-ranges-%d", length)][string(frontendKeyOf(p, &at))]; n != nil {
				return string(n)
			}
		}
		return ""
	}
	first, last := int(f.Port), int(f.LastPort)
	key = number(first)
	for _, port := range []int{last, first + 1, (first + last) / 2, last - 1} {
		if n := number(port); n != key || n == "" {
			return "", "", fmt.Errorf("port %d leads to %x, and the first one to %x", port, n, key)
		}
	}
	for _, port := range []int{first - 1, last + 1} {
		if first > 1 && port <= 65535 && number(port) == key {
			return "", "", fmt.Errorf("port %d is in the range", port)
		}
	}
	return "range-", key, nil
}

// classIn returns from how many slots rules draw one for a view of a frontend.
func classIn(h holdings, view, frontend string) uint32 {
	for set, elems := range h {
		for _, kind := range []string{"endpoints-", "shares-"} {
			if class, ok := strings.CutPrefix(set, view+kind); ok {
				if _, ok := elems[frontend]; ok {
					n, _ := strconv.ParseUint(class, 10, 16)
					return uint32(n)
				}
			}
		}
	}
	return 1
}

// checkRemembered checks that nothing has touched the injected clients.
func (r *historyRun) checkRemembered() error {
	count := 0
	for _, f := range families {
		clients, err := r.observer.Elems(table(f), affinitySet)
		if err != nil {
			return err
		}
		count += len(clients)
		for _, c := range clients {
			if injected := r.remembered[fmt.Sprintf("%v %x", f, c.Key)]; !slices.Equal(injected.Data, c.Data) {
				return fmt.Errorf("%v: client %x is remembered with %x, and was with %x", f, c.Key, c.Data, injected.Data)
			}
		}
	}
	if count != len(r.remembered) {
		return fmt.Errorf("%d clients are remembered, want %d", count, len(r.remembered))
	}
	return nil
}

// checkNumbers compares lists of allowed clients and the numbers of ports with affinity with the records, straight from the kernel.
func (r *historyRun) checkNumbers(snapshot *store.Snapshot) error {
	for _, f := range families {
		h := held(r.t, r.observer, f)
		owners, sticky := map[string]string{}, 0
		for s := range r.services(snapshot) {
			for i := range s.Ports {
				p := &s.Ports[i]
				if p.Family != f {
					continue
				}
				for j := range p.Frontends {
					if err := checkFrontend(h, owners, s.Name, p, &p.Frontends[j]); err != nil {
						return fmt.Errorf("%v port %q frontend %+v: %w", s.Name, p.Name, p.Frontends[j], err)
					}
				}
				if p.Affinity > 0 {
					sticky += len(distinctEndpoints(p))
				}
			}
		}
		if n := len(h["endpoint-numbers"]); n != sticky {
			return fmt.Errorf("%v: %d endpoints have numbers, want %d", f, n, sticky)
		}
		for set, elems := range h {
			for k := range elems {
				if strings.HasPrefix(set, "allowed-") && owners[k[:4]] == "" {
					return fmt.Errorf("%v: %s has %x, of a list that no frontend has", f, set, k)
				}
			}
		}
	}
	return nil
}

func distinctEndpoints(p *state.Port) map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	for _, rt := range p.Routes() {
		for _, e := range rt.Endpoints {
			all[e.Addr] = true
		}
	}
	return all
}

// checkFrontend compares what the kernel holds of a frontend's sources and affinity. owners are what the numbers seen so far are for.
func checkFrontend(h holdings, owners map[string]string, name state.ServiceName, p *state.Port, f *state.Frontend) error {
	space, key, err := spaceAndKey(h, p, f)
	if err != nil {
		return err
	}
	own := func(number []byte, what string) error {
		if owner := owners[string(number)]; number == nil || owner != "" && owner != what {
			return fmt.Errorf("the number %x for %q is that of %q", number, what, owner)
		}
		owners[string(number)] = what
		return nil
	}
	list := h["service-restricted"][key]
	if space == "range-" {
		list = h["range-restricted"][key]
		if err := own([]byte(key), fmt.Sprint(name, p.Name, p.Protocol, f.Addr)); err != nil {
			return err
		}
	}
	if f.Restricted {
		if err := own(list, fmt.Sprint(name, f.Sources)); err != nil {
			return err
		}
		count := 0
		for set, elems := range h {
			for k := range elems {
				if strings.HasPrefix(set, "allowed-") && k[:4] == string(list) {
					count++
				}
			}
		}
		for _, src := range f.Sources {
			k := string(list) + string(src.Addr().AsSlice())
			if _, ok := h[fmt.Sprintf("allowed-%d", src.Bits())][k]; !ok {
				return fmt.Errorf("%v is not allowed", src)
			}
		}
		if count != len(f.Sources) {
			return fmt.Errorf("%d ranges are allowed, want %d", count, len(f.Sources))
		}
	} else if list != nil {
		return errors.New("is restricted")
	}
	number := h[space+"sticky"][key]
	if p.Affinity == 0 {
		if number != nil {
			return errors.New("has affinity")
		}
		return nil
	}
	if _, ok := h[fmt.Sprintf("%ssticky-%.0f", space, p.Affinity.Seconds())][key]; !ok {
		return errors.New("has no time-out")
	}
	return own(number, fmt.Sprint(name, p.Name, p.Protocol))
}
