package relay

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/internal/objectlog"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestAnUpdateWithoutEnd: a relay that sends parts without end is left before it has taken all memory, whatever they hold.
func TestAnUpdateWithoutEnd(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	for name, part := range map[string]*clusterv1.FollowResponse{
		"the same object again and again":   {Full: true, Set: []*clusterv1.Object{namespaceMessage(large)}},
		"objects of a kind that is unknown": {Full: true, Set: []*clusterv1.Object{{}}},
		"objects that are gone":             {Deleted: []*clusterv1.Ref{{Kind: clusterv1.Kind_KIND_NODE, Name: large}}},
		"nothing":                           {},
	} {
		u := &update{log: slog.New(slog.DiscardHandler)}
		var err error
		parts := 0
		for ; err == nil && parts < 20_000_000; parts++ {
			err = u.add(part)
		}
		if err == nil || err.Error() != "protocol violation: an update has more than 512 MiB and does not end" || proto.Size(part) > 1<<20 && parts > 513 {
			t.Errorf("%s: after %d parts: %v", name, parts, err)
		}
	}
}

// endless sends the same part for ever.
type endless struct {
	clusterv1.UnimplementedObjectsServer
	sent int
}

func (s *endless) Follow(stream grpc.BidiStreamingServer[clusterv1.FollowRequest, clusterv1.FollowResponse]) error {
	part := &clusterv1.FollowResponse{Full: true, Set: []*clusterv1.Object{namespaceMessage(strings.Repeat("x", 32<<20))}}
	for ; ; s.sent++ {
		if err := stream.Send(part); err != nil {
			return err
		}
	}
}

// TestARelayWithoutEnd: the follower of a relay that never ends an update goes to another one, and has none of its objects.
func TestARelayWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		feed, _ := newFeed(t, "a")
		rude := &endless{}
		n.listen(t, "rude", func(s *grpc.Server) { clusterv1.RegisterObjectsServer(s, rude) })
		n.serve(t, "sound", feed)
		s := n.source(t, nil, "rude", "sound")
		run(t, s, r)
		settle()
		r.expect("a", "complete")
		if rude.sent < 16 || rude.sent > 20 {
			t.Errorf("it could send %d parts of 32 MiB", rude.sent)
		}
		if p := s.Problems(); p != nil {
			t.Error("there are problems:", p)
		}
	})
}

// TestLargeObject: an object larger than an API server would take, which only manifests can have, does not keep followers from the
// others.
func TestLargeObject(t *testing.T) {
	slice := &model.EndpointSlice{Namespace: "shop", Name: "huge", Service: "web", Family: state.IPv4}
	for i := range 200_000 {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Ready: true, Serving: true, NodeName: "node-with-quite-a-long-name",
		})
	}
	if size := proto.Size(protoconv.Object(slice)); size < 4<<20 {
		t.Fatalf("it has only %d bytes", size)
	}
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		feed := objectlog.New(objectlog.Options{})
		t.Cleanup(feed.Close)
		sink := feed.Source("test")
		sink.Update(append(namespaces("a"), slice), nil)
		sink.Complete()
		n.serve(t, "top", feed)
		s := n.source(t, nil, "top")
		run(t, s, r)
		r.expect("a huge", "complete")
		if p := s.Problems(); p != nil {
			t.Error("there are problems:", p)
		}
	})
}
