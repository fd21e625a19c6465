package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// Messages and attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const (
	msgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	msgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	msgStats  = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaZone       = 18
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	// In ctaProtoInfo, each with the state as its first attribute.
	ctaProtoInfoTCP  = 1
	ctaProtoInfoSCTP = 3
	ctaProtoState    = 1

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2

	ctaStatsEntries = 1
)

// Values of ctaStatus and ctaProtoState (linux/netfilter/nf_conntrack_common.h, _tcp.h and _sctp.h).
const (
	statusSeenReply = 1 << 1
	statusAssured   = 1 << 2
	statusDstNAT    = 1 << 5

	tcpSynSent          = 1
	tcpLastAck          = 6
	tcpTimeWait         = 7
	tcpClose            = 8
	sctpClosed          = 1
	sctpCookieWait      = 2
	sctpShutdownAckSent = 7
)

// Bits of ctaFilterOrigFlags and ctaFilterReplyFlags: the fields of ctaTupleOrig and ctaTupleReply that a flow must equal. The kernel names
// them CTA_FILTER_F_* in nf_internals.h, and has no user space header for them. It refuses a port without the protocol.
const (
	filterIPSrc        = 1 << 0
	filterIPDst        = 1 << 1
	filterProtoNum     = 1 << 3
	filterProtoSrcPort = 1 << 4
	filterProtoDstPort = 1 << 5
)

const (
	nfgenLen   = 4 // struct nfgenmsg: family, version, resource id (big endian)
	attrHdrLen = 4 // struct nlattr: length and type, both in the machine's byte order
	attrType   = 1<<14 - 1
)

// encodeDump returns the payload that asks for the flows of f. With useFilter, the kernel leaves out flows that f does not admit, as far as
// it can express that. The caller must filter the answer in any case.
func encodeDump(f Filter, useFilter bool) []byte {
	b := appendGenmsg(nil, f.Family)
	if !useFilter {
		return b
	}
	return appendFilter(b, f)
}

// appendFilter appends what the kernel can compare of a filter.
func appendFilter(b []byte, f Filter) []byte {
	b = appendStatus(b, f)
	// The kernel reads a tuple only with a family.
	if f.Family == 0 {
		return b
	}
	var orig, reply uint32
	if f.Protocol != 0 {
		orig |= filterProtoNum
		if f.DstPort != 0 {
			orig |= filterProtoDstPort
		}
	}
	// IPv6 addresses are no part of the filter. The kernel inverts their comparison (ctnetlink_filter_match_tuple, seen in Linux 6.18), so it
	// would leave out the flows that are asked for.
	if f.Family == state.IPv4 && f.Dst.Is4() {
		orig |= filterIPDst
	}
	if f.Family == state.IPv4 && f.From.Addr().Is4() {
		reply |= filterIPSrc
		if f.Protocol != 0 {
			reply |= filterProtoNum | filterProtoSrcPort
		}
	}
	if orig|reply == 0 {
		return b
	}
	if orig != 0 {
		b = appendEnd(b, ctaTupleOrig, f.Protocol, ctaIPv4Dst, ctaProtoDstPort, netip.AddrPortFrom(f.Dst, f.DstPort))
	}
	if reply != 0 {
		b = appendEnd(b, ctaTupleReply, f.Protocol, ctaIPv4Src, ctaProtoSrcPort, f.From)
	}
	return appendNested(b, ctaFilter, func(b []byte) []byte {
		b = appendAttr(b, ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, orig))
		if reply != 0 {
			b = appendAttr(b, ctaFilterReplyFlags, binary.NativeEndian.AppendUint32(nil, reply))
		}
		return b
	})
}

// status returns which bits of the status of flows the filter asks for, and how these bits are.
func (f Filter) status() (bits, mask uint32) {
	if f.Unconnected { // which nothing assured is
		mask |= statusAssured
	}
	if f.Translated || f.Unanswered {
		bits |= statusDstNAT
		mask |= statusDstNAT
	}
	if f.Unanswered {
		mask |= statusSeenReply
	}
	return bits, mask
}

// appendStatus appends the status that a filter asks for, if it asks for one.
func appendStatus(b []byte, f Filter) []byte {
	bits, mask := f.status()
	if mask == 0 {
		return b
	}
	b = appendAttr(b, ctaStatus, binary.BigEndian.AppendUint32(nil, bits))
	return appendAttr(b, ctaStatusMask, binary.BigEndian.AppendUint32(nil, mask))
}

// encodeDeleteAll returns the payload that deletes the flows that f admits. Linux supports it from 6.12 on. Older kernels see a message
// that names one flow by an incomplete tuple, and refuse it. An unknown attribute must not make them flush the table. So f must name one end of the
// flows, and otherwise only fields that the kernel compares. It must not name an IPv6 address (see encodeDump) or SCTP ports.
func encodeDeleteAll(f Filter) ([]byte, error) {
	hasFrom := f.From.Addr().Is4() && f.From.Port() != 0
	switch {
	case hasFrom && f == Filter{Family: state.IPv4, Protocol: state.TCP, From: f.From, Unanswered: true}:
	case f.Family != state.IPv4 || f.Protocol != state.UDP:
		return nil, fmt.Errorf("%w for anything but UDP over IPv4, and unanswered flows of TCP", errors.ErrUnsupported)
	case f != Filter{Family: f.Family, Protocol: f.Protocol, Dst: f.Dst, DstPort: f.DstPort, From: f.From},
		!f.Dst.Is4(), f.DstPort == 0, f.From.IsValid() && !hasFrom:
		return nil, errors.New("the filter must name an address and a port, and may also name the source of answers, but nothing else")
	}
	return appendFilter(appendGenmsg(nil, f.Family), f), nil
}

// appendEnd appends a tuple with one of its ends alone; addr and port are the attributes of that end. It leaves out an address that is not of IPv4, and
// a port without a protocol.
func appendEnd(b []byte, typ uint16, protocol state.Protocol, addr, port uint16, end netip.AddrPort) []byte {
	return appendNested(b, typ, func(b []byte) []byte {
		if end.Addr().Is4() {
			b = appendNested(b, ctaTupleIP, func(b []byte) []byte { return appendAttr(b, addr, end.Addr().AsSlice()) })
		}
		if protocol == 0 {
			return b
		}
		return appendNested(b, ctaTupleProto, func(b []byte) []byte {
			b = appendAttr(b, ctaProtoNum, []byte{byte(protocol)})
			return appendAttr(b, port, binary.BigEndian.AppendUint16(nil, end.Port()))
		})
	})
}

// encodeDelete returns the payload that names flow. It refuses one that is not whole: a delete message without an original
// tuple would flush the table.
func encodeDelete(flow Flow) ([]byte, error) {
	src, dst := flow.Orig.Src, flow.Orig.Dst
	if flow.Family == 0 || state.FamilyOf(src.Addr()) != flow.Family || state.FamilyOf(dst.Addr()) != flow.Family {
		return nil, errors.New("its family and original addresses do not go together")
	}
	b := appendGenmsg(nil, flow.Family)
	b = appendTuple(b, ctaTupleOrig, flow.Family, flow.Protocol, flow.Orig)
	if flow.Zone != 0 {
		b = appendAttr(b, ctaZone, binary.BigEndian.AppendUint16(nil, flow.Zone))
	}
	return b, nil
}

// encodeFind returns the payload that asks for the flow with a reply tuple.
func encodeFind(protocol state.Protocol, reply Tuple) ([]byte, error) {
	family := state.FamilyOf(reply.Src.Addr())
	if family == 0 || state.FamilyOf(reply.Dst.Addr()) != family {
		return nil, errors.New("its addresses do not go together")
	}
	return appendTuple(appendGenmsg(nil, family), ctaTupleReply, family, protocol, reply), nil
}

func appendGenmsg(b []byte, f state.Family) []byte {
	family := byte(unix.AF_UNSPEC)
	switch f {
	case state.IPv4:
		family = unix.AF_INET
	case state.IPv6:
		family = unix.AF_INET6
	}
	return append(b, family, unix.NFNETLINK_V0, 0, 0)
}

func appendTuple(b []byte, typ uint16, family state.Family, protocol state.Protocol, t Tuple) []byte {
	return appendNested(b, typ, func(b []byte) []byte {
		b = appendNested(b, ctaTupleIP, func(b []byte) []byte {
			b = appendAttr(b, addrAttr(family, ctaIPv4Src, ctaIPv6Src), t.Src.Addr().AsSlice())
			return appendAttr(b, addrAttr(family, ctaIPv4Dst, ctaIPv6Dst), t.Dst.Addr().AsSlice())
		})
		return appendNested(b, ctaTupleProto, func(b []byte) []byte {
			b = appendAttr(b, ctaProtoNum, []byte{byte(protocol)})
			b = appendAttr(b, ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, t.Src.Port()))
			return appendAttr(b, ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, t.Dst.Port()))
		})
	})
}

func addrAttr(f state.Family, v4, v6 uint16) uint16 {
	if f == state.IPv4 {
		return v4
	}
	return v6
}

func appendAttr(b []byte, typ uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHdrLen+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, align(len(data))-len(data))...)
}

func appendNested(b []byte, typ uint16, content func([]byte) []byte) []byte {
	start := len(b)
	b = content(appendAttr(b, typ|unix.NLA_F_NESTED, nil))
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// align rounds up to the alignment of netlink messages and attributes.
func align(n int) int { return (n + 3) &^ 3 }

// attrs yields the attributes in b by type, up to the first that is not well-formed.
func attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrHdrLen {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrHdrLen || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&attrType, b[attrHdrLen:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// decodeEntries reads from the payload of a message how many entries the table of the namespace has.
func decodeEntries(b []byte) (entries int, ok bool) {
	if len(b) < nfgenLen {
		return 0, false
	}
	for typ, data := range attrs(b[nfgenLen:]) {
		if typ == ctaStatsEntries && len(data) == 4 {
			return int(binary.BigEndian.Uint32(data)), true
		}
	}
	return 0, false
}

// decodeFlow reads the payload of a message that describes a flow.
func decodeFlow(b []byte) (Flow, error) {
	if len(b) < nfgenLen {
		return Flow{}, fmt.Errorf("a flow of %d bytes", len(b))
	}
	var f Flow
	var status uint32
	for typ, data := range attrs(b[nfgenLen:]) {
		switch typ {
		case ctaTupleOrig:
			orig := decodeTuple(data)
			f.Orig, f.Protocol = orig.Tuple, orig.protocol
			// A zone of the original direction only is part of its tuple.
			f.Zone = max(f.Zone, orig.zone)
		case ctaTupleReply:
			f.Reply = decodeTuple(data).Tuple
		case ctaZone:
			f.Zone = max(f.Zone, be16(data))
		case ctaStatus:
			if len(data) == 4 {
				status = binary.BigEndian.Uint32(data)
			}
		case ctaProtoInfo:
			f.Unconnected, f.Ended = connection(data)
		}
	}
	f.Unconnected = f.Unconnected && status&statusAssured == 0
	f.Unanswered = status&(statusSeenReply|statusDstNAT) == statusDstNAT
	f.Scheduled = f.Reply.Src != f.Orig.Dst && status&statusDstNAT == 0
	f.Family = state.FamilyOf(f.Orig.Dst.Addr())
	for _, addr := range []netip.Addr{f.Orig.Src.Addr(), f.Orig.Dst.Addr(), f.Reply.Src.Addr(), f.Reply.Dst.Addr()} {
		if !addr.IsValid() || state.FamilyOf(addr) != f.Family {
			return Flow{}, errors.New("a flow without an address")
		}
	}
	return f, nil
}

// connection reports by the state of a flow whether no connection has begun, and whether it has ended. An entry in the state "close" was a connection if it
// is assured.
func connection(protoInfo []byte) (unconnected, ended bool) {
	for protocol, data := range attrs(protoInfo) {
		for typ, value := range attrs(data) {
			if typ != ctaProtoState || len(value) != 1 {
				continue
			}
			switch is := value[0]; protocol {
			case ctaProtoInfoTCP:
				return is == tcpSynSent || is == tcpClose, is == tcpLastAck || is == tcpTimeWait || is == tcpClose
			case ctaProtoInfoSCTP:
				return is == sctpClosed || is == sctpCookieWait, is == sctpClosed || is == sctpShutdownAckSent
			}
		}
	}
	return false, false
}

// tuple is a decoded tuple with the kernel's nested attributes other than addresses and ports.
type tuple struct {
	Tuple
	protocol state.Protocol
	zone     uint16
}

func decodeTuple(b []byte) tuple {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	var t tuple
	for typ, data := range attrs(b) {
		switch typ {
		case ctaTupleIP:
			for typ, data := range attrs(data) {
				switch typ {
				case ctaIPv4Src, ctaIPv6Src:
					src, _ = netip.AddrFromSlice(data)
				case ctaIPv4Dst, ctaIPv6Dst:
					dst, _ = netip.AddrFromSlice(data)
				}
			}
		case ctaTupleProto:
			for typ, data := range attrs(data) {
				switch {
				case typ == ctaProtoNum && len(data) == 1:
					t.protocol = state.Protocol(data[0])
				case typ == ctaProtoSrcPort:
					srcPort = be16(data)
				case typ == ctaProtoDstPort:
					dstPort = be16(data)
				}
			}
		case ctaTupleZone:
			t.zone = be16(data)
		}
	}
	t.Src, t.Dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return t
}

// be16 returns the big endian number in b, 0 if it is not two bytes long.
func be16(b []byte) uint16 {
	if len(b) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}
