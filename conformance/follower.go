//go:build linux

package conformance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// follower serves the state of a cluster's node to a dataplane that follows the API, and receives its applied states.
type follower struct {
	dir    string
	target string
	stop   context.CancelFunc
	served chan error // what the end of the server returned

	mu sync.Mutex
	// last is the greatest ID of a client so far, and old its value at the last start of the dataplane. Messages from earlier clients may
	// still be on the way.
	last, old uint64
}

func newFollower(c *cluster) (*follower, error) {
	// Not a directory of the test: its name may be too long for a socket.
	dir, err := os.MkdirTemp("", "switchyard")
	if err != nil {
		return nil, err
	}
	f := &follower{dir: dir, served: make(chan error, 1)}
	path := filepath.Join(dir, "api.sock")
	f.target = "unix://" + path
	s, err := server.New(server.Options{
		Node:     c.lab.Node().Name,
		Feed:     server.Only(c.lab.Node().Name, unknownFeed{refusingFeed{c.store, c}, c}),
		OnStatus: func(from server.Client, s server.Status) { f.heard(c, from.ID, s) },
		Logger:   c.settings.Logger,
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	l, err := server.ListenUnix(path, 0)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	go func() { f.served <- s.Serve(ctx, l, nil) }()
	return f, nil
}

// heard takes what the dataplane says about itself.
func (f *follower) heard(c *cluster, client uint64, s server.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = max(f.last, client)
	if client <= f.old {
		return
	}
	status := backend.Status{Applied: s.Applied, Failed: make(map[state.ServiceName]error)}
	for name, why := range s.Failed {
		status.Failed[name] = errors.New(why)
	}
	c.setStatus(status)
}

// start lets the dataplane follow the API until it is stopped.
func (f *follower) start(c *cluster) {
	f.mu.Lock()
	f.old = f.last
	c.setStatus(backend.Status{})
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.stopped = cancel, make(chan error, 1)
	go func() {
		err := c.lab.Node().Do(func() error { return c.dataplane.Follow(ctx, f.target, c.settings) })
		if ctx.Err() != nil {
			err = nil
		} else if err == nil {
			err = errors.New("it did not wait for the end of its context")
		}
		if err != nil {
			c.setEnded(err)
		}
		c.stopped <- nil
	}()
}

func (f *follower) close() error {
	f.stop()
	return errors.Join(<-f.served, os.RemoveAll(f.dir))
}

// unknownFeed has the states of a cluster, and something in them that no dataplane knows.
type unknownFeed struct {
	state.Feed
	cluster *cluster
}

// unknownVerdict is one of a later version.
const unknownVerdict state.Verdict = 99

// Next implements [state.Feed].
func (f unknownFeed) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	u, err := f.Feed.Next(ctx, after)
	if err != nil {
		return nil, err
	}
	return changed(u, func(s *state.Service) bool { return f.cluster.noteUnknown(s.Name) }, func(s *state.Service) {
		for i := range s.Ports {
			s.Ports[i].Internal.Inside.Verdict = unknownVerdict
		}
	}), nil
}
