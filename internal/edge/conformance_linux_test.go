//go:build !race

// The race detector of Go 1.26 itself crashes if the programs are loaded many times in one process, as in golang/go#78156.

package edge_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/sockethooks"
)

var whole = flag.Bool("whole", false, "run the whole conformance suite with the edge in front of each dataplane")

// withEdge is a dataplane with the edge in front of it, as package node has them.
type withEdge struct {
	backend.Backend
	edge *edge.Edge
	// spoil changes updates, to plant a fault. It may be nil.
	spoil func(*state.Update)
	// forgetful is the node's namespace, if it is to forget all connections with each update.
	forgetful *netns.NS
	// packets counts the packets of all edges, by what was done with them.
	packets *[programs.Actions]atomic.Uint64
}

// Features implements [backend.Featured].
func (d withEdge) Features() state.Features { return backend.FeaturesOf(d.Backend) }

// Apply implements [backend.Backend].
func (d withEdge) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	if d.spoil != nil {
		u = new(*u)
		u.Node, u.Changed = new(*u.Node), slices.Clone(u.Changed)
		for i, s := range u.Changed {
			u.Changed[i] = s.WithPorts(slices.Clone(s.Ports))
			for j := range u.Changed[i].Ports {
				if p := &u.Changed[i].Ports[j]; p.Edge != nil {
					p.Edge = new(*p.Edge)
				}
			}
		}
		d.spoil(u)
	}
	if d.forgetful != nil {
		if err := d.forgetful.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
			return backend.Result{}, err
		}
	}
	r, err := d.Backend.Apply(ctx, u)
	if err == nil {
		err = d.edge.Apply(u, r.Failed)
	}
	return r, err
}

// Verify implements [backend.Backend].
func (d withEdge) Verify(ctx context.Context) (backend.Result, error) {
	r, err := d.Backend.Verify(ctx)
	repaired, edgeErr := d.edge.Verify()
	r.Repaired += repaired
	return r, errors.Join(err, edgeErr)
}

// Close closes both.
func (d withEdge) Close() error {
	s, err := d.edge.Stats()
	for action, n := range s {
		d.packets[action].Add(n)
	}
	return errors.Join(err, d.edge.Close(), d.Backend.(io.Closer).Close())
}

// inFront returns a new dataplane with the edge in front of it.
func inFront(base backend.Backend, err error, packets *[programs.Actions]atomic.Uint64) (withEdge, error) {
	if err != nil {
		return withEdge{}, err
	}
	e, err := edge.Open(edge.Settings{Mark: mark, MaxSlots: 64 * edge.DefaultTableSize, Drain: drain})
	if err != nil {
		return withEdge{}, errors.Join(err, base.(io.Closer).Close())
	}
	return withEdge{Backend: base, edge: e, packets: packets}, nil
}

// notTaken are stories about what the edge never takes: cluster IPs, affinity, balances other than random, ejection, deadlines, ping and ranges. They run with the flag -whole
// only.
var notTaken = []string{
	"affinity", "affinity_timeout", "distribution", "drain_deadline", "ejection", "hash", "least_connections", "ping", "port_ranges", "slow_start", "zone_weights",
}

// TestNodesConformance runs the suite on dataplanes with the edge in front of them. Without edges in records, nothing may differ. Otherwise, the edge takes what
// it can, and serves what other nodes hand over. Servers see the client then, where they would see the node: the suite knows that, and no story differs otherwise.
func TestNodesConformance(t *testing.T) {
	netnstest.Need(t)
	needPrograms(t)
	seeds := 1
	if *whole {
		seeds = 16
	}
	var translated atomic.Uint64
	overNFTables := func(s conformance.Settings) (backend.Backend, error) {
		return nftables.New(t.Context(), nftables.Options{Logger: s.Logger, Edge: mark})
	}
	overHooks := func(s conformance.Settings) (backend.Backend, error) {
		return sockethooks.NewPair(t.Context(), s.OnNamespace, nftables.Options{Logger: s.Logger, Edge: mark}, &translated)
	}
	for _, c := range []struct {
		name   string
		taken  bool
		base   func(s conformance.Settings) (backend.Backend, error)
		limits []conformance.Limit
		run    string // what begins so, unless all of it runs
	}{
		{"nftables", false, overNFTables, nil, "stories/node_port"},
		{"nftables, taken", true, overNFTables, nil, ""},
		{"ebpf", false, overHooks, []conformance.Limit{conformance.HairpinSourceKept}, "stories/node_port"},
		{"ebpf, taken", true, overHooks, []conformance.Limit{conformance.HairpinSourceKept}, "stories/edge_"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var packets [programs.Actions]atomic.Uint64
			d := conformance.Dataplane{
				Name: c.name, Edge: c.taken, Limits: c.limits, FirstSeed: 2, Seeds: seeds,
				New: func(s conformance.Settings) (backend.Backend, error) {
					base, err := c.base(s)
					return inFront(base, err, &packets)
				},
			}
			err := conformance.Check(t.Context(), d, conformance.CheckOptions{
				Select: func(name string) bool {
					return *whole || strings.HasPrefix(name, c.run) && !slices.Contains(notTaken, strings.TrimPrefix(name, "stories/"))
				},
				OnResult: func(r conformance.Result) {
					if r.Outcome == conformance.Failed {
						t.Errorf("%s: %s", r.Name, r.Log)
					}
				},
			})
			must(t, err)
			if n := packets[programs.OwnShare].Load(); (n > 1000) != c.taken && !t.Failed() {
				t.Errorf("the edge has taken %d packets of its own share", n)
			}
		})
	}
}

// ports calls do for each port in an update.
func ports(do func(p *state.Port)) func(u *state.Update) {
	return func(u *state.Update) {
		for _, s := range u.Changed {
			for i := range s.Ports {
				do(&s.Ports[i])
			}
		}
	}
}

// edges calls do for each edge in an update.
func edges(do func(p *state.Port, e *state.Edge)) func(u *state.Update) {
	return ports(func(p *state.Port) {
		if p.Edge != nil {
			do(p, p.Edge)
		}
	})
}

// TestNodesFaultsAreNoticed gives a dataplane with the edge one fault after the other: the stories that are about it must fail.
func TestNodesFaultsAreNoticed(t *testing.T) {
	netnstest.Need(t)
	needPrograms(t)
	self := []state.EdgeShare{{Node: state.PeerID("node"), Weight: 1}}
	for _, c := range []struct {
		fault   string
		stories string
		spoil   func(*state.Update)
		rules   string // in a table of their own
		forgets bool
	}{
		{"connections are masqueraded", "edge_source edge_own_share edge_local", nil, `
			chain before { type filter hook prerouting priority -190; meta mark & 0x2000 != 0 ct mark set 1; }
			chain after { type nat hook postrouting priority srcnat - 1; ct mark 1 masquerade; }
`, false},
		{"what is not translated passes", "edge_untranslated", nil, `
			chain after { type filter hook prerouting priority dstnat + 5; meta mark set meta mark & 0xffffdfff; }
`, false},
		{"there is no guard", "edge_restart", nil, `
			chain before { type filter hook prerouting priority -190; meta l4proto tcp ct state new tcp flags & (syn | ack) == ack meta mark set meta mark | 0x2000; }
`, false},
		{"pods are outside", "edge_own_share", nil, `
			chain before { type filter hook prerouting priority -190; iifname "pod*" meta mark set meta mark | 0x2000; }
`, false},
		{"endpoints of all nodes", "edge_source edge_local", edges(func(p *state.Port, e *state.Edge) { e.Local = p.External.Outside }), "", false},
		{"source ranges do not count", "edge_source_ranges", ports(func(p *state.Port) {
			p.Frontends = slices.Clone(p.Frontends)
			for i := range p.Frontends {
				p.Frontends[i].Restricted, p.Frontends[i].Sources = false, nil
			}
		}), "", false},
		{"drops are rejects", "edge_local", edges(func(_ *state.Port, e *state.Edge) {
			if e.Local.Verdict == state.Drop {
				e.Local.Verdict = state.Reject
			}
		}), "", false},
		{"weights do not count", "edge_local", edges(func(_ *state.Port, e *state.Edge) {
			e.Local.Endpoints = slices.Clone(e.Local.Endpoints)
			for i := range e.Local.Endpoints {
				e.Local.Endpoints[i].Weight = min(1, e.Local.Endpoints[i].Weight)
			}
		}), "", false},
		{"NodePorts of other nodes are not served", "edge_source", edges(func(_ *state.Port, e *state.Edge) { e.Except = state.KindsOf(state.NodePort) }), "", false},
		{"a node that takes no part does not serve", "edge_withdrawn", edges(func(_ *state.Port, e *state.Edge) {
			if len(e.Shares) == 0 {
				e.Local = state.Route{Verdict: state.Drop}
			}
		}), "", false},
		{"the owner is wrong", "edge_own_share", edges(func(_ *state.Port, e *state.Edge) {
			if len(e.Shares) > 0 {
				e.Shares = []state.EdgeShare{{Node: state.PeerID("other"), Weight: 1}}
			}
		}), "", false},
		{"all services are taken", "edge_untranslated", ports(func(p *state.Port) {
			if p.Edge == nil {
				p.Edge = &state.Edge{Shares: self, Local: p.External.Outside}
			}
		}), "", false},
		{"everybody may hand over", "edge_untranslated", func() func(u *state.Update) {
			var all []state.Peer
			return func(u *state.Update) {
				if len(u.Node.Peers) > len(all) {
					all = u.Node.Peers
				}
				u.Node.Peers = all
			}
		}(), "", false},
		{"changes end connections", "edge_local edge_own_share", nil, "", true},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			var packets [programs.Actions]atomic.Uint64
			passed := map[string]bool{}
			must(t, conformance.Check(t.Context(), conformance.Dataplane{
				Name: c.fault, Edge: true,
				New: func(conformance.Settings) (backend.Backend, error) {
					ns, err := netns.Current()
					if err != nil {
						return nil, err
					}
					t.Cleanup(func() { ns.Close() })
					if c.rules != "" {
						netnstest.NFT(t, ns, "table inet fault { }\ndelete table inet fault\ntable inet fault {"+c.rules+"}")
					}
					base, err := nftables.New(t.Context(), nftables.Options{Edge: mark})
					d, err := inFront(base, err, &packets)
					if d.spoil = c.spoil; c.forgets {
						d.forgetful = ns
					}
					return d, err
				},
			}, conformance.CheckOptions{
				Select: func(name string) bool {
					return slices.Contains(strings.Fields(c.stories), strings.TrimPrefix(name, "stories/"))
				},
				OnResult: func(r conformance.Result) { passed[r.Name] = r.Outcome == conformance.Passed },
			}))
			for name := range maps.Keys(passed) {
				if passed[name] {
					t.Errorf("%s passes", name)
				}
			}
			if len(passed) != len(strings.Fields(c.stories)) {
				t.Errorf("only %v have run", passed)
			}
		})
	}
}
