//go:build linux

package bench

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/clusterserver"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/internal/source/relay"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/store"
)

// Clients of a server, and relays below a relay. All of them get each change.
var (
	manyClients = dimension{"clients", []int{1, 10, 100, 1000}, []int{1, 3}, func(n int) scaledCluster {
		return scaledCluster{services: 10, followers: n}
	}, true}
	manyFollowers = dimension{"followers", []int{1, 10, 100, 1000}, []int{1, 3}, func(n int) scaledCluster {
		return scaledCluster{services: 10, followers: n}
	}, true}
)

// wireScalings are the scalings of the messages, the server of the node-local API, and the
// relay.
func wireScalings() (all []scaling) {
	for _, d := range []dimension{manyEndpoints, manySlices, manyPorts, manyRanges, manyNodeAddrs} {
		all = append(all, d.scaling("wire", scaledMessages))
	}
	all = append(all, manyServices.scaling("server", scaledServer))
	for _, d := range []dimension{manyEndpoints, manyPorts, manyRanges} {
		all = append(all, d.scaling("server", scaledServer).because(sorted, "changed endpoint"))
	}
	all = append(all, manyClients.scaling("server", scaledClients).because(connected, "changed endpoint to all"))
	all = append(all, manyServices.scaling("relay", scaledRelay).because(cached, "load", "all objects to a follower"))
	for _, d := range []dimension{manyOptOuts, manyEndpoints, manySlices, manyPorts, manyRanges} {
		all = append(all, d.scaling("relay", scaledRelay).because(cached, "load"))
	}
	return append(all, manyFollowers.scaling("relay", scaledFollowers).because(connected, "changed service to all"))
}

// scaledMessages encodes and decodes the record and the objects of one service.
func scaledMessages(_ context.Context, c scaledCluster) (*scaled, error) {
	record, err := c.record(0, 0)
	if err != nil {
		return nil, err
	}
	objects := c.objects()
	message := protoconv.Marshal(protoconv.Service(record))
	var messages [][]byte
	for _, o := range objects {
		messages = append(messages, protoconv.Marshal(protoconv.Object(o)))
	}
	return &scaled{[]scaledOp{
		{name: "encode record", run: func() error { protoconv.Marshal(protoconv.Service(record)); return nil }},
		{name: "decode record", run: func() error {
			m := &localnetv1.ServiceEndpoints{}
			if err := proto.Unmarshal(message, m); err != nil {
				return err
			}
			_, err := protoconv.ParseService(m)
			return err
		}},
		{name: "encode objects", run: func() error {
			for _, o := range objects {
				protoconv.Marshal(protoconv.Object(o))
			}
			return nil
		}},
		{name: "decode objects", run: func() error {
			for _, b := range messages {
				m := &clusterv1.Object{}
				if err := proto.Unmarshal(b, m); err != nil {
					return err
				}
				if _, err := protoconv.ParseObject(m); err != nil {
					return err
				}
			}
			return nil
		}},
	}, func() error { return nil }}, nil
}

// servedCluster is a store with a cluster in it that is served over the API.
func servedCluster(ctx context.Context, c scaledCluster) (s *store.Store, sink model.Sink, api *servedAPI, err error) {
	s, sink = newStore(brain.Config{}, c.objects()...)
	if _, err = s.Next(ctx, 0); err == nil {
		api, err = serveStore(ctx, s, &traffic{})
	}
	return s, sink, api, err
}

func scaledServer(ctx context.Context, c scaledCluster) (*scaled, error) {
	s, sink, api, err := servedCluster(ctx, c)
	if err != nil {
		return nil, err
	}
	epc := &client.EndpointsClient{Target: api.target}
	stop := context.AfterFunc(ctx, epc.Cancel)
	watch, err := watchAPI(ctx, client.Options{Target: api.target})
	if err != nil {
		return nil, err
	}
	first := <-watch.updates
	version := 0
	return &scaled{[]scaledOp{
		{name: "whole state", run: func() error {
			epc.InstanceID, epc.Rev = 0, 0
			if items, canceled := epc.Next(); canceled || first == nil || len(items) != len(first.Changed) {
				return fmt.Errorf("received %d services (canceled: %v)", len(items), canceled)
			}
			return nil
		}},
		{name: "changed endpoint", single: true, run: func() error {
			version++
			sink.Update([]model.Object{c.slice(0, 0, version)}, nil)
			return changeOfOne(<-watch.updates)
		}},
	}, func() error {
		watch.close()
		stop()
		epc.Cancel()
		api.close()
		s.Close()
		return nil
	}}, nil
}

// scaledClients has many clients, which all get each change.
func scaledClients(ctx context.Context, c scaledCluster) (*scaled, error) {
	s, sink, api, err := servedCluster(ctx, c)
	if err != nil {
		return nil, err
	}
	clients := make([]*watched, c.followers)
	for i := range clients {
		if clients[i], err = watchAPI(ctx, client.Options{Target: api.target}); err != nil {
			return nil, err
		}
		<-clients[i].updates
	}
	version := 0
	return &scaled{[]scaledOp{{name: "changed endpoint to all", run: func() error {
		version++
		sink.Update([]model.Object{c.slice(0, 0, version)}, nil)
		for _, w := range clients {
			if err := changeOfOne(<-w.updates); err != nil {
				return err
			}
		}
		return nil
	}}}, func() error {
		for _, w := range clients {
			w.close()
		}
		api.close()
		s.Close()
		return nil
	}}, nil
}

// scaledFeed is a relay with a cluster's objects.
type scaledFeed struct {
	feed   *objectlog.Feed
	sink   model.Sink
	server *grpc.Server
	target string
}

func newScaledFeed(objects []model.Object) (*scaledFeed, error) {
	f := &scaledFeed{feed: objectlog.New(objectlog.Options{}), server: grpc.NewServer(grpc.ForceServerCodecV2(protoconv.Codec()))}
	sink := f.feed.Source("bench")
	sink.Update(objects, nil)
	sink.Complete()
	f.sink = sink
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f.target = "tcp://" + l.Addr().String()
	clusterserver.Register(f.server, clusterserver.Options{Feed: f.feed})
	go func() { _ = f.server.Serve(l) }() // it fails only if l does, which its followers notice
	return f, nil
}

func (f *scaledFeed) close() {
	f.server.Stop()
	f.feed.Close()
}

// follower is a relay below: a sink that hands on how many objects came with each update.
type follower struct {
	updates chan int
	stop    context.CancelFunc
	ctx     context.Context
}

func (f *follower) Update(set []model.Object, deleted []model.Ref) {
	select {
	case f.updates <- len(set) + len(deleted):
	case <-f.ctx.Done():
	}
}

func (f *follower) Complete() {}

// follow begins to follow the relay.
func (f *scaledFeed) follow(ctx context.Context) (*follower, error) {
	s, err := relay.New(relay.Options{Targets: []string{f.target}})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	below := &follower{make(chan int), stop, ctx}
	go func() {
		_ = s.Run(ctx, below) // it ends with ctx
		close(below.updates)
	}()
	return below, nil
}

// next waits for an update of n objects.
func (f *follower) next(n int) error {
	if got := <-f.updates; got != n {
		return fmt.Errorf("%d objects came, want %d", got, n)
	}
	return nil
}

func (f *follower) close() {
	f.stop()
	for range f.updates {
	}
}

func scaledRelay(ctx context.Context, c scaledCluster) (*scaled, error) {
	objects := c.objects()
	f, err := newScaledFeed(objects)
	if err != nil {
		return nil, err
	}
	var below *follower
	leave := func() error {
		if below != nil {
			below.close()
		}
		return nil
	}
	version := 0
	changed := func(o model.Object) error {
		f.sink.Update([]model.Object{o}, nil)
		return below.next(1)
	}
	ops := []scaledOp{
		{name: "load", run: func() error {
			feed := objectlog.New(objectlog.Options{})
			defer feed.Close()
			sink := feed.Source("bench")
			sink.Update(objects, nil)
			sink.Complete()
			_, err := feed.Next(ctx, 0)
			return err
		}},
		{name: "all objects to a follower", reset: leave, run: func() (err error) {
			if below, err = f.follow(ctx); err != nil {
				return err
			}
			return below.next(len(objects))
		}},
		{name: "changed service", single: true, run: func() error {
			version++
			if c.ranges > 0 {
				return changed(c.service(0, version))
			}
			return changed(c.slice(0, 0, version))
		}},
	}
	if c.optedOut > 0 {
		out := true // as it is loaded
		ops = append(ops, scaledOp{name: "changed label", single: true, run: func() error {
			out = !out
			return changed(c.namespace(0, out))
		}})
	}
	return &scaled{ops, func() error {
		below.close()
		f.close()
		return nil
	}}, nil
}

func scaledFollowers(ctx context.Context, c scaledCluster) (*scaled, error) {
	objects := c.objects()
	f, err := newScaledFeed(objects)
	if err != nil {
		return nil, err
	}
	all := make([]*follower, c.followers)
	for i := range all {
		if all[i], err = f.follow(ctx); err != nil {
			return nil, err
		}
		if err := all[i].next(len(objects)); err != nil {
			return nil, err
		}
	}
	version := 0
	return &scaled{[]scaledOp{{name: "changed service to all", run: func() error {
		version++
		f.sink.Update([]model.Object{c.slice(0, 0, version)}, nil)
		for _, below := range all {
			if err := below.next(1); err != nil {
				return err
			}
		}
		return nil
	}}}, func() error {
		for _, below := range all {
			below.close()
		}
		f.close()
		return nil
	}}, nil
}
