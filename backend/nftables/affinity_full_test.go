//go:build linux

package nftables

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// crowd is many addresses outside the cluster that connect to a service with affinity, of which few can be remembered.
type crowd struct {
	*removal
	clients map[state.Family][]netip.Addr
	tells   bool // whether the kernel tells how many are remembered
}

const (
	crowdSize  = 60
	crowdLimit = 10
)

// crowdEndpoints are the endpoints of the service with affinity.
var crowdEndpoints = []string{"near", "stays", "far"}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{removal: newRemoval(t), clients: map[state.Family][]netip.Addr{}}
	c.options.MaxAffinityClients = crowdLimit
	var err error
	if c.tells, err = c.conn.Has(nft.ElementCounts); err != nil {
		t.Fatal(err)
	}
	for i, f := range families {
		addr := addrIn(c.lab.Client(), f)
		for range crowdSize {
			addr = addr.Next()
			if err := c.lab.Client().AddAddr(netip.PrefixFrom(addr, c.lab.Options().Underlay[i].Bits())); err != nil {
				t.Fatal(err)
			}
			c.clients[f] = append(c.clients[f], addr)
		}
	}
	return c
}

// sticky is the service with affinity.
func (c *crowd) sticky(affinity time.Duration, endpoints ...string) *state.Service {
	s := c.other("sticky", 1, endpoints...)
	for i := range s.Ports {
		s.Ports[i].Affinity = affinity
	}
	return s
}

// ask has clients connect to a service one after another, and returns who answers each of them. Somebody must, or the others are not tried.
func (c *crowd) ask(s *state.Service, f state.Family, clients []netip.Addr) (servers []string) {
	p, _ := portIn(f, s)
	dst := netip.AddrPortFrom(p.Frontends[0].Addr, p.Frontends[0].Port)
	servers = make([]string, len(clients))
	for i, client := range clients {
		answer := c.lab.Client().Probe(c.t.Context(), p.Protocol, dst, topology.ProbeOptions{Source: client})
		if answer.Outcome != topology.Answered {
			c.t.Errorf("%v to %s: %v, %v", client, s.Name.Name, answer.Outcome, answer.Err)
			break
		}
		servers[i] = answer.Server
	}
	return servers
}

// remembered are the clients of the service that the kernel remembers, in order.
func (c *crowd) remembered(f state.Family) (clients []netip.Addr) {
	c.t.Helper()
	elems, err := c.conn.Elems(table(f), affinitySet)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range elems {
		client, _ := netip.AddrFromSlice(e.Key[4:]) // after the number of the port
		clients = append(clients, client)
	}
	slices.SortFunc(clients, netip.Addr.Compare)
	return clients
}

// expectRemembered expects that exactly these clients are remembered, and that the kernel tells how many, if it can.
func (c *crowd) expectRemembered(when string, f state.Family, want []netip.Addr) {
	c.t.Helper()
	told, err := c.backend.AffinityClients()
	if err != nil {
		c.t.Error(err)
	}
	if tells := (AffinityClients{f, len(want), crowdLimit}); c.tells && !slices.Contains(told, tells) || !c.tells && len(told) > 0 {
		c.t.Errorf("%s, %v: the kernel tells %v, want %v (%v)", when, f, told, tells, c.tells)
	}
	if got := c.remembered(f); !slices.Equal(got, want) {
		c.t.Errorf("%s, %v: %d clients are remembered: %v, want %d: %v", when, f, len(got), got, len(want), want)
	}
}

// TestAffinityFull has more clients than can be remembered. That costs those that come later their affinity, and nothing else: all are
// answered, the first ones stay with their endpoints, and changes are made as ever. There is room again once clients have timed out.
func TestAffinityFull(t *testing.T) {
	c := newCrowd(t)
	sticky, beside := c.sticky(time.Hour, crowdEndpoints...), c.other("beside", 2, "near")
	c.start(sticky, beside)
	c.backend.inspector.finder = dial(t, c.ns)
	for _, f := range families {
		c.expectRemembered("in the beginning", f, nil)
	}
	homes := map[state.Family][]string{}
	for _, f := range families {
		homes[f] = c.ask(sticky, f, c.clients[f])[:crowdLimit]
		c.expectRemembered("after one connection of each", f, c.clients[f][:crowdLimit])
	}
	if t.Failed() {
		return
	}

	const rounds = 6
	var asking sync.WaitGroup
	for _, f := range families {
		asking.Go(func() {
			spread := map[string]int{}
			for range rounds {
				servers := c.ask(sticky, f, c.clients[f])
				if got := servers[:crowdLimit]; !slices.Equal(got, homes[f]) {
					t.Errorf("%v: the first clients come to %v, and came to %v before", f, got, homes[f])
				}
				for _, server := range servers[crowdLimit:] {
					spread[server]++
				}
			}
			t.Logf("%v: later clients are spread as %v", f, spread)
			for _, name := range crowdEndpoints {
				if n := spread[name]; n < rounds*(crowdSize-crowdLimit)/6 { // half of an even share
					t.Errorf("%v: later clients came to %s %d times of %d", f, name, n, rounds*(crowdSize-crowdLimit))
				}
			}
		})
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		asking.Wait()
	}()
	changes, slowest := 0, time.Duration(0)
	for going := true; going; changes++ {
		name := crowdEndpoints[changes%2]
		beside = c.other("beside", 2, name)
		began := time.Now()
		c.show(false, beside)
		slowest = max(slowest, time.Since(began))
		for _, f := range families {
			if got := c.ask(beside, f, c.lab.Client().Addrs[slices.Index(families, f):][:1]); got[0] != name {
				t.Errorf("%v: after change %d of another service, %q answers, want %s", f, changes, got[0], name)
			}
		}
		select {
		case <-asked:
			going = false
		default:
		}
	}
	t.Logf("%d changes of another service meanwhile, the slowest in %v", changes, slowest)
	if changes < 5 {
		t.Errorf("only %d changes of another service while clients connected", changes)
	}
	for _, f := range families {
		c.expectRemembered("in the end", f, c.clients[f][:crowdLimit])
	}

	// Clients of an endpoint that leaves come to others, and the others stay.
	sticky = c.sticky(time.Hour, crowdEndpoints[1:]...)
	c.show(false, sticky)
	for _, f := range families {
		for i, server := range c.ask(sticky, f, c.clients[f]) {
			if i < crowdLimit && homes[f][i] != crowdEndpoints[0] && server != homes[f][i] || server == crowdEndpoints[0] {
				t.Errorf("%v: %v comes to %s after endpoint %s has left", f, c.clients[f][i], server, crowdEndpoints[0])
			}
		}
	}

	// What is remembered gets another timeout with the next connection.
	short := c.sticky(time.Second, crowdEndpoints...)
	c.show(false, short)
	for _, f := range families {
		c.ask(short, f, c.remembered(f))
	}
	sticky = c.sticky(time.Hour, crowdEndpoints...)
	c.show(false, sticky)
	for _, f := range families {
		next := c.clients[f][2*crowdLimit:][:crowdLimit]
		for began := time.Now(); !slices.Equal(c.remembered(f), next); time.Sleep(100 * time.Millisecond) {
			if time.Since(began) > 30*time.Second {
				c.expectRemembered("after the first ones have timed out", f, next)
				break
			}
			c.ask(sticky, f, next)
		}
		homes := c.ask(sticky, f, next)
		for range rounds {
			if got := c.ask(sticky, f, next); !slices.Equal(got, homes) {
				t.Errorf("%v: clients that there is room for come to %v, and came to %v before", f, got, homes)
			}
		}
		c.ask(sticky, f, c.clients[f])
		c.expectRemembered("when it is full again", f, next)
	}
}
