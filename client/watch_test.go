package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

func TestTheConsumerPacesTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		o := net.options()
		o.Node, o.Name = "a", "test"
		c := consume(t, watcher(t, o))
		c.ask()
		p := srv.watch(t)
		want := &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{Node: "a", Client: "test"}, Ready: true}
		if got := p.request(); !proto.Equal(got, want) {
			t.Fatalf("the client begins with %v, want %v", got, want)
		}
		c.nothing()
		p.silent()

		p.send(whole(at(7, 1), service("web", 1, 2)))
		u := c.got()
		if !u.Full || u.Position != (Position{7, 1}) || u.Node.GetName() != "a" || len(u.Changed) != 1 || NameOf(u.Changed[0]).String() != "shop/web" {
			t.Errorf("the first update is %+v", u)
		}
		// The server gets no further request, regardless of how long the consumer takes.
		time.Sleep(time.Hour)
		p.silent()
		c.ask()
		if got := p.request(); !proto.Equal(got, &localnetv1.WatchRequest{Ready: true}) {
			t.Errorf("the consumer asks for more: the client says %v", got)
		}
		p.silent()

		trigger := timestamppb.New(time.Unix(1000, 5))
		p.send(&localnetv1.WatchResponse{
			Removed: []*localnetv1.ServiceName{{Namespace: "shop", Name: "web"}}, Triggers: []*timestamppb.Timestamp{trigger}, Position: at(7, 9),
		})
		u = c.got()
		if u.Full || u.Position.Rev != 9 || !slices.Equal(u.Removed, []ServiceName{{"shop", "web"}}) || !slices.EqualFunc(u.Triggers, []time.Time{time.Unix(1000, 5)}, time.Time.Equal) {
			t.Errorf("the second update is %+v", u)
		}
		if u.Node.GetName() != "a" {
			t.Errorf("an update that does not change the node has the node %v", u.Node)
		}
	})
}

func TestPartsOfAnUpdateComeAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		c := consume(t, watcher(t, net.options()))
		c.ask()
		p := srv.watch(t)
		p.request()
		trigger := timestamppb.New(time.Unix(1, 0))
		p.send(&localnetv1.WatchResponse{Full: true, Node: node("b"), Changed: []*localnetv1.ServiceEndpoints{service("x", 1, 1), service("y", 1, 1)}})
		c.nothing()
		p.send(&localnetv1.WatchResponse{Full: true, Changed: []*localnetv1.ServiceEndpoints{service("z", 1, 1)}})
		c.nothing()
		p.send(&localnetv1.WatchResponse{Full: true, Position: at(1, 3)})
		u := c.got()
		if len(u.Changed) != 3 || u.Node.GetName() != "b" || u.Position != (Position{1, 3}) {
			t.Errorf("got %+v", u)
		}
		c.ask()
		p.request()
		p.send(
			&localnetv1.WatchResponse{Removed: []*localnetv1.ServiceName{{Name: "x"}}, Triggers: []*timestamppb.Timestamp{trigger}},
			&localnetv1.WatchResponse{Removed: []*localnetv1.ServiceName{{Name: "y"}}, Triggers: []*timestamppb.Timestamp{trigger}, Position: at(1, 4)})
		if u := c.got(); len(u.Removed) != 2 || len(u.Triggers) != 2 {
			t.Errorf("got %+v", u)
		}
	})
}

func TestReconnectsWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		o := net.options()
		var failures int
		o.OnError = func(err error) {
			if failures++; failures > 8 {
				return
			}
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "unix:///in-memory") {
				t.Errorf("failure: %v", err)
			}
		}
		c := consume(t, watcher(t, o))
		c.ask()
		time.Sleep(15 * time.Second)
		ms := time.Millisecond
		want := []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms, 3100 * ms, 6300 * ms, 11300 * ms}
		if !slices.Equal(net.attempts(), want) {
			t.Errorf("the client has tried to connect at %v, want %v", net.attempts(), want)
		}
		if failures != len(want) {
			t.Errorf("OnError has got %d failures, want %d", failures, len(want))
		}

		// An update ends the series: the next pause is the shortest again.
		srv := newScript()
		net.serve(t, srv)
		p := srv.watch(t)
		p.request()
		if since() != 16300*ms {
			t.Errorf("connected at %v", since())
		}
		p.send(whole(at(1, 1)))
		c.got()
		p.end(errDown)
		srv.watch(t)
		if since() != 16400*ms {
			t.Errorf("came back at %v, want after the shortest pause", since())
		}
	})
}

func TestALongQuietStreamIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		c := consume(t, watcher(t, net.options()))
		c.ask()
		for range 5 {
			srv.watch(t).end(errDown)
		}
		p := srv.watch(t)
		if err := p.stream.SendHeader(nil); err != nil { // there is a state
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		at := since()
		p.end(errDown)
		srv.watch(t)
		if got := since() - at; got != 100*time.Millisecond {
			t.Errorf("after a minute without a failure the pause is %v", got)
		}
	})
}

func TestPausesAreJittered(t *testing.T) {
	o := Options{MinBackoff: time.Second, MaxBackoff: time.Minute}.withDefaults()
	seen := make(map[time.Duration]bool)
	for range 100 {
		d := newPacer(&o).failed()
		if d < time.Second/2 || d > time.Second {
			t.Fatalf("a pause of %v, want from 500ms to 1s", d)
		}
		seen[d] = true
	}
	if len(seen) < 50 {
		t.Errorf("100 pauses take only %d values", len(seen))
	}
}

func TestResumesWhereItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		w := watcher(t, net.options())
		c := consume(t, w)
		c.ask()
		p := srv.watch(t)
		p.request()
		p.send(whole(at(5, 10), service("web", 1, 1)))
		c.got()
		if positionOf(w) != (Position{5, 10}) {
			t.Errorf("the position is %v", positionOf(w))
		}

		// The stream breaks while the consumer is busy: the new one does not ask for it.
		p.end(errDown)
		p = srv.watch(t)
		want := &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{Resume: at(5, 10)}}
		if got := p.request(); !proto.Equal(got, want) {
			t.Errorf("after a break the client says %v, want %v", got, want)
		}
		c.ask()
		if got := p.request(); !got.Ready {
			t.Errorf("the consumer asks: the client says %v", got)
		}

		// The stream breaks while the consumer waits, and the new one sends a request at once. The server sends only
		// the changes.
		p.end(errDown)
		p = srv.watch(t)
		want.Ready = true
		if got := p.request(); !proto.Equal(got, want) {
			t.Errorf("after a break the client says %v, want %v", got, want)
		}
		p.send(&localnetv1.WatchResponse{Changed: []*localnetv1.ServiceEndpoints{service("db", 1, 1)}, Position: at(5, 12)})
		if u := c.got(); u.Full || len(u.Changed) != 1 || u.Node.GetName() != "a" {
			t.Errorf("got %+v", u)
		}

		// The server is restarted: it sends everything, under its own instance.
		c.ask()
		p.end(errDown)
		p = srv.watch(t)
		if got := p.request(); !proto.Equal(got.Subscribe.Resume, at(5, 12)) {
			t.Errorf("resumes from %v", got)
		}
		p.send(whole(at(6, 1), service("web", 2, 1)))
		if u := c.got(); !u.Full || u.Position != (Position{6, 1}) {
			t.Errorf("got %+v", u)
		}

		// A later loop also continues there.
		c.cancel()
		<-c.ended
		c = consume(t, w)
		c.ask()
		if got := srv.watch(t).request(); !proto.Equal(got.Subscribe.Resume, at(6, 1)) {
			t.Errorf("a second loop resumes from %v", got)
		}
	})
}

func TestAnUpdateThatArrivedForNobodyIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		w := watcher(t, net.options())
		s := w.start(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if u := s.next(ctx); u != nil {
			t.Fatalf("got %+v", u)
		}
		p := srv.watch(t)
		p.request()
		p.send(whole(at(1, 1)))
		synctest.Wait()
		if positionOf(w) != (Position{}) {
			t.Errorf("the position is %v before the update was taken", positionOf(w))
		}
		// A stream that breaks does not lose it, and another one is not asked for.
		p.end(errDown)
		p = srv.watch(t)
		if got := p.request(); got.Ready || !proto.Equal(got.Subscribe.Resume, at(1, 1)) {
			t.Errorf("the client says %v", got)
		}
		if u := s.next(t.Context()); u == nil || u.Position.Rev != 1 {
			t.Errorf("got %+v", u)
		}
		p.silent()
		s.stop()
		if positionOf(w) != (Position{1, 1}) {
			t.Errorf("the position is %v", positionOf(w))
		}
	})
}

func TestStartsFromAPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		o := net.options()
		o.Resume = Position{3, 4}
		c := consume(t, watcher(t, o))
		c.ask()
		p := srv.watch(t)
		if got := p.request(); !proto.Equal(got.Subscribe.Resume, at(3, 4)) {
			t.Errorf("resumes from %v", got)
		}
		p.send(&localnetv1.WatchResponse{Position: at(3, 5)})
		if u := c.got(); u.Node != nil || u.Full {
			t.Errorf("got %+v", u)
		}
	})
}

func TestAnUpdateThatBreaksOffIsNeverSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		stop := net.serve(t, srv)
		c := consume(t, watcher(t, net.options()))
		c.ask()
		p := srv.watch(t)
		p.request()
		p.send(&localnetv1.WatchResponse{Full: true, Node: node("a"), Changed: []*localnetv1.ServiceEndpoints{service("old", 1, 1)}})
		synctest.Wait()
		p.end(nil) // even if the server thinks that this was a good end
		p = srv.watch(t)
		if got := p.request(); got.Subscribe.Resume != nil || !got.Ready {
			t.Errorf("after half an update the client says %v, want to begin anew", got)
		}
		c.nothing()
		p.send(&localnetv1.WatchResponse{Full: true, Node: node("a"), Changed: []*localnetv1.ServiceEndpoints{service("old", 1, 1)}})
		synctest.Wait()
		stop() // the connection breaks
		srv = newScript()
		net.serve(t, srv)
		p = srv.watch(t)
		p.request()
		p.send(whole(at(1, 1), service("new", 1, 1)))
		if u := c.got(); len(u.Changed) != 1 || u.Changed[0].Name != "new" {
			t.Errorf("got %+v, want only what came whole", u)
		}
	})
}

func TestBrokenUpdatesBreakTheStream(t *testing.T) {
	for name, parts := range map[string][]*localnetv1.WatchResponse{
		"a whole state without a node":       {{Full: true, Position: at(1, 1)}},
		"a whole state that turns into less": {{Full: true, Node: node("a")}, {Position: at(1, 1)}},
		"less that turns into a whole state": {{}, {Full: true, Node: node("a"), Position: at(1, 1)}},
		"a whole state that removes":         {{Full: true, Node: node("a"), Removed: []*localnetv1.ServiceName{{Name: "x"}}, Position: at(1, 1)}},
		"one more than was asked for":        {whole(at(1, 1)), whole(at(1, 2))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var net wire
				srv := newScript()
				net.serve(t, srv)
				o := net.options()
				errs := make(chan error, 10)
				o.OnError = func(err error) { errs <- err }
				c := consume(t, watcher(t, o))
				c.ask()
				p := srv.watch(t)
				p.request()
				p.send(parts...)
				if err := <-errs; status.Code(err) != codes.Internal {
					t.Errorf("failure: %v", err)
				}
				p = srv.watch(t)
				if r := p.request(); r.Ready {
					p.send(whole(at(1, 1)))
				}
				if u := c.got(); u.Position.Rev != 1 {
					t.Errorf("got %+v", u)
				}
			})
		})
	}
}

func TestRefusalsAreTriedAgainAfterTheLongestPause(t *testing.T) {
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.Unimplemented} {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var net wire
				srv := newScript()
				net.serve(t, srv)
				o := net.options()
				var log strings.Builder
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				o.OnError = func(err error) {
					if status.Code(err) != code {
						t.Errorf("failure: %v", err)
					}
				}
				c := consume(t, watcher(t, o))
				c.ask()
				for i := range 3 {
					p := srv.watch(t)
					if want := time.Duration(i) * 5 * time.Second; since() != want {
						t.Errorf("attempt %d at %v, want %v", i, since(), want)
					}
					p.end(status.Error(code, "not you"))
				}
				// Fixing the server requires no change of the client.
				p := srv.watch(t)
				p.request()
				p.send(whole(at(1, 1)))
				c.got()
				if strings.Count(log.String(), "level=ERROR") != 1 || strings.Count(log.String(), "again\" target") != 1 {
					t.Errorf("the log does not report the refusal once and its end once:\n%s", log.String())
				}
			})
		})
	}
}

func TestAClientLearnsThatItIsConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		o := net.options()
		var connected, failed atomic.Int32
		o.OnConnect = func() { connected.Add(1) }
		o.OnError = func(error) { failed.Add(1) }
		var log strings.Builder
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c := consume(t, watcher(t, o))
		want := func(connects, failures int32) {
			t.Helper()
			if synctest.Wait(); connected.Load() != connects || failed.Load() != failures {
				t.Errorf("connected %d times and failed %d times, want %d and %d", connected.Load(), failed.Load(), connects, failures)
			}
		}
		c.ask()
		srv.watch(t).end(status.Error(codes.PermissionDenied, "not you"))
		p := srv.watch(t)
		want(0, 1)
		// A server that has nothing new has only its header to send.
		if err := p.stream.SendHeader(nil); err != nil {
			t.Fatal(err)
		}
		want(1, 1)
		if !strings.Contains(log.String(), "again\" target") {
			t.Errorf("the log does not report that the client is connected:\n%s", log.String())
		}
		p.send(whole(at(1, 1)))
		want(1, 1)
		p.end(errDown)
		srv.watch(t).send()
		want(1, 2)
	})
}

func TestAToolMayGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		net.serve(t, localnetv1.UnimplementedEndpointsServer{})
		ctx, cancel := context.WithCancelCause(t.Context())
		o := net.options()
		o.OnError = func(err error) { cancel(err) }
		for u := range watcher(t, o).Updates(ctx) {
			t.Errorf("got %+v", u)
		}
		if status.Code(context.Cause(ctx)) != codes.Unimplemented || since() != 0 {
			t.Errorf("ended at %v because of %v", since(), context.Cause(ctx))
		}
	})
}

func TestTheEndOfTheContextEndsTheLoop(t *testing.T) {
	t.Run("while there is no server", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var net wire
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range watcher(t, net.options()).Updates(ctx) {
				t.Error("got an update from nobody")
			}
			if since() != time.Minute {
				t.Errorf("ended at %v", since())
			}
		})
	})
	t.Run("while it waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var net wire
			srv := newScript()
			net.serve(t, srv)
			c := consume(t, watcher(t, net.options()))
			c.ask()
			p := srv.watch(t)
			p.request()
			c.cancel()
			<-c.ended
			synctest.Wait()
			if p.stream.Context().Err() == nil {
				t.Error("the server's stream is still open")
			}
			if since() != 0 {
				t.Errorf("it took %v", since())
			}
		})
	})
}

func TestSecondLoopIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		w := watcher(t, net.options())
		s := w.start(t.Context())
		defer s.stop()
		defer func() {
			if recover() == nil {
				t.Error("a second loop was allowed")
			}
		}()
		for range w.Updates(t.Context()) {
			break
		}
	})
}

func TestReportsReachTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		w := watcher(t, net.options())
		c := consume(t, w)
		c.ask()
		p := srv.watch(t)
		p.request()
		p.send(whole(at(5, 1)))
		u := c.got()

		// At once, though the consumer is busy.
		w.Report(Status{Applied: u.Position, Failed: map[ServiceName]error{{"shop", "web"}: errors.New("no room")}})
		want := &localnetv1.Status{Applied: at(5, 1), FailedTotal: 1, Failed: []*localnetv1.ServiceError{
			{Service: &localnetv1.ServiceName{Namespace: "shop", Name: "web"}, Message: "no room"}}}
		if got := p.request(); got.Ready || !proto.Equal(got.Status, want) {
			t.Errorf("the client says %v, want %v", got, want)
		}
		// The same again is no news.
		w.Report(Status{Applied: u.Position, Failed: map[ServiceName]error{{"shop", "web"}: errors.New("no room")}})
		p.silent()

		// With a new stream, again.
		p.end(errDown)
		p = srv.watch(t)
		if got := p.request(); got.Subscribe == nil || !proto.Equal(got.Status, want) {
			t.Errorf("the client begins with %v, want %v", got, want)
		}

		// A new instance can distinguish a revision of the previous instance from its own.
		c.ask()
		p.request()
		p.send(whole(at(6, 1)))
		u = c.got()
		p.silent()
		w.Report(Status{Applied: u.Position})
		if got := p.request(); !proto.Equal(got.Status, &localnetv1.Status{Applied: at(6, 1)}) {
			t.Errorf("the client says %v", got)
		}
	})
}

func TestReportsWithoutAServerAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		w := watcher(t, net.options())
		w.Report(Status{Failed: map[ServiceName]error{{"x", "0"}: nil}})
		c := consume(t, w)
		c.ask()
		failed := make(map[ServiceName]error)
		for i := range 1000 {
			failed[ServiceName{"x", fmt.Sprintf("%04d", i)}] = fmt.Errorf("reason %d", i)
			w.Report(Status{Failed: failed})
		}
		srv := newScript()
		net.serve(t, srv)
		p := srv.watch(t)
		got := p.request().GetStatus()
		if got.GetFailedTotal() != 1000 || len(got.GetFailed()) != 100 || got.GetFailed()[99].GetMessage() != "reason 99" {
			t.Errorf("the status names %d of %d failed services, want the first 100 of 1000", len(got.GetFailed()), got.GetFailedTotal())
		}
		p.silent()
	})
}

func TestAReportIsRepeatedToEachStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		w := watcher(t, net.options())
		consume(t, w).ask()
		// Reasons come from anywhere: they may be long, and no text.
		w.Report(Status{Failed: map[ServiceName]error{{"shop", "web"}: errors.New(strings.Repeat("ä", 1000) + "\xff"), {"shop", "x"}: errors.New("\xffa")}})
		for range 2 {
			p := srv.watch(t)
			got := p.request().GetStatus().GetFailed()
			if len(got) != 2 || got[0].Message != strings.Repeat("ä", 512) || got[1].Message != "a" {
				t.Errorf("the status of a new stream has %v", got)
			}
			p.end(errDown)
		}
	})
}

func TestWhatCannotBeSaidIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		errs := make(chan error, 10)
		o := net.options()
		o.OnError = func(err error) { errs <- err }
		w := watcher(t, o)
		consume(t, w).ask()
		p := srv.watch(t)
		p.request()
		w.Report(Status{Failed: map[ServiceName]error{{"shop", "\xff"}: nil}})
		if err := <-errs; !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("failure: %v", err)
		}
		w.Report(Status{})
		if got := srv.watch(t).request(); !got.Ready {
			t.Errorf("the client comes back with %v", got)
		}
	})
}

// TestAVanishedHostIsNoticed cuts the line to a relay without closing the connection.
func TestAVanishedHostIsNoticed(t *testing.T) {
	pki := newPKI(t)
	synctest.Test(t, func(t *testing.T) {
		var line wire
		var dead atomic.Bool
		line.wrap = func(c net.Conn) net.Conn { return &cuttable{c, &dead} }
		srv := newScript()
		serverTLS := grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pki.server}}))
		line.serve(t, srv, serverTLS, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval / 2}))
		o := line.options()
		o.Target = "passthrough:///relay.example:8443"
		o.TLS = &tls.Config{RootCAs: pki.pool, Time: func() time.Time { return pki.now }}
		errs := make(chan error, 10)
		o.OnError = func(err error) { errs <- err }
		c := consume(t, watcher(t, o))
		c.ask()
		p := srv.watch(t)
		p.request()
		p.send(whole(at(1, 1)))
		c.got()
		c.ask()
		// A healthy line may be quiet for long.
		time.Sleep(time.Hour)
		if len(errs) != 0 {
			t.Fatalf("failure: %v", <-errs)
		}
		dead.Store(true)
		cut := since()
		err := <-errs
		if d := since() - cut; d > pingInterval+pingTimeout || status.Code(err) != codes.Unavailable {
			t.Errorf("noticed after %v: %v", d, err)
		}
		dead.Store(false)
		if got := srv.watch(t).request(); !proto.Equal(got.Subscribe.Resume, at(1, 1)) {
			t.Errorf("the client comes back with %v", got)
		}
	})
}

// cuttable discards writes once it is dead.
type cuttable struct {
	net.Conn
	dead *atomic.Bool
}

func (c *cuttable) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// positionOf returns the position of the last update that w returned.
func positionOf(w *Watcher) Position {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.position
}
