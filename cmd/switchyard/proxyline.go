package main

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// line is the way of a change through the process, from the API server to the dataplane, which is the daemon's. Another API server or
// node takes another line.
type line struct {
	name    string // of the node
	source  *kube.Source
	store   *store.Store
	nodeIPs *nodeIPs

	stopSource, stopDataplane, stopAPI func()
}

// origin is what a line cannot change: where its objects come from, and for whom.
type origin struct {
	node    string
	api     kube.Connection
	refresh time.Duration
}

func (d *daemon) origin(c *config.Config) (origin, error) {
	name, err := nodeName(c)
	return origin{name, kube.Connection{
		Kubeconfig: c.ClientConnection.Kubeconfig, Master: d.flags.master,
		AcceptContentTypes: c.ClientConnection.AcceptContentTypes, ContentType: c.ClientConnection.ContentType,
		QPS: c.ClientConnection.QPS, Burst: int(c.ClientConnection.Burst),
	}, c.ConfigSyncPeriod.Duration}, err
}

// brainConfig returns what c says about routing. The node's name is left to the caller.
func brainConfig(c *config.Config) brain.Config {
	detector := c.LocalDetector()
	return brain.Config{
		MasqueradeAll: c.Linux.MasqueradeAll,
		DetectLocal:   brain.Families{IPv4: detector.Detects(state.IPv4), IPv6: detector.Detects(state.IPv6)},
		ExternalIPs:   c.Services.AllowedExternalIPs, NodeExternalIPs: c.Services.NodeExternalIPs, MaxEntries: c.Services.MaxEntries,
	}
}

// budgets returns what c says about services together.
func budgets(s *config.Services) store.Budgets {
	return store.Budgets{PerNamespace: s.MaxEntriesPerNamespace, PerNode: s.MaxEntriesPerNode}
}

// dataplane is what the configuration says about a dataplane and its reconciler.
type dataplane struct {
	detector  backend.LocalDetector
	nodePorts backend.NodePortAddresses
	bit       int
	clients   int
	verify    time.Duration
	interval  time.Duration
}

func dataplaneOf(c *config.Config) dataplane {
	return dataplane{
		c.LocalDetector(), c.NodePorts(), int(c.NFTables.MasqueradeBit), int(c.NFTables.MaxAffinityClients), c.SyncPeriod.Duration,
		c.CommitInterval(),
	}
}

// options returns what the dataplane is opened with, and configured anew.
func (d *daemon) options(c *config.Config) nftables.Options {
	of := dataplaneOf(c)
	return nftables.Options{
		Logger: d.log, LocalDetector: of.detector, NodePortAddresses: of.nodePorts, MasqueradeBit: &of.bit,
		MaxAffinityClients: of.clients, OnFlowsCut: d.registry.Conntrack, TakeOver: d.flags.takeOver, Program: programName(),
	}
}

// newLine makes a line without starting it.
func (d *daemon) newLine(c *config.Config, o origin) (*line, error) {
	api, renew, err := o.api.Follow()
	if err != nil {
		return nil, err
	}
	l := &line{name: o.node}
	l.source, err = kube.New(kube.Options{Config: api, Renew: renew, NodeName: o.node, ResyncPeriod: o.refresh, Logger: d.log})
	if err != nil {
		return nil, err
	}
	b := brainConfig(c)
	b.NodeName = o.node
	l.store = store.New(store.Options{Logger: d.log, Brain: b, Budgets: budgets(&c.Services), OnProblem: d.reportProblem})
	l.nodeIPs = &nodeIPs{Sink: l.store.Source("kube"), config: c, fault: d.nodeIPFault}
	return l, nil
}

// start lets the line run as a part of g.
func (l *line) start(g *group, d *daemon, c *config.Config) {
	sink := d.registry.CountChanges(l.nodeIPs, func() state.Revision { return l.store.Snapshot().Revision() })
	l.stopSource = g.start(func(ctx context.Context) error { return l.source.Run(ctx, sink) })
	l.startDataplane(g, d, c)
	l.startAPI(g, d, c)
}

func (l *line) startDataplane(g *group, d *daemon, c *config.Config) {
	of := dataplaneOf(c)
	l.stopDataplane = g.start(func(ctx context.Context) error {
		return backend.Run(ctx, l.store, d.backend, backend.RunOptions{
			Logger: d.log, VerifyPeriod: of.verify, MinInterval: of.interval, OnAttempt: d.attempted, OnStatus: d.status,
		})
	})
}

// stop ends a line that is started. What is programmed stays.
func (l *line) stop() {
	l.stopSource()
	l.stopAPI()
	l.stopDataplane()
	l.store.Close()
}

// adapt makes a line that was started with a configuration go on with another that has the same origin. The objects stay as they
// are, and the kernel keeps what it holds; only differences are written, those of routing and of the dataplane at once.
func (l *line) adapt(g *group, d *daemon, was, now *config.Config) error {
	replace := !reflect.DeepEqual(dataplaneOf(was), dataplaneOf(now))
	if replace {
		l.stopDataplane()
		if err := d.backend.Reconfigure(d.options(now)); err != nil {
			l.startDataplane(g, d, was)
			return err
		}
	}
	l.store.Reconfigure(brainConfig(now), budgets(&now.Services))
	l.nodeIPs.set(now)
	if replace {
		l.startDataplane(g, d, now)
	}
	if !reflect.DeepEqual(was.API, now.API) {
		l.stopAPI()
		l.startAPI(g, d, now)
	}
	return nil
}

// nodeIPs is a sink that gives the Node the addresses that the configuration says count.
type nodeIPs struct {
	source.Sink
	fault func(error) // is told if they are not what ipFamilyPolicy demands

	mu     sync.Mutex // guards all below
	config *config.Config
	node   *model.Node // as it was delivered last, nil if there is none
}

// Update implements [source.Sink].
func (s *nodeIPs) Update(set []model.Object, deleted []model.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range deleted {
		if ref.Kind == model.KindNode {
			s.node = nil
		}
	}
	for i, o := range set {
		if n, ok := o.(*model.Node); ok {
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
