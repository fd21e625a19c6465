package clusterserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/internal/objectlog"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"
)

const instance = 42

// relay is a server with a feed of namespaces.
type relay struct {
	feed   *objectlog.Feed
	sink   model.Sink
	conn   *grpc.ClientConn
	client clusterv1.ObjectsClient
	// sent is how many messages have left the handlers.
	sent atomic.Int64
	// following is how many clients follow.
	following atomic.Int64
	// stop stops the server as a daemon does that ends.
	stop func()
}

func newRelay(t *testing.T) *relay {
	r := &relay{feed: objectlog.New(objectlog.Options{})}
	r.sink = r.feed.Source("test")
	count := func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, &counting{stream, &r.sent})
	}
	server := grpc.NewServer(grpc.StreamInterceptor(count), grpc.ForceServerCodecV2(protoconv.Codec()))
	Register(server, Options{Feed: r.feed, InstanceID: instance, OnFollow: func() func() {
		r.following.Add(1)
		return func() { r.following.Add(-1) }
	}})
	l := bufconn.Listen(64 << 10)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///relay", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(128<<10), // fixed: by itself gRPC widens it for fast lines, and none is faster than this one
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	r.conn, r.client = conn, clusterv1.NewObjectsClient(conn)
	r.stop = server.GracefulStop
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		r.feed.Close()
	})
	return r
}

// counting is a stream that counts its messages.
type counting struct {
	grpc.ServerStream
	sent *atomic.Int64
}

func (c *counting) SendMsg(m any) error {
	err := c.ServerStream.SendMsg(m)
	if err == nil {
		c.sent.Add(1)
	}
	return err
}

func (r *relay) set(names ...string) { r.sink.Update(namespaces(names...), nil) }

func (r *relay) delete(names ...string) {
	var refs []model.Ref
	for _, name := range names {
		refs = append(refs, model.Ref{Kind: model.KindNamespace, Name: name})
	}
	r.sink.Update(nil, refs)
}

func namespaces(names ...string) (list []model.Object) {
	for _, name := range names {
		list = append(list, &model.Namespace{Name: name})
	}
	return list
}

// client is one stream.
type client struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[clusterv1.FollowRequest, clusterv1.FollowResponse]
}

func (r *relay) follow(t *testing.T) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := r.client.Follow(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t, stream}
}

func (c *client) ask(resume *clusterv1.Position) {
	c.t.Helper()
	err := c.stream.Send(&clusterv1.FollowRequest{Resume: resume})
	if err != nil && !errors.Is(err, io.EOF) { // which reports that the stream has ended
		c.t.Fatal(err)
	}
}

// expect receives one update, which must come without waiting for anything else.
func (c *client) expect(want string) {
	c.t.Helper()
	var words []string
	for {
		part, err := c.stream.Recv()
		if err != nil {
			c.t.Fatal(err)
		}
		for _, m := range part.GetSet() {
			words = append(words, m.GetNamespace().GetName())
		}
		for _, m := range part.GetDeleted() {
			words = append(words, "-"+m.GetName())
		}
		if p := part.GetPosition(); p != nil {
			slices.Sort(words)
			kind := "delta"
			if part.GetFull() {
				kind = "full"
			}
			if p.GetInstanceId() != instance {
				c.t.Errorf("the instance is %d", p.GetInstanceId())
			}
			if got := strings.Join(append([]string{fmt.Sprint(p.GetRev()), kind}, words...), " "); got != want {
				c.t.Errorf("received %q, want %q", got, want)
			}
			return
		}
	}
}

// ends wants the stream to end with a code.
func (c *client) ends(want codes.Code) {
	c.t.Helper()
	_, err := c.stream.Recv()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if got := status.Code(err); got != want {
		c.t.Errorf("the stream ended with %v, want %v", err, want)
	}
}

func at(instance, rev uint64) *clusterv1.Position {
	return &clusterv1.Position{InstanceId: instance, Rev: rev}
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t)
		c := r.follow(t)
		c.ask(nil)
		r.set("a")
		synctest.Wait()
		if n := r.sent.Load(); n > 0 {
			t.Fatal("something was sent before the sources are complete")
		}
		r.sink.Complete()
		c.expect("1 full a")
		r.set("b")
		synctest.Wait()
		if n := r.following.Load(); n != 1 {
			t.Errorf("%d clients follow, want one", n)
		}
		if n := r.sent.Load(); n != 1 {
			t.Fatalf("%d messages were sent to a client that asked once", n)
		}
		r.set("c")
		r.delete("a")
		c.ask(nil)
		c.expect("4 delta -a b c")
		c.ask(nil)
		c.ask(nil)
		synctest.Wait()
		r.set("d")
		c.expect("5 delta d")
		r.set("e")
		c.expect("6 delta e")
		if err := c.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		c.ends(codes.OK)
		synctest.Wait()
		if n := r.following.Load(); n != 0 {
			t.Errorf("%d clients follow after the end", n)
		}
	})
}

func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t)
		r.sink.Complete()
		r.set("a")
		r.set("b")
		r.delete("a")
		for _, s := range []struct {
			resume *clusterv1.Position
			want   string
		}{
			{nil, "4 full b"},
			{at(instance, 0), "4 full b"},
			{at(instance, 1), "4 delta -a b"},
			{at(instance, 3), "4 delta -a"},
			{at(instance, 5), "4 full b"}, // not from here
			{at(instance+1, 3), "4 full b"},
			{at(0, 3), "4 full b"},
		} {
			c := r.follow(t)
			c.ask(s.resume)
			c.expect(s.want)
		}
		c := r.follow(t)
		c.ask(at(instance, 4))
		if _, err := c.stream.Header(); err != nil { // comes at once, although there is no news
			t.Fatal(err)
		}
		synctest.Wait()
		r.set("c")
		c.expect("5 delta c")
	})
}

func TestInvalidRequestEndsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t)
		r.sink.Complete()
		c := r.follow(t)
		c.ask(nil)
		c.expect("1 full")
		c.ask(at(instance, 1))
		c.ends(codes.InvalidArgument)
	})
}

// TestShutdown ends with UNAVAILABLE whatever a client is doing, so that a server that stops gracefully does stop.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t)
		early := r.follow(t)
		early.ask(nil)
		synctest.Wait()
		r.feed.Close()
		if header, err := early.stream.Header(); header != nil || err != nil {
			t.Errorf("a client of a feed that never had anything got the header %v, %v", header, err)
		}
		early.ends(codes.Unavailable)
		r.stop()
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t)
		r.sink.Complete()
		silent, busy, waiting := r.follow(t), r.follow(t), r.follow(t)
		for _, c := range []*client{busy, waiting} {
			c.ask(nil)
			c.expect("1 full")
		}
		waiting.ask(nil)
		synctest.Wait()
		r.feed.Close()
		for _, c := range []*client{silent, busy, waiting} {
			c.ends(codes.Unavailable)
		}
		late := r.follow(t)
		late.ask(nil)
		late.ends(codes.Unavailable)
		if header, err := late.stream.Header(); header != nil || err != nil {
			t.Errorf("a client of a closed feed got the header %v, %v", header, err)
		}
		r.stop()
	})
}

// TestParts wants large updates in parts of a good size, with everything in them once.
func TestParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t)
		var names []string
		for i := range 4000 {
			names = append(names, fmt.Sprint(strings.Repeat("x", 200), i))
		}
		huge := strings.Repeat("y", 300<<10)
		large := []string{strings.Repeat("z", 100<<10), strings.Repeat("Z", 100<<10)}
		r.set(slices.Concat(names, []string{huge}, large)...)
		r.sink.Complete()
		c := r.follow(t)
		receive := func(full bool, count func(*clusterv1.FollowResponse) int) (n, parts int) {
			for {
				part, err := c.stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				parts++
				n += count(part)
				last := part.GetPosition() != nil
				size := proto.Size(part)
				small := size < targetSize*9/10 && !last && !full // in the full one, large objects may leave a gap
				if small || (size > maxSize && count(part) > 1) {
					t.Errorf("a part has %d bytes", size)
				}
				if part.GetFull() != full {
					t.Error("a part does not say whether the update is full")
				}
				if last {
					return n, parts
				}
			}
		}
		c.ask(nil)
		n, parts := receive(true, func(m *clusterv1.FollowResponse) int { return len(m.GetSet()) })
		if n != len(names)+3 || parts < 10 {
			t.Errorf("%d objects came in %d parts", n, parts)
		}
		r.delete(names...)
		c.ask(nil)
		n, parts = receive(false, func(m *clusterv1.FollowResponse) int { return len(m.GetDeleted()) })
		if n != len(names) || parts < 7 {
			t.Errorf("%d deletions came in %d parts", n, parts)
		}
	})
}

// TestClientsThatNeverRead: clients request everything and read nothing. The server's cost for them is bounded, and
// other clients are served.
func TestClientsThatNeverRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t)
		var names []string
		for i := range 20_000 {
			names = append(names, fmt.Sprint(strings.Repeat("x", 200), i))
		}
		r.set(names...)
		r.sink.Complete()
		var deaf []*client
		for range 3 {
			c := r.follow(t)
			for range 1000 {
				c.ask(nil)
			}
			deaf = append(deaf, c)
		}
		synctest.Wait()
		if n := r.sent.Load(); n == 0 || n > int64(20*len(deaf)) {
			t.Errorf("%d parts were made for %d clients that read nothing; the set takes more than 60", n, len(deaf))
		}
		for i := range 100 {
			r.set(fmt.Sprint("a", i))
			r.delete(fmt.Sprint("a", i))
		}
		c := r.follow(t)
		c.ask(at(instance, 200))
		c.expect("201 delta -a99")
		r.feed.Close()
		for _, c := range deaf {
			for part, err := c.stream.Recv(); ; part, err = c.stream.Recv() {
				if err == nil {
					continue
				}
				if part != nil || status.Code(err) != codes.Unavailable {
					t.Errorf("the stream ended with %v", err)
				}
				break
			}
		}
	})
}

// FuzzPosition resumes from anything.
func FuzzPosition(f *testing.F) {
	f.Add(uint64(instance), uint64(3))
	f.Add(uint64(0), ^uint64(0))
	feed := objectlog.New(objectlog.Options{})
	sink := feed.Source("")
	sink.Complete()
	for i := range 10 {
		sink.Update(namespaces(fmt.Sprint(i)), nil)
	}
	s := &server{feed: feed, instance: instance}
	f.Fuzz(func(t *testing.T, id, rev uint64) {
		has := s.known(at(id, rev))
		if id == instance && rev == 11 {
			return // there is no news
		}
		u, err := feed.Next(t.Context(), has)
		known := id == instance && rev > 0 && rev < 11
		if err != nil || u.Full == known || (known && len(u.Set) != int(11-rev)) {
			t.Errorf("from %d in %d leads %+v, %v", rev, id, u, err)
		}
	})
}
