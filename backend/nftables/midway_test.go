//go:build linux

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// TestEndMidway ends the process after each part of a large change, in which two Services exchange frontends and all endpoints change. The next process
// finds what is between two states, and makes the second of it.
func TestEndMidway(t *testing.T) {
	states := func(version int) []*state.Service {
		var all []*state.Service
		for n := range 2 {
			s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%d", (n+version)%2)}}
			for i := range 3 {
				p := recordtest.ClusterIPPort(state.IPv4, state.TCP, 1, recordtest.Endpoints(state.IPv4, 100*version+10*i, 5+20*i))
				p.Name, p.Frontends = fmt.Sprintf("p%d", i), nil
				for j := range 10 {
					addr := netip.AddrFrom4([4]byte{10, 96, byte(n), byte(j)})
					p.Frontends = append(p.Frontends, state.Frontend{Kind: state.ClusterIP, Addr: addr, Port: uint16(80 + (i+version)%3)})
				}
				s.Ports = append(s.Ports, p)
			}
			all = append(all, s)
		}
		return all
	}
	for after := 1; ; after++ {
		ns := netnstest.New(t)
		feed := &backendtest.Feed{}
		feed.Publish(states(0))
		b := newBackend(t, ns, Options{})
		ctx, stop := context.WithCancel(t.Context())
		attempts, ended := 0, false
		err := backend.Run(ctx, feed, b, backend.RunOptions{PartEntries: 50, VerifyPeriod: time.Hour, OnAttempt: func(a backend.Attempt) {
			if a.Err != nil || len(a.Failed) > 0 {
				t.Errorf("part %d fails: %v, %v", attempts, a.Err, a.Failed)
			}
			if attempts++; attempts == 1 {
				feed.Publish(states(1))
			}
			if attempts > after {
				stop()
			}
		}, OnStatus: func(s backend.Status) {
			if s.Applied == 2 {
				ended = true
				stop()
			}
		}})
		stop()
		if err != nil {
			t.Fatal(err)
		}
		closeBackend(b)
		b = newBackend(t, ns, Options{})
		r := apply(t, b, full(states(1)...))
		if !ended && r.Written == 0 {
			t.Errorf("after part %d, there is nothing left", after)
		}
		if r := verify(t, b); r.Written != 0 {
			t.Errorf("after part %d, the next process leaves %d objects as they are not to be", after, r.Written)
		}
		closeBackend(b)
		b = newBackend(t, ns, Options{})
		if r := apply(t, b, full(states(1)...)); r.Written != 0 {
			t.Errorf("after part %d, a process after the next one writes %d objects", after, r.Written)
		}
		closeBackend(b)
		if ended {
			if after < 10 {
				t.Errorf("there were %d parts only", after)
			}
			return
		}
		after += 3
	}
}
