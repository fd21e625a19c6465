package ruleset

import (
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// FindElems looks whole elements up by their keys. It is the method of an nft.Conn of this name, for which a set that does not exist has none.
type FindElems func(t nft.Table, set string, width int, keys []byte, found func(i int, e nft.Elem)) error

// Counted is what the rules have counted of a frontend.
type Counted struct{ Connections, Rejects, Drops uint64 }

// of returns the number that is in a kind of sets.
func (c *Counted) of(k kind) *uint64 {
	switch k {
	case rejectCounts:
		return &c.Rejects
	case dropCounts:
		return &c.Drops
	}
	return &c.Connections
}

// countedKeys are the keys of frontends of a family and space, as their sets have them, and the places of these frontends.
type countedKeys struct {
	keys []byte
	at   []int
}

// LocalRejects yields how many packets to NodePorts on loopback addresses were refused, where NodePorts are served on them.
func LocalRejects(find FindElems, yield func(state.Family, state.Protocol, uint64)) error {
	for _, f := range families {
		var keys []byte
		id := setID{kind: localRejects}
		l := id.layout(f)
		for _, p := range protocols {
			e := localReject(f, p)
			keys = append(keys, e.key[:l.key]...)
		}
		err := find(table(f), id.name(), l.key, keys, func(i int, e nft.Elem) { yield(f, protocols[i], e.Packets) })
		if err != nil {
			return readFailed(tableSet{f, id}, err)
		}
	}
	return nil
}

// frontendAbove is a frontend that a dataplane above this one serves.
type frontendAbove struct {
	port     *state.Port
	frontend *state.Frontend
}

// above returns the frontends of a Service that are counted in addition to the frontends of its record.
func (s *Settings) above(r *state.Service) (above []frontendAbove) {
	whole := s.Whole[r.Name]
	if !s.Counters || whole == nil {
		return nil
	}
	has := map[state.FrontendKey]bool{}
	for p, f := range r.Frontends() {
		has[p.Key(f)] = true
	}
	for p, f := range whole.Frontends() {
		if !has[p.Key(f)] && f.LastPort == 0 { // no other dataplane has ranges
			above = append(above, frontendAbove{p, f})
		}
	}
	return above
}

// Counts reads back what the rules have counted of frontends, in their order. Without Settings.Counters that is nothing.
func Counts(keys []state.FrontendKey, find FindElems) ([]Counted, error) {
	var sorted [2][numSpaces]countedKeys
	numbers, err := rangeNumbers(keys, find)
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		e, s := keyElement(key)
		if key.LastPort != 0 {
			n, ok := numbers[i]
			if !ok {
				continue
			}
			e, s = numberElement(key.Family, n), ranges
		}
		of := &sorted[index(key.Family)][s]
		of.keys, of.at = append(of.keys, e.key[:frontendLen(key.Family, s)]...), append(of.at, i)
	}
	counted := make([]Counted, len(keys))
	for _, f := range families {
		for s := service; s < numSpaces; s++ {
			for _, k := range countKinds {
				id, of := setID{space: s, kind: k}, &sorted[index(f)][s]
				err := find(table(f), id.name(), frontendLen(f, s), of.keys, func(i int, e nft.Elem) { *counted[of.at[i]].of(k) = e.Packets })
				if err != nil {
					return nil, readFailed(tableSet{f, id}, err)
				}
			}
		}
	}
	return counted, nil
}

// rangeNumbers reads the numbers of the ranges among frontends, by their places.
func rangeNumbers(keys []state.FrontendKey, find FindElems) (map[int]uint32, error) {
	numbers, asked := map[int]uint32{}, map[tableSet]*countedKeys{}
	for i, key := range keys {
		if key.LastPort == 0 {
			continue
		}
		e := firstBlock(key)
		ts := tableSet{e.family, e.set}
		if asked[ts] == nil {
			asked[ts] = &countedKeys{}
		}
		of := asked[ts]
		of.keys, of.at = append(of.keys, e.key[:ts.set.layout(ts.family).key]...), append(of.at, i)
	}
	for ts, of := range asked {
		err := find(table(ts.family), ts.set.name(), ts.set.layout(ts.family).key, of.keys, func(i int, e nft.Elem) {
			in := decode(ts.family, ts.set, e)
			numbers[of.at[i]] = numberOf(in.data)
		})
		if err != nil {
			return nil, readFailed(ts, err)
		}
	}
	return numbers, nil
}
