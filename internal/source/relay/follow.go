package relay

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/client"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
)

// answerTimeout bounds the wait for a relay to report that it has a full set. A relay that has one reports it at once.
const answerTimeout = 30 * time.Second

var errSilent = errors.New("no answer for " + answerTimeout.String() + "; it may not have synced yet itself")

var errEnded = errors.New("the relay ended the stream")

// dial returns a new connection to a relay. Each is for one stream. So only the source itself decides when to retry,
// and names are resolved each time.
func (s *Source) dial(target string) (*grpc.ClientConn, error) {
	return client.Dial(client.Options{
		Target: target, Certificates: s.options.Certificates, SocketUsers: s.options.SocketUsers, Control: s.peers.Control, DialOptions: s.options.DialOptions,
	})
}

// follow delivers what one relay has until the stream ends, and reports why it did, and whether the relay was of use until then.
func (s *Source) follow(ctx context.Context, target string, d *delivery) (useful bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(answerTimeout, func() { cancel(errSilent) })
	defer func() {
		if errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent
		}
		timer.Stop()
		cancel(nil)
	}()
	conn, err := s.dial(target)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stream, err := clusterv1.NewObjectsClient(conn).Follow(ctx)
	if err != nil {
		return false, err
	}
	if err := ask(stream, d.position); err != nil {
		return false, err
	}
	// A relay that has a full set reports it with the header at once. It may have no news for long.
	header, err := stream.Header()
	if timer.Stop(); err == nil && header != nil {
		useful = true
		s.health.setLacking(s.options.lackingOf(target, header))
		if !s.health.broke(target) {
			s.health.markHealthy(target)
		}
	}
	for {
		u, err := s.receive(stream)
		if err == nil {
			err = d.take(u)
		}
		if err != nil {
			return useful && !errors.Is(err, errProtocol), err
		}
		s.health.markHealthy(target)
		if err := ask(stream, nil); err != nil {
			return useful, err
		}
	}
}

type stream = grpc.BidiStreamingClient[clusterv1.FollowRequest, clusterv1.FollowResponse]

// ask asks for an update.
func ask(stream stream, resume *clusterv1.Position) error {
	err := stream.Send(&clusterv1.FollowRequest{Resume: resume})
	if errors.Is(err, io.EOF) {
		return nil // the stream has ended; receiving reports why
	}
	return err
}

// receive receives all parts of an update.
func (s *Source) receive(stream stream) (*update, error) {
	u := &update{log: s.log}
	for u.position == nil {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, errEnded
		}
		if err != nil {
			return nil, err
		}
		if err := u.add(part); err != nil {
			return nil, err
		}
	}
	return u, nil
}
