//go:build linux

package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// NodeName is the node of a synthetic cluster that is measured. It has one in fifty of the endpoints.
const NodeName = "node-00"

const (
	clusterNodes = 50
	// maxSliceEndpoints is how many endpoints Kubernetes puts into one slice by default.
	maxSliceEndpoints = 100
)

// Cluster returns the objects of a synthetic cluster: one node, a service range, and services of type ClusterIP with one TCP
// port. Their endpoints are ready, and spread evenly over the cluster's nodes. The same arguments always give the same cluster.
// There is room for 1,000,000 services and 8,000,000 endpoints.
func Cluster(services, endpoints int) []model.Object {
	return scaledCluster{services: services, endpoints: endpoints}.objects()
}

// changingCluster is a cluster whose endpoints are replaced one after the other.
type changingCluster struct {
	objects []model.Object
	slices  []*model.EndpointSlice
	total   int // endpoints at first
	changes int
}

func newChangingCluster(services, endpoints int) *changingCluster {
	c := &changingCluster{objects: Cluster(services, endpoints), total: services * endpoints}
	for _, obj := range c.objects {
		if s, ok := obj.(*model.EndpointSlice); ok {
			c.slices = append(c.slices, s)
		}
	}
	return c
}

// change replaces the first endpoint of slice i by one that no slice ever had.
func (c *changingCluster) change(i int) *model.EndpointSlice {
	s := *c.slices[i]
	s.Endpoints = append([]model.Endpoint{s.Endpoints[0]}, s.Endpoints[1:]...)
	s.Endpoints[0].Addr = nth(ranges4.pods, 1+c.total+c.changes)
	c.slices[i] = &s
	c.changes++
	return &s
}

// newStore returns a store with objects, which are all that there are. The store is of [NodeName] unless c has another node.
func newStore(c brain.Config, objects ...model.Object) (*store.Store, model.Sink) {
	c.NodeName = cmp.Or(c.NodeName, NodeName)
	s := store.New(store.Options{Brain: c})
	sink := s.Source("bench")
	sink.Update(objects, nil)
	sink.Complete()
	return s, sink
}

// stateOf returns what a store makes of objects.
func stateOf(ctx context.Context, c brain.Config, objects ...model.Object) (*state.Update, error) {
	s, _ := newStore(c, objects...)
	defer s.Close()
	return s.Next(ctx, 0)
}

// nodeNames are shared by all endpoints, as a source of objects would share them.
var nodeNames = func() (names [clusterNodes]string) {
	for i := range names {
		names[i] = fmt.Sprintf("node-%02d", i)
	}
	return names
}()

// ranges are the addresses of a cluster in one family.
type ranges struct {
	node                     netip.Addr
	nodePods, services, pods netip.Prefix
}

var (
	ranges4 = ranges{
		node:     netip.MustParseAddr("192.0.2.1"),
		nodePods: netip.MustParsePrefix("10.128.0.0/24"),
		services: netip.MustParsePrefix("10.96.0.0/12"),
		pods:     netip.MustParsePrefix("10.128.0.0/9"),
	}
	ranges6 = ranges{
		node:     netip.MustParseAddr("2001:db8::1"),
		nodePods: netip.MustParsePrefix("fd00:128::/112"),
		services: netip.MustParsePrefix("fd00:96::/108"),
		pods:     netip.MustParsePrefix("fd00:128::/104"),
	}
)

func rangesOf(f state.Family) *ranges {
	if f == state.IPv6 {
		return &ranges6
	}
	return &ranges4
}

// nth returns the address at distance n from the start of a range.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	low := b[len(b)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+uint32(n))
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
