package store

import (
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source"
	"github.com/switchyard-net/switchyard/state"
)

// ClusterOptions is what a [Cluster] needs.
type ClusterOptions struct {
	// Brain decides about routing on all nodes. Its NodeName does not count.
	Brain brain.Config
	// Logger gets conflicts between services. Default: nothing is logged.
	Logger *slog.Logger
}

// Cluster turns objects into the published states of every node. For each node it says what a [Store] of that node would
// say. All methods may be called concurrently.
type Cluster struct {
	opts ClusterOptions

	mu       sync.Mutex // guards all below
	closed   bool
	complete bool
	objects  map[model.Ref]model.Object
	stores   map[string]nodeStore
	waiting  int // sources that are not complete
}

type nodeStore struct {
	*Store
	sink source.Sink
}

// NewCluster returns an empty cluster. It publishes nothing before it has a source and all its sources are complete.
func NewCluster(o ClusterOptions) *Cluster {
	return &Cluster{opts: o, objects: make(map[model.Ref]model.Object), stores: make(map[string]nodeStore)}
}

// Source registers a source and returns the sink that it delivers to, as [Store.Source] does.
func (c *Cluster) Source(string) source.Sink {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting++
	return &clusterSink{cluster: c}
}

// Node returns the states of a node, by its name. A node without an object has no zone, no addresses, and only the endpoints
// that name it. Revisions are those of the whole cluster: the updates of one node may skip some. After Close its Next fails
// with ErrClosed.
func (c *Cluster) Node(name string) state.Feed {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.stores[name]
	if !ok {
		cfg := c.opts.Brain
		cfg.NodeName = name
		s.Store = New(Options{Brain: cfg, Logger: c.opts.Logger})
		s.sink = s.Store.Source("cluster")
		s.sink.Update(slices.Collect(maps.Values(c.objects)), nil)
		if c.complete {
			s.sink.Complete()
		}
		if c.closed {
			s.Close()
		}
		c.stores[name] = s
	}
	return s.Store
}

// Close ends all calls of Next of all nodes. What sources still deliver is ignored.
func (c *Cluster) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, s := range c.stores {
		s.Close()
	}
}

type clusterSink struct {
	cluster  *Cluster
	complete bool
}

// Update implements [source.Sink].
func (k *clusterSink) Update(set []model.Object, deleted []model.Ref) {
	c := k.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ref := range deleted {
		delete(c.objects, ref)
	}
	for _, obj := range set {
		c.objects[obj.Ref()] = obj
	}
	for _, s := range c.stores {
		s.sink.Update(set, deleted)
	}
}

// Complete implements [source.Sink].
func (k *clusterSink) Complete() {
	c := k.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.complete {
		return
	}
	k.complete = true
	c.waiting--
	if c.waiting > 0 {
		return
	}
	c.complete = true
	for _, s := range c.stores {
		s.sink.Complete()
	}
}
