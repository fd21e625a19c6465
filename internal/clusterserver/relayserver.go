// Package clusterserver serves the cluster's objects to the relays below, over gRPC.
//
// It implements switchyard.cluster.v1 and leaves authentication to its caller. Clients set the pace. For a client that
// does not read, the server holds one update, which shares its objects with the feed, and the messages in gRPC's
// windows. Messages for several clients are marshalled once.
package clusterserver

import (
	"errors"
	"io"
	"math/rand/v2"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/switchyard-net/switchyard/internal/objectlog"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

// Options specifies what to hand out.
type Options struct {
	// Feed has the objects. Required. Once it is closed, or the context of a request ends, the client is sent away with
	// UNAVAILABLE.
	Feed *objectlog.Feed
	// InstanceID names the life of Feed: clients can resume only within the same life. Default: a random number.
	InstanceID uint64
	// NodeHealth reports that the Nodes of Feed have their health. Clients that need it can see that in the header.
	NodeHealth bool
	// NodeEdge reports that the Nodes of Feed have their annotation for the edge, likewise.
	NodeEdge bool
	// OnFollow is called when a client begins to follow. It returns a function that is called when the client is gone.
	// They must not block. Default: no callback is called.
	OnFollow func() (gone func())
}

// Register makes registrar, a gRPC server with the codec of package wire, hand out the objects of a feed.
func Register(registrar grpc.ServiceRegistrar, o Options) {
	for o.InstanceID == 0 {
		o.InstanceID = rand.Uint64()
	}
	clusterv1.RegisterObjectsServer(registrar, &server{feed: o.Feed, instance: o.InstanceID, nodeHealth: o.NodeHealth, nodeEdge: o.NodeEdge, onFollow: o.OnFollow})
}

type server struct {
	clusterv1.UnimplementedObjectsServer
	feed       *objectlog.Feed
	instance   uint64
	nodeHealth bool
	nodeEdge   bool
	onFollow   func() (gone func()) // may be nil
	partitions partitions
}

type stream = grpc.BidiStreamingServer[clusterv1.FollowRequest, clusterv1.FollowResponse]

// Follow serves one client.
func (s *server) Follow(stream stream) error {
	select {
	case <-s.feed.Ready():
	case <-s.feed.Closed():
	case <-stream.Context().Done():
	}
	if s.closed(stream) {
		return errClosed
	}
	// The header shows the client that there are objects here, even if there is nothing to send that it does not have.
	header := metadata.MD{}
	if s.nodeHealth {
		header.Set(protoconv.NodeHealthHeader, "1")
	}
	if s.nodeEdge {
		header.Set(protoconv.NodeEdgeHeader, "1")
	}
	if err := stream.SendHeader(header); err != nil {
		return err
	}
	if s.onFollow != nil {
		defer s.onFollow()()
	}
	requests, ended := receive(stream)
	var has state.Revision
	for first := true; ; first = false {
		select {
		case <-s.feed.Closed():
			return errClosed
		case <-stream.Context().Done():
			return errClosed
		case err := <-ended:
			return err
		case request := <-requests:
			if resume := request.GetResume(); resume != nil {
				if !first {
					return status.Error(codes.InvalidArgument, "resume is allowed in the first request only")
				}
				has = s.known(resume)
			}
		}
		update, err := s.feed.Next(stream.Context(), has)
		if err != nil {
			return errClosed
		}
		if err := s.send(stream, update); err != nil {
			return err
		}
		has = update.Revision
	}
}

// errClosed is for clients that are still there when the feed is closed or the server ends their context.
var errClosed = status.Error(codes.Unavailable, "this relay is shutting down; retry later, or follow another one")

// closed reports whether a stream gets no further updates.
func (s *server) closed(stream stream) bool {
	select {
	case <-s.feed.Closed():
		return true
	default:
		return stream.Context().Err() != nil
	}
}

// receive reads requests, each when the one before has been taken, until the stream ends. Then ended has the reason, which is
// nil if the client is done.
func receive(stream stream) (requests <-chan *clusterv1.FollowRequest, ended <-chan error) {
	taken, end := make(chan *clusterv1.FollowRequest), make(chan error, 1)
	go func() {
		for {
			request, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				end <- nil
				return
			case err != nil:
				end <- err
				return
			}
			select {
			case taken <- request:
			case <-stream.Context().Done(): // as soon as Follow has returned
				return
			}
		}
	}()
	return taken, end
}

// known returns the revision that the client has, 0 if it is one of another life.
func (s *server) known(p *clusterv1.Position) state.Revision {
	if p.GetInstanceId() != s.instance {
		return 0
	}
	return state.Revision(p.GetRev())
}

// send sends an update in parts.
func (s *server) send(stream stream, u *objectlog.Update) error {
	p, done := s.partitions.begin(u, s.instance)
	defer done()
	for i := 0; ; i++ {
		part := p.part(i)
		if err := stream.SendMsg(protoconv.NewRaw(part.bytes)); err != nil || part.last {
			return err
		}
	}
}
