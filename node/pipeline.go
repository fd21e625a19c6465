package node

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/clusterserver"
	"github.com/switchyard-net/switchyard/internal/lastknown"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// pipeline is the way of a change through the process, up to the dataplane, which is the node's. Another API server or name of the node
// takes another pipeline.
type pipeline struct {
	origin origin
	// source is nil where states are made elsewhere.
	source model.Source
	sink   model.Sink
	// store makes the states of this node. It is nil where they are made elsewhere, and in a relay.
	store *store.Store
	// follow keeps feed up to date where there is no source. It may be nil.
	follow func(context.Context) error
	// own is nil where states are made elsewhere.
	own *ownAddresses
	// nodeIPs is nil if the addresses of nodes are left as they are.
	nodeIPs *nodeIPs
	// nodes keeps the last known Nodes. It is nil where states are made elsewhere, and where objects come from no
	// cluster.
	nodes *lastknown.Nodes
	// detection warns of pods that are not told from other clients. It is nil where states are made elsewhere.
	detection *detectionWarning

	// name returns the name of the node.
	name func() string
	// feed has the states of this node. It is nil in a relay.
	feed state.Feed
	// latest returns the newest revision, and how many services it has.
	latest func() (state.Revision, int)
	// problems and limited are about single services.
	problems func() []error
	limited  func() map[store.Reason]int
	// nodeHealth is what is known about the health of Nodes.
	nodeHealth func() store.NodeHealth
	// ready is closed once there is a first state. It is nil where states are made elsewhere.
	ready chan struct{}
	// reconfigure makes what comes after the source go by another configuration.
	reconfigure func(c *config.Config)
	// serve has what the node-local API serves.
	serve server.Options
	close func()

	stopSource, stopOwn, stopDataplane, stopAPI func()
}

// origin is what a pipeline cannot change: where its objects come from, and for whom.
type origin struct {
	node      string
	api       config.ClientConnection
	refresh   time.Duration
	proxyName string
	names     bool
	health    bool // of all Nodes
	edge      bool // of all Nodes
}

func (n *Node) originOf(c *config.Config) (o origin, err error) {
	if n.o.States != nil {
		return origin{}, nil
	}
	o = origin{api: c.ClientConnection, refresh: c.ConfigSyncPeriod.Duration, proxyName: c.ServiceProxyName, names: c.API.Names && len(c.API.Listen) > 0, health: c.NodeHealth.Enabled,
		edge: c.Edge.Enabled()}
	if n.o.Role != Relay {
		o.node, err = Name(c)
	}
	return o, err
}

// Name returns the name of the node that c is for: hostnameOverride, or the host's name in lower case.
func Name(c *config.Config) (string, error) {
	if c.HostnameOverride != "" {
		return c.HostnameOverride, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this node's name: %w; set hostnameOverride", err)
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}

// BrainConfig returns the settings in c for routing on a node.
func BrainConfig(c *config.Config, node string) brain.Config {
	services := c.Services.Derived(c.Mode, 0)
	return brain.Config{
		NodeName: node, ServiceProxyName: c.ServiceProxyName, MasqueradeAll: c.Linux.MasqueradeAll,
		LocalDetector: c.LocalDetector(), NodePorts: c.NodePorts(),
		ExternalIPs: services.AllowedExternalIPs, NodeExternalIPs: services.NodeExternalIPs,
		IgnoreExternalIPs: !c.Gate(config.GateExternalIPs), MaxEntries: services.MaxEntries, MaxFrontends: services.MaxFrontends(),
		Ping: c.Ping, Ejection: c.Ejection.Enabled, AcceptAnnotationsOf: c.AcceptAnnotationsOf,
		NodeHealth: brain.NodeHealth{
			Enabled: c.NodeHealth.Enabled, NotReadyAfter: c.NodeHealth.NotReadyAfter.Duration, IgnoreAbove: int(c.NodeHealth.IgnoreAbovePercent),
		},
		Edge: brain.Edge{Enabled: c.Edge.Enabled(), Annotated: c.Edge.Annotated(), Kinds: state.KindsOf(c.Edge.Kinds()...)},
	}
}

// brainConfig is BrainConfig for the states of this node, which have what its dataplane needs.
func (n *Node) brainConfig(c *config.Config, node string) brain.Config {
	b := BrainConfig(n.bounded(c), node)
	b.TCPLingers = n.o.Role == Proxy && c.ResetConnectionsToRemovedEndpoints
	return b
}

// bounded returns c with the budgets that follow from the memory of the process. The states of a Relay go to nodes whose memory is not
// known. A Server's states go to a dataplane that has a process of its own.
func (n *Node) bounded(c *config.Config) *config.Config {
	memory := n.o.Memory
	if n.o.Role != Proxy && (memory <= 0 || memory > config.NodeMemory) {
		memory = config.NodeMemory
	}
	return Bounded(c, memory)
}

// Bounded returns c with the budgets of Services that follow from so many bytes of memory, 0 if that is not known.
func Bounded(c *config.Config, memory int64) *config.Config {
	derived := *c
	derived.Services = c.Services.Derived(c.Mode, memory)
	return &derived
}

// Budgets returns the limits in c for services together.
func Budgets(c *config.Config) store.Budgets {
	services := c.Services.Derived(c.Mode, 0)
	return store.Budgets{PerNamespace: services.MaxEntriesPerNamespace, PerNode: services.MaxEntriesPerNode}
}

// NamesLimits returns the limits in c for the names of services. They are the limits of routing.
func NamesLimits(c *config.Config) store.NamesLimits {
	return store.NamesLimits{PerService: c.Services.Derived(c.Mode, 0).MaxEntries, Budgets: Budgets(c)}
}

// newPipeline makes a pipeline without starting it.
func (n *Node) newPipeline(c *config.Config, o origin) (*pipeline, error) {
	if n.o.States != nil {
		return n.followStates(c), nil
	}
	src, err := n.o.Source(c, o.node)
	if err != nil {
		return nil, err
	}
	p := &pipeline{origin: o, source: src, name: func() string { return o.node }, ready: make(chan struct{})}
	if n.o.Role == Relay {
		n.addCluster(p, c)
	} else {
		n.addStore(p, c)
	}
	closeStores := p.close
	p.close = func() {
		p.own.close()
		closeStores()
	}
	if o.names {
		n.addNames(p, c)
	}
	n.addLastKnown(p, c)
	n.addDetection(p, c)
	p.serve.Ready, p.serve.Node = p.ready, o.node
	p.sink = &completion{Sink: p.sink, before: func() { p.own.update() }, complete: func() {
		close(p.ready)
		p.detection.check(nil) // by the addresses of the Node
		resident.Unmap()       // what the lists went through, while they are programmed, which takes most memory
		if n.o.Role != Proxy {
			n.becomeReady(0) // there is something to serve
		}
	}}
	return p, nil
}

// addStore has the states of this node made.
func (n *Node) addStore(p *pipeline, c *config.Config) {
	s := store.New(store.Options{Logger: n.log, Brain: n.brainConfig(c, p.origin.node), Budgets: Budgets(n.bounded(c)), OnProblem: n.reportProblem})
	p.own = newOwnAddresses(p.source, n.o.Role, s.SetOwn, n.log)
	p.nodeIPs = &nodeIPs{Sink: s.Source("objects"), name: p.origin.node, config: c, fault: n.nodeIPFault}
	p.store, p.feed, p.sink, p.problems, p.limited, p.close = s, s, p.nodeIPs, s.Problems, s.Limited, s.Close
	p.nodeHealth = s.NodeHealth
	p.latest = func() (state.Revision, int) {
		snapshot := s.Snapshot()
		return snapshot.Revision(), snapshot.Len()
	}
	p.reconfigure = func(c *config.Config) {
		s.Reconfigure(n.brainConfig(c, p.origin.node), Budgets(n.bounded(c)))
		p.nodeIPs.set(c)
	}
	p.serve.Feed = server.Only(p.origin.node, s)
}

// addCluster has the states of all nodes made, and keeps the objects for relays below.
func (n *Node) addCluster(p *pipeline, c *config.Config) {
	states := store.NewCluster(store.ClusterOptions{Brain: BrainConfig(n.bounded(c), ""), Budgets: Budgets(n.bounded(c)), Logger: n.log})
	objects := objectlog.New(objectlog.Options{Logger: n.log})
	p.own = newOwnAddresses(p.source, n.o.Role, states.SetOwn, n.log)
	p.sink = objectlog.Tee(states.Source("objects"), objects.Source("objects"))
	p.problems, p.limited = states.Problems, states.Limited
	p.nodeHealth = states.NodeHealth
	p.latest = func() (state.Revision, int) { return 0, 0 }
	p.reconfigure = func(*config.Config) {} // see Node.sameWay
	p.close = func() {
		states.Close()
		objects.Close()
	}
	instance := rand.Uint64() // the two count revisions of their own, under one name
	p.serve.InstanceID = instance
	p.serve.Feed = func(node string) (state.Feed, error) { return states.Node(node), nil }
	p.serve.Register = func(r grpc.ServiceRegistrar) {
		clusterserver.Register(r, clusterserver.Options{Feed: objects, InstanceID: instance, NodeHealth: c.NodeHealth.Enabled, NodeEdge: c.Edge.Enabled(), OnFollow: n.audience.relayFollows})
	}
}

// addNames keeps the names of services as well as the states. The names are complete first, because a first state means that all is
// ready.
func (n *Node) addNames(p *pipeline, c *config.Config) {
	names, of := store.NewNames(store.NamesOptions{Limits: NamesLimits(n.bounded(c)), Logger: n.log}), *p
	p.serve.Names, p.sink = names, objectlog.Tee(names.Source(), p.sink)
	p.problems = func() []error { return append(of.problems(), names.Problems()...) }
	p.limited = func() map[store.Reason]int {
		limited := of.limited()
		maps.Copy(limited, names.Limited())
		return limited
	}
	p.reconfigure = func(c *config.Config) {
		of.reconfigure(c)
		names.Reconfigure(NamesLimits(n.bounded(c)))
	}
	p.close = func() {
		of.close()
		names.Close()
	}
}

// addLastKnown keeps the last known Nodes of a cluster, in front of all other sinks. Manifests need no such memory,
// because they are complete: a Node that they do not have does not exist.
func (n *Node) addLastKnown(p *pipeline, c *config.Config) {
	if !ofCluster(p.source) {
		return
	}
	o := lastknown.Options{Sink: p.sink, Node: p.origin.node, Needs: nodeNeeds(c), Logger: n.log, OnProblem: n.reportNode}
	if old := n.pipeline.Load(); old != nil && old.origin.node == p.origin.node {
		o.Previous = old.nodes
	}
	p.nodes = lastknown.New(o)
	p.sink = p.nodes
	rest := p.reconfigure
	p.reconfigure = func(c *config.Config) {
		rest(c)
		p.nodes.SetNeeds(nodeNeeds(c))
	}
}

// ofCluster reports whether a source has the objects of a cluster, from an API server or a relay.
func ofCluster(s model.Source) bool {
	_, isAPI := s.(model.WithEligibility)
	_, isRelay := s.(model.WithPeers)
	return isAPI || isRelay
}

// nodeNeeds returns what c relies on of the Node.
func nodeNeeds(c *config.Config) lastknown.Needs {
	return lastknown.Needs{Addresses: c.NodePorts().Primary && len(c.NodeIPOverride) == 0, PodCIDRs: c.LocalDetector().NodeCIDR}
}

// nodeProblems are the fields that Nodes lack, and what the configuration lacks to tell pods from other clients.
func (n *Node) nodeProblems() []error {
	p := n.pipeline.Load()
	if p.nodes == nil {
		return nil
	}
	problems := p.nodes.Problems()
	if err := n.undetected(n.config.Load(), p); err != nil {
		problems = append(problems, err)
	}
	return problems
}

// addDetection has what undetected finds logged: at once, when the Node is known, and when the configuration is another one.
func (n *Node) addDetection(p *pipeline, c *config.Config) {
	p.detection = &detectionWarning{n: n, p: p}
	p.detection.check(c)
	rest := p.reconfigure
	p.reconfigure = func(c *config.Config) {
		rest(c)
		p.detection.check(c)
	}
}

// detectionWarning logs what undetected finds.
type detectionWarning struct {
	n *Node
	p *pipeline

	mu     sync.Mutex // guards all below
	config *config.Config
	found  string // last, empty for nothing
}

// check logs a problem that undetected finds for a configuration, unless it is the previous problem. If c is nil, it
// uses the last configuration.
func (w *detectionWarning) check(c *config.Config) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c != nil {
		w.config = c
	}
	before := w.found
	w.found = ""
	if err := w.n.undetected(w.config, w.p); err != nil {
		w.found = err.Error()
	}
	if w.found != "" && w.found != before {
		w.n.log.Warn("pods are not told from clients outside of the cluster", "problem", w.found)
	}
}

// undetected is the problem of a configuration that recognizes no client as a pod, in all families or in the cluster's
// preferred family. It concerns clusters only: manifests that people try have no pods.
func (n *Node) undetected(c *config.Config, p *pipeline) error {
	if _, ok := p.source.(model.WithEligibility); !ok {
		return nil
	}
	d, what := c.LocalDetector(), "there are no cluster CIDRs"
	if d.Enabled() {
		if p.store == nil {
			return nil
		}
		addrs := p.store.Snapshot().Node().Addresses
		if len(addrs) == 0 || d.Detects(state.FamilyOf(addrs[0])) {
			return nil
		}
		what = fmt.Sprintf("there is no cluster CIDR of %v, the family of the Node's first address", state.FamilyOf(addrs[0]))
	}
	return fmt.Errorf("%s: %s, so pods count as clients from outside: externalTrafficPolicy Local does not lead them to all endpoints; "+
		"set it to the ranges of the cluster's pods, or choose another %s", n.fieldName("detectLocal.clusterCIDRs"), what, n.fieldName("detectLocalMode"))
}

// countNodeProblems returns how many Nodes lack fields.
func (n *Node) countNodeProblems() int {
	if p := n.pipeline.Load(); p != nil && p.nodes != nil {
		return p.nodes.Count()
	}
	return 0
}

// followStates has the states that are made elsewhere.
func (n *Node) followStates(c *config.Config) *pipeline {
	s := n.o.States
	agreed := &agreement{Feed: s.Feed, log: n.log, fieldName: n.fieldName, config: c}
	p := &pipeline{follow: s.Run, name: s.Name, feed: agreed, latest: s.Latest, close: func() {}}
	n.warnResets(c)
	p.reconfigure = func(c *config.Config) {
		n.warnResets(c)
		agreed.set(c) // first: states that are made by c are compared with it
		if s.Reconfigure != nil {
			s.Reconfigure(c)
		}
	}
	if p.name == nil {
		p.name = func() string { return "" }
	}
	p.problems = agreed.problems
	p.limited = func() map[store.Reason]int { return nil }
	p.nodeHealth = func() store.NodeHealth { return store.NodeHealth{} }
	return p
}

// warnResets warns if c wants resets that need states made here.
func (n *Node) warnResets(c *config.Config) {
	if c.ResetConnectionsToRemovedEndpoints {
		n.log.Warn("connections to removed endpoints are not reset where states come over the API, which does not carry the endpoints that terminate and still serve",
			"field", n.fieldName("resetConnectionsToRemovedEndpoints"), "remedy", "leave it out here")
	}
}

// sourceProblems returns the problems of the pipeline's source.
func (n *Node) sourceProblems() []error {
	if n.o.States != nil {
		if n.o.States.Problems == nil {
			return nil
		}
		return n.o.States.Problems()
	}
	if s, ok := n.pipeline.Load().source.(model.WithProblems); ok {
		return s.Problems()
	}
	return nil
}

// start lets the pipeline run.
func (p *pipeline) start(n *Node, c *config.Config) {
	p.stopSource = n.group.start(func(ctx context.Context) error {
		switch {
		case p.source != nil:
			return p.source.Run(ctx, n.registry.CountChanges(p.sink, func() state.Revision {
				newest, _ := p.latest()
				return newest
			}))
		case p.follow != nil:
			return p.follow(ctx)
		}
		return nil
	})
	if p.own != nil {
		p.stopOwn = n.group.start(p.own.run)
	}
	p.startDataplane(n, c)
	p.startAPI(n, c)
}

func (p *pipeline) startDataplane(n *Node, c *config.Config) {
	if n.dataplane == nil {
		p.stopDataplane = n.group.start(func(ctx context.Context) error { return p.answerPorts(ctx, n) })
		return
	}
	o := settingsOf(c)
	p.stopDataplane = n.group.start(func(ctx context.Context) error {
		err := n.reconciler.Run(ctx, p.feed, backend.RunOptions{
			Logger: n.log, VerifyPeriod: o.verify, MinInterval: o.interval, OnAttempt: n.attempted, OnStatus: n.statusChanged,
		})
		if n.group.ctx.Err() != nil {
			return nil // at the end of the node, what keeps the feed may close it first
		}
		return err
	})
}

// answerPorts has health check node ports answered where there is no dataplane, as soon as a state is published.
func (p *pipeline) answerPorts(ctx context.Context, n *Node) error {
	if n.ports == nil {
		return nil
	}
	for after := state.Revision(0); ; {
		u, err := p.feed.Next(ctx, after)
		if err != nil {
			return nil // the end of the pipeline
		}
		n.ports.attempted(backend.Attempt{Update: u})
		after = u.Revision
	}
}

// stop ends a pipeline that is started. The programmed rules stay.
func (p *pipeline) stop() {
	p.stopSource()
	if p.stopOwn != nil {
		p.stopOwn()
	}
	p.stopAPI()
	p.stopDataplane()
	p.close()
}

// adapt makes a pipeline go on with another configuration of the same origin. The objects and the contents of the
// kernel stay. Only differences are written: the differences of routing and of the dataplane in one update.
func (p *pipeline) adapt(n *Node, was, now *config.Config) error {
	replace := n.dataplane != nil && (n.o.Dataplane != nil || !reflect.DeepEqual(settingsOf(was), settingsOf(now)))
	if replace {
		p.stopDataplane()
		if err := n.reconfigureDataplane(p, now); err != nil {
			p.startDataplane(n, was)
			return err
		}
	}
	p.reconfigure(now)
	if replace {
		p.startDataplane(n, now)
	}
	if !reflect.DeepEqual(was.API, now.API) {
		p.stopAPI()
		p.startAPI(n, now)
	}
	return nil
}

// completion is a sink that calls before and complete when its source is complete.
type completion struct {
	model.Sink
	before, complete func()
}

// Complete implements [model.Sink].
func (c *completion) Complete() {
	c.before()
	c.Sink.Complete()
	c.complete()
}

// nodeIPs is a sink that gives this Node the addresses that the configuration says count. Other Nodes keep their addresses.
type nodeIPs struct {
	model.Sink
	name  string
	fault func(error) // is called if they are not what ipFamilyPolicy demands

	mu     sync.Mutex // guards all below
	config *config.Config
	node   *model.Node // as it was delivered last, nil if there is none
}

// Update implements [model.Sink].
func (s *nodeIPs) Update(set []model.Object, deleted []model.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range deleted {
		if ref.Kind == model.KindNode && ref.Name == s.name {
			s.node = nil
		}
	}
	for i, o := range set {
		if n, ok := o.(*model.Node); ok && n.Name == s.name {
			s.node = n
			set[i] = s.decided()
		}
	}
	s.Sink.Update(set, deleted)
}

// set changes the configuration, and the addresses also of the Node that has been delivered.
func (s *nodeIPs) set(c *config.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.config
	s.config = c
	if s.node == nil || slices.Equal(before.NodeIPOverride, c.NodeIPOverride) && before.IPFamilyPolicy == c.IPFamilyPolicy {
		return
	}
	s.Sink.Update([]model.Object{s.decided()}, nil)
}

// decided returns the Node with the addresses that count. The caller holds mu.
func (s *nodeIPs) decided() *model.Node {
	n := *s.node
	n.Addresses = s.config.NodeIPs(n.Addresses)
	if err := s.config.CheckNodeIPs(n.Addresses); err != nil {
		s.fault(err)
	}
	return &n
}
