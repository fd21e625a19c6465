package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// session is one run of [Watcher.Updates]: a goroutine that opens, loses and restores the stream while the consumer
// runs. The mutex of the Watcher guards their shared fields.
type session struct {
	w      *Watcher
	cancel context.CancelFunc
	done   sync.WaitGroup
	link

	// wanted: the consumer waits for an update that has not arrived. asked: the stream knows.
	wanted, asked bool
	// arrived is an update that was not fetched yet. There is room for one, because an update is asked for only while the caller waits for it.
	arrived *Update
	// position and node belong to the last update that has arrived.
	position Position
	node     *localnetv1.Node
	// sent is the status that this stream has sent last.
	sent *localnetv1.Status

	// fetch has a value when arrived is set, speak when there may be something to say to the server.
	fetch, speak chan struct{}
}

// start begins a session and its goroutine.
func (w *Watcher) start(ctx context.Context) *session {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session != nil {
		panic("client: two loops over the updates of one Watcher at once")
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &session{
		w: w, cancel: cancel, link: link{options: &w.options, pace: newPacer(&w.options)},
		position: w.position, node: w.node,
		fetch: make(chan struct{}, 1), speak: make(chan struct{}, 1),
	}
	w.session = s
	s.done.Go(func() { s.run(ctx, w.options.Target, s.attempt) })
	return s
}

// stop ends the session and its goroutine.
func (s *session) stop() {
	s.cancel()
	s.done.Wait()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.session = nil
}

// next returns the next update, nil once ctx has ended. If ctx is only for this call, next may be called again.
func (s *session) next(ctx context.Context) *Update {
	for {
		if ctx.Err() != nil {
			return nil
		}
		if u := s.take(); u != nil {
			return u
		}
		select {
		case <-ctx.Done():
		case <-s.fetch:
		}
	}
}

// take returns the update that has arrived. If none has, it requests one.
func (s *session) take() *Update {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	u := s.arrived
	if u == nil {
		s.wanted = true
		s.signalSend()
		return nil
	}
	s.arrived = nil
	s.w.position, s.w.node = u.Position, u.Node
	return u
}

// signalSend wakes up the goroutine that sends. The mutex is held.
func (s *session) signalSend() {
	select {
	case s.speak <- struct{}{}:
	default: // it has been woken up and has not looked yet
	}
}

// stateTimeout is how long a server may take to connect and to report that it has a state of the node. It takes one that has it no time.
const stateTimeout = 30 * time.Second

var errNoState = status.Error(codes.Unavailable, "the server has not answered for "+stateTimeout.String()+"; perhaps it has no state of the node yet")

var errEnded = status.Error(codes.Unavailable, "the server has ended the stream")

// attempt has one connection with one stream, until it breaks. Each attempt opens a new connection, so that only the
// backoff of this package applies, not gRPC's.
func (s *session) attempt(ctx context.Context) error {
	conn, err := Dial(s.w.options)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := time.AfterFunc(stateTimeout, func() { cancel(errNoState) })
	defer timeout.Stop()
	stream, err := localnetv1.NewEndpointsClient(conn).Watch(ctx)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	s.reset()
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel(nil)
	sending.Go(func() {
		if err := s.send(stream); err != nil {
			cancel(err)
		}
	})
	// The header comes once there is a state to follow, the same as the client has or a newer one.
	header, err := stream.Header()
	if timeout.Stop() && err == nil && header != nil {
		s.connected()
		if s.options.OnConnect != nil {
			s.options.OnConnect()
		}
	}
	err = s.receive(stream)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// reset forgets the requests that were sent on the last stream.
func (s *session) reset() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.asked, s.sent = false, nil
}

// send sends what there is to send until the stream breaks; why it did is for receive to find out. It returns an error if
// something cannot be said.
func (s *session) send(stream grpc.BidiStreamingClient[localnetv1.WatchRequest, localnetv1.WatchResponse]) error {
	request := &localnetv1.WatchRequest{Subscribe: s.subscription()}
	for {
		if s.compose(request) {
			if err := stream.Send(request); err != nil && err != io.EOF {
				return err
			}
		}
		request = &localnetv1.WatchRequest{}
		select {
		case <-stream.Context().Done():
			return nil
		case <-s.speak:
		}
	}
}

func (s *session) subscription() *localnetv1.Subscribe {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	sub := &localnetv1.Subscribe{Node: s.w.options.Node, Client: s.w.options.Name, Accepts: s.w.options.Accepts}
	if s.position != (Position{}) {
		sub.Resume = &localnetv1.Position{InstanceId: s.position.InstanceID, Rev: s.position.Rev}
	}
	return sub
}

// compose completes a request with the data that the stream does not know yet. It returns false if there is none.
func (s *session) compose(request *localnetv1.WatchRequest) bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.wanted && !s.asked {
		s.asked = true
		request.Ready = true
	}
	if s.w.status != nil {
		if now := s.w.status.wire(); s.sent == nil || !proto.Equal(now, s.sent) {
			s.sent = now
			request.Status = now
		}
	}
	return request.Subscribe != nil || request.Ready || request.Status != nil
}

// receive takes updates until the stream breaks.
func (s *session) receive(stream grpc.BidiStreamingClient[localnetv1.WatchRequest, localnetv1.WatchResponse]) error {
	var parts assembly
	for {
		part, err := stream.Recv()
		if err == io.EOF {
			return errEnded
		}
		if err != nil {
			return err
		}
		u, err := parts.add(part)
		if err == nil && u != nil {
			err = s.arrive(u)
		}
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
}

// arrive hands an update over to the consumer.
func (s *session) arrive(u *Update) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if !s.asked {
		return fmt.Errorf("unexpected update to revision %d", u.Position.Rev)
	}
	if u.Node == nil {
		u.Node = s.node
	}
	s.wanted, s.asked = false, false
	s.arrived, s.position, s.node = u, u.Position, u.Node
	s.pace.succeeded()
	select {
	case s.fetch <- struct{}{}:
	default: // one was taken without waiting for it
	}
	return nil
}
