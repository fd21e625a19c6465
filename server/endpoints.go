package server

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

// endpoints implements switchyard.localnet.v1.Endpoints on one listener.
type endpoints struct {
	localnetv1.UnimplementedEndpointsServer
	*listening
}

// feed returns the feed that a client may have that asks for a node, and that node's name.
func (e *endpoints) feed(ctx context.Context, asked string) (state.Feed, string, error) {
	node, err := identityOf(ctx).nodeFor(asked, e.o.Node)
	if err != nil {
		return nil, "", err
	}
	feed, err := e.o.Feed(node)
	switch {
	case errors.Is(err, ErrNoNode):
		return nil, "", status.Errorf(codes.NotFound, "node %q: %v", node, err)
	case err != nil:
		return nil, "", status.Errorf(codes.Unavailable, "node %q: %v", node, err)
	}
	return feed, node, nil
}

// known returns the revision to continue from: a client of another life of the server begins again.
func known(instance uint64, p protoconv.Position) state.Revision {
	if p.Instance != instance {
		return 0
	}
	return p.Revision
}

// Next implements the long poll.
func (e *endpoints) Next(f *localnetv1.NextFilter, stream grpc.ServerStreamingServer[localnetv1.NextItem]) error {
	ctx := stream.Context()
	feed, node, err := e.feed(ctx, f.GetNode())
	if err != nil {
		return err
	}
	accepted := protoconv.ParseFeatures(f.GetAccepts())
	instance := e.instanceFor(accepted)
	u, err := feed.Next(ctx, known(instance, protoconv.Position{Instance: f.GetInstanceId(), Revision: state.Revision(f.GetRev())}))
	if err == nil && !u.Full {
		u, err = feed.Next(ctx, 0)
	}
	if err != nil {
		return feedError(ctx, node, err)
	}
	u, _ = e.forms.update(u, accepted)
	next := &localnetv1.NextFilter{InstanceId: instance, Rev: uint64(u.Revision), Node: node, Accepts: protoconv.Features(accepted)}
	if err := stream.Send(&localnetv1.NextItem{Next: next, Node: protoconv.Node(u.Node)}); err != nil {
		return err
	}
	for _, s := range u.Changed {
		if err := stream.SendMsg(protoconv.NextItem(&e.encoder, s)); err != nil {
			return err
		}
	}
	return nil
}

// feedError is the client's error when the feed of its node fails, or ctx has ended.
func feedError(ctx context.Context, node string, err error) error {
	if ctx.Err() != nil {
		return cause(ctx)
	}
	return status.Error(codes.Unavailable, fmt.Sprintf("node %q: %v", node, err))
}

// cause is why ctx has ended, as a status.
func cause(ctx context.Context) error {
	err := context.Cause(ctx)
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}
