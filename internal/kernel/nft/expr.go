package nft

// Data registers are 4 bytes wide; wider values take consecutive ones.

// Reg0 is the first of 16 data registers.
const Reg0 = nftReg32_00

// attrReg encodes a register. The first of every four data registers also has a number as a 16-byte register, 1 to 4. attrReg uses this
// number, because the kernel dumps it (nft_dump_register).
func attrReg(typ uint16, reg uint32) Attr {
	if reg >= Reg0 && (reg-Reg0)%4 == 0 {
		reg = (reg-Reg0)/4 + nftReg1
	}
	return attrU32(typ, reg)
}

// Expr is one expression of a rule.
type Expr struct {
	Name  string
	Attrs []Attr
}

func (e Expr) attr() Attr {
	return attrNest(nftaListElem, attrString(nftaExprName, e.Name), attrNest(nftaExprData, e.Attrs...))
}

// Header is a part of the packet that a Payload expression reads from.
type Header uint32

// The headers in use.
const (
	NetworkHeader   Header = nftPayloadNetworkHeader
	TransportHeader Header = nftPayloadTransportHeader
)

// Payload loads n bytes at an offset of a header.
func Payload(reg uint32, h Header, offset, n uint32) Expr {
	return Expr{"payload", []Attr{
		attrReg(nftaPayloadDreg, reg), attrU32(nftaPayloadBase, uint32(h)), attrU32(nftaPayloadOffset, offset), attrU32(nftaPayloadLen, n),
	}}
}

// MetaKey is a property of a packet.
type MetaKey uint32

// The properties in use.
const (
	MetaMark    MetaKey = nftMetaMark
	MetaIIFName MetaKey = nftMetaIIFName
	MetaL4Proto MetaKey = nftMetaL4Proto
)

// Meta loads a property of the packet.
func Meta(reg uint32, k MetaKey) Expr {
	return Expr{"meta", []Attr{attrReg(nftaMetaDreg, reg), attrU32(nftaMetaKey, uint32(k))}}
}

// SetMeta sets a property of the packet from a register.
func SetMeta(reg uint32, k MetaKey) Expr {
	return Expr{"meta", []Attr{attrU32(nftaMetaKey, uint32(k)), attrReg(nftaMetaSreg, reg)}}
}

// CtKey is a property of a connection.
type CtKey uint32

// The properties in use. Address and port keys take a direction.
const (
	CtState  CtKey = nftCtState
	CtStatus CtKey = nftCtStatus
	// CtDirection is one byte, [OriginalDirection] for packets from the side that began the connection.
	CtDirection CtKey = nftCtDirection
	CtProtoSrc  CtKey = nftCtProtoSrc
	CtProtoDst  CtKey = nftCtProtoDst
	CtSrcIP     CtKey = nftCtSrcIP
	CtDstIP     CtKey = nftCtDstIP
	CtSrcIP6    CtKey = nftCtSrcIP6
	CtDstIP6    CtKey = nftCtDstIP6
)

// Bits of [CtStatus] and [CtState].
const (
	// CtStatusDNAT is set for connections whose destination was translated.
	CtStatusDNAT = ipsDstNAT
	// CtStatusConfirmed is set for connections whose first packet has left, or reached its receiver.
	CtStatusConfirmed = ipsConfirmed
	// CtStateNew is set for packets of connections without an answer.
	CtStateNew = 1 << (ipCtNew%ipCtNumber + 1)
	// CtStateInvalid is set for packets that belong to no connection.
	CtStateInvalid = 1
)

// OriginalDirection is what [CtDirection] loads for packets from the side that began the connection.
func OriginalDirection() []byte { return []byte{ipCtDirOriginal} }

// ReplyDirection is what [CtDirection] loads for packets from the other side.
func ReplyDirection() []byte { return []byte{ipCtDirReply} }

// Ct loads a property of the packet's connection.
func Ct(reg uint32, k CtKey) Expr {
	return Expr{"ct", []Attr{attrReg(nftaCtDreg, reg), attrU32(nftaCtKey, uint32(k))}}
}

// CtOriginal loads a property of the connection's original direction, as it was before any translation.
func CtOriginal(reg uint32, k CtKey) Expr { return ctOf(reg, k, ipCtDirOriginal) }

// CtReply loads a property of the connection's answers, as they arrive: their source is the endpoint.
func CtReply(reg uint32, k CtKey) Expr { return ctOf(reg, k, ipCtDirReply) }

func ctOf(reg uint32, k CtKey, direction byte) Expr {
	return Expr{"ct", []Attr{
		attrReg(nftaCtDreg, reg), attrU32(nftaCtKey, uint32(k)), {Type: nftaCtDirection, Value: []byte{direction}},
	}}
}

func dataValue(typ uint16, v []byte) Attr {
	return attrNest(typ, Attr{Type: nftaDataValue, Value: v})
}

// Equal goes on if the register holds v.
func Equal(reg uint32, v []byte) Expr { return cmp(reg, nftCmpEq, v) }

// NotEqual goes on if the register does not hold v.
func NotEqual(reg uint32, v []byte) Expr { return cmp(reg, nftCmpNeq, v) }

func cmp(reg, op uint32, v []byte) Expr {
	return Expr{"cmp", []Attr{attrReg(nftaCmpSreg, reg), attrU32(nftaCmpOp, op), dataValue(nftaCmpData, v)}}
}

// Mask computes reg = reg & mask ^ xor, over four bytes in host byte order.
func Mask(reg, mask, xor uint32) Expr { return bitwise(reg, hostU32(mask), hostU32(xor)) }

// MaskBytes computes reg = reg & mask, over as many bytes as the mask has.
func MaskBytes(reg uint32, mask []byte) Expr { return bitwise(reg, mask, make([]byte, len(mask))) }

func bitwise(reg uint32, mask, xor []byte) Expr {
	return Expr{"bitwise", []Attr{
		attrReg(nftaBitwiseSreg, reg), attrReg(nftaBitwiseDreg, reg), attrU32(nftaBitwiseLen, uint32(len(mask))),
		dataValue(nftaBitwiseMask, mask), dataValue(nftaBitwiseXor, xor),
	}}
}

// EqualBits goes on if all these bits are set in the four bytes of the register, in host byte order.
func EqualBits(reg, bits uint32) []Expr {
	return []Expr{Mask(reg, bits, 0), Equal(reg, hostU32(bits))}
}

func hostU32(v uint32) []byte { return native.AppendUint32(nil, v) }

// InSet goes on if the value that starts in the register is in the set.
func InSet(reg uint32, set string) Expr {
	return Expr{"lookup", []Attr{attrString(nftaLookupSet, set), attrReg(nftaLookupSreg, reg)}}
}

// NotInSet goes on if the value that starts in the register is not in the set.
func NotInSet(reg uint32, set string) Expr {
	return Expr{"lookup", []Attr{attrString(nftaLookupSet, set), attrReg(nftaLookupSreg, reg), attrU32(nftaLookupFlags, nftLookupInverted)}}
}

// MapLookup goes on if the value that starts in the register is a key of the map, with the data in dst.
func MapLookup(reg, dst uint32, set string) Expr {
	return Expr{"lookup", []Attr{attrString(nftaLookupSet, set), attrReg(nftaLookupSreg, reg), attrReg(nftaLookupDreg, dst)}}
}

// Random loads a random number in [offset, offset+mod), in host byte order.
func Random(reg, mod, offset uint32) Expr {
	return Expr{"numgen", []Attr{
		attrReg(nftaNgDreg, reg), attrU32(nftaNgModulus, mod), attrU32(nftaNgType, nftNgRandom), attrU32(nftaNgOffset, offset),
	}}
}

// Hash loads a hash of the n bytes that start in reg, from 0 up to mod, in host byte order: the kernel's jhash, scaled. It takes
// [Hashing].
func Hash(reg, n, dst, mod, seed uint32) Expr {
	return Expr{"hash", []Attr{
		attrReg(nftaHashSreg, reg), attrReg(nftaHashDreg, dst), attrU32(nftaHashLen, n), attrU32(nftaHashModulus, mod),
		attrU32(nftaHashSeed, seed), attrU32(nftaHashType, nftHashJenkins),
	}}
}

// DNAT translates the destination to the address and port in two registers.
func DNAT(f Family, addr, port uint32) Expr {
	return Expr{"nat", []Attr{
		attrU32(nftaNatType, nftNatDNAT), attrU32(nftaNatFamily, uint32(f)),
		attrReg(nftaNatRegAddrMin, addr), attrReg(nftaNatRegProtoMin, port),
		attrU32(nftaNatFlags, nfNatRangeMapIPs|nfNatRangeProtoSpecified),
	}}
}

// DNATAddr translates the destination to the address in a register, and leaves the port as it is.
func DNATAddr(f Family, addr uint32) Expr {
	return Expr{"nat", []Attr{
		attrU32(nftaNatType, nftNatDNAT), attrU32(nftaNatFamily, uint32(f)), attrReg(nftaNatRegAddrMin, addr),
		attrU32(nftaNatFlags, nfNatRangeMapIPs),
	}}
}

// Masquerade gives the connection a source address of this host and a random source port.
func Masquerade() Expr {
	return Expr{"masq", []Attr{attrU32(nftaMasqFlags, nfNatRangeProtoRandomFully)}}
}

// RejectTCP answers with a TCP reset.
func RejectTCP() Expr {
	return Expr{"reject", []Attr{attrU32(nftaRejectType, nftRejectTCPRst)}}
}

// RejectPort answers with the family's ICMP port unreachable.
func RejectPort(f Family) Expr {
	code := byte(icmpPortUnreach)
	if f == IPv6 {
		code = icmpv6PortUnreach
	}
	return Expr{"reject", []Attr{attrU32(nftaRejectType, nftRejectICMPUnreach), {Type: nftaRejectICMPCode, Value: []byte{code}}}}
}

// Counter counts packets. [Skeleton.Packets] reads it.
func Counter() Expr { return Expr{Name: counterName} }

// AddrType selects the address whose type AddressType loads.
type AddrType uint32

// The selectors.
const (
	SourceType      AddrType = nftaFibFSaddr
	DestinationType AddrType = nftaFibFDaddr
)

// LocalType is what AddressType loads for addresses of this host.
func LocalType() []byte { return hostU32(rtnLocal) }

// AddressType loads the routing type of the packet's source or destination address.
func AddressType(reg uint32, t AddrType) Expr {
	return Expr{"fib", []Attr{attrReg(nftaFibDreg, reg), attrU32(nftaFibResult, nftFibResultAddrtype), attrU32(nftaFibFlags, uint32(t))}}
}

// UpdateMap adds key and data to a dynamic map, or refreshes the timeout, in milliseconds, of the key that is there, which keeps its
// data.
func UpdateMap(set string, key, data uint32, timeoutMillis uint64) Expr {
	return Expr{"dynset", []Attr{
		attrString(nftaDynsetSetName, set), attrU32(nftaDynsetOp, nftDynsetOpUpdate),
		attrReg(nftaDynsetSregKey, key), attrReg(nftaDynsetSregData, data), attrU64(nftaDynsetTimeout, timeoutMillis),
	}}
}

// DeleteFromMap deletes a key of a dynamic map, if it is there. The register for data must hold something, which does not matter.
func DeleteFromMap(set string, key, data uint32) Expr {
	return Expr{"dynset", []Attr{
		attrString(nftaDynsetSetName, set), attrU32(nftaDynsetOp, nftDynsetOpDelete),
		attrReg(nftaDynsetSregKey, key), attrReg(nftaDynsetSregData, data),
	}}
}

// AddToSet adds a key to a dynamic set, with a timeout in milliseconds. A key that is there stays as it is, with the rest of its timeout.
func AddToSet(set string, key uint32, timeoutMillis uint64) Expr {
	return Expr{"dynset", []Attr{
		attrString(nftaDynsetSetName, set), attrU32(nftaDynsetOp, nftDynsetOpAdd), attrReg(nftaDynsetSregKey, key), attrU64(nftaDynsetTimeout, timeoutMillis),
	}}
}

// DeleteFromSet deletes a key of a dynamic set, if it is there.
func DeleteFromSet(set string, key uint32) Expr {
	return Expr{"dynset", []Attr{
		attrString(nftaDynsetSetName, set), attrU32(nftaDynsetOp, nftDynsetOpDelete), attrReg(nftaDynsetSregKey, key),
	}}
}

// Immediate loads a value.
func Immediate(reg uint32, v []byte) Expr {
	return Expr{"immediate", []Attr{attrReg(nftaImmediateDreg, reg), dataValue(nftaImmediateData, v)}}
}

// Drop ends with the packet dropped.
func Drop() Expr { return verdict(nfDrop, "") }

// Return goes back to the calling chain.
func Return() Expr { return verdict(nftReturn, "") }

// Jump calls a chain.
func Jump(chain string) Expr { return verdict(nftJump, chain) }

// Goto continues in a chain and does not come back to this one.
func Goto(chain string) Expr { return verdict(nftGoto, chain) }

func verdict(code int32, chain string) Expr {
	v := []Attr{attrU32(nftaVerdictCode, uint32(code))}
	if chain != "" {
		v = append(v, attrString(nftaVerdictChain, chain))
	}
	return Expr{"immediate", []Attr{
		attrU32(nftaImmediateDreg, nftRegVerdict), attrNest(nftaImmediateData, attrNest(nftaDataVerdict, v...)),
	}}
}
