//go:build linux

package iptables

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// TestInspect: after random changes, what is read back is what was applied, with both variants. Where somebody changes chains, jumps or sets,
// that shows.
func TestInspect(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		ns := netnstest.New(t)
		for _, f := range recordtest.Families {
			setAddr(t, ns, recordtest.NodeAddr(f).String())
		}
		b := newBackend(t, ns, Options{Variant: v, LocalDetector: state.LocalDetector{ClusterCIDRs: recordtest.PodCIDRs(state.IPv4, state.IPv6)}})
		check := func(q *recordtest.Question) string {
			t.Helper()
			held, err := b.Inspect(q.Query)
			if err != nil {
				t.Fatal(err)
			}
			return q.Check(held)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		services := make([]*state.Service, 3)
		next := func(i int) *state.Service {
			return recordtest.EveryKind(string(rune('a'+i)), i+1, rng.IntN(25)*rng.IntN(2), time.Duration(rng.IntN(2))*time.Minute)
		}
		for round, u := range recordtest.Rounds(4, rng, services, next) {
			apply(t, b, u)
			for _, q := range recordtest.Questions(services...) {
				if difference := check(&q); difference != "" {
					t.Fatalf("round %d: %s", round, difference)
				}
			}
		}

		web := recordtest.EveryKind("a", 1, 2, 0)
		apply(t, b, recordtest.Full(web))
		q := recordtest.Questions(web)[0]
		if difference := check(&q); difference != "" {
			t.Fatal(difference)
		}
		iptables := func(args ...string) { run(t, ns, "iptables-"+string(v), args...) }
		for name, change := range map[string]func(){
			"another endpoint": func() {
				iptables("-t", "nat", "-I", chainOf(t, ns, "iptables", v, "SWY-CI-"), "1", "-p", "tcp", "-j", "DNAT", "--to-destination", "192.0.2.99:1")
			},
			"a rule before ours": func() { iptables("-t", "nat", "-I", "SWY-SERVICES", "1", "-j", "RETURN") },
			"no jump":            func() { iptables("-t", "nat", "-D", "OUTPUT", "-j", "SWY-SERVICES") },
			"not in the set":     func() { run(t, ns, "ipset", "del", "SWY-4-FRONTENDS", "10.96.0.1,tcp:80") },
		} {
			change()
			if check(&q) == "" {
				t.Errorf("%s: nothing of it is read back", name)
			}
			verify(t, b)
			if difference := check(&q); difference != "" {
				t.Errorf("%s, after a verification: %s", name, difference)
			}
		}
		missing := q.Query
		missing.Frontend.Addr, missing.Dst = recordtest.Addr("198.51.100.99"), recordtest.Addr("198.51.100.99")
		if held, err := b.Inspect(missing); err != nil || held.Verdict != state.Unused {
			t.Errorf("a frontend that nobody has: %+v, %v", held, err)
		}
	})
}

// setAddr gives the loopback device of a network namespace an address.
func setAddr(t *testing.T, ns *netns.NS, addr string) {
	t.Helper()
	run(t, ns, "ip", "link", "set", "lo", "up")
	run(t, ns, "ip", "addr", "add", addr, "dev", "lo")
}
