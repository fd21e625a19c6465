//go:build linux

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/topology"
)

// applyTimeout is how long a dataplane may take for one change.
const applyTimeout = 20 * time.Second

// cluster is a lab whose node runs the dataplane under test, fed by the brain and the store.
type cluster struct {
	ctx       context.Context // ends the waiting for the dataplane
	dataplane Dataplane
	settings  Settings
	lab       *topology.Lab
	recorder  *topology.Recorder // of the node
	output    *tail              // of the dataplane's processes
	// partEntries is as in backend.RunOptions.
	partEntries int
	config      brain.Config // of the store
	inEdge      []string     // names of the nodes that take part in the edge
	store       *store.Store
	api         API
	endSource   context.CancelFunc
	source      chan error // what the end of the API's Run returned

	follower *follower       // nil if the dataplane does not follow the API
	backend  backend.Backend // nil if it does
	stop     context.CancelFunc
	stopped  chan error

	mu      sync.Mutex
	unknown map[state.ServiceName]bool   // services that are served with a value that no dataplane knows, true once one was sent
	refused map[state.ServiceName]uint32 // weights of the share that is refused
	status  backend.Status
	ended   error         // why the dataplane has ended by itself
	changed chan struct{} // closed and replaced when one of the two above changes
}

// clusterOptions are the node's configuration.
type clusterOptions struct {
	lab           topology.Options
	settings      Settings
	detector      state.LocalDetector
	nodePorts     state.NodePortAddresses
	masqueradeAll bool
	nodeHealth    brain.NodeHealth
	partEntries   int // as in backend.RunOptions
	// inEdge are the names of the nodes that take part in the edge. Default: the node under test. Only if the dataplane has one.
	inEdge []string
}

// newCluster starts a cluster that has nodes, but no services. Once ctx ends, it waits for its dataplane no longer, and goes on until it is closed.
func newCluster(ctx context.Context, d Dataplane, o clusterOptions) (*cluster, error) {
	l, err := topology.New(ctx, o.lab)
	if err != nil {
		return nil, err
	}
	output := new(tail)
	o.settings.Output = output
	if o.settings.Logger == nil {
		o.settings.Logger = slog.New(slog.DiscardHandler)
	}
	o.settings.OnNamespace = func(fn func(isNode bool) error) error {
		return l.OnHost(func(h *topology.Host) error { return h.Do(func() error { return fn(h == l.Node()) }) })
	}
	recorder, err := l.Node().Record()
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	c := &cluster{ctx: ctx, dataplane: d, settings: o.settings, lab: l, recorder: recorder, output: output, partEntries: o.partEntries, changed: make(chan struct{})}
	c.config = brain.Config{NodeName: l.Node().Name, LocalDetector: o.detector, NodePorts: o.nodePorts, MasqueradeAll: o.masqueradeAll, NodeHealth: o.nodeHealth}
	if d.Edge {
		c.inEdge = o.inEdge
		if c.inEdge == nil {
			c.inEdge = []string{l.Node().Name}
		}
		c.config.Edge = brain.Edge{Enabled: true, Kinds: edgeKinds}
	}
	c.store = store.New(store.Options{Brain: c.config, Logger: o.settings.Logger})
	if err := c.follow(d.NewAPI); err != nil {
		return nil, errors.Join(err, c.closeLab())
	}
	if d.Follow != nil {
		if c.follower, err = newFollower(c); err != nil {
			return nil, errors.Join(err, c.leave(), c.closeLab())
		}
	}
	if err := c.start(); err != nil {
		return nil, errors.Join(err, c.leave(), c.closeLab())
	}
	return c, nil
}

// follow makes the cluster's API and lets the store follow it.
func (c *cluster) follow(newAPI func(node string) (API, error)) error {
	sink := c.store.Source("test")
	if newAPI == nil {
		c.api = direct{sink}
		sink.Complete()
	} else {
		var err error
		if c.api, err = newAPI(c.lab.Node().Name); err != nil {
			return fmt.Errorf("make the API: %w", err)
		}
	}
	var ctx context.Context
	ctx, c.endSource = context.WithCancel(context.Background())
	c.source = make(chan error, 1)
	go func() { c.source <- c.api.Run(ctx, sink) }()
	return nil
}

// leave ends the API.
func (c *cluster) leave() error {
	c.endSource()
	return errors.Join(<-c.source, c.api.Close())
}

// direct is the API of a cluster whose objects go straight into the store. Its sink is complete from the start.
type direct struct{ sink model.Sink }

func (direct) Run(ctx context.Context, _ model.Sink) error {
	<-ctx.Done()
	return nil
}

func (d direct) Update(set []model.Object, deleted []model.Ref) error {
	d.sink.Update(set, deleted)
	return nil
}

func (direct) Close() error { return nil }

// nodes are the objects that describe the lab's nodes, which are ready, and its service CIDRs.
func (c *cluster) nodes(zone string) []model.Object {
	o := c.lab.Options()
	return []model.Object{
		&model.Node{Name: c.lab.Node().Name, Zone: zone, Addresses: slices.Clone(c.lab.Node().Addrs), PodCIDRs: o.NodePodCIDRs},
		&model.Node{Name: c.lab.OtherNode().Name, Zone: "other-zone", Addresses: slices.Clone(c.lab.OtherNode().Addrs), PodCIDRs: o.OtherPodCIDRs},
		&model.ServiceCIDR{Name: "kubernetes", CIDRs: o.ServiceCIDRs},
	}
}

// start makes the dataplane and lets it follow the store.
func (c *cluster) start() error {
	if c.follower != nil {
		c.follower.start(c)
		return nil
	}
	err := c.lab.Node().Do(func() (err error) { c.backend, err = c.dataplane.New(c.settings); return err })
	if err != nil {
		return fmt.Errorf("make dataplane %s: %w", c.dataplane.Name, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.stopped = cancel, make(chan error, 1)
	c.setStatus(backend.Status{})
	go func() {
		c.stopped <- backend.Run(ctx, refusingFeed{c.store, c}, c.backend, backend.RunOptions{
			Logger:      c.settings.Logger,
			PartEntries: c.partEntries,
			OnStatus:    c.setStatus,
		})
	}()
	return nil
}

// halt ends the dataplane as the end of the process would. The programmed rules stay.
func (c *cluster) halt() error {
	if c.stop == nil {
		return nil
	}
	c.stop()
	err := <-c.stopped
	c.stop = nil
	if closer, ok := c.backend.(io.Closer); ok {
		err = errors.Join(err, closer.Close())
	}
	return err
}

// restart replaces the dataplane by a new one, as an upgrade would.
func (c *cluster) restart() error {
	if err := c.halt(); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	return c.wait()
}

func (c *cluster) close() error {
	err := errors.Join(c.halt(), c.leave())
	if c.follower != nil {
		err = errors.Join(err, c.follower.close())
	}
	c.store.Close()
	return errors.Join(err, c.closeLab())
}

func (c *cluster) closeLab() error { return errors.Join(c.recorder.Close(), c.lab.Close()) }

// update changes objects and waits until the dataplane shows them.
func (c *cluster) update(set []model.Object, deleted []model.Ref) error {
	if err := c.api.Update(c.withEdge(set), deleted); err != nil {
		return err
	}
	return c.wait()
}

// configure changes the configuration of the node and waits until the dataplane shows it.
func (c *cluster) configure(config brain.Config) error {
	c.config = config
	c.store.Reconfigure(config, store.Budgets{})
	return c.wait()
}

// wait returns once the dataplane shows the latest state of the store. It does not wait for a dataplane that is halted.
func (c *cluster) wait() error {
	if c.stop == nil {
		return nil
	}
	timeout := time.After(applyTimeout)
	want := c.store.Snapshot().Revision()
	for {
		c.mu.Lock()
		status, changed, ended := c.status, c.changed, c.ended
		c.mu.Unlock()
		if ended != nil {
			return fmt.Errorf("dataplane %s has ended: %w", c.dataplane.Name, ended)
		}
		if status.Applied >= want {
			return c.failures(status.Failed)
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-timeout:
			return notApplied(want, status, c.dataplane.Follow != nil)
		}
	}
}

// notApplied is the error of a dataplane that has not applied a revision in time. A dataplane that follows the API reports its status itself.
func notApplied(want state.Revision, status backend.Status, follows bool) error {
	err := fmt.Errorf("revision %d is not applied after %v", want, applyTimeout)
	switch {
	case follows && status.Failed == nil:
		return fmt.Errorf("%w: no status was received: the dataplane must report its position in WatchRequest.status", err)
	case status.Err != nil:
		return fmt.Errorf("%w: the dataplane is at revision %d: %w", err, status.Applied, status.Err)
	default:
		return fmt.Errorf("%w: the dataplane is at revision %d", err, status.Applied)
	}
}

func (c *cluster) setStatus(status backend.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
	c.announce()
}

func (c *cluster) setEnded(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = err
	c.announce()
}

// announce wakes up who waits for the status. The caller holds mu.
func (c *cluster) announce() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// failures joins those that are not meant, and those that are missing.
func (c *cluster) failures(failed map[state.ServiceName]error) error {
	var errs []error
	for name, err := range failed {
		if !c.isUnknown(name) && !c.lacksPort(name) {
			errs = append(errs, fmt.Errorf("service %v: %w", name, err))
		}
	}
	for s := range c.store.Snapshot().Services() {
		if c.lacksPort(s.Name) && failed[s.Name] == nil {
			errs = append(errs, fmt.Errorf("service %v has a port that is not of TCP, and the dataplane, which claims the limit %s, does not report it as failed", s.Name, TCPOnly))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, sent := range c.unknown {
		if sent && failed[name] == nil && c.store.Snapshot().Get(name) != nil {
			errs = append(errs, fmt.Errorf("service %v has a value that no dataplane knows (verdict %d), and the dataplane does not report it in Status.failed",
				name, unknownVerdict))
		}
	}
	return errors.Join(errs...)
}

// refuse has changes of a service from now on served with a weight of connections that are refused.
func (c *cluster) refuse(name state.ServiceName, weight uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil {
		c.refused = map[state.ServiceName]uint32{}
	}
	c.refused[name] = weight
}

// refusingFeed has the states of a cluster, and the shares that are refused.
type refusingFeed struct {
	state.Feed
	cluster *cluster
}

// Next implements [state.Feed].
func (f refusingFeed) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	u, err := f.Feed.Next(ctx, after)
	if err != nil {
		return nil, err
	}
	f.cluster.mu.Lock()
	defer f.cluster.mu.Unlock()
	return changed(u, func(s *state.Service) bool { return f.cluster.refused[s.Name] > 0 }, func(s *state.Service) {
		for i := range s.Ports {
			p := &s.Ports[i]
			if p.Edge != nil {
				p.Edge = new(*p.Edge) // others have it, too
			}
			for _, r := range p.Routes() {
				if r.Weighted() {
					r.Refused = f.cluster.refused[s.Name]
				}
			}
			if p.Edge != nil && p.Edge.Local.Weighted() {
				p.Edge.Local.Refused = f.cluster.refused[s.Name]
			}
		}
	}), nil
}

// changed returns u with some records changed. do gets a copy of each, with ports of its own.
func changed(u *state.Update, which func(*state.Service) bool, do func(*state.Service)) *state.Update {
	next := *u
	next.Changed = slices.Clone(u.Changed)
	for i, s := range next.Changed {
		if !which(s) {
			continue
		}
		with := *s
		with.Ports = slices.Clone(s.Ports)
		do(&with)
		next.Changed[i] = &with
	}
	return &next
}

// mayProgram reports whether the dataplane may program a feature of records, and whether it may leave the feature out. Only one is so, unless the
// dataplane follows the API: it tells the server alone.
func (c *cluster) mayProgram(feature state.Features) (with, without bool) {
	if c.follower != nil {
		return true, true
	}
	with = backend.FeaturesOf(c.backend)&feature != 0
	return with, !with
}

// programs reports whether the dataplane is known to program a feature of records.
func (c *cluster) programs(feature state.Features) bool {
	_, without := c.mayProgram(feature)
	return !without
}

// makeUnknown has what changes of a service from now on served with a value that no dataplane knows.
func (c *cluster) makeUnknown(name state.ServiceName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown == nil {
		c.unknown = make(map[state.ServiceName]bool)
	}
	c.unknown[name] = false
}

func (c *cluster) isUnknown(name state.ServiceName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, is := c.unknown[name]
	return is
}

// noteUnknown notes that the dataplane gets a value that it does not know, and returns whether it is to get one.
func (c *cluster) noteUnknown(name state.ServiceName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, is := c.unknown[name]; !is {
		return false
	}
	c.unknown[name] = true
	return true
}
