//go:build linux

package nftables

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/lab"
	"github.com/switchyard-net/switchyard/state"
)

// TestFlip gives a service its first endpoint and takes it away, as fast as it can. A connection is answered or refused: it must
// not fall through between the two, which would be silence, as nobody else has the address.
func TestFlip(t *testing.T) {
	l, err := lab.New(t.Context(), lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	pod, err := l.AddPod(lab.PodOptions{Name: "server"})
	if err == nil {
		err = pod.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, 8080), "server")
	}
	var b *Backend
	if err == nil {
		err = l.Node().Do(func() (err error) { b, err = New(Options{}); return err })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	frontend := state.Frontend{Kind: state.ExternalIP, Addr: addr("198.51.100.1"), Port: 80}
	with := func(eps ...state.Endpoint) *state.Update {
		r := forward(eps)
		return delta(serviceOf("flipping", state.Port{
			Name: "p", Protocol: state.TCP, Family: state.IPv4, Frontends: []state.Frontend{frontend},
			External: state.Traffic{Inside: r, Outside: r, Masquerade: state.MasqueradeAlways},
		}))
	}
	updates := []*state.Update{with(), with(state.Endpoint{Addr: netip.AddrPortFrom(pod.Addrs[0], 8080)})}
	apply(t, b, updates[0])

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	changes := 0
	wg.Go(func() {
		for ; ctx.Err() == nil; changes++ {
			if _, err := b.Apply(context.Background(), updates[changes%2]); err != nil {
				t.Error(err)
				return
			}
		}
	})
	outcomes := map[lab.Outcome]int{}
	for ctx.Err() == nil {
		a := l.Client().Probe(context.Background(), state.TCP, netip.AddrPortFrom(frontend.Addr, frontend.Port),
			lab.ProbeOptions{Timeout: 900 * time.Millisecond})
		outcomes[a.Outcome]++
		if a.Outcome != lab.Answered && a.Outcome != lab.Refused {
			t.Errorf("%v after %v: %v", a.Outcome, a.Latency, a.Err)
		}
	}
	wg.Wait()
	t.Logf("%d changes, connections: %v", changes, outcomes)
	if outcomes[lab.Answered] == 0 || outcomes[lab.Refused] == 0 || changes < 100 {
		t.Error("too little happened to mean anything")
	}
}
