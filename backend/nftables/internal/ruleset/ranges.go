package ruleset

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// Ranges of ports. A range is cut into blocks. All ports of a block have their first bits in common, and there is a map of blocks for each number of
// bits. A block leads to the number of its frontend. The number is the key of the frontend in the sets of the space of ranges. Otherwise these sets are
// as in the other spaces. So a range takes at most 30 blocks, and nothing else for each port. A hash takes a change of one element at no cost for
// the others. A set of intervals does not.
//
// The rules of this space are there once for each length of blocks, because a rule cannot hand a number on to the next one. A packet comes to them
// after all single ports, so that these win and pay nothing.
//
// A comment that begins with "nft:" shows a rule, as in skeleton.go.

// Names of chains, which exist if there are ranges.
const (
	chainRanges          = "ranges"
	chainExternalIP      = "external-ip"
	chainRangeTranslated = "range-translated" // if there is affinity as well
)

// portBits is the number of bits of a port, and the length of a block of one port.
const portBits = 16

// blockLengths is a set of lengths of blocks, 0 to portBits.
type blockLengths uint32

func (l blockLengths) has(length uint32) bool { return l>>length&1 != 0 }

// each yields the lengths, the smallest first.
func (l blockLengths) each(yield func(length int) bool) {
	for ; l != 0; l &= l - 1 {
		if !yield(bits.TrailingZeros32(uint32(l))) {
			return
		}
	}
}

// spaces returns the key spaces of frontends in use.
func (s *shape) spaces() []space {
	if s.blocks != 0 {
		return []space{service, nodePort, ranges}
	}
	return []space{service, nodePort}
}

func isRange(p *state.Port) bool { return len(p.Frontends) > 0 && p.Frontends[0].LastPort != 0 }

// blocksOf yields the blocks of a range in order: the first port, and how many bits the ports have in common. The range of all ports is one block, with
// port 0.
func blocksOf(first, last uint16) iter.Seq2[uint16, int] {
	return func(yield func(uint16, int) bool) {
		from, end := uint32(first), uint32(last)+1
		if first <= 1 && last == 1<<portBits-1 {
			from = 0
		}
		for from < end {
			// The largest block that begins here has as many ports as from is divisible by, and does not go beyond the end.
			free := min(bits.TrailingZeros32(from|1<<portBits), bits.Len32(end-from)-1)
			if !yield(uint16(from), portBits-free) {
				return
			}
			from += 1 << free
		}
	}
}

// rangeOwner is the owner of the number of a range.
func rangeOwner(p *state.Port, f *state.Frontend) owner {
	return owner{kind: blocks, family: p.Family, port: p.Name, protocol: p.Protocol, addr: f.Addr}
}

// block returns the element of a block without its number.
func block(p *state.Port, addr netip.Addr, first uint16, length int) element {
	e, _ := frontendElement(p, &state.Frontend{Kind: state.ClusterIP, Addr: addr, Port: first})
	e.set = setID{space: service, kind: blocks, arg: uint32(length)}
	return e
}

// firstBlock returns the element of the first block of a range without its number.
func firstBlock(key state.FrontendKey) element {
	p := state.Port{Family: key.Family, Protocol: key.Protocol}
	for first, length := range blocksOf(key.Port, key.LastPort) {
		return block(&p, key.Addr, first, length)
	}
	return element{} // not reached: a range has a port
}

// blocks appends the blocks of a range with a number.
func (r *renderer) blocks(p *state.Port, f *state.Frontend, number uint32) {
	for first, length := range blocksOf(f.Port, f.LastPort) {
		e := block(p, f.Addr, first, length)
		data := writer{buf: e.data[:]}
		data.mark(number)
		r.own = append(r.own, e)
	}
}

// numberElement returns an element with the key of a range.
func numberElement(f state.Family, number uint32) element {
	e := element{family: f, set: setID{space: ranges}}
	w := writer{buf: e.key[:]}
	w.mark(number)
	return e
}

// frontendKeys yields the keys of a frontend's elements that have its address or port. A range has a key for each block.
func frontendKeys(p *state.Port, f *state.Frontend) iter.Seq[elementKey] {
	return func(yield func(elementKey) bool) {
		if f.LastPort == 0 {
			yield(frontendKey(p, f))
			return
		}
		for first, length := range blocksOf(f.Port, f.LastPort) {
			if e := block(p, f.Addr, first, length); !yield(e.id()) {
				return
			}
		}
	}
}

// slotsKey returns frontendKey for any frontend. Of a range, it goes by the number that the kernel has for its first block. ok is false if there is none.
func (ks *kernelState) slotsKey(p *state.Port, f *state.Frontend) (key elementKey, ok bool) {
	if f.LastPort == 0 {
		return frontendKey(p, f), true
	}
	for k := range frontendKeys(p, f) {
		data, ok := ks.elements[k]
		e := numberElement(p.Family, numberOf(data))
		e.set.kind = slots
		return e.id(), ok
	}
	return elementKey{}, false
}

// where is where rules look frontends up: a space and, of ranges, a length of blocks.
type where struct {
	space
	length int
}

// inSpace returns where rules look up frontends that are no ranges.
func inSpace(s space) where { return where{space: s} }

// chain returns the name of a chain.
func (w where) chain(name string) string {
	if w.space == ranges {
		return fmt.Sprintf("%s%d-%s", w.prefix(), w.length, name)
	}
	return w.prefix() + name
}

// places returns where rules look frontends up. Longer blocks come first: there are more of them.
func (s *shape) places() []where {
	places := []where{inSpace(service), inSpace(nodePort)}
	for length := portBits; length >= 0; length-- {
		if s.blocks.has(uint32(length)) {
			places = append(places, where{ranges, length})
		}
	}
	return places
}

// rangeNumber puts the number of the range with a port, which is in fields, into the first register. The next one stays as it is.
//
//	nft: … meta mark set ip daddr . meta l4proto . th dport map @service-ranges-16 meta mark set meta mark …
//	nft: … meta mark set ip daddr . meta l4proto . th dport & 65528 map @service-ranges-13 meta mark set meta mark …
func (sk *skeleton) rangeNumber(length int, fields ...field) []nft.Expr {
	const key = nft.Reg0 + 2
	load := sk.load(key, fields...)
	if length < portBits {
		mask := binary.BigEndian.AppendUint16(nil, ^uint16(1<<(portBits-length)-1))
		load = append(load, nft.MaskBytes(key+sk.addrRegs()+1, mask))
	}
	return sk.numbered(nft.Reg0, load, one(nft.MapLookup(key, nft.Reg0, setID{space: service, kind: blocks, arg: uint32(length)}.name())))
}

// toRanges returns the rules that lead to the ranges, and last to the single ports again: a commit may have replaced a range by one. The packet has
// the mark of a frontend that it was not for.
func (sk *skeleton) toRanges() []rule {
	if sk.shape.blocks == 0 {
		return nil
	}
	return []rule{
		// nft: ip daddr @range-ips jump ranges
		join(sk.load(nft.Reg0, dstAddr), one(nft.InSet(nft.Reg0, setID{kind: rangeIPs}.name()), nft.Jump(chainRanges))),
		// nft: meta mark set meta mark & 0xffffbfff
		sk.setMark(0),
		one(nft.Jump(sk.spaceChain(inSpace(service)))),
	}
}

// externalChain is the chain for packets to external addresses.
func (sk *skeleton) externalChain() string {
	if sk.shape.blocks != 0 {
		return chainExternalIP
	}
	return sk.spaceChain(inSpace(service))
}

// rangeChains are the chains that lead to the rules for each length of blocks.
func (sk *skeleton) rangeChains() []nft.Chain {
	if sk.shape.blocks == 0 {
		return nil
	}
	c := nft.Chain{Name: chainRanges}
	chains := []nft.Chain{{}, {}}
	translated := nft.Chain{Name: chainRangeTranslated}
	for _, w := range sk.shape.places() {
		if w.space == ranges {
			chains = append(chains, sk.firewall(w))
			if len(sk.shape.timeouts) > 0 {
				for _, p := range protocols {
					// nft: meta l4proto … map @range-sticky meta mark set meta mark goto range-…
					translated.Rules = append(translated.Rules, join(sk.isProto(p), sk.hasNumber(w, sticky, sk.origKey(w)), one(nft.Goto(sk.learnChain(w, p)))))
				}
			}
			// nft: meta mark set … map @service-ranges-… meta mark set meta mark jump range-…
			c.Rules = append(c.Rules, join(sk.rangeNumber(w.length, dstAddr, proto, dstPort), one(nft.Jump(sk.spaceChain(w)))))
		}
	}
	// A commit may move a port to a block of a length that has been asked for already.
	c.Rules = append(c.Rules, c.Rules...)
	// nft: jump service
	external := nft.Chain{Name: chainExternalIP, Rules: append([]rule{one(nft.Jump(sk.spaceChain(inSpace(service)))), sk.toNodePorts()}, sk.toRanges()...)}
	chains[0], chains[1] = c, external
	if len(translated.Rules) > 0 {
		chains = append(chains, translated)
	}
	return chains
}

// learnRanges leads connections to ranges to the rules that remember their clients.
func (sk *skeleton) learnRanges() (rules []rule) {
	if sk.shape.blocks == 0 {
		return nil
	}
	// nft: ct original ip daddr @range-ips jump range-translated
	return []rule{join(sk.load(nft.Reg0, origDstAddr), one(nft.InSet(nft.Reg0, setID{kind: rangeIPs}.name()), nft.Jump(chainRangeTranslated)))}
}
