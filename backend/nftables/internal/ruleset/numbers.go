package ruleset

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"iter"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// owner is what has a number within a service: a list of allowed clients, a port with affinity, or a table of slots. A number fits into a packet's
// mark. It follows from the names, so that it is the same after a restart without being read back. Where two owners would have the
// same number, the one that comes later gets another: a shared number would merge two firewalls.
type owner struct {
	kind   kind // restricted, sticky, hashSlots or blocks
	family state.Family
	// list counts the service's different lists of the family, in the order of the first frontends that have them. So a list that
	// changes keeps its number. Of a table, it is the views that it is for.
	list int
	// port and protocol name a port.
	port     string
	protocol state.Protocol
	// addr is the address of a range of the port. So a range that grows or shrinks keeps its number.
	addr netip.Addr
}

func portOwner(p *state.Port) owner {
	return owner{kind: sticky, family: p.Family, port: p.Name, protocol: p.Protocol}
}

func listOwner(f state.Family, list int) owner {
	return owner{kind: restricted, family: f, list: list}
}

// owners returns what needs a number in a service, which may be nil.
func owners(s *state.Service) iter.Seq[owner] {
	return func(yield func(owner) bool) {
		if s == nil {
			return
		}
		var lists sourceLists
		for i := range s.Ports {
			p := &s.Ports[i]
			if p.Affinity > 0 && !yield(portOwner(p)) {
				return
			}
			for _, o := range hashTables(p) {
				if !yield(o) {
					return
				}
			}
			for j := range p.Frontends {
				f := &p.Frontends[j]
				if f.LastPort != 0 && !yield(rangeOwner(p, f)) {
					return
				}
				if f.Restricted {
					if list, isNew := lists.index(p.Family, f.Sources); isNew && !yield(listOwner(p.Family, list)) {
						return
					}
				}
			}
		}
	}
}

// sourceLists are the different lists of allowed clients of a service.
type sourceLists struct {
	families [2]struct {
		lists  [][]netip.Prefix
		last   int              // the list that was asked for last
		byHash map[uint64][]int // made when there is more than one list
	}
}

// index returns the index of the family's list that a frontend has. Nearly always there is only one list, but many
// frontends with many lists also take linear time.
func (l *sourceLists) index(f state.Family, sources []netip.Prefix) (list int, isNew bool) {
	of := &l.families[0]
	if f == state.IPv6 {
		of = &l.families[1]
	}
	if len(of.lists) > 0 && sameSources(of.lists[of.last], sources) {
		return of.last, false
	}
	if of.byHash == nil && len(of.lists) > 0 {
		of.byHash = map[uint64][]int{hashSources(of.lists[0]): {0}}
	}
	if of.byHash != nil {
		h := hashSources(sources)
		for _, i := range of.byHash[h] {
			if sameSources(of.lists[i], sources) {
				of.last = i
				return i, false
			}
		}
		of.byHash[h] = append(of.byHash[h], len(of.lists))
	}
	of.last = len(of.lists)
	of.lists = append(of.lists, sources)
	return of.last, true
}

func sameSources(a, b []netip.Prefix) bool {
	return SameMemory(a, b) || slices.Equal(a, b)
}

var sourcesSeed = maphash.MakeSeed()

func hashSources(sources []netip.Prefix) uint64 {
	var h maphash.Hash
	h.SetSeed(sourcesSeed)
	for _, s := range sources {
		maphash.WriteComparable(&h, s)
	}
	return h.Sum64()
}

// candidates returns numbers for a key in the order in which they are tried, without an end. The numbers after a taken one differ from key
// to key, so that nobody can choose names that make the search long.
func candidates(key []byte) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for sum := sha256.Sum256(key); ; sum = sha256.Sum256(sum[:]) {
			for i := 0; i < len(sum); i += 4 {
				if !yield(binary.BigEndian.Uint32(sum[i:])) {
					return
				}
			}
		}
	}
}

// number gives the owners in a service their numbers. An owner that had a number keeps it, and all other numbers are free again. s is
// nil if the service goes.
func (p *Plan) number(name state.ServiceName, previous map[owner]uint32, s *state.Service) map[owner]uint32 {
	var numbers map[owner]uint32
	for o := range owners(s) {
		n, ok := previous[o]
		if !ok {
			n = p.draw(name, o)
		}
		if numbers == nil {
			numbers = map[owner]uint32{}
		}
		numbers[o] = n
	}
	for o, n := range previous {
		if _, ok := numbers[o]; !ok {
			p.numbers[n] = false
		}
	}
	return numbers
}

// draw takes the first number that is free.
func (p *Plan) draw(name state.ServiceName, o owner) uint32 {
	key := fmt.Appendf(nil, "%v\x00%s\x00%s %v %v %d", name, o.port, kindNames[o.kind], o.family, o.protocol, o.list)
	if o.addr.IsValid() {
		key = o.addr.AppendTo(append(key, ' '))
	}
	for n := range candidates(key) {
		taken, changed := p.numbers[n]
		if !changed {
			_, taken = p.m.numbers[n]
		}
		if !taken {
			p.numbers[n] = true
			return n
		}
	}
	panic("unreachable: candidates has no end")
}

// endpointNumber gives an endpoint a number that differs from those in taken: the numbers of a port's other endpoints. A client is
// remembered with it. It follows from the endpoint's address, but for collisions, which are one in 2^28 for each pair.
func endpointNumber(ep netip.AddrPort, taken map[uint32]bool) uint32 {
	key, _ := ep.MarshalBinary() // has no error
	for n := range candidates(key) {
		if n &= 1<<endpointNumberBits - 1; !taken[n] {
			taken[n] = true
			return n
		}
	}
	panic("unreachable: candidates has no end")
}
