package relay

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/internal/clusterserver"
)

// endingStreams ends each call with OK after a while.
func endingStreams(after time.Duration, calls *int) grpc.ServerOption {
	return grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		*calls++
		ctx, cancel := context.WithTimeout(ss.Context(), after)
		defer cancel()
		err := handler(srv, &endingStream{ss, ctx})
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil
		}
		return err
	})
}

type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *endingStream) Context() context.Context { return s.ctx }

// TestEndedStream: when the relay ends a stream after a while, another one follows at once. It repeats nothing, and is
// no problem. A stream that the relay ends at once is a problem.
func TestEndedStream(t *testing.T) {
	for name, c := range map[string]struct {
		after       time.Duration
		calls, most int
		trouble     bool
	}{"after minutes": {5 * time.Minute, 13, 13, false}, "at once": {time.Millisecond, 300, 700, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, r, log, calls := newNetwork(), &recorder{t: t}, &logs{}, 0
				feed, sink := newFeed(t, "a")
				n.listen(t, "top", func(s *grpc.Server) { clusterserver.Register(s, clusterserver.Options{Feed: feed}) }, endingStreams(c.after, &calls))
				s := n.source(t, log.logger(), "top", "elsewhere")
				run(t, s, r)
				r.expect("a", "complete")
				time.Sleep(time.Minute)
				sink.Update(namespaces("b"), nil)
				time.Sleep(time.Hour + time.Second - time.Minute)
				r.expect("b")
				synctest.Wait()
				lines := log.take()
				if calls < c.calls || calls > c.most || len(lines) > 1 != c.trouble {
					t.Errorf("%d calls, want %d to %d; logged %q", calls, c.calls, c.most, lines)
				}
			})
		})
	}
}
