package client

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestAServerWithoutAState: one that accepts the subscription and never has a state of the node is left for another.
func TestAServerWithoutAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		o := net.options()
		var failures []error
		connected := 0
		o.OnError = func(err error) { failures = append(failures, err) }
		o.OnConnect = func() { connected++ }
		c := consume(t, watcher(t, o))
		c.ask()
		srv.watch(t)
		p := srv.watch(t)
		if since() != stateTimeout+100*time.Millisecond {
			t.Errorf("the client comes back at %v", since())
		}
		if len(failures) != 1 || status.Code(failures[0]) != codes.Unavailable || connected != 0 {
			t.Errorf("connected %d times, failures: %v", connected, failures)
		}
		// With the header, there is a state. The client may have it, so that there is no news for as long as it takes.
		time.Sleep(stateTimeout - time.Second)
		if err := p.stream.SendHeader(metadata.MD{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		p.request()
		p.send(whole(at(1, 1)))
		c.got()
		if want := []time.Duration{0, stateTimeout + 100*time.Millisecond}; !slices.Equal(net.attempts(), want) || len(failures) != 1 || connected != 1 {
			t.Errorf("connected %d times, tried at %v, want at %v; failures: %v", connected, net.attempts(), want, failures)
		}
	})
}
