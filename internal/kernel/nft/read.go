package nft

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

func beUint32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

// decodeElems appends the elements of one message of a dump. Their values do not refer to attrs.
func decodeElems(attrs []byte, elems []Elem) ([]Elem, error) {
	var list []byte
	err := eachAttr(attrs, func(typ uint16, v []byte) error {
		if typ == nftaSetElemListElements {
			list = v
		}
		return nil
	})
	if err != nil {
		return elems, err // elements that got lost would pass for elements that are not there
	}
	// One copy serves all of them: a message has hundreds.
	err = eachAttr(slices.Clone(list), func(_ uint16, elem []byte) error {
		e, err := decodeElem(elem)
		if e.Key != nil {
			elems = append(elems, e)
		}
		return err
	})
	return elems, err
}

// decodeElem returns an element that refers to attrs.
func decodeElem(attrs []byte) (e Elem, err error) {
	err = eachAttr(attrs, func(typ uint16, v []byte) error {
		switch typ {
		case nftaSetElemKey:
			e.Key = findAttr(v, nftaDataValue, 0)
		case nftaSetElemData:
			e.Data = findAttr(v, nftaDataValue, 0)
		case nftaSetElemKeyEnd:
			e.KeyEnd = findAttr(v, nftaDataValue, 0)
		case nftaSetElemTimeout:
			e.Timeout = beUint64(v)
		case nftaSetElemExpiration:
			e.Expires = beUint64(v)
		case nftaSetElemUserdata:
			e.Comment = decodeComment(v)
		case nftaSetElemExpr:
			e.Packets = countedPackets(v)
		}
		return nil
	})
	return e, err
}

// countedPackets returns what an expression has counted, 0 if it does not count.
func countedPackets(expr []byte) uint64 {
	if attrStr(expr, nftaExprName) != counterName {
		return 0
	}
	return beUint64(findAttr(findAttr(expr, nftaExprData, 0), nftaCounterPackets, 0))
}

// repeated returns hashes of the keys that stand in elems more than once, sorted.
func repeated(elems []Elem) (twice []uint64) {
	hashes := make([]uint64, len(elems))
	for i := range elems {
		hashes[i] = maphash.Bytes(hashSeed, elems[i].Key)
	}
	slices.Sort(hashes)
	for i := 1; i < len(hashes); i++ {
		if hashes[i] == hashes[i-1] {
			twice = append(twice, hashes[i])
		}
	}
	return twice
}

var hashSeed = maphash.MakeSeed()

func beUint64(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Skeleton is the contents of a table without elements, as read from the kernel.
type Skeleton struct {
	flags  TableFlags
	sets   map[string][]byte
	chains map[string][]byte
	rules  map[string][][]byte // by chain, in order
}

func newSkeleton() *Skeleton {
	return &Skeleton{sets: map[string][]byte{}, chains: map[string][]byte{}, rules: map[string][][]byte{}}
}

func (s *Skeleton) setTable(attrs []byte) { s.flags = TableFlags(attrUint32(attrs, nftaTableFlags)) }

func (s *Skeleton) addSet(attrs []byte) { s.sets[attrStr(attrs, nftaSetName)] = slices.Clone(attrs) }

func (s *Skeleton) addChain(attrs []byte) {
	s.chains[attrStr(attrs, nftaChainName)] = slices.Clone(attrs)
}

func (s *Skeleton) addRule(attrs []byte) {
	chain := attrStr(attrs, nftaRuleChain)
	s.rules[chain] = append(s.rules[chain], slices.Clone(attrs))
}

// Flags returns the table's flags.
func (s *Skeleton) Flags() TableFlags { return s.flags }

// Sets returns the names of all sets, in no particular order.
func (s *Skeleton) Sets() []string {
	names := make([]string, 0, len(s.sets))
	for name := range s.sets {
		names = append(names, name)
	}
	return names
}

// HasChainNamed reports whether the table has a chain of this name.
func (s *Skeleton) HasChainNamed(name string) bool { return s.chains[name] != nil }

// Count returns how many elements a set holds. ok is false if there is no such set, or if the kernel does not count
// ([ElementCounts]). Elements that have timed out count until the kernel collects them.
func (s *Skeleton) Count(set string) (n int, ok bool) { return setCount(s.sets[set]) }

func setCount(attrs []byte) (n int, ok bool) {
	v := findAttr(attrs, nftaSetCount, 0)
	if len(v) != 4 {
		return 0, false
	}
	return int(beUint32(v)), true
}

// Fill is how full a set is.
type Fill struct {
	// Count is how many elements the set holds, as [Skeleton.Count] has it.
	Count int
	// Size is how many it can hold, 0 if that is not bounded.
	Size int
}

func setFill(attrs []byte) (f Fill, ok bool) {
	f.Size = int(attrUint32(findAttr(attrs, nftaSetDesc, 0), nftaSetDescSize))
	f.Count, ok = setCount(attrs)
	return f, ok
}

// Packets returns how many packets the counters in a chain's rules have counted.
func (s *Skeleton) Packets(chain string) (n uint64) {
	for _, rule := range s.rules[chain] {
		// Attributes that cannot be read count nothing.
		_ = eachAttr(findAttr(rule, nftaRuleExpressions, 0), func(_ uint16, expr []byte) error {
			n += countedPackets(expr)
			return nil
		})
	}
	return n
}

// Fits reports whether the table has exactly these flags, sets and chains, each with the right definition. It ignores the rules of chains.
// A table that does not fit has to be replaced.
func (s *Skeleton) Fits(t Table, flags TableFlags, sets []Set, chains []Chain) bool {
	if s.flags != flags {
		return false
	}
	found := 0
	for i := range sets {
		if _, ok := s.sets[sets[i].Name]; ok {
			found++
			if !s.HasSet(t, &sets[i]) {
				return false
			}
		}
	}
	if found != len(s.sets) {
		return false
	}
	found = 0
	for i := range chains {
		if _, ok := s.chains[chains[i].Name]; ok {
			found++
			if exists, _ := s.HasChain(t, &chains[i]); !exists {
				return false
			}
		}
	}
	return found == len(s.chains)
}

// HasSet reports whether the table has exactly this set.
func (s *Skeleton) HasSet(t Table, set *Set) bool {
	attrs, ok := s.sets[set.Name]
	return ok && contains(attrs, set.attrs(t)) && attrUint32(attrs, nftaSetFlags) == set.flags()
}

// HasChain reports whether the table has a chain of this name and hook, and whether it has the same rules in the same order.
func (s *Skeleton) HasChain(t Table, c *Chain) (exists, same bool) {
	attrs, ok := s.chains[c.Name]
	if !ok || !contains(attrs, c.attrs(t)) || (c.Hook == nil) != (findAttr(attrs, nftaChainHook, 0) == nil) {
		return false, false
	}
	return true, slices.EqualFunc(s.rules[c.Name], c.Rules, func(got []byte, want []Expr) bool {
		return sameExprs(findAttr(got, nftaRuleExpressions, 0), want)
	})
}

func sameExprs(got []byte, want []Expr) bool {
	i, same := 0, true
	err := eachAttr(got, func(_ uint16, e []byte) error {
		same = same && i < len(want) && contains(e, want[i].attr().Nested)
		i++
		return nil
	})
	return err == nil && same && i == len(want)
}
