//go:build linux

package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/lab/inputs"
	"github.com/switchyard-net/switchyard/lab/minicluster"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
)

// session is a lab with the whole pipeline in it, from the store to the kernel. With the edge, the other nodes have one as well:
//
//	                          ┌── store ── dataplane ── edge   node under test, where packets of the client come in
//	manifests ── objects of ──┼── store ── nftables ─── edge   other node  ┐ take packets that
//	             the cluster  └── store ── nftables ─── edge   third node  ┘ are handed over
//
// Only the node under test is judged, explained and shown.
type session struct {
	options   Options
	stage     *stage
	*pipeline             // of the node under test
	pipelines []*pipeline // of all nodes
	refs      []model.Ref // that the stores have

	cluster *minicluster.Cluster
	world   *oracle.World
	servers directory
	// findings are about the manifests, and are derived from facts.
	findings []diagnosis.Finding
	facts    atomic.Pointer[diagnosis.Facts]
	// problem is why the last apply did not succeed altogether, nil if it did.
	problem error

	// For the page: when the session began, what the dataplane did, and the newest round.
	began   time.Time
	changes ui.Changes
	newest  atomic.Pointer[shown]
}

// newSession builds the lab and starts the pipeline. The lab has room for a number of pods and more.
func newSession(ctx context.Context, o Options, pods int) (*session, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	stage, err := newStage(ctx, pods, o.Edge)
	if err != nil {
		return nil, err
	}
	stage.relays = o.Relays
	s := &session{options: o, stage: stage, began: time.Now()}
	names := nodeNames[:1]
	if o.Edge {
		names = nodeNames
	}
	for _, name := range names {
		p := &pipeline{node: name}
		s.pipelines = append(s.pipelines, p)
		if name == nodeName {
			s.pipeline = p
			err = p.start(ctx, &o, stage, s.changes.Attempted)
		} else {
			err = p.start(ctx, o.elsewhere(ctx), stage, nil)
		}
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

// close stops the pipelines and removes the lab.
func (s *session) close() error {
	var errs []error
	for _, p := range s.pipelines {
		errs = append(errs, p.close())
	}
	return errors.Join(append(errs, s.stage.close())...)
}

// failed is why a pipeline has ended, nil if all run.
func (s *session) failed() error {
	var errs []error
	for _, p := range s.pipelines {
		errs = append(errs, p.status.failed())
	}
	return errors.Join(errs...)
}

// apply makes the lab run the manifests and waits until the dataplane shows them. The error reports what could not be done; the
// rest has been.
func (s *session) apply(ctx context.Context, in *inputs.Loaded) error {
	var errs []error
	cluster, err := minicluster.Build(in.Objects, s.stage.clusterOptions())
	errs = append(errs, located(in, err)...)
	servers, err := s.stage.apply(cluster)
	errs = append(errs, err)

	first := s.world == nil
	s.cluster, s.servers = cluster, servers
	s.world = &oracle.World{
		NodeName:      nodeName,
		DetectLocal:   true,
		NodePortAddrs: func(a netip.Addr) bool { return slices.Contains(s.stage.lab.Node().Addrs, a) },
		ServiceCIDRs:  []*model.ServiceCIDR{{Name: "kubernetes", CIDRs: s.stage.lab.Options().ServiceCIDRs}},
	}
	set, err := s.convert(cluster)
	errs = append(errs, err)
	var refs, gone []model.Ref
	for _, o := range set {
		refs = append(refs, o.Ref())
	}
	for _, ref := range s.refs {
		if !slices.Contains(refs, ref) {
			gone = append(gone, ref)
		}
	}
	s.refs = refs
	for _, p := range s.pipelines {
		p.sink.Update(set, gone)
		if first {
			p.sink.Complete()
		}
	}
	facts := factsOf(in, cluster)
	s.facts.Store(facts)
	s.findings = diagnose(in, cluster, s.store, facts)
	for _, p := range s.pipelines {
		err := p.wait(ctx)
		if err != nil && s.edge != nil {
			err = fmt.Errorf("%s: %w", p.node, err)
		}
		errs = append(errs, err)
	}
	if s.edge != nil {
		for _, node := range s.stage.lab.Nodes() { // of earlier rounds, which a node would go on with if a client uses their ports again
			errs = append(errs, node.Forget())
		}
	}
	return errors.Join(errs...)
}

// located returns what a cluster refuses, with the places of the fields and in their order.
func located(in *inputs.Loaded, err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err} // nil
	}
	errs := joined.Unwrap()
	for i, err := range errs {
		if f, ok := errors.AsType[*minicluster.Fault](err); ok {
			errs[i] = in.Error(f.Object, f.Field, f.Err)
		}
	}
	slices.SortStableFunc(errs, func(a, b error) int {
		x, isX := errors.AsType[*manifest.Error](a)
		y, isY := errors.AsType[*manifest.Error](b)
		if !isX || !isY {
			return 0
		}
		return cmp.Or(strings.Compare(x.File, y.File), x.Line-y.Line, x.Column-y.Column)
	})
	return errs
}

// convert returns the cluster's objects for the store, and puts them before the oracle.
func (s *session) convert(c *minicluster.Cluster) ([]model.Object, error) {
	var objs []any
	for _, o := range c.Services {
		objs = append(objs, o)
	}
	for _, o := range c.Slices {
		objs = append(objs, o)
	}
	for _, o := range c.Nodes {
		objs = append(objs, o)
	}
	for _, o := range c.Namespaces {
		objs = append(objs, o)
	}
	set := []model.Object{s.world.ServiceCIDRs[0]}
	var errs []error
	for _, obj := range objs {
		o, _, err := kubeconv.Object(obj)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", describe(obj), err))
			continue
		}
		switch o := o.(type) {
		case *model.Service:
			s.world.Services = append(s.world.Services, o)
		case *model.EndpointSlice:
			s.world.Slices = append(s.world.Slices, o)
		case *model.Node:
			if s.options.Edge {
				o.Edge = fmt.Sprintf("v1,%d", edge.DefaultPort) // as a node says so itself, once it takes packets
			}
			s.world.Nodes = append(s.world.Nodes, o)
		case *model.Namespace:
			s.world.Namespaces = append(s.world.Namespaces, o)
		}
		set = append(set, o)
	}
	return set, errors.Join(errs...)
}

func describe(obj any) string {
	if o, ok := obj.(interface {
		GetNamespace() string
		GetName() string
	}); ok {
		return o.GetNamespace() + "/" + o.GetName()
	}
	return fmt.Sprintf("%T", obj)
}

// round makes every call once.
func (s *session) round(ctx context.Context) *view {
	calls, note := withoutSCTP(plan(s.world, s.stage.clients(), s.stage.lab.Node().Addrs, backend.FeaturesOf(s.dataplane)))
	v := &view{inputs: s.options.Inputs.String(), followed: s.options.Inputs.Followed(), services: len(s.cluster.Services), pods: len(s.cluster.Pods), findings: s.findings, names: namesWithoutIP(s.world),
		revision: s.store.Snapshot().Revision()}
	s.handsOver(calls)
	if note != "" {
		v.notes = append(v.notes, note)
	}
	start, before := time.Now(), s.hooked()
	v.results = s.stage.measure(ctx, calls, s.servers)
	v.took = time.Since(start)
	v.page = s.options.address()
	if after := s.hooked(); after != nil {
		v.hooked = new(*after - *before)
	}
	if s.edge != nil {
		v.handedOver = new(int)
	}
	for i := range v.results {
		v.calls += v.results[i].connections
		if s.edge != nil {
			*v.handedOver += v.results[i].handedOver
		}
	}
	return v
}

// explain returns why a client's connection to a frontend goes where it goes.
func (s *session) explain(r *result, client probe.Client) (string, error) {
	from := r.packet.Src.String()
	for _, c := range s.stage.clients() {
		for _, addr := range c.addrs {
			if c.from == client && addr.Is4() == r.packet.Dst.Addr().Is4() {
				from = addr.String()
			}
		}
	}
	asker, err := explain.ParseFrom(from)
	if err != nil {
		return "", err
	}
	to, err := explain.ParseTo(fmt.Sprintf("%v/%v", r.packet.Dst, r.packet.Protocol))
	if err != nil {
		return "", err
	}
	answers, err := explain.New(explain.Options{Store: s.store, Facts: s.facts.Load()}).Ask(context.Background(), asker, to)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, a := range answers {
		if err := (explain.Style{Colour: s.options.Colour}).Write(&b, a); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// hooked returns how many connections hooks at sockets have translated so far, nil if the dataplane has none.
func (s *session) hooked() *uint64 {
	if d, ok := s.dataplane.(withHooks); ok {
		return new(d.Status().Translated)
	}
	return nil
}

// programTimeout is how long the dataplane may take for a change, which is a small one for it.
const programTimeout = 20 * time.Second

// status is the reconciler's latest.
type status struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each change
	last    backend.Status
	err     error
	ended   bool
}

func (s *status) init() { s.changed = make(chan struct{}) }

func (s *status) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *status) set(st backend.Status) { s.update(func() { s.last = st }) }

func (s *status) current() backend.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *status) fail(err error) { s.update(func() { s.err, s.ended = err, true }) }

func (s *status) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// wait returns when the dataplane shows a revision, with the services that could not be programmed.
func (s *status) wait(ctx context.Context, revision state.Revision) error {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	for {
		s.mu.Lock()
		last, err, ended, changed := s.last, s.err, s.ended, s.changed
		s.mu.Unlock()
		switch {
		case ended:
			return err
		case last.Applied >= revision:
			var errs []error
			for name, err := range last.Failed {
				errs = append(errs, fmt.Errorf("service %v: %w", name, err))
			}
			return errors.Join(errs...)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the dataplane was not programmed within %v", programTimeout), last.Err)
		}
	}
}
