package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// rangeService makes a service with a UDP range at 10.96.0.1, and a single port within it, 10.96.0.1:5060, if singles has endpoints.
func rangeService(name string, last uint16, singles string, endpoints ...string) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "ns", Name: name}}
	if singles != "" {
		s = service(name, "10.96.0.1:5060", singles)
	}
	if last > 0 {
		p := state.Port{Name: "range", Protocol: state.UDP, Family: state.IPv4,
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 5000, LastPort: last}}}
		for _, e := range endpoints {
			p.Internal.Inside.Endpoints = append(p.Internal.Inside.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr(e), 0)})
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// TestRanges changes services with a range, and looks at which flows go.
func TestRanges(t *testing.T) {
	const to = "10.96.0.1:"
	mine, theirs, single := flow(to+"5001", "10.244.0.1:5001"), flow(to+"5002", "10.244.0.2:5002"), flow(to+"5060", "10.244.0.1:5060")
	outside, untranslated := flow(to+"6001", "10.244.0.1:6001"), flow(to+"5003", to+"5003")
	translated := flow(to+"5004", "10.244.0.1:99") // by somebody else: a range keeps the port
	all := []Flow{mine, theirs, single, outside, untranslated, translated}
	before := []*state.Service{rangeService("a", 5999, "", "10.244.0.1", "10.244.0.2"), rangeService("b", 0, "10.244.0.1:5060")}
	for name, test := range map[string]struct {
		from, to []*state.Service
		gone     []Flow
	}{
		"no change":              {before, before, nil},
		"an endpoint leaves":     {before, []*state.Service{rangeService("a", 5999, "", "10.244.0.2"), before[1]}, []Flow{mine}},
		"all endpoints leave":    {before, []*state.Service{rangeService("a", 5999, ""), before[1]}, []Flow{mine, theirs}},
		"the first comes":        {[]*state.Service{rangeService("a", 5999, ""), before[1]}, before, []Flow{untranslated}},
		"the range comes":        {[]*state.Service{nil, before[1]}, before, []Flow{untranslated}},
		"the range goes":         {before, []*state.Service{nil, before[1]}, []Flow{mine, theirs}},
		"the range shrinks":      {before, []*state.Service{rangeService("a", 5001, "", "10.244.0.1", "10.244.0.2"), before[1]}, []Flow{theirs}},
		"another service has it": {before, []*state.Service{nil, rangeService("b", 5999, "10.244.0.1:5060", "10.244.0.2")}, []Flow{mine, untranslated}},
		"the single port goes":   {before, []*state.Service{before[0], nil}, nil},
		"both change":            {before, []*state.Service{rangeService("a", 5999, "", "10.244.0.2"), nil}, []Flow{mine, single}},
		"single ports change":    {before, []*state.Service{before[0], rangeService("b", 0, "10.244.0.2:5060")}, []Flow{single}},
		"the single port comes":  {[]*state.Service{before[0], nil}, []*state.Service{before[0], rangeService("b", 0, "10.244.0.7:5060")}, []Flow{single}},
	} {
		table := &fakeTable{flows: slices.Clone(all)}
		c := newCleaner(table)
		c.NoteAll(slices.Values(slices.DeleteFunc(slices.Clone(test.from), func(s *state.Service) bool { return s == nil })))
		clear(c.pending) // what is pending at the start is not looked at here
		c.ranges.stale = true
		for i := range test.from {
			c.Note(test.from[i], test.to[i])
		}
		mustClean(t, c, len(test.gone))
		left := maps.Collect(func(yield func(Flow, bool) bool) {
			for _, f := range table.flows {
				if !yield(f, true) {
					return
				}
			}
		})
		for _, f := range all {
			if left[f] == slices.Contains(test.gone, f) {
				t.Errorf("%s: the flow to %v from %v is left: %v", name, f.Orig.Dst, f.Reply.Src, left[f])
			}
		}
	}
}

// TestSinglePortGoes: the flows that a range has begun at the port stay, and flows to the single port's endpoint go.
func TestSinglePortGoes(t *testing.T) {
	const at = "10.96.0.1:5060"
	ofRange, ofSingle, untranslated := flow(at, "10.244.0.1:5060"), flow(at, "10.244.0.7:5061"), flow(at, at)
	for name, from := range map[string]string{"served": "10.244.0.7:5061", "refused": ""} {
		table := &fakeTable{flows: []Flow{ofRange, ofSingle, untranslated}}
		c := newCleaner(table)
		rtp, sip := rangeService("a", 5999, "", "10.244.0.1"), service("b", at, from)
		c.Note(nil, rtp)
		c.Note(nil, sip)
		clear(c.pending)
		c.ranges.stale = true
		c.Note(sip, nil)
		mustClean(t, c, 2)
		if !slices.Equal(table.flows, []Flow{ofRange}) {
			t.Errorf("%s: left are %v", name, table.flows)
		}
	}
}

// TestSinglePortMoves: a range does not judge the flows of a single port that another service has taken, in whatever order the two are noted.
func TestSinglePortMoves(t *testing.T) {
	const at = "10.96.0.1:5060"
	for _, takerFirst := range []bool{false, true} {
		table := &fakeTable{flows: []Flow{flow(at, "10.244.0.7:5060")}}
		c := newCleaner(table)
		rtp, from, to := rangeService("a", 5999, "", "10.244.0.7"), service("b", at, "10.244.0.7:5060"), service("c", at, "10.244.0.7:5060")
		c.Note(nil, rtp)
		c.Note(nil, from)
		if takerFirst {
			c.Note(nil, to)
			c.Note(from, nil)
		} else {
			c.Note(from, nil)
			c.Note(nil, to)
		}
		mustClean(t, c, 0)
		c.Note(rtp, rangeService("a", 5999, ""))
		mustClean(t, c, 0)
	}
}

// TestRangeComesDuringRemoval: a range comes between any two steps of the deletion of the flows to a single port that has gone. They are deleted all the same.
func TestRangeComesDuringRemoval(t *testing.T) {
	const at = "10.96.0.1:5060"
	for step := range 5 {
		table := &fakeTable{flows: []Flow{flow(at, "10.244.0.7:5061")}}
		c, judged := newCleaner(table), 0
		c.Note(service("b", at, "10.244.0.7:5061"), nil)
		if _, err := c.Clean(t.Context(), func(fn func() error) error {
			if judged++; judged == step {
				c.Note(nil, rangeService("a", 5999, "", "10.244.0.1"))
			}
			return fn()
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Clean(t.Context(), nil); err != nil || len(table.flows) > 0 {
			t.Errorf("at step %d: left are %v, %v", step, table.flows, err)
		}
	}
}

// TestRemovingForARange: a commit after which a range begins flows at a port waits for the deletion of the port's flows.
func TestRemovingForARange(t *testing.T) {
	const at = "10.96.0.1:5060"
	rtp, sip, refused := rangeService("a", 5999, "", "10.244.0.1"), service("b", at, "10.244.0.7:5061"), service("b", at, "")
	for name, test := range map[string]struct {
		before []*state.Service
		first  change
		then   change
		waits  bool
	}{
		"the range comes":                {nil, change{sip, nil}, change{nil, rtp}, true},
		"another range comes":            {nil, change{sip, nil}, change{nil, rangeService("a", 5001, "", "10.244.0.1")}, false},
		"the range has a port that goes": {[]*state.Service{rtp}, change{sip, refused}, change{refused, nil}, true},
		"no range has a port that goes":  {nil, change{sip, refused}, change{refused, nil}, false},
	} {
		asked := false
		var c *Cleaner
		c = newCleaner(&hookedTable{Table: &fakeTable{}, deleting: func() {
			asked = true
			if waits := c.Removing(test.then.old, test.then.new) != nil; waits != test.waits {
				t.Errorf("%s: the commit waits: %v", name, waits)
			}
		}})
		for _, s := range append(test.before, test.first.old) {
			c.Note(nil, s)
		}
		clear(c.pending)
		c.ranges.stale = true
		c.Note(test.first.old, test.first.new)
		mustClean(t, c, 0)
		if !asked {
			t.Errorf("%s: nothing is deleted by a filter", name)
		}
	}
}

// TestRangeAndSinglePorts: a range does not judge flows of single ports at its address, whether they are NodePorts, or come while the range moves.
func TestRangeAndSinglePorts(t *testing.T) {
	const at = "10.96.0.1:5060"
	a, b, empty := rangeService("a", 5999, "", "10.244.0.1"), rangeService("b", 5999, "", "10.244.0.1"), rangeService("b", 5999, "")
	for name, changes := range map[string][]change{
		"NodePort":           {{nil, service("c", ":5060", "10.244.0.1:5060")}, {nil, b}},
		"before the range":   {{nil, service("c", at, "10.244.0.1:5060")}, {nil, b}},
		"as the range moves": {{nil, a}, {a, nil}, {nil, service("c", at, "10.244.0.1:5060")}, {nil, b}},
	} {
		c := newCleaner(&fakeTable{flows: []Flow{flow(at, "10.244.0.1:5060")}})
		c.SetNodePortAddrs([]netip.Addr{netip.MustParseAddr("10.96.0.1")})
		for _, n := range changes {
			c.Note(n.old, n.new)
		}
		clear(c.pending)
		c.ranges.stale = true
		c.Note(b, empty)
		if n, err := clean(t.Context(), c); n != 0 || err != nil {
			t.Errorf("%s: %d flows are deleted, %v", name, n, err)
		}
	}
}

// TestNodePortAtAFrontend: a NodePort does not judge the flows of a frontend that has its port at an address of the node.
func TestNodePortAtAFrontend(t *testing.T) {
	for _, at := range []string{"192.168.0.1:5060", "[fd00::1]:5060"} {
		endpoint := "10.244.0.1:5060"
		if at[0] == '[' {
			endpoint = "[fd00:244::1]:5060"
		}
		c := newCleaner(&fakeTable{flows: []Flow{flow(at, endpoint)}})
		c.Note(nil, service("a", at, endpoint))
		mustClean(t, c, 0)
		nodePort := service("b", ":5060", "10.244.0.7:5060")
		nodePort.Ports[0].Family = state.FamilyOf(netip.MustParseAddrPort(at).Addr())
		c.Note(nil, nodePort)
		mustClean(t, c, 0)
		c.Note(nodePort, nil)
		mustClean(t, c, 0)
	}
}

// TestRangesAtStart: at the start, flows of a range go that none of its endpoints answers, but no flows of single ports of other services.
func TestRangesAtStart(t *testing.T) {
	table := &fakeTable{flows: []Flow{
		flow("10.96.0.1:5001", "10.244.0.1:5001"), flow("10.96.0.1:5002", "10.244.0.9:5002"), flow("10.96.0.1:5060", "10.244.0.1:5060"),
	}}
	c := newCleaner(table)
	c.NoteAll(slices.Values([]*state.Service{rangeService("b", 0, "10.244.0.1:5060"), rangeService("a", 5999, "", "10.244.0.1")}))
	mustClean(t, c, 1)
	if len(table.flows) != 2 || slices.ContainsFunc(table.flows, func(f Flow) bool { return f.Orig.Dst.Port() == 5002 }) {
		t.Errorf("left are %v", table.flows)
	}
}
