// Package winkernel is the dataplane of Windows nodes: it programs the services of a node as load balancers of the host network service (HNS).
// It is experimental: its tests run against a fake HNS only.
//
// Package plan, which is pure, computes the load balancers and endpoints that HNS must have, and the order of the
// calls. [Backend] carries out the calls. README.md draws the objects of one Service and follows one change. Load
// balancers of the network's endpoints, and remote endpoints of the network, belong to this package, even if another
// program created them. So objects that kube-proxy left are taken over. Objects of other networks are never touched.
//
// HNS cannot provide everything that a record may ask for. docs/differences.md lists the limits, and [Backend.Problems]
// lists them for each service.
package winkernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Backend is the dataplane of this Windows node. It implements [backend.Backend].
type Backend struct {
	o   Options
	log *slog.Logger
	hns hns
	// disturbed gets a value when HNS has restarted, or something is left to do that no service waits for.
	disturbed chan struct{}
	// watch ends what notices that HNS has restarted.
	watch func()

	table   *plan.Table
	network *plan.Network
	node    *state.Node
	// known is set if the table shows what HNS holds. It is not before the first Apply, and after a call that failed, which may have had its effect.
	known bool
	// left is the name of a network that another configuration had, empty if nothing is left there.
	left string

	mu       sync.Mutex
	problems []error
}

var _ backend.Reporter = (*Backend)(nil)

// New makes the dataplane of this node. It needs Windows Server 2019 or later, and the rights of an administrator. Nothing changes before the
// first Apply; that fails until the network plugin has made the network. The caller must Close it.
//
// On other systems the error wraps [errors.ErrUnsupported].
func New(o Options) (*Backend, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	h, err := dial()
	if err != nil {
		return nil, fmt.Errorf("winkernel: %w", err)
	}
	b := open(o, h)
	b.watch = watchRestarts(o.Logger, b.disturb)
	return b, nil
}

// open makes the dataplane of h.
func open(o Options, h hns) *Backend {
	return &Backend{o: o, log: o.Logger, hns: h, table: plan.NewTable(), disturbed: make(chan struct{}, 1), watch: func() {}}
}

// Close ends the dataplane. Programmed objects stay.
func (b *Backend) Close() error {
	b.watch()
	return nil
}

// Disturbed gets a value when HNS has restarted, and may have forgotten all that it held.
func (b *Backend) Disturbed() <-chan struct{} { return b.disturbed }

func (b *Backend) disturb() {
	select {
	case b.disturbed <- struct{}{}:
	default:
	}
}

// Reconfigure replaces the options, except for Logger and OnFailure. Nothing in HNS changes before the next Apply,
// which must be of a full update. If they name another network, that Apply first removes the objects on the previous
// one. No other method may be called at the same time.
func (b *Backend) Reconfigure(o Options) error {
	o.Logger, o.OnFailure = b.o.Logger, b.o.OnFailure
	o, err := o.complete()
	if err != nil {
		return err
	}
	if before := b.o.Config.NetworkName; before != o.Config.NetworkName {
		b.left = cmp.Or(b.left, before)
	}
	b.o, b.known = o, false
	return nil
}

// Apply makes HNS hold what u asks for. See [backend.Backend]. HNS has no transactions: a service that fails may have some of its frontends as
// they were, and others as they are to be.
func (b *Backend) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	nodeBefore := b.node
	b.node = u.Node
	fresh := !b.known
	if err := b.prepare(ctx); err != nil {
		b.node = nodeBefore
		return backend.Result{}, err
	}
	for _, name := range u.Gone(b.table.Services()) {
		b.table.Remove(name)
	}
	for _, s := range u.Changed {
		before := b.table.LostOf(s.Name)
		b.table.Put(s)
		b.logLost(s.Name, b.table.LostOf(s.Name)&^before)
	}
	written, failed, left, err := b.settle(ctx, fresh)
	if left != nil {
		b.disturb()
	}
	return backend.Result{Written: written, Failed: failed}, err
}

// prepare ensures that the table has the current settings and shows the objects that HNS holds.
func (b *Backend) prepare(ctx context.Context) error {
	if b.known {
		return b.configure()
	}
	if b.left != "" {
		if _, err := removeAll(ctx, b.hns, b.left); err != nil {
			return fmt.Errorf("leaving HNS network %q: %w", b.left, err)
		}
		b.left = ""
	}
	return b.read()
}

// Verify reads all that HNS holds, and repairs what differs. See [backend.Backend].
func (b *Backend) Verify(ctx context.Context) (backend.Result, error) {
	if b.node == nil {
		return backend.Result{}, nil
	}
	if err := b.read(); err != nil {
		return backend.Result{}, err
	}
	written, failed, left, err := b.settle(ctx, true)
	return backend.Result{Written: written, Repaired: written, Failed: failed}, cmp.Or(err, left)
}

// Problems implements [backend.Reporter]: it returns what HNS cannot do for some services: one error for each thing, with their names. It may be called at any time.
func (b *Backend) Problems() []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.problems)
}

// maxNamed is how many services a problem names.
const maxNamed = 5

func (b *Backend) noteProblems() {
	all, changed := b.table.Lost()
	if !changed {
		return
	}
	names := map[plan.Lost][]string{}
	for name, lost := range all {
		for _, l := range lost.All() {
			names[l] = append(names[l], name.String())
		}
	}
	var problems []error
	for _, l := range slices.Sorted(maps.Keys(names)) {
		list := names[l]
		slices.Sort(list)
		text := strings.Join(list[:min(len(list), maxNamed)], ", ")
		if more := len(list) - maxNamed; more > 0 {
			text = fmt.Sprintf("%s and %d more", text, more)
		}
		problems = append(problems, fmt.Errorf("%s: %v", text, l))
	}
	b.mu.Lock()
	b.problems = problems
	b.mu.Unlock()
}

func (b *Backend) logLost(name state.ServiceName, lost plan.Lost) {
	for _, l := range lost.All() {
		b.log.Warn("HNS cannot do what a service asks for", "service", name.String(), "lost", l.String())
	}
}

// read takes over all that HNS holds.
func (b *Backend) read() error {
	if err := b.readNetwork(); err != nil {
		return err
	}
	endpoints, err := b.hns.Endpoints()
	if err != nil {
		return fmt.Errorf("reading endpoints of HNS: %w", err)
	}
	lbs, err := b.hns.LoadBalancers()
	if err != nil {
		return fmt.Errorf("reading load balancers of HNS: %w", err)
	}
	if err := b.configure(); err != nil {
		return err
	}
	b.table.Hold(b.network.ID, endpoints, lbs)
	b.known = true
	return nil
}

func (b *Backend) readNetwork() error {
	network, err := b.hns.Network(b.o.Config.NetworkName)
	if err != nil {
		b.known = false
		if errors.Is(err, plan.ErrNoNetwork) {
			return fmt.Errorf("there is no HNS network %q: its network plugin may not have made it yet; if it has another name "+
				"(hnsdiag list networks), set winkernel.networkName: %w", b.o.Config.NetworkName, err)
		}
		return fmt.Errorf("reading HNS network %q: %w", b.o.Config.NetworkName, err)
	}
	b.network = network
	return nil
}

// configure gives the table the settings by the configuration, the node and the network.
func (b *Backend) configure() error {
	c, n := &b.o.Config, b.network
	set := plan.Settings{DSR: c.EnableDSR, Overlay: n.Overlay, Features: n.Features, Node: b.node.Addresses}
	if c.EnableDSR && !n.Features.DSR {
		return errors.New("winkernel.enableDSR is set, but this version of HNS has no direct server return: set it to false")
	}
	if c.ForwardHealthCheckVIP {
		set.Root, set.HealthzPort = c.RootHNSEndpointName, b.o.HealthzPort
	}
	if n.Overlay {
		switch {
		case !n.Features.RemoteSubnet:
			return fmt.Errorf("network %q is an overlay network, for which this version of HNS is too old: it needs HNS 9.2", n.Name)
		case !c.SourceVIP.IsValid():
			return fmt.Errorf("winkernel.sourceVip is not set, but network %q is an overlay network: set it to an address of this node's pod range that no pod gets", n.Name)
		}
		set.SourceVIP, set.Subnets = c.SourceVIP, plan.NewSubnets(n.Subnets)
		for _, addr := range b.node.Addresses {
			if mac := n.HostMACs[addr]; mac != "" && addr.Is4() == c.SourceVIP.Is4() {
				set.HostMAC = mac
				break
			}
		}
		if set.HostMAC == "" {
			return fmt.Errorf("no interface of this machine has one of the node's addresses %v, of the family of winkernel.sourceVip: check the addresses of the Node object", b.node.Addresses)
		}
	}
	b.table.Configure(set)
	return nil
}

const (
	// maxReads is how often one Apply or Verify reads HNS again because a call has failed. Run retries the rest.
	maxReads = 3
	// maxRounds bounds the rounds without failures: an endpoint that has to be replaced takes two, and the last one finds nothing left to do.
	maxRounds = 10
	// maxAgain is how often a call is made again at once while a frontend has no load balancer.
	maxAgain = 3
)

// settle makes the calls that lead from what HNS holds to what services need. current is set if HNS was just read. It returns how many calls
// succeeded, the services that lack something, and what failed that no service is known to need. err is set only if the context has ended.
func (b *Backend) settle(ctx context.Context, current bool) (written int, failed map[state.ServiceName]error, left, err error) {
	run := &round{ctx: ctx, b: b}
	for range maxRounds {
		if !current && (b.table.AwaitsLocal() || b.table.AwaitsSubnet()) {
			current = true
			if err := b.readEndpoints(); err != nil {
				run.fail(state.ServiceName{}, err)
			}
		}
		if err := run.stages(); err != nil {
			b.known = false
			return run.written, nil, nil, err
		}
		if !run.unsure && !run.busy {
			break
		}
		if !run.unsure {
			continue
		}
		if run.reads++; run.reads > maxReads {
			break
		}
		if err := b.read(); err != nil {
			run.fail(state.ServiceName{}, err)
			break
		}
		current = true
	}
	if run.unsure {
		b.known = false
	}
	failed = b.table.Park()
	for name := range failed {
		if err := run.errs[name]; err != nil {
			failed[name] = err
		}
	}
	b.noteProblems()
	return run.written, failed, run.errs[state.ServiceName{}], nil
}

// readEndpoints takes over endpoints that the network plugin has made, and nodes that have come.
func (b *Backend) readEndpoints() error {
	before := b.network.ID
	if err := b.readNetwork(); err != nil {
		return err
	}
	if b.network.ID != before { // another network: the load balancers of the previous one are also gone
		b.known = false
		return b.read()
	}
	if err := b.configure(); err != nil {
		return err
	}
	endpoints, err := b.hns.Endpoints()
	if err != nil {
		return fmt.Errorf("reading endpoints of HNS: %w", err)
	}
	b.table.HoldEndpoints(endpoints)
	return nil
}

// round is one pass through the stages.
type round struct {
	ctx     context.Context
	b       *Backend
	written int
	reads   int
	// busy: there was something to do. unsure: a call failed, and what HNS holds is not known for certain.
	busy, unsure bool
	errs         map[state.ServiceName]error
}

func (r *round) fail(name state.ServiceName, err error) {
	if r.errs == nil {
		r.errs = map[state.ServiceName]error{}
	}
	r.errs[name] = err
	r.unsure = true
}

// stages makes the calls of all stages. It returns an error only if the context has ended.
func (r *round) stages() error {
	r.busy, r.unsure, r.errs = false, false, nil
	t := r.b.table
	for _, stage := range []func() []plan.Step{t.Create, t.Point, t.Retire, t.Sweep} {
		for _, step := range stage() {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			r.busy = true
			r.carryOut(&step)
		}
	}
	return nil
}

// carryOut makes the calls of one step: one, or two that replace a load balancer.
func (r *round) carryOut(step *plan.Step) {
	for i := range step.Calls {
		call := &step.Calls[i]
		replaces := i > 0
		reported, err := r.b.hns.Do(*call)
		// A frontend that is replaced has no load balancer now, unless it turns out that the old one is still there.
		for again := 0; replaces && err != nil && !errors.Is(err, plan.ErrExists) && again < maxAgain; again++ {
			r.failed(step, call, err)
			reported, err = r.b.hns.Do(*call)
		}
		if err == nil && !r.b.table.HadEffect(call, &reported) {
			err = fmt.Errorf("it had no effect: %w", plan.ErrNotImplemented)
		}
		switch {
		case err == nil:
		case errors.Is(err, plan.ErrNotFound) && (call.Op == plan.DeleteEndpoint || call.Op == plan.DeleteLoadBalancer):
		case errors.Is(err, plan.ErrNotImplemented) && call.Op == plan.ModifyLoadBalancer:
			r.b.log.Info("this version of HNS cannot change load balancers; they are replaced", "error", err)
			r.b.table.NoModify()
			return
		default:
			r.failed(step, call, err)
			if replaces || len(step.Calls) == 1 {
				return
			}
			continue // the old load balancer may be gone in spite of the error
		}
		r.b.table.Done(call, &reported)
		r.written++
	}
}

// failed takes down that a call has failed.
func (r *round) failed(step *plan.Step, call *plan.Call, err error) {
	r.fail(step.Service, fmt.Errorf("%v: %w", call, err))
	op, ok := map[plan.Op]Operation{plan.CreateLoadBalancer: Create, plan.ModifyLoadBalancer: Update, plan.DeleteLoadBalancer: Delete}[call.Op]
	if !ok || r.b.o.OnFailure == nil {
		return
	}
	key, _ := call.LoadBalancer.Key()
	r.b.o.OnFailure(Failure{Operation: op, Family: key.Family, Kind: step.Kind, Err: err})
}
