package server

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
)

// NextNames implements the long poll for names. They are the same for all clients, which need not have a node.
func (e *endpoints) NextNames(r *localnetv1.NextNamesRequest, stream grpc.ServerStreamingServer[localnetv1.NextNamesResponse]) error {
	ctx := stream.Context()
	if e.o.Names == nil {
		return status.Error(codes.Unimplemented, "this server does not serve names; start it with --names, or set api.names")
	}
	// Now the client knows that it is connected, even if nothing changes for a long time.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	u, err := e.o.Names.Next(ctx, known(e.o.InstanceID, protoconv.ParsePosition(r.GetResume())))
	switch {
	case ctx.Err() != nil:
		return cause(ctx)
	case err != nil:
		return status.Errorf(codes.Unavailable, "names: %v", err)
	}
	for part := range protoconv.NamesParts(u, protoconv.Position{Instance: e.o.InstanceID, Revision: u.Revision}, partSize) {
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	return nil
}
