package nft

// Register numbers (enum nft_registers). Data registers are 4 bytes wide; wider values take consecutive ones.
const (
	regVerdict = 0
	// Reg0 is the first of 16 data registers.
	Reg0 = 8
)

// attrReg is a register. The first of every four data registers also has a number as a 16-byte register, 1 to 4, and that is
// how the kernel dumps it (nft_dump_register), so that is how it is sent.
func attrReg(typ uint16, reg uint32) Attr {
	if reg >= Reg0 && (reg-Reg0)%4 == 0 {
		reg = (reg-Reg0)/4 + 1
	}
	return attrU32(typ, reg)
}

// Expr is one expression of a rule.
type Expr struct {
	Name  string
	Attrs []Attr
}

func (e Expr) attr() Attr {
	// NFTA_LIST_ELEM{NFTA_EXPR_NAME, NFTA_EXPR_DATA}
	return attrNest(1, attrString(1, e.Name), attrNest(2, e.Attrs...))
}

// Header is a part of the packet that a Payload expression reads from.
type Header uint32

// The headers (enum nft_payload_bases).
const (
	NetworkHeader   Header = 1
	TransportHeader Header = 2
)

// Payload loads n bytes at an offset of a header.
func Payload(reg uint32, h Header, offset, n uint32) Expr {
	return Expr{"payload", []Attr{attrReg(1, reg), attrU32(2, uint32(h)), attrU32(3, offset), attrU32(4, n)}}
}

// MetaKey is a property of a packet (enum nft_meta_keys).
type MetaKey uint32

// The properties in use.
const (
	MetaMark    MetaKey = 3
	MetaIIFName MetaKey = 6
	MetaL4Proto MetaKey = 16
)

// Meta loads a property of the packet.
func Meta(reg uint32, k MetaKey) Expr {
	return Expr{"meta", []Attr{attrReg(1, reg), attrU32(2, uint32(k))}}
}

// SetMeta sets a property of the packet from a register.
func SetMeta(reg uint32, k MetaKey) Expr {
	return Expr{"meta", []Attr{attrU32(2, uint32(k)), attrReg(3, reg)}}
}

// CtKey is a property of a connection (enum nft_ct_keys).
type CtKey uint32

// The properties in use. Address and port keys take a direction.
const (
	CtStatus   CtKey = 2
	CtProtoDst CtKey = 12
	CtSrcIP    CtKey = 19
	CtDstIP    CtKey = 20
	CtSrcIP6   CtKey = 21
	CtDstIP6   CtKey = 22
)

// CtStatusDNAT is IPS_DST_NAT: the connection's destination was translated.
const CtStatusDNAT = 1 << 5

// Ct loads a property of the packet's connection.
func Ct(reg uint32, k CtKey) Expr {
	return Expr{"ct", []Attr{attrReg(1, reg), attrU32(2, uint32(k))}}
}

// CtOriginal loads a property of the connection's original direction, as it was before any translation.
func CtOriginal(reg uint32, k CtKey) Expr {
	const original = 0
	return Expr{"ct", []Attr{attrReg(1, reg), attrU32(2, uint32(k)), {Type: 3, Value: []byte{original}}}}
}

func dataValue(typ uint16, v []byte) Attr {
	return attrNest(typ, Attr{Type: 1, Value: v})
}

// Equal goes on if the register holds v.
func Equal(reg uint32, v []byte) Expr { return cmp(reg, 0, v) }

// NotEqual goes on if the register does not hold v.
func NotEqual(reg uint32, v []byte) Expr { return cmp(reg, 1, v) }

func cmp(reg, op uint32, v []byte) Expr {
	return Expr{"cmp", []Attr{attrReg(1, reg), attrU32(2, op), dataValue(3, v)}}
}

// Mask computes reg = reg & mask ^ xor, over four bytes in host byte order.
func Mask(reg, mask, xor uint32) Expr { return bitwise(reg, hostU32(mask), hostU32(xor)) }

// MaskBytes computes reg = reg & mask, over as many bytes as the mask has.
func MaskBytes(reg uint32, mask []byte) Expr { return bitwise(reg, mask, make([]byte, len(mask))) }

func bitwise(reg uint32, mask, xor []byte) Expr {
	return Expr{"bitwise", []Attr{
		attrReg(1, reg), attrReg(2, reg), attrU32(3, uint32(len(mask))), dataValue(4, mask), dataValue(5, xor),
	}}
}

func hostU32(v uint32) []byte { return native.AppendUint32(nil, v) }

// InSet goes on if the value that starts in the register is in the set.
func InSet(reg uint32, set string) Expr {
	return Expr{"lookup", []Attr{attrString(1, set), attrReg(2, reg)}}
}

// MapLookup goes on if the value that starts in the register is a key of the map, with the data in dst.
func MapLookup(reg, dst uint32, set string) Expr {
	return Expr{"lookup", []Attr{attrString(1, set), attrReg(2, reg), attrReg(3, dst)}}
}

// Random loads a random number in [offset, offset+mod), in host byte order.
func Random(reg, mod, offset uint32) Expr {
	const random = 1
	return Expr{"numgen", []Attr{attrReg(1, reg), attrU32(2, mod), attrU32(3, random), attrU32(4, offset)}}
}

// DNAT translates the destination to the address and port in two registers.
func DNAT(f Family, addr, port uint32) Expr {
	const dnat, mapAddr, protoSpecified = 1, 1 << 0, 1 << 1
	return Expr{"nat", []Attr{
		attrU32(1, dnat), attrU32(2, uint32(f)), attrReg(3, addr), attrReg(5, port), attrU32(7, mapAddr|protoSpecified),
	}}
}

// Masquerade gives the connection a source address of this host and a random source port.
func Masquerade() Expr {
	const fullyRandom = 1 << 4
	return Expr{"masq", []Attr{attrU32(1, fullyRandom)}}
}

// RejectTCP answers with a TCP reset.
func RejectTCP() Expr {
	return Expr{"reject", []Attr{attrU32(1, 1)}}
}

// RejectPort answers with the family's ICMP port unreachable.
func RejectPort(f Family) Expr {
	code := byte(3) // ICMP_PORT_UNREACH
	if f == IPv6 {
		code = 4 // ICMPV6_PORT_UNREACH
	}
	return Expr{"reject", []Attr{attrU32(1, 0), {Type: 2, Value: []byte{code}}}}
}

// AddrType selects the address whose type AddressType loads.
type AddrType uint32

// The selectors (enum nft_fib_flags).
const (
	SourceType      AddrType = 1
	DestinationType AddrType = 2
)

// LocalType is RTN_LOCAL, as AddressType loads it: the address is one of this host.
func LocalType() []byte { return hostU32(2) }

// AddressType loads the routing type of the packet's source or destination address.
func AddressType(reg uint32, t AddrType) Expr {
	const addrType = 3
	return Expr{"fib", []Attr{attrReg(1, reg), attrU32(2, addrType), attrU32(3, uint32(t))}}
}

// UpdateMap adds key and data to a dynamic map, or refreshes the timeout, in milliseconds, of the key that is there, which keeps its
// data.
func UpdateMap(set string, key, data uint32, timeoutMillis uint64) Expr {
	const update = 1
	return Expr{"dynset", []Attr{
		attrString(1, set), attrU32(3, update), attrReg(4, key), attrReg(5, data), attrU64(6, timeoutMillis),
	}}
}

// DeleteFromMap deletes a key of a dynamic map, if it is there. The register for data must hold something, which does not matter.
func DeleteFromMap(set string, key, data uint32) Expr {
	const del = 2
	return Expr{"dynset", []Attr{attrString(1, set), attrU32(3, del), attrReg(4, key), attrReg(5, data)}}
}

// Verdicts (enum nft_verdicts and NF_DROP).
const (
	verdictDrop   = 0
	verdictJump   = -3
	verdictGoto   = -4
	verdictReturn = -5
)

// Drop ends with the packet dropped.
func Drop() Expr { return verdict(verdictDrop, "") }

// Return goes back to the calling chain.
func Return() Expr { return verdict(verdictReturn, "") }

// Jump calls a chain.
func Jump(chain string) Expr { return verdict(verdictJump, chain) }

// Goto continues in a chain and does not come back to this one.
func Goto(chain string) Expr { return verdict(verdictGoto, chain) }

func verdict(code int32, chain string) Expr {
	v := []Attr{attrU32(1, uint32(code))}
	if chain != "" {
		v = append(v, attrString(2, chain))
	}
	return Expr{"immediate", []Attr{attrU32(1, regVerdict), attrNest(2, attrNest(2, v...))}}
}
