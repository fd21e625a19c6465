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
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// partSize is about how large a part of an update is: little to keep for a slow client, and enough for a fast one.
	partSize = 64 << 10
	// maxName and maxReason limit the bytes that are kept of clients' texts. Names of Services and namespaces are not
	// longer.
	maxName, maxReason = 63, 256
	// maxFailed is how many failed services a status may name, and maxKept how many of them are kept.
	maxFailed, maxKept = 100, 10
)

type watchStream = grpc.BidiStreamingServer[localnetv1.WatchRequest, localnetv1.WatchResponse]

// watch is one call of Watch. Requests are read by a goroutine of its own, so that a status is heard while an update is awaited
// or on its way.
type watch struct {
	*endpoints
	stream watchStream
	ctx    context.Context
	end    context.CancelCauseFunc

	// first has the first request, and subscribed whether it was a subscription, by client.
	first      chan *localnetv1.WatchRequest
	subscribed chan bool
	client     Client
	accepted   state.Features // by the client
	instance   uint64         // for its features
	// ready has a value when an update is wanted, and is closed after the client's last request.
	ready chan struct{}
	asked atomic.Bool // and not yet answered
}

// subscription is the first request of a client.
type subscription struct {
	feed  state.Feed
	after state.Revision
	ready bool // an update is wanted at once
}

// Watch implements the paced stream of updates.
func (e *endpoints) Watch(stream watchStream) error {
	w := &watch{
		endpoints: e, stream: stream, ready: make(chan struct{}, 1),
		first: make(chan *localnetv1.WatchRequest, 1), subscribed: make(chan bool, 1),
	}
	defer close(w.subscribed)
	w.ctx, w.end = context.WithCancelCause(stream.Context())
	defer w.end(nil)
	e.receivers.Go(w.receive)
	select {
	case first := <-w.first:
		sub, err := w.subscribe(first)
		if err != nil {
			return err
		}
		if err := w.header(sub); err != nil {
			return err
		}
		return w.send(sub)
	case <-w.ctx.Done():
		return cause(w.ctx)
	}
}

// header sends the header once a state exists, and not before. Clients without a header try another server, and clients
// with a header stay, even if no update follows for a long time.
func (w *watch) header(sub subscription) error {
	switch {
	case sub.after != 0: // it is of this server, which has had a state then
	case w.o.Ready != nil:
		select {
		case <-w.o.Ready:
		case <-w.ctx.Done():
			return cause(w.ctx)
		}
	case sub.ready:
		return nil // it comes with the update, which is full and so is sent as soon as there is a state
	default:
		if _, err := sub.feed.Next(w.ctx, 0); err != nil {
			return feedError(w.ctx, w.client.Node, err)
		}
	}
	return w.stream.SendHeader(nil)
}

// send sends an update whenever the client requests one.
func (w *watch) send(sub subscription) error {
	var node *state.Node    // that the client has
	var told state.Features // that the client lacks, by the log
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
			return feedError(w.ctx, w.client.Node, err)
		}
		if w.o.OnSend != nil {
			w.o.OnSend(w.client, u.Revision)
		}
		u, lacking := w.forms.update(u, w.accepted)
		changed := u.Node
		if !u.Full && node != nil && (node == u.Node || node.Equal(u.Node)) {
			changed = nil
		}
		node, sub.after = u.Node, u.Revision
		told = w.tell(lacking, told)
		parts := protoconv.Parts(&w.encoder, u, changed, protoconv.Position{Instance: w.instance, Revision: sub.after}, partSize)
		u = nil // the list of a full state is not kept for a slow client
		for part, last := range parts {
			if last {
				w.asked.Store(false) // The client may ask again as soon as it has this.
			}
			if err := w.stream.SendMsg(part); err != nil {
				return err
			}
		}
	}
}

// tell logs each feature that the client lacks, unless it is in told, with the number of services in the update that use it. It returns all
// features that were logged.
func (w *watch) tell(lacking map[state.Features]int, told state.Features) state.Features {
	for one := range state.AllFeatures.Each {
		if n := lacking[one]; n > 0 && one&told == 0 {
			w.log.Warn("client does not know a feature that Services use, so it gets them without; update the client",
				"client", w.client.Name, "node", w.client.Node, "address", w.client.Address, "feature", one.String(), "services", n)
			told |= one
		}
	}
	return told
}

// receive reads requests until the stream ends. It passes the first one to the handler, which halves the stack of this
// goroutine.
func (w *watch) receive() {
	m, err := w.stream.Recv()
	switch {
	case errors.Is(err, io.EOF):
		w.end(status.Error(codes.InvalidArgument, "the stream ended before a request with subscribe"))
		return
	case err != nil:
		w.end(err)
		return
	}
	w.first <- m
	if !<-w.subscribed {
		return
	}
	if w.o.OnClose != nil {
		defer w.o.OnClose(w.client)
	}
	for {
		m, err := w.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			close(w.ready)
			return
		case err == nil && m.GetSubscribe() != nil:
			err = status.Error(codes.InvalidArgument, "subscribe is set in a request after the first; open another stream for another node")
		case err == nil:
			err = w.take(m)
		}
		if err != nil {
			w.end(err)
			return
		}
	}
}

// subscribe takes the first request.
func (w *watch) subscribe(first *localnetv1.WatchRequest) (sub subscription, err error) {
	m := first.GetSubscribe()
	if m == nil {
		return sub, status.Error(codes.InvalidArgument, "subscribe is not set in the first request")
	}
	feed, node, err := w.feed(w.ctx, m.GetNode())
	if err != nil {
		return sub, err
	}
	w.accepted = protoconv.ParseFeatures(m.GetAccepts())
	w.instance = w.instanceFor(w.accepted)
	w.client = Client{ID: w.watches.Add(1), Name: shorten(m.GetClient(), maxName), Node: node}
	if p, ok := peer.FromContext(w.ctx); ok {
		w.client.Address = p.Addr.String()
	}
	w.log.Debug("client watches", "client", w.client.Name, "node", node, "address", w.client.Address, "id", w.client.ID)
	if w.o.OnOpen != nil {
		w.o.OnOpen(w.client)
	}
	err = w.take(first)
	w.subscribed <- true
	return subscription{feed, known(w.instance, protoconv.ParsePosition(m.GetResume())), first.GetReady()}, err
}

// take handles all parts of a request other than the subscription.
func (w *watch) take(m *localnetv1.WatchRequest) error {
	if s := m.GetStatus(); s != nil {
		if n := len(s.GetFailed()); n > maxFailed {
			return status.Errorf(codes.InvalidArgument, "status.failed names %d services; it must name the first %d, and failed_total their number", n, maxFailed)
		}
		if w.o.OnStatus != nil {
			w.o.OnStatus(w.client, w.statusOf(s))
		}
	}
	if m.GetReady() && w.asked.CompareAndSwap(false, true) {
		w.ready <- struct{}{} // There is room: the previous request has been answered, so it has been taken.
	}
	return nil
}

func (w *watch) statusOf(m *localnetv1.Status) Status {
	s := Status{Applied: known(w.instance, protoconv.ParsePosition(m.GetApplied())), FailedTotal: int(m.GetFailedTotal())}
	if failed := m.GetFailed(); len(failed) > 0 {
		s.Failed = make(map[state.ServiceName]string, min(len(failed), maxKept))
		for _, f := range failed[:min(len(failed), maxKept)] {
			name := protoconv.ParseServiceName(f.GetService())
			name.Namespace, name.Name = shorten(name.Namespace, maxName), shorten(name.Name, maxName)
			s.Failed[name] = shorten(f.GetMessage(), maxReason)
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
