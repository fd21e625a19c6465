package ruleset

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// find looks elements up as the kernel does.
func (c contents) find(_ nft.Table, set string, width int, keys []byte, found func(i int, data []byte)) error {
	for i := range len(keys) / width {
		if data, ok := c[set][string(keys[i*width:][:width])]; ok {
			found(i, []byte(data))
		}
	}
	return nil
}

// heldBy returns what tables that show a service hold for a connection, by the record alone.
func heldBy(s *state.Service, c *connection, isOutside bool) (key state.FrontendKey, held Held, draw func(slots int) Draw) {
	draw = func(int) Draw { return Draw{} }
	key = state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: c.dst.Addr(), Port: c.dst.Port()}
	if c.dst.Addr() == nodeAddr(state.IPv4) {
		key.Addr = netip.Addr{}
	}
	if s == nil {
		return key, held, draw
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		for j := range p.Frontends {
			f := &p.Frontends[j]
			if p.Key(f) != key {
				continue
			}
			t := &p.External
			if f.Kind == state.ClusterIP {
				t = &p.Internal
			}
			r := &t.Inside
			if isOutside {
				r = &t.Outside
			}
			if f.Restricted && !slices.ContainsFunc(f.Sources, func(p netip.Prefix) bool { return p.Contains(c.src) }) {
				return key, Held{Verdict: state.Drop}, draw
			}
			held.Verdict = r.Verdict
			for _, e := range r.Endpoints {
				held.Endpoints = append(held.Endpoints, e.Addr)
			}
			draw = func(slots int) Draw { return drawOf(p, r, slots) }
		}
	}
	return key, held, draw
}

// drawOf returns how an endpoint of a route is chosen. was is the class of its weights, which stays if it is accurate.
func drawOf(p *state.Port, r *state.Route, was int) (d Draw) {
	switch {
	case consistent.Serves(p, r):
		table := consistent.Table(r)
		d = Draw{Slots: len(table), Shares: make([]int, len(r.Endpoints)), Hashed: true}
		for _, i := range table {
			if i != consistent.Refused {
				d.Shares[i]++
			}
		}
	case !r.Even() && r.Verdict == state.Forward:
		weights := r.Weights()
		d.Slots = weightedClass(weights, was)
		d.Shares = apportion.Slots(weights, d.Slots)[:len(r.Endpoints)]
	}
	return d
}

// TestInspect changes a service from each of many states to each other. What is read back for a connection is what the record says, and
// the rules send the connection nowhere else.
func TestInspect(t *testing.T) {
	states := atomicStates()
	names := slices.Sorted(maps.Keys(states))
	for _, o := range []*Settings{testSettings(state.IPv4), testSettings()} {
		seen, known := map[state.Verdict]int{}, 0
		for i, from := range names {
			base := newWorld(o).changedTo(o, states[from])
			for j, to := range names {
				if leftOut(i, j) {
					continue
				}
				w := base.changedTo(o, states[to])
				for _, c := range atomicConnections() {
					isPod := slices.ContainsFunc(o.LocalDetector.ClusterCIDRs, func(p netip.Prefix) bool { return p.Contains(c.src) })
					isOutside := !isPod && c.src != nodeAddr(state.IPv4)
					key, want, draw := heldBy(states[to], &c, isOutside)
					got, err := Inspect(key, Client{Outside: isOutside, Addr: c.src}, w.contents.find)
					want.Draw = draw(got.Draw.Slots)
					if err != nil || got.Verdict != want.Verdict || !slices.Equal(got.Endpoints, want.Endpoints) {
						t.Fatalf("%s, %q to %q: read back %v %v, %v; want %v %v", c.name, from, to, got.Verdict, got.Endpoints, err, want.Verdict, want.Endpoints)
					}
					if d := got.Draw; d.Slots != want.Draw.Slots || !slices.Equal(d.Shares, want.Draw.Shares) || d.Hashed != want.Draw.Hashed {
						t.Fatalf("%s, %q to %q: read back %+v, want %+v", c.name, from, to, d, want.Draw)
					}
					out := c.interpret(1, w, w, 0).run()
					if out.verdict == "to" && !slices.Contains(got.Endpoints, out.endpoint) {
						t.Fatalf("%s, %q to %q: the rules send it to %v, and read back is %v", c.name, from, to, out.endpoint, got.Endpoints)
					}
					if got.Draw.Known {
						if known++; got.Draw.Endpoint != out.endpoint {
							t.Fatalf("%s, %q to %q: the rules send it to %v, and read back is %v", c.name, from, to, out.endpoint, got.Draw.Endpoint)
						}
					}
					if want.Verdict != state.Unused && len(got.Objects) == 0 {
						t.Fatalf("%s, %q to %q: objects %v", c.name, from, to, got.Objects)
					}
					seen[got.Verdict]++
				}
			}
		}
		if known == 0 {
			t.Error("no client of a hash was seen")
		}
		for _, v := range []state.Verdict{state.Unused, state.Forward, state.Reject, state.Drop} {
			if seen[v] == 0 {
				t.Errorf("nothing was %v", v)
			}
		}
	}
}

// TestInspectEdge reads back what becomes of connections that a node has handed over, after each change.
func TestInspectEdge(t *testing.T) {
	o, states := withTestEdge(testSettings(state.IPv4)), edgeStates()
	seen := map[state.Verdict]int{}
	for from, before := range states {
		base := newWorld(o).changedTo(o, before)
		for to, s := range states {
			w := base.changedTo(o, s)
			for _, c := range edgeConnections() {
				if c.mark == 0 {
					continue
				}
				key := state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: c.dst.Addr(), Port: c.dst.Port()}
				if key.Port >= 30000 { // a NodePort
					key.Addr = netip.Addr{}
				}
				got, err := Inspect(key, Client{Outside: true, Edge: true, Addr: c.src}, w.contents.find)
				if err != nil {
					t.Fatal(err)
				}
				out := c.interpret(1, w, w, 0).run()
				if (out.verdict == "to") != (got.Verdict == state.Forward) || out.verdict == "to" && !slices.Contains(got.Endpoints, out.endpoint) {
					t.Fatalf("%s, %q to %q: the rules: %v, and read back is %v %v", c.name, from, to, out, got.Verdict, got.Endpoints)
				}
				seen[got.Verdict]++
			}
		}
	}
	for _, v := range []state.Verdict{state.Unused, state.Forward, state.Drop} {
		if seen[v] == 0 {
			t.Errorf("nothing was %v", v)
		}
	}
}

// TestInspectUnknownClient: who cannot be among those that may connect is dropped.
func TestInspectUnknownClient(t *testing.T) {
	o := testSettings(state.IPv4)
	w := newWorld(o).changedTo(o, atomicStates()["4-6 for all"])
	key := state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: addr("203.0.113.1"), Port: 80}
	for src, want := range map[netip.Addr]state.Verdict{{}: state.Drop, addr("2001:db8::1"): state.Drop, addr("192.0.2.9"): state.Forward} {
		if got, err := Inspect(key, Client{Outside: true, Addr: src}, w.contents.find); err != nil || got.Verdict != want {
			t.Errorf("%v: %v, %v; want %v", src, got.Verdict, err, want)
		}
	}
}
