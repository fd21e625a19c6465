//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/topology"
)

// TestUnansweredConnections has clients connect before there is a frontend, and to an endpoint that does not answer and is replaced. What they send again from
// the same port gets through.
func TestUnansweredConnections(t *testing.T) {
	for _, f := range families {
		for _, replaced := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, replaced %v", f, replaced), func(t *testing.T) {
				t.Parallel()
				g := newGap(t)
				silent, err := g.lab.AddPod(topology.PodOptions{Name: "silent"})
				if err != nil {
					t.Fatal(err)
				}
				if err := silent.Do(func() error {
					ns, err := netns.Current()
					if err != nil {
						return err
					}
					defer ns.Close()
					nftCommand(t, ns, "add table inet own; add chain inet own c { type filter hook input priority 0; }; add rule inet own c tcp dport 8080 drop")
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				g.backend = newBackend(t, g.ns, g.options)
				node := &state.Node{Name: "node", Addresses: g.lab.Node().Addrs}
				dst := netip.AddrPortFrom(gapLoadBalancer[f], 80)
				show := func(pod string) {
					p := clusterIPPort(f, state.TCP, 1, []state.Endpoint{{Addr: netip.AddrPortFrom(addrIn(g.lab.Pod(pod), f), 8080), Local: true}})
					p.Frontends = []state.Frontend{{Kind: state.LoadBalancer, Addr: dst.Addr(), Port: dst.Port()}}
					p.External = p.Internal
					apply(t, g.backend, &state.Update{Node: node, Changed: []*state.Service{serviceOf("web", p)}})
				}
				apply(t, g.backend, &state.Update{Full: true, Node: node})
				if replaced {
					show(silent.Name)
				}
				client := g.lab.Client()
				connected := make(chan error, 1)
				go func() {
					connected <- client.Do(func() error {
						dialer := net.Dialer{Timeout: 40 * time.Second, LocalAddr: &net.TCPAddr{IP: addrIn(client, f).AsSlice(), Port: 20000}}
						conn, err := dialer.Dial("tcp", dst.String())
						if err == nil {
							err = conn.Close()
						}
						return err
					})
				}()
				g.await(dst)
				show("server")
				if err := <-connected; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// await waits for a connection that nobody has answered.
func (g *gap) await(dst netip.AddrPort) {
	g.t.Helper()
	filter := conntrack.Filter{Family: state.FamilyOf(dst.Addr()), Protocol: state.TCP, Dst: dst.Addr(), DstPort: dst.Port(), Unconnected: true}
	found := errors.New("found")
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		err := g.conn.Flows(filter, func(flows []conntrack.Flow) error {
			if slices.ContainsFunc(flows, filter.Match) {
				return found
			}
			return nil
		})
		if errors.Is(err, found) {
			return
		}
		if err != nil {
			g.t.Fatal(err)
		}
	}
	g.t.Fatalf("nobody connects to %v", dst)
}
