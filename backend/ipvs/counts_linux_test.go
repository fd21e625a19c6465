package ipvs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// counting is a node with nftables below IPVS, whose virtual servers are in memory: packets to them leave the node.
type counting struct {
	*node
	r     *rand.Rand
	below *nftables.Backend
	port  int // of the last client
	// records are those that are applied, and want what is to be counted for their frontends.
	records map[string]*state.Service
	want    map[state.FrontendKey]backend.Counts
}

func newCounting(t *testing.T, seed uint64) *counting {
	n := newNode(t, Options{Logger: logger(t)})
	netnstest.Outward(t, n.ns, "192.0.2.1/24", "2001:db8::1/64")
	c := &counting{node: n, r: rand.New(rand.NewPCG(seed, 1)), port: 10_000, records: map[string]*state.Service{}, want: map[state.FrontendKey]backend.Counts{}}
	n.must(n.Backend.Close())
	c.start()
	t.Cleanup(func() { n.must(c.below.Close()) })
	return c
}

// start starts a process.
func (c *counting) start() {
	c.t.Helper()
	c.must(c.ns.Do(func() (err error) {
		c.below, err = nftables.New(c.t.Context(), nftables.Options{Counters: true})
		return err
	}))
	c.node.below, c.o.Commit = c.below, c.below.Commit
	c.open()
}

// another replaces the process by another one.
func (c *counting) another() {
	c.t.Helper()
	c.must(c.Backend.Close())
	c.must(c.below.Close())
	c.start()
}

// record makes a Service of UDP that either of the two may have to serve.
func (c *counting) record(name string, i int) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}}
	for j, addrs := range [][2]string{{"10.96.0.%d", "10.244.0.%d"}, {"fd00:96::%d", "fd00:244::%d"}} {
		addr := func(of, n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(addrs[of], n)) }
		p := state.Port{Name: fmt.Sprint(j), Protocol: state.UDP, Family: state.FamilyOf(addr(0, 1))}
		p.Frontends = []state.Frontend{{Kind: state.ClusterIP, Addr: addr(0, 1+i), Port: 53}, {Kind: state.ClusterIP, Addr: addr(0, 1+i), Port: 54}}[:1+c.r.IntN(2)]
		r := state.Route{Verdict: []state.Verdict{state.Reject, state.Drop}[c.r.IntN(2)]}
		for n := range c.r.IntN(4) { // none is not rare
			r.Verdict, r.Endpoints = state.Forward, append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(addr(1, 10*(1+i)+n), 53)})
		}
		p.Internal = state.Traffic{Inside: r, Outside: r, Masquerade: state.Masquerade(c.r.IntN(4))}
		if c.r.IntN(4) == 0 {
			p.Affinity = time.Hour
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// send sends the first datagrams of some connections.
func (c *counting) send() {
	c.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(c.records)) {
		s := c.records[name]
		for i := range s.Ports {
			p := &s.Ports[i]
			ends := map[state.Verdict]backend.Counts{state.Forward: {Connections: 1}, state.Reject: {Connections: 1, Rejects: 1}, state.Drop: {Connections: 1, Drops: 1}}[p.Internal.Inside.Verdict]
			for j := range p.Frontends {
				f := &p.Frontends[j]
				want := c.want[p.Key(f)]
				for range c.r.IntN(3) {
					c.port++
					netnstest.Datagram(c.t, c.ns, c.port, netip.AddrPortFrom(f.Addr, f.Port))
					want.Add(ends)
				}
				c.want[p.Key(f)] = want
			}
		}
	}
}

// forget has frontends count nothing that a Service had and has no longer. Either record may be nil.
func (c *counting) forget(before, is *state.Service) {
	has := map[plan.Key]bool{}
	if is != nil {
		eachFrontend(is, func(k plan.Key) { has[k] = true })
	}
	if before != nil {
		eachFrontend(before, func(k plan.Key) {
			if !has[k] {
				c.want[frontendOf(k)] = backend.Counts{}
			}
		})
	}
}

// check compares the counts with what was sent, and checks that the tables are as they should be.
func (c *counting) check(when string) {
	c.t.Helper()
	recordtest.CheckCounts(c.t, when, c.below, c.want)
	if r, err := c.below.Verify(c.t.Context()); err != nil || r.Written > 0 {
		c.t.Errorf("%s: verifying nftables has written %d, %v", when, r.Written, err)
	}
}

// all returns all records, in order.
func (c *counting) all() (records []*state.Service) {
	for _, name := range slices.Sorted(maps.Keys(c.records)) {
		records = append(records, c.records[name])
	}
	return records
}

// TestCounts: in random histories, each connection counts once, whether IPVS serves the frontend or nftables does, and counts go on while it
// goes from one to the other, when another process comes, and when IPVS retires and comes back.
func TestCounts(t *testing.T) {
	for seed := range uint64(4) {
		c := newCounting(t, seed)
		c.full()
		byIPVS, retired := 0, false
		for step := range 40 {
			i := c.r.IntN(5)
			name := fmt.Sprint("s", i)
			next := c.record(name, i)
			before := c.records[name]
			c.records[name] = next
			u := &state.Update{Node: testNode, Changed: []*state.Service{next}}
			if c.r.IntN(5) == 0 {
				delete(c.records, name)
				u.Changed, u.Removed = nil, []state.ServiceName{next.Name}
			}
			c.forget(before, c.records[name])
			what := "a change"
			switch c.r.IntN(8) {
			case 0:
				what = "another process"
				c.another()
				retired, u = false, &state.Update{Node: testNode, Full: true, Changed: c.all()}
			case 1:
				u = &state.Update{Node: testNode, Full: true, Changed: c.all()}
				if retired = !retired; retired {
					what = "a switch to mode nftables"
					c.Retire()
				} else {
					what = "a switch to mode ipvs"
					c.Resume(c.below)
				}
			}
			c.rev++
			u.Revision = c.rev
			if retired {
				_, err := c.below.Apply(t.Context(), u)
				c.must(err)
			}
			_, err := c.Apply(t.Context(), u)
			c.must(err)
			c.drainNow(time.Now())
			c.send()
			c.check(fmt.Sprintf("seed %d, step %d, after %s", seed, step, what))
			if t.Failed() {
				return
			}
			byIPVS += len(c.serves.set)
		}
		if byIPVS == 0 {
			t.Errorf("seed %d: IPVS has served nothing", seed)
		}
	}
}
