package relay

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/switchyard-net/switchyard/internal/clusterserver"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// newFeed returns a feed of namespaces, and the sink to change them.
func newFeed(t testing.TB, names ...string) (*objectlog.Feed, interface {
	Update([]model.Object, []model.Ref)
}) {
	feed := objectlog.New(objectlog.Options{})
	t.Cleanup(feed.Close)
	sink := feed.Source("test")
	sink.Update(namespaces(names...), nil)
	sink.Complete()
	return feed, sink
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		feed, sink := newFeed(t, "a", "b")
		n.serve(t, "top", feed)
		s := n.source(t, nil, "top")
		run(t, s, r)
		r.expect("a b", "complete")
		sink.Update(namespaces("c", "a!"), refs("b"))
		r.expect("-b a! c")
		sink.Update(nil, refs("c"))
		r.expect("-c")
		if p := s.Problems(); p != nil {
			t.Error("there are problems:", p)
		}
	})
}

func TestEmptyClusterIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		feed, sink := newFeed(t)
		n.serve(t, "top", feed)
		run(t, n.source(t, nil, "top"), r)
		r.expect("complete")
		sink.Update(namespaces("a"), nil)
		r.expect("a")
	})
}

// TestResume loses connections and expects to get only the changes since then.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		feed, sink := newFeed(t, "a", "b", "c")
		n.serve(t, "top", feed)
		run(t, n.source(t, nil, "top"), r)
		r.expect("a b c", "complete")
		for range 3 {
			n.cut("top")
			settle()
			r.expect()
		}
		n.cut("top")
		synctest.Wait()
		sink.Update(namespaces("d", "a!"), refs("b"))
		sink.Update(nil, refs("d"))
		r.expect() // not connected
		settle()
		r.expect("-b -d a!")
		n.cut("top")
		settle()
		r.expect()
	})
}

// TestRestart replaces a relay by another one, as a restart does. Objects that were deleted during the restart are
// deleted.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		feed, sink := newFeed(t, "a", "b", "c")
		stop := n.serve(t, "top", feed)
		run(t, n.source(t, nil, "top"), r)
		r.expect("a b c", "complete")
		sink.Update(nil, refs("c"))
		r.expect("-c")
		stop()
		time.Sleep(10 * time.Minute)
		r.expect()
		feed, sink = newFeed(t, "b!", "d")
		n.serve(t, "top", feed)
		settle()
		r.expect("-a b! d")
		sink.Update(nil, refs("b"))
		r.expect("-b")
	})
}

// TestSlowSink has many changes while the sink is busy, and wants them in one update.
func TestSlowSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		feed, sink := newFeed(t, "a")
		n.serve(t, "top", feed)
		run(t, n.source(t, nil, "top"), r)
		r.expect("a", "complete")
		r.busy = make(chan struct{})
		sink.Update(namespaces("b"), nil)
		synctest.Wait()
		for range 1000 {
			sink.Update(namespaces("c"), nil)
			sink.Update(nil, refs("c"))
			sink.Update(namespaces("d", "e"), refs("a"))
		}
		close(r.busy)
		r.expect("b", "-a -c d e")
	})
}

// TestNothingByHalves breaks connections everywhere in a large update and wants it whole or not at all.
func TestNothingByHalves(t *testing.T) {
	const objects, step = 3000, 47_017
	for _, full := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n, r := newNetwork(), &recorder{t: t}
			var names, want []string
			for i := range objects {
				names = append(names, fmt.Sprint(strings.Repeat("x", 200), i))
			}
			feed, sink := newFeed(t)
			n.serve(t, "top", feed)
			if full {
				sink.Update(namespaces(names...), nil)
			} else {
				run(t, n.source(t, nil, "top"), r)
				synctest.Wait()
				n.cut("top")
				synctest.Wait()
				sink.Update(namespaces(names...), nil)
				want = []string{"complete", fmt.Sprint(objects)}
			}
			tries, carried := 0, 0
			n.mu.Lock()
			n.allowance = func() int { tries++; carried += step; return carried }
			n.mu.Unlock()
			if full {
				run(t, n.source(t, nil, "top"), r)
				want = []string{fmt.Sprint(objects), "complete"}
			}
			time.Sleep(10 * time.Minute)
			n.mu.Lock()
			defer n.mu.Unlock()
			if tries < 10 {
				t.Errorf("full is %v: it took %d tries; that tests nothing", full, tries)
			}
			r.expect(want...)
		})
	}
}

// TestFallback follows the next relay when one fails, and stays there.
func TestFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		one, sinkOne := newFeed(t, "a", "b")
		two, sinkTwo := newFeed(t, "a", "b")
		three := objectlog.New(objectlog.Options{}) // has nothing
		t.Cleanup(three.Close)
		three.Source("silent")
		stop := n.serve(t, "one", one)
		n.serve(t, "two", two)
		n.serve(t, "three", three)
		s := n.source(t, nil, "three", "one", "two")
		run(t, s, r)
		r.expect()
		time.Sleep(answerTimeout)
		settle()
		r.expect("a b", "complete")
		if p := s.Problems(); p != nil {
			t.Error("there are problems, although a relay can be followed:", p)
		}
		n.cut("one")
		settle()
		r.expect() // the same one is still good
		sinkOne.Update(namespaces("c"), nil)
		sinkTwo.Update(nil, refs("a"))
		r.expect("c")
		stop()
		settle()
		r.expect("-a -c b")
		n.serve(t, "one", one)
		settle()
		r.expect()
		sinkTwo.Update(namespaces("d"), nil)
		r.expect("d")
	})
}

// TestSilentConnection has a relay whose packets get lost without a trace.
func TestSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		feed, _ := newFeed(t, "a")
		n.serve(t, "top", feed)
		run(t, n.source(t, nil, "top"), r)
		r.expect("a", "complete")
		n.mu.Lock()
		c := n.conns[0]
		n.mu.Unlock()
		c.mu.Lock()
		c.deaf = true
		c.mu.Unlock()
		time.Sleep(2 * time.Minute)
		settle()
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.conns) < 2 {
			t.Error("the source still waits for a relay that is gone")
		}
	})
}

func TestProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r, log := newNetwork(), &recorder{t: t}, &logs{}
		s := n.source(t, log.logger(), "top")
		expect := func(logged, problem string) {
			t.Helper()
			settle()
			lines := strings.Join(log.take(), "\n")
			if (logged == "") != (lines == "") || !strings.Contains(lines, logged) || strings.Contains(lines, "\n") {
				t.Errorf("logged was\n%s\nwant one line with %q", lines, logged)
			}
			var text string
			if p := s.Problems(); len(p) > 0 {
				text = errors.Join(p...).Error()
			}
			if (problem == "") != (text == "") || !strings.Contains(text, problem) {
				t.Errorf("the problem is %q, want one with %q", text, problem)
			}
		}
		start := time.Now().UTC().Format(time.RFC3339)
		run(t, s, r)
		expect("level=WARN", "cannot follow relay passthrough:///top since "+start+": ")
		expect("", "nobody listens at top")

		stop := n.listen(t, "top", func(*grpc.Server) {})
		expect("it is no relay", "it is no relay")
		stop()
		stop = n.listen(t, "top", func(s *grpc.Server) { clusterv1.RegisterObjectsServer(s, &refusing{code: codes.PermissionDenied}) })
		expect("check this client's certificate", "check this client's certificate")
		stop()

		feed, _ := newFeed(t, "a")
		stop = n.serve(t, "top", feed)
		settle()
		if lines := log.take(); len(lines) != 2 || !strings.Contains(lines[0], "following relay again") ||
			!strings.Contains(lines[1], "initial sync complete") {
			t.Errorf("logged was %q, want that all is well", lines)
		}
		expect("", "")
		feed.Close()
		expect("level=WARN", "shutting down")
		stop()
	})
}

// refusing is a relay that refuses.
type refusing struct {
	clusterv1.UnimplementedObjectsServer
	code codes.Code
}

func (r *refusing) Follow(grpc.BidiStreamingServer[clusterv1.FollowRequest, clusterv1.FollowResponse]) error {
	return status.Error(r.code, "no")
}

// scripted is a relay that answers requests with these responses in turn.
type scripted struct {
	clusterv1.UnimplementedObjectsServer
	answers [][]*clusterv1.FollowResponse
	asked   []*clusterv1.FollowRequest
}

func (s *scripted) Follow(stream grpc.BidiStreamingServer[clusterv1.FollowRequest, clusterv1.FollowResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		s.asked = append(s.asked, request)
		if len(s.answers) == 0 {
			<-stream.Context().Done()
			return nil
		}
		parts := s.answers[0]
		s.answers = s.answers[1:]
		for _, part := range parts {
			if err := stream.Send(part); err != nil {
				return err
			}
		}
	}
}

func namespaceMessage(name string) *clusterv1.Object {
	return &clusterv1.Object{Object: &clusterv1.Object_Namespace{Namespace: &clusterv1.Namespace{Name: name}}}
}

func serviceMessage(name string, addr ...byte) *clusterv1.Object {
	return &clusterv1.Object{Object: &clusterv1.Object_Service{Service: &clusterv1.Service{
		Namespace: "ns", Name: name, Type: clusterv1.ServiceType_SERVICE_TYPE_CLUSTER_IP, ClusterIps: [][]byte{addr},
	}}}
}

func at(rev uint64) *clusterv1.Position { return &clusterv1.Position{InstanceId: 7, Rev: rev} }

// TestFaults has objects that cannot be used: their last good version stays, and nothing else suffers.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r, log := newNetwork(), &recorder{t: t}, &logs{}
		good, bad := serviceMessage("web", 10, 0, 0, 1), serviceMessage("web", 10, 0, 0)
		relay := &scripted{answers: [][]*clusterv1.FollowResponse{
			{{Full: true, Set: []*clusterv1.Object{good, serviceMessage("worse", 1), namespaceMessage("a")}, Position: at(1)}},
			{{Set: []*clusterv1.Object{bad, namespaceMessage("b")}, Position: at(2)}},
			{
				{Full: true, Set: []*clusterv1.Object{bad, serviceMessage("worse", 1)}},
				{Full: true, Set: []*clusterv1.Object{{}}, Position: at(3)}, // of a kind to come
			},
			{{Deleted: []*clusterv1.Ref{{Kind: 99, Name: "x"}}, Position: at(4)}},
			{{Full: true, Position: at(5)}},
		}}
		n.listen(t, "top", func(s *grpc.Server) { clusterv1.RegisterObjectsServer(s, relay) })
		run(t, n.source(t, log.logger(), "top"), r)
		r.expect("a web", "complete", "b", "-a -b", "-web")
		lines := log.take()
		if len(lines) != 5 || !strings.Contains(lines[0], `object="Service ns/worse"`) ||
			!strings.Contains(lines[2], `object="Service ns/web"`) {
			t.Errorf("logged was %s", strings.Join(lines, "\n"))
		}
	})
}

// TestBrokenProtocol has a relay that errs: nothing of a wrong update is delivered, and the source retries from where it is.
func TestBrokenProtocol(t *testing.T) {
	set := []*clusterv1.Object{namespaceMessage("wrong")}
	for name, answer := range map[string][]*clusterv1.FollowResponse{
		"full in some of its parts only":  {{Full: true, Set: set}, {Position: at(9)}},
		"a full update names deleted":     {{Full: true, Set: set, Deleted: []*clusterv1.Ref{{Kind: 4, Name: "a"}}, Position: at(9)}},
		"the first update is not full":    nil,
		"cannot follow relay passthrough": {{Set: set}},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, r := newNetwork(), &recorder{t: t}
			relay := &scripted{}
			want := []string{"a", "complete"}
			if answer == nil {
				relay.answers, want = append(relay.answers, []*clusterv1.FollowResponse{{Set: set, Position: at(9)}}), nil
			} else {
				relay.answers = append(relay.answers,
					[]*clusterv1.FollowResponse{{Full: true, Set: []*clusterv1.Object{namespaceMessage("a")}, Position: at(1)}}, answer)
			}
			n.listen(t, "top", func(s *grpc.Server) { clusterv1.RegisterObjectsServer(s, relay) })
			s := n.source(t, nil, "top")
			run(t, s, r)
			synctest.Wait()
			if strings.HasPrefix(name, "cannot") {
				n.cut("top") // it never marks the update as whole
			}
			r.expect(want...)
			if text := fmt.Sprint(s.Problems()); !strings.Contains(text, name) {
				t.Errorf("problems are %s, want %q", text, name)
			}
			settle()
			r.expect()
			if last := relay.asked[len(relay.asked)-1].GetResume(); answer != nil && last.GetRev() != 1 {
				t.Errorf("resumed from %v, want revision 1", last)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"no Targets":                           {},
		"one of Targets is empty":              {Targets: []string{"localhost:1", ""}},
		`target "%zz"`:                         {Targets: []string{"localhost:1", "%zz"}},
		`scheme "https"`:                       {Targets: []string{"https://relay.example:8443"}, Certificates: certificates(t)},
		`"192.0.2.1:1" may be on another host`: {Targets: []string{"localhost:1", "192.0.2.1:1"}},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one with %q", err, want)
		}
	}
	if _, err := New(Options{Targets: []string{"192.0.2.1:1"}, Certificates: certificates(t)}); err != nil {
		t.Errorf("with TLS: %v", err)
	}
}

// TestBrokenProtocolStaysTrouble has a relay that errs each time: it is logged once, not as followed again and again.
func TestBrokenProtocolStaysTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r, log := newNetwork(), &recorder{t: t}, &logs{}
		relay := &scripted{}
		for range 100 {
			relay.answers = append(relay.answers, []*clusterv1.FollowResponse{{Position: at(9)}})
		}
		n.listen(t, "top", func(s *grpc.Server) { clusterv1.RegisterObjectsServer(s, relay) })
		run(t, n.source(t, log.logger(), "top"), r)
		settle()
		if lines := log.take(); len(lines) != 1 || len(relay.asked) < 4 {
			t.Errorf("asked %d times; logged was %q, want one line", len(relay.asked), lines)
		}
		r.expect()
	})
}

// TestTargets follows a relay on loopback however its address is written, and past the proxies of the environment.
func TestTargets(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://192.0.2.1:1")
	feed, _ := newFeed(t, "a")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(protoconv.Codec()))
	clusterserver.Register(server, clusterserver.Options{Feed: feed})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Stop(); <-served }()
	for _, scheme := range []string{"tcp://", "", "dns:///"} {
		s, err := New(Options{Targets: []string{scheme + l.Addr().String()}})
		if err != nil {
			t.Errorf("%s: %v", scheme, err)
			continue
		}
		a := make(arrivals, 1)
		stop := run(t, s, a)
		if n := await.Receive(t, scheme+": objects come", a, func() any { return s.Problems() }); n != 1 {
			t.Errorf("%s: %d objects have come, want 1", scheme, n)
		}
		stop()
	}
}

// TestEqualObjectsAreNoNewsBelow gets everything again from another relay, which must not reach the relays below.
func TestEqualObjectsAreNoNewsBelow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNetwork(), &recorder{t: t}
		slice := func() []model.Object {
			return []model.Object{&model.EndpointSlice{
				Namespace: "ns", Name: "s", Service: "web", Family: state.IPv4, TriggerTime: time.Unix(1, 2),
			}}
		}
		feed, sink := newFeed(t)
		sink.Update(slice(), nil)
		stop := n.serve(t, "top", feed)
		below := objectlog.New(objectlog.Options{})
		t.Cleanup(below.Close)
		run(t, n.source(t, nil, "top"), objectlog.Tee(r, below.Source("relay")))
		r.expect("s", "complete")
		stop()
		feed, sink = newFeed(t)
		sink.Update(slice(), nil)
		n.serve(t, "top", feed)
		settle()
		r.expect("s")
		if u, err := below.Next(t.Context(), 0); err != nil || u.Revision != 1 {
			t.Errorf("the feed below is at %+v, %v, want still at its first revision", u, err)
		}
	})
}
