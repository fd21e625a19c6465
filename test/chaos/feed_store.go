//go:build linux

package chaos

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// storeFeed is a store in this process, whose states are served over the node-local API.
type storeFeed struct {
	socket, node string
	dataplane    *dataplane
	// slowly is the time that each object takes, if it is not 0. The source is complete then when complete is called.
	slowly time.Duration
	// convert converts the records that are served, unless it is nil. It counts for records that change.
	convert atomic.Pointer[func(*state.Service) *state.Service]
	*brainServer
}

// brainServer makes states of objects and serves them. It has lives: each begins with a store that knows nothing.
type brainServer struct {
	store *store.Store
	sink  model.Sink
	once  sync.Once
	stop  context.CancelFunc
	done  chan error
}

// maxEntries is how many entries a service may have where nothing else is configured.
const maxEntries = 200_000

func newStoreFeed(dir, node string, d *dataplane) (*storeFeed, error) {
	f := &storeFeed{socket: filepath.Join(dir, "api.sock"), node: node, dataplane: d}
	return f, f.begin()
}

// begin begins a life.
func (f *storeFeed) begin() error {
	config := brain.Config{NodeName: f.node, LocalDetector: state.LocalDetector{ClusterCIDRs: ClusterCIDRs()}, NodePorts: state.NodePortAddresses{Primary: true},
		MaxEntries: maxEntries}
	s := &brainServer{store: store.New(store.Options{Brain: config}), done: make(chan error, 1)}
	s.sink = s.store.Source("proof")
	srv, err := server.New(server.Options{Node: f.node, Feed: func(string) (state.Feed, error) { return converting{s.store, &f.convert}, nil }})
	if err != nil {
		return err
	}
	l, err := server.ListenUnix(f.socket, 0o600)
	if err != nil {
		return err
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go func() { s.done <- srv.Serve(ctx, l, nil) }()
	f.brainServer = s
	return nil
}

// converting is a feed with a conversion of records, which may be nil.
type converting struct {
	state.Feed
	convert *atomic.Pointer[func(*state.Service) *state.Service]
}

// Next implements [state.Feed].
func (c converting) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	u, err := c.Feed.Next(ctx, after)
	if convert := c.convert.Load(); err == nil && convert != nil {
		u = u.Convert(*convert)
	}
	return u, err
}

func (f *storeFeed) args() []string {
	return slices.Concat([]string{"apply", f.dataplane.mode, "--api", "unix://" + f.socket}, podArgs(), f.dataplane.args())
}

func (f *storeFeed) put(changed []Object) error {
	var set []model.Object
	for _, o := range changed {
		m, _, err := kubeconv.Object(o)
		if err != nil {
			return fmt.Errorf("%T %s: %w", o, o.GetName(), err)
		}
		if f.slowly > 0 {
			f.sink.Update([]model.Object{m}, nil)
			time.Sleep(f.slowly)
			continue
		}
		set = append(set, m)
	}
	if f.slowly == 0 {
		f.sink.Update(set, nil)
		f.complete()
	}
	return nil
}

// complete reports whether the source has delivered all that there is.
func (f *storeFeed) complete() { f.once.Do(f.sink.Complete) }

func (f *storeFeed) close() error {
	f.stop()
	err := <-f.done
	f.store.Close()
	return err
}
