package winkernel

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/hnstest"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

var oneSeed = flag.Int64("seed", -1, "play only the history of this seed, and log what happens")

// The steps of a history, and after how many of them all is to be as it must.
const (
	historySteps = 16
	quietEvery   = 4
	enoughErrors = 3
)

// The network of all histories.
const (
	networkName = "pods"
	sourceVIP   = "10.244.0.250"
	rootName    = "cbr0"
	healthzPort = 10256
)

// TestHistories plays random histories of a cluster on a node whose HNS fails, forgets, and is changed by others. Whenever that has an end,
// HNS holds exactly what the oracle wants; and no call ever takes its load balancer from a frontend that has endpoints.
func TestHistories(t *testing.T) {
	if *oneSeed >= 0 {
		r := newRun(uint64(*oneSeed))
		r.log = t.Logf
		if err := r.play(t.Context()); err != nil {
			t.Fatal(err)
		}
		return
	}
	total := randcluster.Seeds(150, 50_000)
	var next, failed atomic.Uint64
	var sum tally
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for n := next.Add(1) - 1; n < total && failed.Load() < enoughErrors; n = next.Add(1) - 1 {
				r := newRun(n)
				if err := r.play(t.Context()); err != nil {
					failed.Add(1)
					t.Errorf("seed %d: %v", n, err)
				}
				sum.add(&r.tally)
			}
		})
	}
	wg.Wait()
	t.Logf("%d histories: %v", total, &sum)
	for name, n := range sum.counts {
		if n == 0 {
			t.Errorf("%s: 0 of them: the histories do not test what they should", name)
		}
	}
}

// tally counts what histories have tested.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (s *tally) count(name string, n int) {
	if s.counts == nil {
		s.counts = map[string]int{}
		for _, name := range []string{
			"questions", "forwarded", "not served", "calls", "calls refused", "answers lost", "restarts of HNS", "objects deleted by others",
			"restarts of the dataplane", "replaced without Modify", "settings changed", "in overlay networks", "endpoints of gone nodes",
		} {
			s.counts[name] = 0
		}
	}
	s.counts[name] += n
}

func (s *tally) add(o *tally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range o.counts {
		s.count(name, n)
	}
}

func (s *tally) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, s.counts[name]))
	}
	return strings.Join(parts, ", ")
}

// run is one history, and the node on which it happens.
type run struct {
	tally
	rng     *rand.Rand
	history *randcluster.History
	store   *store.Store
	sink    model.Sink
	hns     *hnstest.HNS
	options Options
	judge   judge
	backend *Backend

	faults    bool // there are any in this history
	failing   bool // now
	revision  state.Revision
	node      *state.Node
	pending   map[state.ServiceName]*state.Service // what failed; nil if it is to be removed
	replacing state.FrontendKey                    // is to be deleted, where HNS cannot modify
	replaced  *state.FrontendKey                   // was deleted, and has to be created by the next call
	current   bool                                 // the oracle knows the same cluster as the dataplane
	broken    error                                // what a call did that must not be
	subnets   []plan.Subnet                        // all that the network is to have in the end
	log       func(format string, args ...any)
}

func newRun(seed uint64) *run {
	rng := rand.New(rand.NewPCG(seed, 14))
	r := &run{rng: rng, pending: map[state.ServiceName]*state.Service{}, log: func(string, ...any) {}}
	own := map[netip.Addr]string{}
	for _, a := range []string{"172.16.0.1", "fd00:16::1", "172.16.9.1", "fd00:16:9::1"} {
		own[netip.MustParseAddr(a)] = "00-15-5d-10-00-01"
	}
	opts := randcluster.Options{
		NodeName: "node-a", FixedNodes: true, DetectLocal: rng.IntN(3) > 0, MasqueradeAll: rng.IntN(4) == 0,
		NodePortAddrs: func(a netip.Addr) bool { return own[a] != "" },
	}
	// The fewer protocols, the more ports of services find endpoints.
	opts.Protocols = []state.Protocol{state.TCP, state.UDP, state.SCTP}[:1+max(0, rng.IntN(6)-3)]
	r.history = randcluster.New(seed, opts)
	r.store = store.New(store.Options{Brain: brain.Config{
		NodeName: opts.NodeName, MasqueradeAll: opts.MasqueradeAll, LocalDetector: state.LocalDetector{NodeCIDR: opts.DetectLocal},
	}})
	r.sink = r.store.Source("history")

	network := plan.Network{Name: networkName, Overlay: rng.IntN(3) == 0, HostMACs: own, Features: plan.Features{
		DSR: rng.IntN(4) > 0, RemoteSubnet: true, SessionAffinity: rng.IntN(4) > 0, IPv6: rng.IntN(4) > 0, Modify: rng.IntN(3) > 0,
	}}
	for i, pod := range podAddrs() {
		if provider := []string{"", "172.16.0.2", "172.16.0.3"}[i%3]; provider != "" {
			r.subnets = append(r.subnets, plan.Subnet{Prefix: netip.PrefixFrom(pod, pod.BitLen()), Provider: netip.MustParseAddr(provider)})
		}
	}
	network.Subnets = r.subnets
	r.hns = hnstest.New(network)
	r.hns.KeepsEmpty, r.hns.Rewrites = rng.IntN(2) == 0, rng.IntN(4) == 0
	r.hns.ModifyMissing = network.Features.Modify && rng.IntN(8) == 0
	r.hns.ModifyIgnored = network.Features.Modify && rng.IntN(8) == 0
	r.hns.Before, r.hns.After = r.before, r.after
	r.options = Options{HealthzPort: healthzPort, Config: Config{NetworkName: networkName, RootHNSEndpointName: rootName, ForwardHealthCheckVIP: rng.IntN(3) == 0}}
	if network.Overlay {
		r.options.Config.SourceVIP = netip.MustParseAddr(sourceVIP)
		r.count("in overlay networks", 1)
	}
	r.options.Config.EnableDSR = network.Features.DSR && rng.IntN(2) == 0
	r.judge = judge{network: network, options: &r.options, own: own}
	if r.faults = rng.IntN(3) > 0; r.faults {
		r.hns.Faults = func(string) hnstest.Fault {
			if !r.failing || rng.IntN(10) > 0 {
				return hnstest.None
			}
			if rng.IntN(2) == 0 {
				r.count("calls refused", 1)
				return hnstest.Refused
			}
			r.count("answers lost", 1)
			return hnstest.Lost
		}
	}
	r.plugIn()
	return r
}

// podAddrs are the addresses of pods in random clusters: the first of each family is on node-a, the next on node-b, and so on.
func podAddrs() []netip.Addr {
	var list []netip.Addr
	for _, format := range []string{"10.244.0.%d", "fd00:244::%d"} {
		for i := range 7 {
			list = append(list, netip.MustParseAddr(fmt.Sprintf(format, i+1)))
		}
	}
	return list
}

// localPods are the pods of node-a: the nodes take turns over both families.
func localPods() []netip.Addr {
	var list []netip.Addr
	for i, addr := range podAddrs() {
		if i%3 == 0 {
			list = append(list, addr)
		}
	}
	return list
}

// plugIn is the network plugin, which makes the endpoints of all pods on the node.
func (r *run) plugIn() {
	for _, addr := range localPods() {
		r.hns.AddLocal("pod", addr)
	}
	r.hns.AddLocal(rootName, netip.MustParseAddr("10.244.0.251"), netip.MustParseAddr("fd00:244::251"))
	r.hns.SetSubnets(r.subnets)
}

func (r *run) start() error {
	o, err := r.options.complete()
	if err != nil {
		return err
	}
	r.backend = open(o, r.hns)
	r.revision, r.node = 0, nil
	clear(r.pending)
	return nil
}

func (r *run) play(ctx context.Context) error {
	defer r.store.Close()
	if err := r.start(); err != nil {
		return err
	}
	for range r.rng.IntN(10) { // an older cluster has more endpoints
		r.sink.Update(r.history.Step())
	}
	r.failing = true
	for step := range historySteps {
		r.sink.Update(r.history.Step())
		if step == 0 {
			r.sink.Complete()
		}
		r.judge.world = r.history.World()
		if r.rng.IntN(3) == 0 {
			if err := r.interfere(); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
		if err := r.apply(ctx); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		if r.rng.IntN(4) == 0 {
			if err := r.verify(ctx); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
		if (step+1)%quietEvery == 0 {
			if err := r.quiesce(ctx); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
	}
	r.count("calls", r.hns.Calls)
	return nil
}

// interfere does what others do.
func (r *run) interfere() error {
	switch what := r.rng.IntN(9); what {
	case 8:
		r.log("HNS restores what it forgot")
		r.hns.Restore()
	case 0:
		r.log("HNS restarts")
		r.count("restarts of HNS", 1)
		r.hns.Forget()
	case 1:
		r.log("HNS restarts and forgets everything")
		r.count("restarts of HNS", 1)
		r.hns.ForgetAll()
		if r.rng.IntN(2) == 0 {
			r.plugIn()
		}
	case 2:
		if ids := r.hns.LoadBalancerIDs(); len(ids) > 0 {
			r.count("objects deleted by others", 1)
			r.hns.RemoveLoadBalancer(ids[r.rng.IntN(len(ids))])
		}
	case 3:
		if ids := r.hns.EndpointIDs(r.rng.IntN(2) == 0); len(ids) > 0 {
			r.count("objects deleted by others", 1)
			r.hns.RemoveEndpoint(ids[r.rng.IntN(len(ids))])
		}
	case 4:
		r.log("restart of the dataplane")
		r.count("restarts of the dataplane", 1)
		return r.start()
	case 5:
		r.count("settings changed", 1)
		r.options.Config.EnableDSR = r.judge.network.Features.DSR && !r.options.Config.EnableDSR
		r.options.Config.ForwardHealthCheckVIP = r.rng.IntN(2) == 0
		r.revision = 0
		return r.backend.Reconfigure(r.options)
	case 6:
		r.count("endpoints of gone nodes", 1)
		r.hns.SetSubnets(slices.DeleteFunc(slices.Clone(r.subnets), func(plan.Subnet) bool { return r.rng.IntN(3) == 0 }))
		return r.start() // which learns that they are gone
	case 7: // an address that was a pod's elsewhere is now one of this node
		if ids := r.hns.EndpointIDs(true); len(ids) > 0 {
			r.log("a leftover at an address of this node")
			addr := localPods()[r.rng.IntN(len(localPods()))]
			e := plan.Endpoint{Name: "Ethernet", Addrs: []netip.Addr{addr}, Remote: true, MAC: "02-11-00-00-00-00"}
			if r.judge.network.Overlay {
				e.Provider = netip.MustParseAddr("172.16.0.2")
			}
			r.hns.Add(plan.Call{Op: plan.CreateEndpoint, Endpoint: e})
		}
	}
	return nil
}

// apply does what [backend.Run] does with the next update, and with what has failed.
func (r *run) apply(ctx context.Context) error {
	if latest := r.store.Snapshot().Revision(); latest != r.revision {
		u, err := r.store.Next(ctx, r.revision)
		if err != nil {
			return err
		}
		if err := r.applyUpdate(ctx, u); err != nil {
			return err
		}
	}
	if len(r.pending) == 0 || r.node == nil {
		return r.broken
	}
	u := &state.Update{Revision: r.revision, Node: r.node}
	for name, record := range r.pending {
		if record != nil {
			u.Changed = append(u.Changed, record)
		} else {
			u.Removed = append(u.Removed, name)
		}
	}
	return r.applyUpdate(ctx, u)
}

func (r *run) applyUpdate(ctx context.Context, u *state.Update) error {
	r.current = u.Revision == r.store.Snapshot().Revision()
	result, err := r.backend.Apply(ctx, u)
	if err != nil && !errors.Is(err, hnstest.ErrInjected) {
		return fmt.Errorf("applying: %w", err)
	}
	if err != nil {
		r.log("apply: %v", err)
		return r.broken
	}
	r.revision, r.node = u.Revision, u.Node
	if u.Full {
		clear(r.pending)
	}
	for _, s := range u.Changed {
		delete(r.pending, s.Name)
		if result.Failed[s.Name] != nil {
			r.pending[s.Name] = s
		}
	}
	for _, name := range u.Removed {
		delete(r.pending, name)
		if result.Failed[name] != nil {
			r.pending[name] = nil
		}
	}
	for name, err := range result.Failed {
		r.log("failed: %v: %v", name, err)
	}
	return r.broken
}

func (r *run) verify(ctx context.Context) error {
	r.current = r.revision == r.store.Snapshot().Revision()
	result, err := r.backend.Verify(ctx)
	if err != nil && !errors.Is(err, hnstest.ErrInjected) {
		return fmt.Errorf("verifying: %w", err)
	}
	for name, err := range result.Failed {
		r.log("verify: failed: %v: %v", name, err)
	}
	return r.broken
}

// quiesce ends all faults. HNS must hold exactly what the oracle wants then, and a restart of the dataplane must find nothing to do.
func (r *run) quiesce(ctx context.Context) error {
	r.failing = false
	r.plugIn()
	refused := len(r.hns.Refusals)
	if err := r.apply(ctx); err != nil {
		return err
	}
	// Calls that are refused show what others have deleted since HNS was read. From the verification on there are none.
	r.hns.Refusals = append(r.hns.Refusals[:refused], slices.DeleteFunc(r.hns.Refusals[refused:], func(refusal string) bool {
		return strings.HasSuffix(refusal, plan.ErrNotFound.Error()) || strings.HasSuffix(refusal, plan.ErrNoNetwork.Error())
	})...)
	if err := r.verify(ctx); err != nil {
		return err
	}
	if err := r.apply(ctx); err != nil {
		return err
	}
	if len(r.pending) > 0 {
		return fmt.Errorf("services still fail although nothing else does: %v", slices.Collect(maps.Keys(r.pending)))
	}
	if more := r.hns.Refusals[refused:]; len(more) > 0 && !r.hns.ModifyMissing {
		return fmt.Errorf("HNS refused calls: %v", more)
	}
	before := r.hns.Calls
	if err := r.verify(ctx); err != nil {
		return err
	}
	if r.hns.Calls != before {
		return fmt.Errorf("a verification of what was just verified made %d calls", r.hns.Calls-before)
	}
	if err := r.judge.compare(r); err != nil {
		return err
	}
	if err := r.start(); err != nil {
		return err
	}
	if err := r.apply(ctx); err != nil {
		return err
	}
	if made := r.hns.Calls - before; made != 0 && !r.hns.Rewrites {
		return fmt.Errorf("a restart that finds all as it must be made %d calls", made)
	}
	r.failing = true
	return nil
}

// before is called before each call that changes HNS: it may not take its load balancer from a frontend that has endpoints.
func (r *run) before(call plan.Call) {
	r.log("%v", &call)
	r.replacing = state.FrontendKey{}
	if r.replaced != nil {
		key, _ := call.LoadBalancer.Key()
		if call.Op != plan.CreateLoadBalancer || key != *r.replaced {
			r.fail("%v was deleted to be replaced, and the next call is: %v", r.replaced, &call)
		}
		r.replaced = nil
	}
	if call.Op != plan.DeleteLoadBalancer || !r.current {
		return
	}
	key, _ := call.LoadBalancer.Key()
	if want := r.judge.route(key.Protocol, dstOf(key, &r.judge)); len(r.reachable(want)) > 0 && !r.isHealth(&call.LoadBalancer) {
		if r.backend.table.Modifies() {
			r.fail("%v takes away a load balancer whose frontend has endpoints: %v", &call, want.Endpoints)
			return
		}
		r.replacing = key
	}
}

// after is called after each call that has changed HNS: a load balancer leads to no wrong endpoint.
func (r *run) after(call plan.Call) {
	if key, _ := call.LoadBalancer.Key(); call.Op == plan.DeleteLoadBalancer && key == r.replacing {
		r.count("replaced without Modify", 1)
		r.replaced = &key
	}
	if call.Op != plan.CreateLoadBalancer && (call.Op != plan.ModifyLoadBalancer || r.hns.ModifyIgnored) || r.isHealth(&call.LoadBalancer) || !r.current {
		return
	}
	key, _ := call.LoadBalancer.Key()
	got, want := r.hns.Trace(key.Protocol, dstOf(key, &r.judge)), r.judge.route(key.Protocol, dstOf(key, &r.judge))
	for _, e := range got.Endpoints {
		if !slices.Contains(want.Endpoints, e) {
			r.fail("%v leads to %v, want some of %v", &call, e, want.Endpoints)
		}
	}
}

func (r *run) fail(format string, args ...any) {
	if r.broken == nil {
		r.broken = fmt.Errorf(format, args...)
	}
}

// reachable returns the endpoints of a route for which HNS has an endpoint, on the right node.
func (r *run) reachable(want hnstest.Route) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(want.Endpoints), func(a netip.AddrPort) bool {
		for _, id := range r.hns.EndpointIDs(false) {
			e := r.hns.Endpoint(id)
			if slices.Contains(e.Addrs, a.Addr()) && e.Remote != slices.Contains(localPods(), a.Addr()) && r.hns.Leads(id) {
				return false
			}
		}
		return true
	})
}

// isHealth reports whether a load balancer forwards health checks.
func (r *run) isHealth(lb *plan.LoadBalancer) bool {
	return len(lb.Endpoints) == 1 && r.hns.Endpoint(lb.Endpoints[0]).Name == rootName || lb.Mappings[0].External == healthzPort
}

// dstOf returns an address at which a frontend is to be found.
func dstOf(key state.FrontendKey, j *judge) netip.AddrPort {
	if key.Addr.IsValid() {
		return netip.AddrPortFrom(key.Addr, key.Port)
	}
	return netip.AddrPortFrom(j.primary(key.Family), key.Port)
}
