package bench

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/internal/clusterserver"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// relayCluster is the cluster of a relay's benchmark: it hands out its objects, in place of an API server, and knows what state
// each node must have.
type relayCluster struct {
	services, endpoints, nodes int
	changing                   []*model.EndpointSlice // of the n-th service the n-th
	changes                    int                    // up to now
	sink                       model.Sink
	states                     *store.Cluster
	objects                    *objectlog.Feed
	out                        traffic
	api                        *servedAPI
}

func newRelayCluster(ctx context.Context, services, endpoints, nodes int) (*relayCluster, error) {
	if services < 1 || endpoints < 1 || endpoints > maxSliceEndpoints {
		return nil, fmt.Errorf("a relay is measured with one service at least, and with 1 to %d endpoints of each", maxSliceEndpoints)
	}
	all := spreadOver(Cluster(services, endpoints), nodes)
	c := &relayCluster{
		services: services, endpoints: endpoints, nodes: nodes, changing: slicesIn(all),
		states: store.NewCluster(store.ClusterOptions{}), objects: objectlog.New(objectlog.Options{}),
	}
	c.sink = objectlog.Tee(c.states.Source("bench"), c.objects.Source("bench"))
	c.sink.Update(all, nil)
	c.sink.Complete()
	var err error
	c.api, err = serveAPI(ctx, server.Options{
		Feed:     func(string) (state.Feed, error) { return nil, server.ErrNoNode },
		Register: func(r grpc.ServiceRegistrar) { clusterserver.Register(r, clusterserver.Options{Feed: c.objects}) },
	}, &c.out)
	return c, err
}

func (c *relayCluster) close() {
	c.objects.Close()
	c.states.Close()
	c.api.close()
}

// next returns what a node has of the next change, and makes that.
func (c *relayCluster) next() (awaited, func() error) {
	n := c.changes
	c.changes++
	i := n % len(c.changing)
	changed := withoutFirst(c.changing[i], n, c.services*c.endpoints)
	c.changing[i] = changed
	addr := changed.Endpoints[0].Addr.AsSlice()
	return awaited{Service: i, Bytes: append([]byte{byte(len(addr))}, addr...)}, func() error {
		c.sink.Update([]model.Object{changed}, nil)
		return nil
	}
}

// digests returns the digest of what the state of each of the first n nodes must be, as it follows from the objects in this process.
func (c *relayCluster) digests(ctx context.Context, n int) ([]uint32, error) {
	sums := make(map[*state.Service]uint32)
	digests := make([]uint32, n)
	table := make([]uint32, c.services)
	for i := range digests {
		u, err := c.states.Node(nodeNameOf(i)).Next(ctx, 0)
		if err != nil {
			return nil, err
		}
		clear(table)
		for _, record := range u.Changed {
			sum, ok := sums[record]
			if !ok {
				sum = crc32.Checksum(protoconv.Marshal(protoconv.Service(record)), castagnoli)
				sums[record] = sum
			}
			service, err := serviceNumber([]byte(record.Name.Name), c.services)
			if err != nil {
				return nil, err
			}
			table[service] = sum
		}
		digests[i] = digestOf(table)
	}
	return digests, nil
}

// check wants the first n nodes, which belong to a fleet, to have the state that they must have.
func (c *relayCluster) check(ctx context.Context, f *fleet, n int) error {
	want, err := c.digests(ctx, n)
	if err != nil {
		return err
	}
	got, err := f.order(fleetOrder{Digests: true})
	if err != nil {
		return err
	}
	if len(got.Digests) != len(want) {
		return fmt.Errorf("%d nodes have a state, want %d", len(got.Digests), len(want))
	}
	wrong := 0
	for i := range want {
		if got.Digests[i] != want[i] {
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%w: %d of %d nodes have missed some of the %d changes", errMissed, wrong, len(want), c.changes)
	}
	return nil
}

var errMissed = errors.New("the relays have not done their work")

// nodeNameOf is the name of the n-th of many nodes.
func nodeNameOf(n int) string { return fmt.Sprintf("node-%05d", n) }

// spreadOver returns objects with so many nodes, and their endpoints spread evenly over them.
func spreadOver(objects []model.Object, nodes int) []model.Object {
	names := make([]string, nodes)
	spread := slices.DeleteFunc(slices.Clone(objects), func(o model.Object) bool { return o.Ref().Kind == model.KindNode })
	for i := range names {
		names[i] = nodeNameOf(i)
		spread = append(spread, &model.Node{Name: names[i], Zone: churnZone(i)})
	}
	next := 0
	for _, slice := range slicesIn(spread) {
		for i := range slice.Endpoints {
			slice.Endpoints[i].NodeName = names[next%nodes]
			next++
		}
	}
	return spread
}
