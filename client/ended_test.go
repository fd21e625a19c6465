package client

import (
	"testing"
	"testing/synctest"
	"time"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// TestEndedStream: a stream that the server ends after a while is followed by another one at once, which is no failure. One that it
// ends at once is.
func TestEndedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		failures := 0
		o := net.options()
		o.OnError = func(error) { failures++ }
		c := consume(t, watcher(t, o))
		c.ask()
		p := srv.watch(t)
		p.request()
		p.send(whole(at(1, 5), service("web", 1, 1)))
		c.got()
		c.ask()
		for range 3 {
			if r := p.request(); !r.Ready {
				t.Fatalf("the client says %v", r)
			}
			time.Sleep(6 * time.Second)
			before := since()
			p.end(nil)
			p = srv.watch(t)
			if took := since() - before; took != 0 || failures > 0 {
				t.Fatalf("the client came back after %v and has reported %d failures", took, failures)
			}
		}
		if r := p.request(); r.GetSubscribe().GetResume().GetRev() != 5 || !r.Ready {
			t.Errorf("the client says %v, want to resume", r)
		}
		p.send(&localnetv1.WatchResponse{Position: at(1, 6)})
		if u := c.got(); u.Full || u.Position.Rev != 6 {
			t.Errorf("got %+v", u)
		}
		before := since()
		for range 3 {
			p.end(nil)
			p = srv.watch(t)
		}
		if took := since() - before; took < 300*time.Millisecond || failures != 3 {
			t.Errorf("a server that ends streams at once is asked 3 times in %v, and %d failures were reported", took, failures)
		}
	})
}

// TestEndedPoll is the same with whole states.
func TestEndedPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := newScript()
		net.serve(t, srv)
		o := net.options()
		epc := &EndpointsClient{Target: o.Target, DialOptions: o.DialOptions}
		defer epc.Cancel()
		go epc.Next()
		p := <-srv.nexts
		for _, pause := range []time.Duration{0, time.Second, 0} {
			lasted := time.Minute
			if pause > 0 {
				lasted = 0
			}
			time.Sleep(lasted)
			before := since()
			p.answer(t, nil)
			p = <-srv.nexts
			if took := since() - before; took != pause {
				t.Errorf("after a poll that ended after %v, the next came after %v, want %v", lasted, took, pause)
			}
		}
	})
}
