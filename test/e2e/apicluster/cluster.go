package apicluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// deliveryTimeout is how long a change may take from the API server to the sink.
	deliveryTimeout = 20 * time.Second
	// ownCIDR is the name of the service CIDR that the API server makes by itself; tests that speak of it mean their own.
	ownCIDR = "kubernetes"
)

// marker names the service and the slice that are changed last, to see that all before them has arrived.
var marker = state.ServiceName{Namespace: "e2e-marker", Name: "marker"}

// Cluster is an API server as one node sees it: objects go in by Update, and come out of the source.
type Cluster struct {
	client *Client
	source model.Source
	node   string
	marker netip.Addr

	mu       sync.Mutex
	marked   uint16
	complete bool
	held     map[model.Ref]model.Object // what the sink has of the kinds that are waited for
	changed  chan struct{}              // closed and replaced when held changes
}

// NewCluster returns a cluster. The source delivers what the API server of client holds to the named node; markerIP is a
// cluster IP that nothing else uses.
func NewCluster(client *Client, source model.Source, node string, markerIP netip.Addr) *Cluster {
	return &Cluster{client: client, source: source, node: node, marker: markerIP, held: map[model.Ref]model.Object{}, changed: make(chan struct{})}
}

// Run delivers what the API server holds.
func (c *Cluster) Run(ctx context.Context, sink model.Sink) error {
	return c.source.Run(ctx, &tap{c, sink})
}

// Update makes changes, and returns when the sink of Run has all of them.
func (c *Cluster) Update(set []model.Object, deleted []model.Ref) error {
	ctx, cancel := context.WithTimeout(context.Background(), deliveryTimeout)
	defer cancel()
	for _, ref := range deleted {
		if err := c.client.Delete(ctx, ref); err != nil {
			return err
		}
	}
	var awaited []model.Object
	for _, obj := range set {
		if cidr, ok := obj.(*model.ServiceCIDR); ok && cidr.Name == ownCIDR {
			obj = &model.ServiceCIDR{Name: "e2e", CIDRs: cidr.CIDRs}
		}
		made, err := c.client.Set(ctx, obj)
		if err != nil {
			return err
		}
		switch made.(type) {
		case *model.Node, *model.ServiceCIDR:
			awaited = append(awaited, made)
		}
	}
	marks, err := c.mark(ctx)
	if err != nil {
		return err
	}
	return c.await(ctx, append(awaited, marks...))
}

// mark changes the markers.
func (c *Cluster) mark(ctx context.Context) ([]model.Object, error) {
	c.marked++
	service := &model.Service{
		Name: marker, ClusterIPs: []netip.Addr{c.marker}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: c.marked}},
	}
	slice := &model.EndpointSlice{
		Namespace: marker.Namespace, Name: marker.Name, Service: marker.Name, Family: state.IPv4,
		Ports: []model.EndpointPort{{Protocol: state.TCP, Port: c.marked}},
	}
	var marks []model.Object
	for _, obj := range []model.Object{service, slice} {
		made, err := c.client.Set(ctx, obj)
		if err != nil {
			return nil, err
		}
		marks = append(marks, made)
	}
	return marks, nil
}

// await waits until the sink has the objects as they are.
func (c *Cluster) await(ctx context.Context, objects []model.Object) error {
	for {
		c.mu.Lock()
		missing := slices.IndexFunc(objects, func(o model.Object) bool { return !c.has(o) })
		complete, changed := c.complete, c.changed
		c.mu.Unlock()
		if missing < 0 && complete {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if missing < 0 {
				return fmt.Errorf("the source is not complete after %v", deliveryTimeout)
			}
			return fmt.Errorf("%v has not been delivered after %v", objects[missing].Ref(), deliveryTimeout)
		}
	}
}

// has reports whether the sink has an object in the form that matters. Sources need not deliver other nodes.
func (c *Cluster) has(obj model.Object) bool {
	switch want := obj.(type) {
	case *model.Service:
		got, ok := c.held[obj.Ref()].(*model.Service)
		return ok && slices.Equal(got.Ports, want.Ports)
	case *model.EndpointSlice:
		got, ok := c.held[obj.Ref()].(*model.EndpointSlice)
		return ok && slices.Equal(got.Ports, want.Ports)
	case *model.Node:
		got, ok := c.held[obj.Ref()].(*model.Node)
		if want.Name != c.node { // which need not be delivered
			return !ok || got.Health == want.Health
		}
		return ok && got.Health == want.Health && got.Zone == want.Zone && slices.Equal(got.Addresses, want.Addresses)
	case *model.ServiceCIDR:
		got, ok := c.held[obj.Ref()].(*model.ServiceCIDR)
		return ok && slices.Equal(got.CIDRs, want.CIDRs)
	}
	return true
}

// tap is a sink that notes what passes.
type tap struct {
	cluster *Cluster
	sink    model.Sink
}

func (t *tap) Update(set []model.Object, deleted []model.Ref) {
	t.sink.Update(set, deleted)
	t.cluster.note(func(c *Cluster) {
		for _, obj := range set {
			c.held[obj.Ref()] = obj
		}
		for _, ref := range deleted {
			delete(c.held, ref)
		}
	})
}

func (t *tap) Complete() {
	t.sink.Complete()
	t.cluster.note(func(c *Cluster) { c.complete = true })
}

func (c *Cluster) note(change func(*Cluster)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
	close(c.changed)
	c.changed = make(chan struct{})
}
