//go:build linux

package nftables

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// TestChurn changes services as fast as it can, while clients of all kinds connect to frontends that always have an endpoint.
// Every connection must be answered, by an endpoint that was allowed at some moment while it was set up.
func TestChurn(t *testing.T) {
	ctx := t.Context()
	l := netnstest.Lab(t, topology.Options{})
	c := newChurn(t, l)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		c.change()
	})
	for _, from := range []*topology.Host{l.Pod("client"), l.Client(), l.Node()} {
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			wg.Go(func() { c.connect(ctx, from, proto) })
		}
	}
	wg.Wait()
	t.Logf("%d changes, %d connections of which %d were answered", c.changes.Load(), c.connections.Load(), c.answered.Load())
}

// noFlows is an empty connection tracking table.
type noFlows struct{}

func (noFlows) Flows(conntrack.Filter, func([]conntrack.Flow) error) error { return nil }
func (noFlows) Delete(...conntrack.Flow) (int, error)                      { return 0, nil }
func (noFlows) DeleteAll(conntrack.Filter) (int, error)                    { return 0, nil }

type churn struct {
	t       *testing.T
	backend *Backend
	rng     *rand.Rand
	// pods are the endpoints, the first half of them on the node under test.
	pods []*topology.Host

	mu sync.Mutex
	// allowed says since when, and until when, an endpoint was last allowed for a port; a zero until means now.
	allowed map[churnKey]span

	changes, connections, answered atomic.Int64
}

type churnKey struct {
	proto   state.Protocol
	family  state.Family
	outside bool
	server  string
}

type span struct{ until time.Time }

func newChurn(t *testing.T, l *topology.Lab) *churn {
	c := &churn{t: t, rng: rand.New(rand.NewPCG(1, 1)), allowed: map[churnKey]span{}}
	for i := range 40 {
		pod, err := l.AddPod(topology.PodOptions{Name: fmt.Sprintf("server-%d", i), OtherNode: i >= 20})
		if err != nil {
			t.Fatal(err)
		}
		c.pods = append(c.pods, pod)
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			if err := pod.Serve(proto, netip.AddrPortFrom(netip.Addr{}, 8080), pod.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := l.AddPod(topology.PodOptions{Name: "client"}); err != nil {
		t.Fatal(err)
	}
	var o Options
	o.LocalDetector.ClusterCIDRs = slices.Concat(l.Options().NodePodCIDRs, l.Options().OtherPodCIDRs)
	err := l.Node().Do(func() (err error) { c.backend, err = New(t.Context(), o); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.backend.Close() })
	// Listing the kernel's flows takes 10 ms. Every connection here is a new flow.
	c.backend.cutter.Close()
	c.backend.cutter = conntrack.NewCutter(noFlows{}, conntrack.CutterOptions{Logger: slog.New(slog.DiscardHandler)})
	c.backend.cutter.Start()
	c.apply(true)
	return c
}

// node is what the lab's node looks like.
func (c *churn) node() *state.Node {
	return &state.Node{Name: "node", ServiceCIDRs: testNode.ServiceCIDRs}
}

// frontends are always there. The port number says which kind it is.
func churnFrontends(f state.Family) []state.Frontend {
	if f == state.IPv6 {
		return []state.Frontend{
			{Kind: state.ClusterIP, Addr: addr("fd00:10:96::1"), Port: 80},
			{Kind: state.ExternalIP, Addr: addr("2001:db8:51::1"), Port: 80},
			{Kind: state.NodePort, Port: 30080},
		}
	}
	return []state.Frontend{
		{Kind: state.ClusterIP, Addr: addr("10.96.0.1"), Port: 80},
		{Kind: state.ExternalIP, Addr: addr("198.51.100.1"), Port: 80},
		{Kind: state.NodePort, Port: 30080},
	}
}

// service draws a new service: with endpoints of any number, some of them on the node, and any policies.
func (c *churn) service() *state.Service {
	out := slices.Clone(c.rng.Perm(20)[:1+c.rng.IntN(3)])
	in := c.rng.Perm(len(c.pods))[:c.rng.IntN([]int{2, 4, 20, 30}[c.rng.IntN(4)])]
	in = append(in, out...)
	slices.Sort(in)
	slices.Sort(out)
	in = slices.Compact(in)
	local, internalLocal := c.rng.IntN(2) == 0, c.rng.IntN(4) == 0
	more := c.rng.IntN(2) == 0 // of other kinds of frontend
	var ports []state.Port
	for _, f := range families {
		route := func(indexes []int) state.Route {
			var eps []state.Endpoint
			for _, i := range indexes {
				for _, a := range c.pods[i].Addrs {
					if state.FamilyOf(a) == f {
						eps = append(eps, state.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Local: i < 20})
					}
				}
			}
			slices.SortFunc(eps, state.Endpoint.Compare)
			return forward(eps)
		}
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			p := state.Port{Name: "p", Protocol: proto, Family: f, Frontends: churnFrontends(f)}
			if more {
				extra := p.Frontends[1]
				extra.Kind, extra.Port = state.LoadBalancer, 81
				p.Frontends = slices.Insert(p.Frontends, 2, extra)
			}
			p.Internal = state.Traffic{Inside: route(in), Outside: route(in), Masquerade: state.MasqueradeUnlessPod}
			if internalLocal {
				p.Internal.Inside, p.Internal.Outside = route(out), route(out)
			}
			p.External = state.Traffic{Inside: route(in), Outside: route(in), Masquerade: state.MasqueradeAlways}
			if local {
				p.External.Outside, p.External.Masquerade = route(out), state.MasqueradeNode
			}
			ports = append(ports, p)
		}
	}
	return serviceOf("churned", ports...)
}

// apply programs a new service and notes what it allows: from before the commit, and what is no more until after it.
func (c *churn) apply(full bool) {
	s := c.service()
	now := map[churnKey]span{}
	names := map[netip.Addr]string{}
	for _, p := range c.pods {
		for _, a := range p.Addrs {
			names[a] = p.Name
		}
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		for _, r := range []*state.Route{&p.Internal.Inside, &p.External.Inside, &p.External.Outside} {
			for _, e := range r.Endpoints {
				now[churnKey{p.Protocol, p.Family, r == &p.External.Outside, names[e.Addr.Addr()]}] = span{}
			}
		}
	}
	c.mu.Lock()
	for k := range now {
		c.allowed[k] = span{}
	}
	c.mu.Unlock()
	_, err := c.backend.Apply(context.Background(), &state.Update{Full: full, Node: c.node(), Changed: []*state.Service{s}})
	if err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, s := range c.allowed {
		if _, ok := now[k]; !ok && s.until.IsZero() {
			c.allowed[k] = span{time.Now()}
		}
	}
}

// change goes on for a while, and on a busy machine until enough has happened to mean anything.
func (c *churn) change() {
	end := time.Now().Add(3 * time.Second)
	for time.Now().Before(end) || !c.t.Failed() && (c.changes.Load() < 100 || c.connections.Load() < 100) {
		c.apply(false)
		c.changes.Add(1)
	}
}

func (c *churn) connect(ctx context.Context, from *topology.Host, proto state.Protocol) {
	failures := 0
	options := topology.ProbeOptions{Timeout: 20 * time.Second} // long enough for a busy machine: of TCP it is known what was lost
	for ctx.Err() == nil && failures < 10 {
		for _, f := range families {
			for _, fe := range churnFrontends(f) {
				dst := netip.AddrPortFrom(fe.Addr, fe.Port)
				if fe.Kind == state.NodePort {
					if from.Name == "node" {
						continue // is covered by the external address
					}
					dst = netip.AddrPortFrom(nodeAddr(f), fe.Port)
				}
				if proto == state.UDP { // a source port that came up before would belong to a flow that exists
					options.SourcePort = max(options.SourcePort+1, 10_000)
				}
				began := time.Now()
				a := from.Probe(context.Background(), proto, dst, options)
				c.connections.Add(1)
				outside := from.Name == "client" && from.NodeInterface == "" && fe.Kind != state.ClusterIP
				if a.Outcome != topology.Answered {
					failures++
					c.t.Errorf("%s to %v %v (%v): %v after %v: %v", from.Name, proto, dst, fe.Kind, a.Outcome, a.Latency, a.Err)
					continue
				}
				c.answered.Add(1)
				c.mu.Lock()
				s, ok := c.allowed[churnKey{proto, f, outside, a.Server}]
				c.mu.Unlock()
				if !ok || !s.until.IsZero() && s.until.Before(began) {
					failures++
					c.t.Errorf("%s to %v %v (%v): answered by %s, which was not allowed since %v before the connection",
						from.Name, proto, dst, fe.Kind, a.Server, began.Sub(s.until))
				}
				if a.Resent > 0 {
					failures++
					c.t.Errorf("%s to %v %v (%v): a packet was lost: answered after %v, and %d segments sent again", from.Name, proto, dst, fe.Kind, a.Latency, a.Resent)
				}
			}
		}
	}
}
