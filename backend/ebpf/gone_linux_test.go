package ebpf_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/backendtest"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// TestConnectionsToEndpointsThatAreGone finds the connections of pods and of the node that hooks have translated to endpoints which are
// gone, and no others.
func TestConnectionsToEndpointsThatAreGone(t *testing.T) {
	needHooks(t)
	l, err := topology.New(t.Context(), topology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var endpoints [2][]state.Endpoint // of each pod
	for i, name := range []string{"leaves", "stays"} {
		pod, err := l.AddPod(topology.PodOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if err := pod.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, 8080), name); err != nil {
			t.Fatal(err)
		}
		for _, a := range pod.Addrs {
			endpoints[i] = append(endpoints[i], state.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Local: true})
		}
	}
	client, err := l.AddPod(topology.PodOptions{Name: "client"})
	if err != nil {
		t.Fatal(err)
	}
	namespaces, err := sockethooks.Namespaces(sockethooks.Of(l))
	if err != nil {
		t.Fatal(err)
	}
	defer namespaces.Close()
	frontends := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")}
	service := func(name string, number uint16, pods ...int) *state.Service {
		s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}}
		for i, addr := range frontends {
			to := state.Route{Verdict: state.Forward}
			for _, pod := range pods {
				to.Endpoints = append(to.Endpoints, endpoints[pod][i])
			}
			s.Ports = append(s.Ports, state.Port{
				Protocol: state.TCP, Family: state.FamilyOf(addr), Internal: state.Traffic{Inside: to, Outside: to},
				Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: number}},
			})
		}
		return s
	}

	var found []ebpf.Flow
	var b *ebpf.Backend
	err = l.Node().Do(func() (err error) {
		b, err = ebpf.New(reliable(), ebpf.Options{
			Namespaces: namespaces, LocalDetector: state.LocalDetector{ClusterCIDRs: slices.Concat(l.Options().NodePodCIDRs, l.Options().OtherPodCIDRs)},
			ResetFlows: func(flows []ebpf.Flow) error { found = append(found, flows...); return nil },
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if s := b.Status(); s.State != ebpf.On {
		t.Fatalf("hooks are %v: %v", s.State, s.Reason)
	}
	show := func(u *state.Update) {
		t.Helper()
		u.Node = &state.Node{Name: "node"}
		if _, err := b.Apply(context.Background(), u); err != nil {
			t.Fatal(err)
		}
	}
	show(&state.Update{Revision: 1, Full: true, Changed: []*state.Service{service("other", 81, 1), service("web", 80, 0)}})

	dial := func(h *topology.Host, to netip.AddrPort) netip.AddrPort {
		t.Helper()
		c, err := h.Dial(t.Context(), state.TCP, to, netip.AddrPort{})
		if err != nil {
			t.Fatalf("%s to %v: %v", h.Name, to, err)
		}
		t.Cleanup(func() { c.Close() })
		local := c.(*net.TCPConn).LocalAddr().(*net.TCPAddr).AddrPort()
		return netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	}
	var want []ebpf.Flow
	for i, addr := range frontends {
		for _, h := range []*topology.Host{client, l.Node()} {
			want = append(want, ebpf.Flow{Client: dial(h, netip.AddrPortFrom(addr, 80)), Endpoint: endpoints[0][i].Addr})
			dial(h, netip.AddrPortFrom(addr, 81)) // of another endpoint
			dial(h, endpoints[0][i].Addr)         // by its own address
		}
	}

	b.Gone([]netip.AddrPort{endpoints[0][0].Addr, endpoints[0][1].Addr})
	show(&state.Update{Revision: 2, Removed: []state.ServiceName{{Namespace: "default", Name: "web"}}})
	for deadline := time.After(10 * time.Second); len(found) < len(want); {
		select {
		case <-b.Disturbed():
		case <-deadline:
			t.Fatalf("found %v, want %v", found, want)
		}
		if _, err := b.Verify(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	order := func(a, b ebpf.Flow) int { return a.Client.Compare(b.Client) }
	slices.SortFunc(found, order)
	slices.SortFunc(want, order)
	if !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}

// reliable returns a base that does not fail.
func reliable() *backendtest.Backend {
	b := backendtest.New(1)
	b.SetFailureRate(0)
	return b
}
