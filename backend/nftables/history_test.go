//go:build linux

package nftables

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/conntrack"
	"github.com/switchyard-net/switchyard/internal/histories"
	"github.com/switchyard-net/switchyard/internal/netns"
	"github.com/switchyard-net/switchyard/internal/nft"
	"github.com/switchyard-net/switchyard/source"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

var (
	oneSeed      = flag.Int64("seed", -1, "run only the history of this seed")
	allHistories = flag.Uint64("histories", 200, "number of random histories")
)

// TestHistories applies random histories to the kernel while one operation in ten fails. At the end of each the kernel must hold
// exactly what a fresh start would write.
func TestHistories(t *testing.T) {
	if *oneSeed >= 0 {
		if _, err := playHistory(t, newNS(t), uint64(*oneSeed)); err != nil {
			t.Fatal(err)
		}
		return
	}
	limit := *allHistories
	if testing.Short() {
		limit /= 10
	}
	var next, failures, lost, restarts, forgotten atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		ns := newNS(t)
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < int64(limit) && !t.Failed(); seed = next.Add(1) - 1 {
				r, err := playHistory(t, ns, uint64(seed))
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
				failures.Add(int64(r.kernel.failures))
				lost.Add(int64(r.kernel.lost))
				restarts.Add(int64(r.restarts))
				forgotten.Add(int64(r.forgotten))
			}
		})
	}
	wg.Wait()
	t.Logf("%d histories, %d injected failures, %d of them after the commit, %d restarts, %d clients forgotten",
		limit, failures.Load(), lost.Load(), restarts.Load(), forgotten.Load())
	if failures.Load() == 0 || lost.Load() == 0 || restarts.Load() == 0 || forgotten.Load() == 0 {
		t.Error("something that was to be tested never happened")
	}
}

// historyRun is one history on its way into the kernel.
type historyRun struct {
	t       testing.TB
	ns      *netns.NS
	rng     *rand.Rand
	history *histories.History
	store   *store.Store
	sink    source.Sink
	options Options

	observer *nft.Conn
	kernel   *faulty
	backend  *Backend
	applied  state.Revision
	flows    *flowTable
	// remembered are planted clients that may be there, by family and key.
	remembered map[string]nft.Elem

	restarts, forgotten int
}

func playHistory(t testing.TB, ns *netns.NS, seed uint64) (*historyRun, error) {
	r := &historyRun{t: t, ns: ns, rng: rand.New(rand.NewPCG(seed, 2)), remembered: map[string]nft.Elem{}}
	pods := r.rng.IntN(3) > 0
	opts := histories.Options{DetectLocal: pods, MasqueradeAll: r.rng.IntN(4) == 0}
	if pods {
		r.options.LocalDetector.ClusterCIDRs = []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:244::/32")}
	}
	r.options.NodePortAddresses = backend.NodePortAddresses{Primary: r.rng.IntN(2) == 0}
	r.history = histories.New(seed, opts)
	r.store = store.New(store.Options{Brain: brain.Config{
		NodeName: "node-a", DetectLocal: brain.Families{IPv4: pods, IPv6: pods}, MasqueradeAll: opts.MasqueradeAll,
	}})
	defer r.store.Close()
	r.sink = r.store.Source("history")
	r.observer = dial(t, ns)
	r.kernel = &faulty{rng: r.rng, rate: 0.1}
	r.flows = &flowTable{rng: r.rng}
	inNS(t, ns, func() error { _, err := Cleanup(t.Context()); return err })
	r.start()
	return r, r.play()
}

// start starts the dataplane anew.
func (r *historyRun) start() {
	r.restarts++
	r.backend = openBackend(r.t, r.ns, r.options, func(c *nft.Conn) kernel { r.kernel.kernel = c; return r.kernel })
	// The kernel's table takes 10 ms to list, whatever is in it.
	r.backend.cutter.close()
	r.backend.cutter = newFlowCutter(r.flows, slog.New(slog.DiscardHandler)) // not started: the test cuts
	r.flows.flows = nil                                                      // what was noted is gone, and so may be their frontends
	r.applied = 0
}

// flowTable is a connection tracking table of which one operation in ten fails.
type flowTable struct {
	rng   *rand.Rand
	flows []conntrack.Flow
}

func (f *flowTable) Flows(filter conntrack.Filter) ([]conntrack.Flow, error) {
	if f.rng.IntN(10) == 0 {
		return nil, errInjected
	}
	return slices.DeleteFunc(slices.Clone(f.flows), func(flow conntrack.Flow) bool { return !filter.Match(flow) }), nil
}

func (f *flowTable) Delete(flow conntrack.Flow) error {
	if f.rng.IntN(10) == 0 {
		return errInjected
	}
	f.flows = slices.DeleteFunc(f.flows, func(other conntrack.Flow) bool { return other == flow })
	return nil
}

// connect adds flows to the endpoints that are programmed now.
func (r *historyRun) connect() {
	for _, a := range r.backend.mirror.services {
		eachUDPFrontend(a.record, func(dst netip.AddrPort, endpoints []state.Endpoint) {
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
			if f.Kind != state.NodePort {
				fn(netip.AddrPortFrom(f.Addr, f.Port), serving)
			}
		}
	}
}

// checkFlows checks that no flow leads to where it would not begin now.
func (r *historyRun) checkFlows(snapshot *store.Snapshot) error {
	serving := map[netip.AddrPort][]state.Endpoint{}
	for s := range snapshot.Services() {
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

func isInjected(err error) bool { return errors.Is(err, errInjected) }

// apply takes the next update, if there is one, as the reconciler does.
func (r *historyRun) apply() error {
	if r.applied == r.store.Snapshot().Revision() {
		return nil
	}
	u, err := r.store.Next(r.t.Context(), r.applied)
	if err != nil {
		return err
	}
	result, err := r.backend.Apply(r.t.Context(), u)
	if err != nil {
		return err
	}
	if err := r.backend.cutter.cut(r.t.Context()); err != nil && !isInjected(err) {
		return err
	}
	if len(result.Failed) > 0 {
		return fmt.Errorf("services failed: %v", result.Failed)
	}
	r.applied = u.Revision
	return nil
}

// remember plants a client of a random sticky frontend's endpoint, as rules do it.
func (r *historyRun) remember() error {
	var batch nft.Batch
	for _, f := range families {
		if ok, err := r.observer.HasTable(table(f)); err != nil || !ok {
			return err
		}
		for _, v := range affinityViews {
			if err := r.rememberBy(&batch, f, v); err != nil {
				return err
			}
		}
	}
	err := r.observer.Commit(&batch)
	if errors.Is(err, syscall.EEXIST) {
		return nil // was forgotten by us only
	}
	return err
}

// rememberBy plants clients that are remembered by a view.
func (r *historyRun) rememberBy(batch *nft.Batch, f state.Family, v view) error {
	elems, err := r.observer.Elems(table(f), setID{space: service, view: v, kind: alive}.name())
	if err != nil {
		return err
	}
	slices.SortFunc(elems, func(a, b nft.Elem) int { return slices.Compare(a.Key, b.Key) })
	for i, e := range elems {
		if i%2 == r.rng.IntN(2) {
			continue
		}
		n := addrLen(f)
		client := append(slices.Repeat([]byte{byte(r.rng.IntN(200))}, n), e.Key[:n+8]...)
		planted := nft.Elem{Key: client, Data: e.Key[n+8:], Timeout: 3_600_000, Expires: 3_000_000}
		key := fmt.Sprintf("%v %v %x", f, v, planted.Key)
		if _, ok := r.remembered[key]; ok {
			continue
		}
		r.remembered[key] = planted
		batch.AddElem(table(f), affinitySet(v), planted)
	}
	return nil
}

// check compares the kernel with the last state.
func (r *historyRun) check() error {
	ctx, snapshot := r.t.Context(), r.store.Snapshot()
	for { // what failed is cut later
		if err := r.backend.cutter.cut(ctx); err == nil {
			break
		} else if !isInjected(err) {
			return err
		}
	}
	// The dataplane is sure of what the kernel holds: a comparison must agree.
	r.kernel.rate = 0
	foreignCommit(r.t, r.observer)
	result, err := r.backend.Verify(ctx)
	if err != nil || result.Repaired != 0 || result.Written != 0 {
		return fmt.Errorf("Verify after a foreign commit: %+v, %w", result, err)
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
	if err := r.checkRemembered(); err != nil {
		return err
	}
	before := dump(r.t, r.observer)
	fresh := newBackend(r.t, r.ns, r.options)
	defer closeBackend(fresh)
	u, err := r.store.Next(ctx, 0)
	if err != nil {
		return err
	}
	result, err = fresh.Apply(ctx, u)
	if err != nil || result.Written != 0 {
		return fmt.Errorf("a fresh start: %+v, %w; changed %v", result, err, changesBetween(before, dump(r.t, r.observer)))
	}
	return nil
}

// checkSlots compares the slots of every frontend with its endpoints, straight from the kernel.
func (r *historyRun) checkSlots(snapshot *store.Snapshot) error {
	filled := map[elementKey]map[uint32]netip.AddrPort{}
	count := 0
	for _, f := range families {
		for _, s := range []space{service, nodePort} {
			id := setID{space: s, kind: slots}
			elems, err := r.observer.Elems(table(f), id.name())
			if err != nil {
				return err
			}
			for _, in := range elems {
				e := decode(f, id, in)
				frontend, index := splitSlotKey(e.id())
				if filled[frontend] == nil {
					filled[frontend] = map[uint32]netip.AddrPort{}
				}
				filled[frontend][index] = decodeEndpoint(f, e.data)
				count++
			}
		}
	}
	for s := range snapshot.Services() {
		for i := range s.Ports {
			p := &s.Ports[i]
			for j := range p.Frontends {
				f := &p.Frontends[j]
				t := &p.Internal
				if f.Kind != state.ClusterIP {
					t = &p.External
				}
				got := filled[frontendKey(p, f)]
				at := common
				if isSplit(t) {
					at = inside
				}
				n, err := matchSlots(got, at.slotOffset(), t.Inside.Endpoints)
				if err == nil && isSplit(t) {
					var m int
					m, err = matchSlots(got, outside.slotOffset(), t.Outside.Endpoints)
					n += m
				}
				if err != nil {
					return fmt.Errorf("%v frontend %+v: %w", s.Name, f, err)
				}
				count -= n
			}
		}
	}
	if count != 0 {
		return fmt.Errorf("%d slots too many", count)
	}
	return nil
}

func matchSlots(got map[uint32]netip.AddrPort, offset uint32, want []state.Endpoint) (int, error) {
	left := map[netip.AddrPort]bool{}
	for _, e := range want {
		left[e.Addr] = true
	}
	for i := range max(classOf(len(want)), 1) {
		ep, ok := got[offset+i]
		if ok && !left[ep] {
			return 0, fmt.Errorf("slot %d has %v", offset+i, ep)
		}
		if !ok && i == 0 && len(want) > 0 {
			return 0, fmt.Errorf("slot %d is empty", offset)
		}
		delete(left, ep)
	}
	if len(left) > 0 {
		return 0, fmt.Errorf("%v have no slot", left)
	}
	return len(want), nil
}

// checkRemembered checks that a planted client is remembered exactly if its endpoint is alive, unless it was planted for an
// endpoint that went and came back.
func (r *historyRun) checkRemembered() error {
	for _, f := range families {
		for _, v := range affinityViews {
			if err := r.checkRememberedBy(f, v); err != nil {
				return err
			}
		}
	}
	r.forgotten += len(r.remembered)
	return nil
}

func (r *historyRun) checkRememberedBy(f state.Family, v view) error {
	living := map[elementKey]bool{}
	for _, s := range []space{service, nodePort} {
		id := setID{space: s, view: v, kind: alive}
		elems, err := r.observer.Elems(table(f), id.name())
		if err != nil {
			return err
		}
		for _, in := range elems {
			e := decode(f, id, in)
			living[e.id()] = true
		}
	}
	clients, err := r.observer.Elems(table(f), affinitySet(v))
	if err != nil {
		return err
	}
	for _, c := range clients {
		byAddr, byPort := aliveKeys(f, v, c)
		if !living[byAddr] && !living[byPort] {
			return fmt.Errorf("%v: client %x is remembered for a dead endpoint %x", f, c.Key, c.Data)
		}
	}
	r.forgotten -= len(clients)
	return nil
}
