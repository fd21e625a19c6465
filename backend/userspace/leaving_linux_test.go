package userspace

import (
	"net/netip"
	"testing"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// TestEndpointLeavesAfterChoice: a flow, or with ResetRemoved a connection, whose endpoint leaves between the choice and its entry in the books does not
// go on with it: the look at what is carried has not seen it.
func TestEndpointLeavesAfterChoice(t *testing.T) {
	for _, protocol := range []state.Protocol{state.UDP, state.TCP} {
		k := plan.Kind{Family: state.IPv4, Protocol: protocol}
		frontend := netip.MustParseAddrPort("10.96.0.1:53")
		first, second := netip.MustParseAddrPort("127.0.0.1:5301"), netip.MustParseAddrPort("127.0.0.1:5302")
		o, err := Options{ResetRemoved: true, Listen: []Listen{{Protocol: protocol, At: netip.MustParseAddrPort("127.0.0.1:53"), Frontend: frontend}}}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		r, err := newRelay(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.close)
		lead := func(to netip.AddrPort) {
			route := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: to}}}
			names, before := r.set(&state.Update{Changed: []*state.Service{{
				Name: state.ServiceName{Namespace: "ns", Name: "dns"},
				Ports: []state.Port{{
					Family: k.Family, Protocol: protocol, Internal: state.Traffic{Inside: route, Outside: route},
					Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: frontend.Addr(), Port: frontend.Port()}},
				}},
			}}})
			r.start()
			r.settle(names, before)
		}
		q := request{kind: k, class: plan.Inside, client: netip.MustParseAddrPort("10.0.0.1:4000"), dst: frontend, hops: 1}
		for _, leaves := range []bool{true, false} {
			lead(first)
			c, ok := r.choose(&q)
			if !ok || c.endpoint != first {
				t.Fatalf("chose %v, %v", c.endpoint, ok)
			}
			if leaves {
				lead(second)
			}
			stays := false
			if protocol == state.UDP {
				f := &flow{choice: c, kind: k, client: q.client, listener: &datagramListener{kind: k, flows: map[netip.AddrPort]*flow{}}, rested: make(chan struct{})}
				if f.socket, err = r.connected(k, c.endpoint, 1); err != nil {
					t.Fatal(err)
				}
				if stays = r.carry(f); stays {
					defer f.close()
				} else {
					f.socket.file.Close()
				}
			} else {
				stays = r.note(&conn{choice: c, kind: k, client: q.client})
			}
			if stays == leaves {
				t.Errorf("%v: the endpoint has left: %v, and it goes on: %v", protocol, leaves, stays)
			}
		}
	}
}
