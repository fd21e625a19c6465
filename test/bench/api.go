package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

const (
	apiChanges = 5000 // single changes that are measured
	apiPolls   = 20   // full states that are measured
)

// API measures the node-local API over TCP on loopback, server and client in this process: how long a client takes to receive
// the whole state by Next, and how long, and how many bytes, one changed endpoint takes from the source's Update until the
// loop over the client's updates has it.
func API(ctx context.Context, r *Reporter, o Options) error {
	o = o.withDefaults(10_000)
	for _, services := range o.Services {
		done := r.Step("api: %d services with %d endpoints", services, o.Endpoints)
		err := measureAPI(ctx, r, services, o.Endpoints)
		done()
		if err != nil {
			return err
		}
	}
	return nil
}

func measureAPI(ctx context.Context, r *Reporter, services, endpoints int) error {
	objects := Cluster(services, endpoints)
	changing := slicesIn(objects)
	if len(changing) == 0 {
		return fmt.Errorf("a cluster with %d services of %d endpoints has no endpoint to change; ask for at least one of each", services, endpoints)
	}
	s := store.New(store.Options{Brain: brain.Config{NodeName: NodeName}})
	defer s.Close()
	sink := s.Source("bench")
	sink.Update(objects, nil)
	sink.Complete()
	var wire traffic
	api, err := serveAPI(ctx, server.Options{Feed: func(string) (state.Feed, error) { return s, nil }, Node: NodeName}, &wire)
	if err != nil {
		return err
	}
	defer api.close()

	polls, err := pollAPI(ctx, api.target, services)
	if err != nil {
		return err
	}
	r.Report(Result{"api/next-first", services, endpoints, Milliseconds(polls[0]), "ms"})
	r.Report(Result{"api/next-p50", services, endpoints, Milliseconds(Percentile(polls[1:], 50)), "ms"})

	watch, err := watchAPI(ctx, client.Options{Target: api.target})
	if err != nil {
		return err
	}
	defer watch.close()
	if u := <-watch.updates; u == nil || len(u.Changed) != services {
		return errors.New("the first update is not the whole state")
	}
	settle(&wire)
	before := wire.bytes()
	rng := rand.New(rand.NewPCG(1, 1))
	took := make([]time.Duration, 0, apiChanges)
	for n := range apiChanges {
		i := rng.IntN(len(changing))
		changing[i] = withoutFirst(changing[i], n, services*endpoints)
		change := []model.Object{changing[i]}
		time.Sleep(200 * time.Microsecond) // lets the client ask for the next update, and everybody wait again
		start := time.Now()
		sink.Update(change, nil)
		u := <-watch.updates
		took = append(took, watch.at.Sub(start))
		if u == nil || u.Full || len(u.Changed) != 1 {
			return errors.New("an update is not the delta of one service")
		}
	}
	settle(&wire)
	r.Report(Result{"api/endpoint-change-bytes", services, endpoints, float64(wire.bytes()-before) / apiChanges, "B"})
	r.Report(Result{"api/endpoint-change-p50", services, endpoints, Microseconds(Percentile(took, 50)), "us"})
	r.Report(Result{"api/endpoint-change-p99", services, endpoints, Microseconds(Percentile(took, 99)), "us"})
	return nil
}

// servedAPI is a server on loopback.
type servedAPI struct {
	target string
	close  func()
}

// serveAPI serves, and counts what goes over its connections.
func serveAPI(ctx context.Context, o server.Options, count *traffic) (*servedAPI, error) {
	s, err := server.New(o)
	if err != nil {
		return nil, err
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &countedListener{tcp, count}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ctx, l, nil) // it fails only if l does, which its clients notice
	}()
	return &servedAPI{"tcp://" + l.Addr().String(), func() {
		cancel()
		<-done
	}}, nil
}

// pollAPI receives whole states by Next, one after the other, as the client library does for its handlers.
func pollAPI(ctx context.Context, target string, services int) (took []time.Duration, err error) {
	epc := &client.EndpointsClient{Target: target}
	defer context.AfterFunc(ctx, epc.Cancel)()
	defer epc.Cancel()
	for range apiPolls {
		runtime.GC() // what the last state left is not for this one to clean up
		epc.InstanceID, epc.Rev = 0, 0
		start := time.Now()
		items, canceled := epc.Next()
		took = append(took, time.Since(start))
		if canceled {
			return nil, ctx.Err()
		}
		if len(items) != services {
			return nil, fmt.Errorf("received %d services of %d", len(items), services)
		}
	}
	return took, nil
}

// watched is a client that follows a node.
type watched struct {
	updates <-chan *client.Update // closed at the end
	at      time.Time             // when the last one came, written before it is sent
	close   func()
}

func watchAPI(ctx context.Context, o client.Options) (*watched, error) {
	watcher, err := client.NewWatcher(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	updates := make(chan *client.Update)
	w := &watched{updates: updates, close: func() {
		cancel()
		for range updates {
		}
	}}
	go func() {
		defer close(updates)
		for u := range watcher.Updates(ctx) {
			w.at = time.Now()
			select {
			case updates <- u:
			case <-ctx.Done():
			}
		}
	}()
	return w, nil
}

// traffic counts the bytes on connections, in both directions.
type traffic struct{ n atomic.Int64 }

func (t *traffic) bytes() int64 { return t.n.Load() }

// settle waits until nothing more is on the wire.
func settle(t *traffic) {
	for last := int64(-1); last != t.bytes(); {
		last = t.bytes()
		time.Sleep(50 * time.Millisecond)
	}
}

type countedListener struct {
	net.Listener
	traffic *traffic
}

func (l *countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countedConn{conn, l.traffic}, nil
}

type countedConn struct {
	net.Conn
	traffic *traffic
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.traffic.n.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.traffic.n.Add(int64(n))
	return n, err
}
