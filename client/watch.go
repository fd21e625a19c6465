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

// Updates returns the updates until ctx ends or the caller leaves the loop over them. While the loop runs, the watcher
// keeps a connection to the server.
//
// The loop paces the server. The watcher requests the next update only when the loop asks for it, and the server merges
// all changes since the last one. An update comes whole or not at all. An update that the loop has received counts as
// taken: later updates continue from it, even after a lost connection and in a later call. The next update is full only
// if the server has restarted, or no longer knows the consumer's state.
//
// No failure of the server ends the sequence, not even a refusal. A dataplane keeps its state and reconnects, so that a
// repair of the server does not require a restart of the dataplanes of all nodes. Failures go to [Options.OnError] and
// [Options.Logger]. The first pause after a refusal (PERMISSION_DENIED, UNAUTHENTICATED, INVALID_ARGUMENT,
// UNIMPLEMENTED) already has the maximum length. A server that does not confirm within 30 seconds that it has a state
// of the node counts as failed (UNAVAILABLE). The next connection may reach another server.
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

// Report sends the dataplane's status to the server. It returns at once: the status is sent when a connection exists,
// and again on each new connection. Of several unsent statuses, only the last is sent. It may be called at any time, by
// any goroutine. The error values of s.Failed must not change afterwards.
func (w *Watcher) Report(s Status) {
	s.Failed = maps.Clone(s.Failed)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = &s
	if w.session != nil {
		w.session.signalSend()
	}
}
