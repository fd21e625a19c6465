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
		"the single port goes":   {before, []*state.Service{before[0], nil}, []Flow{single}},
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
