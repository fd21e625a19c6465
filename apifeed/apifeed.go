// Package apifeed provides a [state.Feed] of the node-local API, so that a [backend.Backend] can run in its own
// process.
//
// [Program] keeps a backend in step with a server. It is 'switchyard apply' for a dataplane of another repository. A
// program that also needs /healthz, /metrics and health check node ports passes a [Feed] to package node as its States.
package apifeed

import (
	"context"
	"errors"
	"log/slog"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/internal/apifollower"
	"github.com/switchyard-net/switchyard/state"
)

// Options specifies which server to follow.
type Options struct {
	// Client says where the server is. OnError and OnConnect in it are not used. Accepts is always all features: [backend.Run] leaves out
	// what the dataplane lacks.
	Client client.Options
	// Logger gets services and parts of the node state that cannot be read. Default: nothing is logged.
	Logger *slog.Logger
}

// Feed follows a server and keeps the last state, even while the server is unreachable. If a service cannot be read,
// the feed reports it to the server and keeps the last record of the service. All methods may be called concurrently.
type Feed struct{ follower *apifollower.Follower }

var _ state.Feed = (*Feed)(nil)

// New returns a Feed. It does not connect before Run. An error means that the options are wrong.
func New(o Options) (*Feed, error) {
	f, err := apifollower.New(apifollower.Options{Client: o.Client, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	return &Feed{f}, nil
}

// Run follows the server until ctx ends, and then returns nil. The feed is closed then. It is called once.
func (f *Feed) Run(ctx context.Context) error { return f.follower.Run(ctx) }

// Next implements [state.Feed]. The feed numbers revisions itself, because another server may replace the current one.
func (f *Feed) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	return f.follower.Next(ctx, after)
}

// Report tells the server which revision of the feed the dataplane shows, and which services cannot be programmed. It
// returns at once. The caller must not modify failed afterwards.
func (f *Feed) Report(applied state.Revision, failed map[state.ServiceName]error) {
	f.follower.Report(applied, failed)
}

// Latest returns the newest revision, 0 before there is a state, and how many services it has.
func (f *Feed) Latest() (revision state.Revision, services int) { return f.follower.Latest() }

// Name returns the name of the node, empty as long as it is not known.
func (f *Feed) Name() string { return f.follower.Name() }

// Problems returns why the state may be old: there is no server, or something in the state cannot be read.
func (f *Feed) Problems() []error { return f.follower.Problems() }

// Program keeps b in step with a server until ctx ends, and reports to the server the state that b shows. It then
// returns nil and leaves the programmed state in place. An error means that the options are invalid. Program does not
// close b.
func Program(ctx context.Context, o Options, b backend.Backend, run backend.RunOptions) error {
	f, err := New(o)
	if err != nil {
		return err
	}
	onStatus := run.OnStatus
	run.OnStatus = func(s backend.Status) {
		f.Report(s.Applied, s.Failed)
		if onStatus != nil {
			onStatus(s)
		}
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- f.Run(following) }()
	err = backend.Run(ctx, f, b, run)
	stop()
	return errors.Join(err, <-ended)
}
