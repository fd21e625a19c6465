package ruleset

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// contents are the elements of an IPv4 table: data by set and key.
type contents map[string]map[string]string

func (c contents) put(set string, key, data []byte) {
	if c[set] == nil {
		c[set] = map[string]string{}
	}
	c[set][string(key)] = string(data)
}

// carriedOut returns what the table holds after a plan.
func (c contents) carriedOut(p *Plan) contents {
	n := maps.Clone(c)
	for _, s := range p.order {
		l, name := s.set.layout(s.family), s.set.name()
		if s.family != state.IPv4 {
			continue
		}
		n[name] = maps.Clone(c[name])
		for e := range s.all(&s.del) {
			delete(n[name], string(e.key[:l.key]))
		}
		for e := range s.all(&s.add) {
			n.put(name, e.key[:l.key], e.data[:l.data])
		}
	}
	return n
}

// affinitySet is the name of the set that rules fill.
var affinitySet = AffinitySet()

// interpreter carries out the rules of an IPv4 table for the first packet of a connection. Before the lookup number commitAt, a
// commit replaces what the table holds.
type interpreter struct {
	rng           *rand.Rand
	before, after contents
	rules         [2]map[string]nft.Chain // before and after
	commitAt      int
	lookups       int

	src, origDst, dst netip.AddrPort
	proto             state.Protocol
	icmpType          byte         // of a packet of ICMP
	local             []netip.Addr // of the node
	mark              uint32
	outcome           outcome
	affinity          map[string]string // the elements of the set that rules fill
	learnt            bool              // whether a rule has filled it
	regs              [64]byte
}

// foreignMark are bits of the packet's mark that others have set.
const foreignMark = 0x5eed0001

// outcome is where a connection goes.
type outcome struct {
	verdict  string // "to", "rejected", "dropped", "passed", or "answered", by an address of the node
	endpoint netip.AddrPort
	masked   bool // as masqueraded
}

func (o outcome) String() string {
	s := o.verdict
	if o.endpoint.IsValid() {
		s += " " + o.endpoint.String()
	}
	if o.masked {
		s += " masqueraded"
	}
	return s
}

// run sends the packet through prerouting and, if it is not stopped there, through the edge's part of forward, if there is one, and postrouting.
func (in *interpreter) run() outcome {
	in.outcome = outcome{verdict: "passed"}
	in.dst = in.origDst
	in.call(in.skeleton(), "prerouting")
	if in.mark&testEdge != 0 && in.outcome.verdict != "passed" {
		panic("a packet that is not to be dropped in forward has the edge's mark")
	}
	for _, chain := range []string{chainEdgeForward, "postrouting"} {
		v := in.outcome.verdict
		if _, exists := in.skeleton()[chain]; exists && (v == "to" || v == "passed") {
			in.call(in.skeleton(), chain)
		}
	}
	return in.outcome
}

// skeleton returns the rules of the moment. A packet stays with them within a base chain.
func (in *interpreter) skeleton() map[string]nft.Chain {
	if in.lookups >= in.commitAt {
		return in.rules[1]
	}
	return in.rules[0]
}

// call evaluates a chain, and reports whether that ends the evaluation.
func (in *interpreter) call(chains map[string]nft.Chain, name string) (done bool) {
	c, ok := chains[name]
	if !ok {
		panic("no chain " + name)
	}
	for _, r := range c.Rules {
		switch code, chain := in.rule(r); code {
		case "continue":
		case "return":
			return false
		case "jump":
			if in.call(chains, chain) {
				return true
			}
		case "goto":
			return in.call(chains, chain)
		default:
			return true
		}
	}
	return false
}

func (in *interpreter) rule(r rule) (code, chain string) {
	in.regs = [64]byte{} // NFT_BREAK or the next rule: nothing is handed on
	defer func() {
		if in.mark&^(testMark|testEdge) != foreignMark {
			panic("a rule has changed the mark of others")
		}
	}()
	for _, e := range r {
		if code, chain := in.expr(attrs{e.Attrs}, e.Name); code != "" {
			return code, chain
		}
	}
	return "continue", ""
}

// attrs finds attributes by type.
type attrs struct{ list []nft.Attr }

func (a attrs) find(typ uint16) (nft.Attr, bool) {
	for _, at := range a.list {
		if at.Type&0x3fff == typ {
			return at, true
		}
	}
	return nft.Attr{}, false
}

func (a attrs) u32(typ uint16) uint32 {
	at, ok := a.find(typ)
	if !ok {
		return 0
	}
	return binary.BigEndian.Uint32(at.Value)
}

func (a attrs) str(typ uint16) string {
	at, _ := a.find(typ)
	return string(bytes.TrimRight(at.Value, "\x00"))
}

func (a attrs) nested(typ uint16) attrs { at, _ := a.find(typ); return attrs{at.Nested} }

// value is the value of nested data.
func (a attrs) value(typ uint16) []byte { at, _ := a.nested(typ).find(1); return at.Value }

// reg returns the registers from the one in an attribute on.
func (in *interpreter) reg(a attrs, typ uint16) []byte {
	r := a.u32(typ)
	if r < 8 {
		r = 8 + (r-1)*4
	}
	return in.regs[(r-8)*4:]
}

func port(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

func setReg(reg, v []byte) {
	clear(reg[:(len(v)+3)&^3])
	copy(reg, v)
}

// expr evaluates an expression. The empty code goes on with the next one.
func (in *interpreter) expr(a attrs, name string) (code, chain string) {
	switch name {
	case "payload":
		var v []byte
		switch [2]uint32{a.u32(2), a.u32(3)} {
		case [2]uint32{1, 12}:
			v = in.src.Addr().AsSlice()
		case [2]uint32{1, 16}:
			v = in.dst.Addr().AsSlice()
		case [2]uint32{2, 0}:
			if v = port(in.src.Port()); in.proto == icmp {
				v = []byte{in.icmpType}
			}
		case [2]uint32{2, 2}:
			v = port(in.dst.Port())
		default:
			panic("unknown payload")
		}
		setReg(in.reg(a, 1), v)
	case "meta":
		return in.meta(a), ""
	case "ct":
		switch nft.CtKey(a.u32(2)) {
		case nft.CtStatus:
			var status uint32
			if in.outcome.verdict == "to" {
				status = nft.CtStatusDNAT
			}
			setReg(in.reg(a, 1), binary.NativeEndian.AppendUint32(nil, status))
		case nft.CtProtoDst:
			setReg(in.reg(a, 1), port(in.origDst.Port()))
		case nft.CtSrcIP:
			setReg(in.reg(a, 1), in.src.Addr().AsSlice())
		case nft.CtDstIP:
			setReg(in.reg(a, 1), in.origDst.Addr().AsSlice())
		default:
			panic("unknown ct key")
		}
	case "cmp":
		v := a.value(3)
		if equal := bytes.Equal(in.reg(a, 1)[:len(v)], v); equal == (a.u32(2) == 1) {
			return "continue", ""
		}
	case "bitwise":
		src, dst, mask, xor := in.reg(a, 1), in.reg(a, 2), a.value(4), a.value(5)
		for i := range mask {
			dst[i] = src[i]&mask[i] ^ xor[i]
		}
	case "fib":
		addr := in.src.Addr()
		if nft.AddrType(a.u32(3)) == nft.DestinationType {
			addr = in.dst.Addr()
		}
		v := []byte{1, 0, 0, 0}
		if slices.Contains(in.local, addr) {
			v = nft.LocalType()
		}
		setReg(in.reg(a, 1), v)
	case "numgen":
		n := a.u32(4) + in.rng.Uint32N(a.u32(2))
		setReg(in.reg(a, 1), binary.NativeEndian.AppendUint32(nil, n))
	case "hash":
		// Of the key's length and the seed, only those are known that package consistent has.
		key := in.reg(a, 1)[:a.u32(3)]
		addr, _ := netip.AddrFromSlice(key[:4])
		by, port := state.HashClient, uint16(0)
		if len(key) == 8 {
			by, port = state.HashConnection, binary.BigEndian.Uint16(key[4:])
		}
		if a.u32(5) != consistent.Seed {
			panic("another seed")
		}
		setReg(in.reg(a, 2), binary.NativeEndian.AppendUint32(nil, uint32(consistent.Slot(by, netip.AddrPortFrom(addr, port), int(a.u32(4))))))
	case "lookup":
		data, ok := in.lookup(a.str(1), in.reg(a, 2))
		if !ok {
			return "continue", ""
		}
		if _, isMap := a.find(3); isMap {
			copy(in.reg(a, 3), data)
		}
	case "dynset":
		if a.str(1) != affinitySet {
			panic("a rule fills " + a.str(1))
		}
		key, data := string(in.reg(a, 4)[:8]), string(in.reg(a, 5)[:4])
		if a.u32(3) == 2 {
			delete(in.affinity, key)
		} else if _, ok := in.affinity[key]; !ok { // an update leaves what is there
			in.affinity[key] = data
		}
		in.learnt = in.learnt || a.u32(3) == 1
	default:
		return in.verdict(a, name)
	}
	return "", ""
}

func (in *interpreter) meta(a attrs) (code string) {
	if _, set := a.find(3); set {
		in.mark = binary.NativeEndian.Uint32(in.reg(a, 3))
		return ""
	}
	switch nft.MetaKey(a.u32(2)) {
	case nft.MetaMark:
		setReg(in.reg(a, 1), binary.NativeEndian.AppendUint32(nil, in.mark))
	case nft.MetaL4Proto:
		setReg(in.reg(a, 1), []byte{byte(in.proto)})
	default:
		panic("unknown meta key")
	}
	return ""
}

func (in *interpreter) verdict(a attrs, name string) (code, chain string) {
	switch name {
	case "nat":
		addr, _ := netip.AddrFromSlice(in.reg(a, 3)[:4])
		if in.proto == icmp {
			in.outcome = outcome{verdict: "answered", endpoint: netip.AddrPortFrom(addr, 0)}
			return "done", ""
		}
		in.dst = netip.AddrPortFrom(addr, in.dst.Port())
		if _, hasPort := a.find(5); hasPort {
			in.dst = netip.AddrPortFrom(addr, binary.BigEndian.Uint16(in.reg(a, 5)))
		}
		in.outcome = outcome{verdict: "to", endpoint: in.dst}
	case "masq":
		in.outcome.masked = true
	case "reject":
		in.outcome = outcome{verdict: "rejected"}
	case "immediate":
		if data := a.value(2); data != nil {
			setReg(in.reg(a, 1), data)
			return "", ""
		}
		v := a.nested(2).nested(2)
		switch int32(v.u32(1)) {
		case -3:
			return "jump", v.str(2)
		case -4:
			return "goto", v.str(2)
		case -5:
			return "return", ""
		}
		in.outcome = outcome{verdict: "dropped"}
	default:
		panic("unknown expression " + name)
	}
	return "done", ""
}

func (in *interpreter) lookup(set string, key []byte) (data string, ok bool) {
	c := in.before
	if in.lookups >= in.commitAt {
		c = in.after
	}
	in.lookups++
	elems := c[set]
	if set == affinitySet {
		elems = in.affinity
	}
	for k := range elems { // all keys of a set are as long
		data, ok = elems[string(key[:len(k)])]
		return data, ok
	}
	return "", false
}
