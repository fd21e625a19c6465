package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/wire"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// partSize is about how large a part of an update is: little to keep for a slow client, and enough for a fast one.
	partSize = 64 << 10
	// maxName and maxReason are how many bytes are kept of what clients say.
	maxName, maxReason = 63, 1 << 10
	// maxFailed is how many failed services a status may name.
	maxFailed = 100
)

type watchStream = grpc.BidiStreamingServer[localnetv1.WatchRequest, localnetv1.WatchResponse]

// watch is one call of Watch. Requests are read by a goroutine of its own, so that a status is heard while an update is awaited
// or on its way.
type watch struct {
	*endpoints
	stream watchStream
	ctx    context.Context
	end    context.CancelCauseFunc

	subscribed chan subscription
	// ready has a value when an update is wanted, and is closed after the client's last request.
	ready chan struct{}
	asked atomic.Bool // and not yet answered
}

// subscription is what a client has asked for with its first request.
type subscription struct {
	feed   state.Feed
	client Client
	after  state.Revision
	ready  bool // an update is wanted at once
}

// Watch implements the paced stream of updates.
func (e *endpoints) Watch(stream watchStream) error {
	w := &watch{endpoints: e, stream: stream, subscribed: make(chan subscription, 1), ready: make(chan struct{}, 1)}
	w.ctx, w.end = context.WithCancelCause(stream.Context())
	defer w.end(nil)
	e.receivers.Go(w.receive)
	select {
	case sub := <-w.subscribed:
		if err := w.header(sub); err != nil {
			return err
		}
		return w.send(sub)
	case <-w.ctx.Done():
		return cause(w.ctx)
	}
}

// header sends the header as soon as there is a state to follow, and not before: clients that get none go elsewhere, and those
// that get one stay, also while there is nothing to send for long.
func (w *watch) header(sub subscription) error {
	switch {
	case sub.after != 0: // it is of this server, which has had a state then
	case sub.ready:
		return nil // it comes with the update, which is full and so is sent as soon as there is a state
	case w.o.Ready != nil:
		select {
		case <-w.o.Ready:
		case <-w.ctx.Done():
			return cause(w.ctx)
		}
	default:
		if _, err := sub.feed.Next(w.ctx, 0); err != nil {
			return feedError(w.ctx, sub.client.Node, err)
		}
	}
	return w.stream.SendHeader(nil)
}

// send sends an update whenever one is wanted.
func (w *watch) send(sub subscription) error {
	var node *state.Node // that the client has
	for {
		select {
		case _, more := <-w.ready:
			if !more {
				return nil
			}
		case <-w.ctx.Done():
			return cause(w.ctx)
		}
		u, err := sub.feed.Next(w.ctx, sub.after)
		if err != nil {
			return feedError(w.ctx, sub.client.Node, err)
		}
		changed := u.Node
		if !u.Full && node != nil && (node == u.Node || node.Equal(u.Node)) {
			changed = nil
		}
		at := wire.Position{Instance: w.o.InstanceID, Revision: u.Revision}
		for part, last := range wire.Parts(&w.encoder, u, changed, at, partSize) {
			if last {
				w.asked.Store(false) // The client may ask again as soon as it has this.
			}
			if err := w.stream.SendMsg(part); err != nil {
				return err
			}
		}
		node, sub.after = u.Node, u.Revision
	}
}

// receive reads requests until there are no more.
func (w *watch) receive() {
	var client Client
	for first := true; ; first = false {
		m, err := w.stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && !first:
			close(w.ready)
		case errors.Is(err, io.EOF):
			w.end(status.Error(codes.InvalidArgument, "the stream ended before a request with subscribe"))
		case err != nil:
			w.end(err)
		case first:
			if err = w.subscribe(m, &client); err != nil {
				w.end(err)
			} else if w.o.OnClose != nil {
				defer w.o.OnClose(client)
			}
		case m.GetSubscribe() != nil:
			err = status.Error(codes.InvalidArgument, "subscribe is set in a request after the first; open another stream for another node")
			w.end(err)
		}
		if err == nil {
			err = w.take(m, client)
		}
		if err != nil {
			return
		}
	}
}

// subscribe begins to send updates.
func (w *watch) subscribe(first *localnetv1.WatchRequest, client *Client) error {
	m := first.GetSubscribe()
	if m == nil {
		return status.Error(codes.InvalidArgument, "subscribe is not set in the first request")
	}
	feed, node, err := w.feed(w.ctx, m.GetNode())
	if err != nil {
		return err
	}
	*client = Client{ID: w.watches.Add(1), Name: shorten(m.GetClient(), maxName), Node: node}
	if p, ok := peer.FromContext(w.ctx); ok {
		client.Address = p.Addr.String()
	}
	w.log.Debug("client watches", "client", client.Name, "node", node, "address", client.Address, "id", client.ID)
	w.subscribed <- subscription{feed, *client, w.known(wire.ParsePosition(m.GetResume())), first.GetReady()}
	return nil
}

// take does what a request asks for beside a subscription.
func (w *watch) take(m *localnetv1.WatchRequest, client Client) error {
	if s := m.GetStatus(); s != nil {
		if n := len(s.GetFailed()); n > maxFailed {
			err := status.Errorf(codes.InvalidArgument, "status.failed names %d services; it must name the first %d, and failed_total their number", n, maxFailed)
			w.end(err)
			return err
		}
		if w.o.OnStatus != nil {
			w.o.OnStatus(client, w.statusOf(s))
		}
	}
	if m.GetReady() && w.asked.CompareAndSwap(false, true) {
		w.ready <- struct{}{} // There is room: what was asked before has been answered, so it has been taken.
	}
	return nil
}

func (e *endpoints) statusOf(m *localnetv1.Status) Status {
	s := Status{Applied: e.known(wire.ParsePosition(m.GetApplied())), FailedTotal: int(m.GetFailedTotal())}
	if len(m.GetFailed()) > 0 {
		s.Failed = make(map[state.ServiceName]string, len(m.GetFailed()))
		for _, f := range m.GetFailed() {
			s.Failed[wire.ParseServiceName(f.GetService())] = shorten(f.GetMessage(), maxReason)
		}
	}
	return s
}

// shorten returns the first bytes of s, at most n, without half a character at the end. It shares no memory with s.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(strings.Clone(s[:n]), "")
}
