//go:build linux

package nftables

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// gap is a lab with a service, whose tables go and come back.
type gap struct {
	t       *testing.T
	lab     *topology.Lab
	ns      *netns.NS // the node's
	conn    *conntrack.Conn
	options Options
	backend *Backend
	// lose makes the next commit fail although it is carried out.
	lose bool
}

// losing is the kernel of a gap, of which answers get lost.
type losing struct {
	kernel
	g *gap
}

func (k losing) Commit(b *nft.Batch) error {
	err := k.kernel.Commit(b)
	if err == nil && k.g.lose {
		k.g.lose, err = false, syscall.ENOBUFS
	}
	return err
}

func newGap(t *testing.T) *gap {
	l := netnstest.Lab(t, topology.Options{})
	g := &gap{t: t, lab: l}
	for _, name := range []string{"server", "client"} {
		pod, err := l.AddPod(topology.PodOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if name == "server" {
			g.serve(pod, netip.AddrPortFrom(netip.Addr{}, 8080))
		}
	}
	if err := l.Node().Do(func() (err error) {
		if g.ns, err = netns.Current(); err == nil {
			g.conn, err = conntrack.Open()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.ns.Close(); g.conn.Close() })
	g.options.LocalDetector.ClusterCIDRs = slices.Concat(l.Options().NodePodCIDRs, l.Options().OtherPodCIDRs)
	return g
}

func (g *gap) serve(h *topology.Host, at netip.AddrPort) {
	g.t.Helper()
	if err := h.Serve(state.TCP, at, h.Name); err != nil {
		g.t.Fatal(err)
	}
}

// start opens a dataplane that shows the service.
func (g *gap) start() {
	g.t.Helper()
	g.backend = openBackend(g.t, g.ns, g.options, func(c *nft.Conn) kernel { return losing{sharedKernel{c}, g} })
	var ports []state.Port
	for _, f := range families {
		p := clusterIPPort(f, state.TCP, 1, nil)
		p.Frontends = churnFrontends(f)
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.LoadBalancer, Addr: gapLoadBalancer[f], Port: 80})
		for _, a := range g.lab.Pod("server").Addrs {
			if state.FamilyOf(a) == f {
				p.Internal.Inside = forward([]state.Endpoint{{Addr: netip.AddrPortFrom(a, 8080), Local: true}})
			}
		}
		p.Internal.Outside = p.Internal.Inside
		p.External = p.Internal
		p.External.Masquerade = state.MasqueradeNode
		ports = append(ports, p)
	}
	node := &state.Node{Name: "node", ServiceCIDRs: g.lab.Options().ServiceCIDRs, Addresses: g.lab.Node().Addrs}
	if _, err := g.backend.Apply(g.t.Context(), &state.Update{Full: true, Node: node, Changed: []*state.Service{serviceOf("web", ports...)}}); err != nil {
		g.t.Fatal(err)
	}
}

var gapLoadBalancer = map[state.Family]netip.Addr{state.IPv4: addr("203.0.113.1"), state.IPv6: addr("2001:db8:113::1")}

// flush does what somebody does who loads rules of his own that begin with "flush ruleset". Something in them needs connection
// tracking, as there nearly always is on a node.
func (g *gap) flush() {
	g.t.Helper()
	netnstest.NFT(g.t, g.ns, "flush ruleset; add table inet own; add chain inet own c { type filter hook prerouting priority 0; };"+
		"add chain inet own d { type filter hook output priority 0; }; add rule inet own c ct state invalid counter; add rule inet own d ct state invalid counter")
}

// way is a connection that a client of the service makes, from a port of its own.
type way struct {
	from *topology.Host
	dst  netip.AddrPort
	port uint16
}

func (w way) String() string { return fmt.Sprintf("%s:%d to %v", w.from.Name, w.port, w.dst) }

func (g *gap) ways() (all []way) {
	node := g.lab.Node()
	for _, f := range families {
		dsts := []netip.AddrPort{netip.AddrPortFrom(gapLoadBalancer[f], 80)}
		for _, fe := range churnFrontends(f) {
			a := fe.Addr
			if fe.Kind == state.NodePort {
				a = node.Addrs[slices.IndexFunc(node.Addrs, func(a netip.Addr) bool { return state.FamilyOf(a) == f })]
			}
			dsts = append(dsts, netip.AddrPortFrom(a, fe.Port))
		}
		for _, from := range []*topology.Host{g.lab.Pod("client"), g.lab.Client(), node} {
			for _, dst := range dsts {
				if from == g.lab.Client() && dst.Addr() == churnFrontends(f)[1].Addr {
					continue // it will have the address itself
				}
				all = append(all, way{from, dst, uint16(20000 + len(all))})
			}
		}
	}
	return all
}

// connect makes connections on all ways at once.
func (g *gap) connect(ways []way, timeout time.Duration) map[way]topology.Answer {
	answers := map[way]topology.Answer{}
	var mu sync.Mutex
	var done sync.WaitGroup
	for _, w := range ways {
		done.Go(func() {
			a := w.from.Probe(g.t.Context(), state.TCP, w.dst, topology.ProbeOptions{Timeout: timeout, SourcePort: w.port})
			mu.Lock()
			defer mu.Unlock()
			answers[w] = a
		})
	}
	done.Wait()
	return answers
}

// begin starts connections on all ways, which go on trying until done is called.
func (g *gap) begin(ways []way) (done func() map[way]topology.Answer) {
	answers := make(chan map[way]topology.Answer, 1)
	go func() { answers <- g.connect(ways, 2*time.Minute) }() // TCP sends again after 1, 3, 7, 15, 31 and 63 seconds
	await.Until(g.t, "the connections have begun", func() bool {
		begun := map[netip.AddrPort]bool{}
		for _, f := range g.unconnected() {
			begun[f.Orig.Dst] = begun[f.Orig.Dst] || slices.ContainsFunc(ways, func(w way) bool { return w.port == f.Orig.Src.Port() })
		}
		return !slices.ContainsFunc(ways, func(w way) bool { return !begun[w.dst] })
	})
	return func() map[way]topology.Answer { return <-answers }
}

func (g *gap) unconnected() []conntrack.Flow {
	g.t.Helper()
	var all []conntrack.Flow
	for _, f := range families {
		if err := g.conn.Flows(conntrack.Filter{Family: f, Protocol: state.TCP, Unconnected: true}, func(flows []conntrack.Flow) error {
			all = append(all, flows...)
			return nil
		}); err != nil {
			g.t.Fatal(err)
		}
	}
	return all
}

// stranger is a connection to a frontend's address that somebody else serves, begun while the dataplane was missing.
type stranger struct {
	way
	conn  net.Conn
	lines *bufio.Reader
}

// meet makes another host, and the node itself, serve what are frontends, and connects.
func (g *gap) meet() (all []stranger) {
	g.t.Helper()
	client, node := g.lab.Client(), g.lab.Node()
	for i, f := range families {
		fe := churnFrontends(f)[1] // the external IP
		external := netip.AddrPortFrom(fe.Addr, fe.Port)
		g.serve(client, external) // before the address is there: a connection that tries again in between would be refused
		if err := client.AddAddr(netip.PrefixFrom(fe.Addr, fe.Addr.BitLen())); err != nil {
			g.t.Fatal(err)
		}
		nodePort := netip.AddrPortFrom(node.Addrs[slices.IndexFunc(node.Addrs, func(a netip.Addr) bool { return state.FamilyOf(a) == f })], 30080)
		g.serve(node, nodePort)
		for j, w := range []way{{from: g.lab.Pod("client"), dst: external}, {from: client, dst: nodePort}} {
			w.port = uint16(25000 + 2*i + j)
			c, err := w.from.Dial(g.t.Context(), state.TCP, w.dst, netip.AddrPortFrom(netip.Addr{}, w.port))
			if err != nil {
				g.t.Fatal(err)
			}
			g.t.Cleanup(func() { c.Close() })
			s := stranger{w, c, bufio.NewReader(c)}
			if a, err := topology.ReadAnswer(s.lines); err != nil || a.Server == "server" {
				g.t.Fatalf("%v: %+v, %v; want an answer of somebody else", w, a, err)
			}
			all = append(all, s)
		}
	}
	return all
}

// TestConnectionsBegunWithoutTables is about clients that begin to connect while somebody has flushed the ruleset, each from a port
// that it had used before and uses again. Those that still try get through after the repair, and so does who comes back. Those
// that got through to somebody else stay with him.
func TestConnectionsBegunWithoutTables(t *testing.T) {
	for name, repair := range map[string]func(*gap){
		"repair": func(g *gap) { verify(g.t, g.backend) },
		"start":  func(g *gap) { closeBackend(g.backend); g.start() },
		"repair whose answer is lost": func(g *gap) {
			g.lose = true
			if _, err := g.backend.Verify(g.t.Context()); !errors.Is(err, syscall.ENOBUFS) {
				g.t.Errorf("Verify: %v, want the error of the commit", err)
			}
			if r := verify(g.t, g.backend); r.Written > 0 {
				g.t.Errorf("the next Verify: %+v, want nothing left to write", r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGap(t)
			g.start()
			ways := g.ways()
			check := func(when string, answers map[way]topology.Answer, again bool) {
				t.Helper()
				for w, a := range answers {
					if again && a.Server == "client" && a.Outcome == topology.Answered && w.dst.Addr() == churnFrontends(state.FamilyOf(w.dst.Addr()))[1].Addr {
						continue // it had tried again before the repair, and met somebody else there
					}
					if a.Outcome != topology.Answered || a.Server != "server" || !again && a.Resent > 0 {
						t.Errorf("%s, %v: %v by %q, %d segments sent again, %v", when, w, a.Outcome, a.Server, a.Resent, a.Err)
					}
				}
			}
			check("at first", g.connect(ways, time.Minute), false)

			g.flush()
			for w, a := range g.connect(ways, 200*time.Millisecond) {
				if a.Outcome == topology.Answered {
					t.Errorf("without tables, %v is answered by %q", w, a.Server)
				}
			}
			var patient []way
			for _, w := range ways {
				if w.dst.Port() == 80 { // node ports are refused
					patient = append(patient, way{w.from, w.dst, w.port + 1000})
				}
			}
			tried := g.begin(patient)
			strangers := g.meet()

			repair(g)
			await.Until(g.t, "no entry is left of connections that have not come about", func() bool { return len(g.unconnected()) == 0 })
			check("after the repair", g.connect(ways, time.Minute), false)
			check("over the repair", tried(), true)
			for _, s := range strangers {
				_ = s.conn.SetDeadline(time.Now().Add(time.Minute))
				if _, err := s.conn.Write([]byte("still there?\n")); err != nil {
					t.Error(err)
				}
				if a, err := topology.ReadAnswer(s.lines); err != nil || a.Server == "server" {
					t.Errorf("%v, after the repair: %q answers, %v; want the one who answered before", s.way, a.Server, err)
				}
			}
		})
	}
}
