package clusterserver

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// rawCodec makes a call send and receive bytes instead of messages.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

const method = "/switchyard.cluster.v1.Objects/Follow"

// goroutines returns the stacks of all goroutines. runtime.NumGoroutine also counts those that have ended and are not put away yet.
func goroutines() []string {
	stacks := make([]byte, 1<<20)
	return strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n")
}

// TestManyStreams: clients that begin streams, ask without end and give up leave nothing behind, and others are served.
func TestManyStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t)
		r.set("a", "b")
		r.sink.Complete()
		synctest.Wait()
		polite := r.follow(t)
		polite.ask(nil)
		polite.expect("1 full a b")
		synctest.Wait()
		before := len(goroutines())
		for round := range 20 {
			var streams []context.CancelFunc
			for range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				stream, err := r.client.Follow(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for range 20 {
					_ = stream.Send(nil)
				}
				streams = append(streams, cancel)
			}
			if round%2 == 0 {
				synctest.Wait()
			}
			for _, cancel := range streams {
				cancel()
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if now := goroutines(); len(now) > before {
			t.Errorf("%d goroutines, %d before:\n\n%s", len(now), before, strings.Join(now, "\n\n"))
		}
		r.set("c")
		polite.ask(nil)
		polite.expect("2 delta c")
	})
}

// FuzzFollow sends anything for requests: it is answered or refused, and others are served what there is.
func FuzzFollow(f *testing.F) {
	for _, request := range []string{"", "\x0a\x00", "\x0a\x04\x08\x2a\x10\x01", "\x0a\x02\x08\x2a", "\x0a\xff\xff\xff\xff\x0f", "\xff", "\x0a\x04\x08\x2a\x10\x09\x12\x00"} {
		f.Add([]byte(request), []byte("\x0a\x00"))
		f.Add([]byte(request), []byte{})
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		synctest.Test(t, func(t *testing.T) {
			r := newRelay(t)
			r.set("a")
			r.sink.Complete()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			stream, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(rawCodec{}))
			if err != nil {
				t.Fatal(err)
			}
			_ = stream.SendMsg(first)
			_ = stream.SendMsg(second)
			_ = stream.CloseSend()
			for err == nil {
				var m []byte
				err = stream.RecvMsg(&m)
			}
			switch c := status.Code(err); {
			case errors.Is(err, io.EOF), c == codes.InvalidArgument, c == codes.Internal:
			case c == codes.DeadlineExceeded, c == codes.Unavailable: // it asked for news, of which there are none, until its time was up
			default:
				t.Errorf("%x, %x: %v", first, second, err)
			}
			c := r.follow(t)
			c.ask(nil)
			c.expect("1 full a")
		})
	})
}
