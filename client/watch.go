package client

import (
	"context"
	"iter"
	"maps"
	"sync"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// Watcher follows the state of a node, at the pace of its consumer.
type Watcher struct {
	options Options

	mu       sync.Mutex
	session  *session         // while Updates runs
	position Position         // of the last update that was handed out
	node     *localnetv1.Node // likewise
	status   *Status          // last reported, nil before
}

// NewWatcher returns a Watcher. It does not connect yet. An error means that the options are wrong.
func NewWatcher(o Options) (*Watcher, error) {
	conn, err := Dial(o)
	if err != nil {
		return nil, err
	}
	if err := conn.Close(); err != nil {
		return nil, err
	}
	return &Watcher{options: o.withDefaults(), position: o.Resume}, nil
}

// Updates returns the updates until ctx ends or the loop over them is left. While the loop runs, there is a connection to the
// server.
//
// The loop paces the server: only when it comes back for the next update the server is asked for one, and what has changed
// meanwhile is merged into it, there. An update comes whole or not at all. An update that the loop has got counts as
// taken: later ones lead on from it, also after the connection was lost, and in a later call. Only if the server has been
// restarted, or no longer knows what the consumer has, the next update is full.
//
// No failure of the server ends the sequence, not even a refusal: a dataplane keeps what it shows and comes back, since
// fixing the server should not require a restart of the dataplanes of all nodes, too. Failures go to [Options.OnError] and
// [Options.Logger]. The pause after a refusal (PERMISSION_DENIED, UNAUTHENTICATED, INVALID_ARGUMENT, UNIMPLEMENTED) is the
// longest, at once. A server that does not say within 30 seconds that it has a state of the node counts as failed (UNAVAILABLE):
// the next connection may reach another one.
//
// There may be only one loop at a time.
func (w *Watcher) Updates(ctx context.Context) iter.Seq[*Update] {
	return func(yield func(*Update) bool) {
		s := w.start(ctx)
		defer s.stop()
		for {
			u := s.next(ctx)
			if u == nil || !yield(u) {
				return
			}
		}
	}
}

// Report sends the dataplane's status to the server. It returns at once: the status is sent as soon as there is a connection,
// and again with each new one. Of several that could not be sent yet the last one is. It may be called at any time, by any
// goroutine. The error values of s.Failed must not change any more.
func (w *Watcher) Report(s Status) {
	s.Failed = maps.Clone(s.Failed)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = &s
	if w.session != nil {
		w.session.signalSend()
	}
}
