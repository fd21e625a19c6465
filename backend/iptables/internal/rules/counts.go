package rules

import (
	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/state"
)

// The sets whose elements count connections, if that is asked for: all new connections to a frontend, the rejected ones and the dropped
// ones. Every frontend is in each of the three sets while it is programmed, with or without endpoints, so that counts do not depend on
// endpoints.
const (
	setCounts           = "COUNTS"
	setRejectCounts     = "REJECT-COUNTS"
	setDropCounts       = "DROP-COUNTS"
	setPortCounts       = "PORT-COUNTS" // of node ports, and so on
	setPortRejectCounts = "PORT-REJECT-COUNTS"
	setPortDropCounts   = "PORT-DROP-COUNTS"
)

// Counted are the counts of a frontend.
type Counted struct{ Connections, Rejects, Drops uint64 }

// countSet is a set that counts.
type countSet struct {
	name  string
	count func(*Counted) *uint64
}

func (c *Counted) connections() *uint64 { return &c.Connections }
func (c *Counted) rejects() *uint64     { return &c.Rejects }
func (c *Counted) drops() *uint64       { return &c.Drops }

// countSets are the sets of frontends with an address, and of node ports. Connections are read last: so they are never fewer than the
// rejected or dropped ones.
var countSets = map[ipset.Type][]countSet{
	ipset.IPPort:  {{setRejectCounts, (*Counted).rejects}, {setDropCounts, (*Counted).drops}, {setCounts, (*Counted).connections}},
	ipset.NetPort: {{setPortRejectCounts, (*Counted).rejects}, {setPortDropCounts, (*Counted).drops}, {setPortCounts, (*Counted).connections}},
}

func (c *countSet) of(f state.Family, t ipset.Type) ipset.Set {
	return ipset.Set{Name: setName(f, c.name), Type: t, Family: f, MaxElements: maxElements, Counters: true}
}

// count adds the elements by which a frontend is counted.
func (p *port) count(t ipset.Type, e ipset.Element) {
	if !p.Counters {
		return
	}
	for _, c := range countSets[t] {
		p.part.elements = append(p.part.elements, element{setName(p.f, c.name), e})
	}
}

// countIn makes the sets that count desired, or not.
func (t *Tables) countIn(desired bool) {
	for kind, sets := range countSets {
		for i := range sets {
			s := sets[i].of(t.family, kind)
			if t.doubt(s.Name); desired {
				t.sets[s.Name] = &set{Set: s, users: 1, elements: map[ipset.Element]int{}}
			} else {
				delete(t.sets, s.Name)
			}
		}
	}
}

// Counts reads the counts of all frontends of a family. read returns the elements of a set, or none if the set does not
// exist.
func Counts(f state.Family, read func(ipset.Set) ([]ipset.Counted, error)) (map[state.FrontendKey]Counted, error) {
	all := map[state.FrontendKey]Counted{}
	for kind, sets := range countSets {
		for i := range sets {
			elements, err := read(sets[i].of(f, kind))
			if err != nil {
				return nil, err
			}
			for _, e := range elements {
				key := state.FrontendKey{Family: f, Protocol: e.Protocol, Port: e.Port}
				if kind == ipset.IPPort {
					key.Addr = e.Prefix.Addr()
				}
				counted := all[key]
				*sets[i].count(&counted) += e.Packets // a node port has two, of one half of all addresses each
				all[key] = counted
			}
		}
	}
	return all, nil
}

// invalidSet is the set that counts the packets that are dropped because they are invalid. It has all addresses and is never removed. A
// counter of a rule would start again with each change of its chain.
func invalidSet(f state.Family) ipset.Set {
	return ipset.Set{Name: setName(f, setInvalid), Type: ipset.Net, Family: f, MaxElements: maxElements, Counters: true}
}

// Invalid reads back how many packets of a family were dropped because they were invalid.
func Invalid(f state.Family, read func(ipset.Set) ([]ipset.Counted, error)) (packets uint64, err error) {
	elements, err := read(invalidSet(f))
	for _, e := range elements {
		packets += e.Packets
	}
	return packets, err
}
