// Package ipvs speaks to the kernel's IP virtual server over generic netlink: virtual servers, the real servers behind them, and how many
// connections those have. Everything but the socket compiles on every platform.
//
// Formats follow the kernel's include/uapi/linux/ip_vs.h and net/netfilter/ipvs/ip_vs_ctl.c.
package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Server is a virtual server: an address, or a mark of packets.
type Server struct {
	Protocol uint8
	Addr     netip.AddrPort
	// Mark identifies the server in place of Protocol and Addr if it is not 0. Addr then has its family.
	Mark      uint32
	Scheduler string
	// Flags and Timeout are 0 for servers that do not remember clients.
	Flags   uint32
	Timeout uint32
}

// flagHashed is set by the kernel in the flags of every server.
const flagHashed = 2

// Dest is a real server, to which packets are forwarded by translation of their address.
type Dest struct {
	Addr   netip.AddrPort
	Weight uint32
	// Active and Inactive count connections. They are not sent.
	Active, Inactive uint32
}

// Timeouts are how long connections are kept without a packet. 0 leaves what the kernel has.
type Timeouts struct{ TCP, TCPFin, UDP time.Duration }

// The commands in use (enum of IPVS_CMD_*).
const (
	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8
	cmdSetConfig  = 12
	cmdGetConfig  = 13
)

// The attributes in use.
const (
	attrService       = 1
	attrDest          = 2
	attrTimeoutTCP    = 4
	attrTimeoutTCPFin = 5
	attrTimeoutUDP    = 6

	svcAF        = 1
	svcProtocol  = 2
	svcAddr      = 3
	svcPort      = 4
	svcMark      = 5
	svcScheduler = 6
	svcFlags     = 7
	svcTimeout   = 8
	svcNetmask   = 9
	destAddr     = 1
	destPort     = 2
	destMethod   = 3
	destWeight   = 4
	destUpper    = 5
	destLower    = 6
	destActive   = 7
	destInactive = 8
)

// Address families (AF_INET and AF_INET6), and how a real server is reached (IP_VS_CONN_F_MASQ).
const (
	afINET     = 2
	afINET6    = 10
	methodMasq = 0
)

var native = binary.NativeEndian

// appendAttr appends an attribute and the padding behind it.
func appendAttr(b []byte, typ uint16, v []byte) []byte {
	b = native.AppendUint16(b, uint16(4+len(v)))
	b = native.AppendUint16(b, typ)
	b = append(b, v...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendU16(b []byte, typ, v uint16) []byte {
	return appendAttr(b, typ, native.AppendUint16(nil, v))
}

func appendU32(b []byte, typ uint16, v uint32) []byte {
	return appendAttr(b, typ, native.AppendUint32(nil, v))
}

func appendAddr(b []byte, typ uint16, a netip.Addr) []byte {
	var v [16]byte
	copy(v[:], a.AsSlice())
	return appendAttr(b, typ, v[:])
}

func appendPort(b []byte, typ, port uint16) []byte {
	return appendAttr(b, typ, binary.BigEndian.AppendUint16(nil, port))
}

// encode returns the attribute of a server: what identifies it, and all else if whole.
func (s *Server) encode(whole bool) []byte {
	af, mask := uint16(afINET), uint32(0xffffffff)
	if s.Addr.Addr().Is6() {
		af, mask = afINET6, 128
	}
	b := appendU16(nil, svcAF, af)
	if s.Mark != 0 {
		b = appendU32(b, svcMark, s.Mark)
	} else {
		b = appendU16(b, svcProtocol, uint16(s.Protocol))
		b = appendAddr(b, svcAddr, s.Addr.Addr())
		b = appendPort(b, svcPort, s.Addr.Port())
	}
	if whole {
		b = appendAttr(b, svcScheduler, append([]byte(s.Scheduler), 0))
		flags := native.AppendUint32(nil, s.Flags)
		b = appendAttr(b, svcFlags, native.AppendUint32(flags, ^uint32(0)))
		b = appendU32(b, svcTimeout, s.Timeout)
		b = appendU32(b, svcNetmask, mask)
	}
	return appendAttr(nil, attrService, b)
}

// encode returns the attribute of a real server: what identifies it, and all else if whole.
func (d *Dest) encode(whole bool) []byte {
	b := appendAddr(nil, destAddr, d.Addr.Addr())
	b = appendPort(b, destPort, d.Addr.Port())
	if whole {
		b = appendU32(b, destMethod, methodMasq)
		b = appendU32(b, destWeight, d.Weight)
		b = appendU32(b, destUpper, 0)
		b = appendU32(b, destLower, 0)
	}
	return appendAttr(nil, attrDest, b)
}

var errTruncated = errors.New("truncated message")

// eachAttr calls fn with each attribute.
func eachAttr(b []byte, fn func(typ uint16, v []byte) error) error {
	for len(b) >= 4 {
		n, typ := int(native.Uint16(b)), native.Uint16(b[2:])&0x3fff // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
		if n < 4 || n > len(b) {
			return errTruncated
		}
		if err := fn(typ, b[4:n]); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// nested calls fn with each attribute inside of one of type typ.
func nested(b []byte, typ uint16, fn func(typ uint16, v []byte) error) error {
	return eachAttr(b, func(t uint16, v []byte) error {
		if t != typ {
			return nil
		}
		return eachAttr(v, fn)
	})
}

func toU16(v []byte) uint16 {
	if len(v) < 2 {
		return 0
	}
	return native.Uint16(v)
}

func toU32(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return native.Uint32(v)
}

// toAddr returns an address and port of a family.
func toAddr(is6 bool, addr []byte, port uint16) (netip.AddrPort, error) {
	n := 4
	if is6 {
		n = 16
	}
	if len(addr) < n {
		return netip.AddrPort{}, errTruncated
	}
	a, _ := netip.AddrFromSlice(addr[:n])
	return netip.AddrPortFrom(a, port), nil
}

// decodeServer reads a server from the attributes of a message.
func decodeServer(b []byte) (s Server, err error) {
	var is6 bool
	addr, port := make([]byte, 16), uint16(0)
	err = nested(b, attrService, func(typ uint16, v []byte) error {
		switch typ {
		case svcAF:
			is6 = toU16(v) == afINET6
		case svcProtocol:
			s.Protocol = uint8(toU16(v))
		case svcAddr:
			addr = v
		case svcPort:
			port = bigPort(v)
		case svcMark:
			s.Mark = toU32(v)
		case svcScheduler:
			s.Scheduler, _, _ = strings.Cut(string(v), "\x00")
		case svcFlags:
			s.Flags = toU32(v) &^ flagHashed
		case svcTimeout:
			s.Timeout = toU32(v)
		}
		return nil
	})
	if err == nil {
		s.Addr, err = toAddr(is6, addr, port)
	}
	return s, err
}

// decodeDest reads a real server of a family from the attributes of a message.
func decodeDest(is6 bool, b []byte) (d Dest, err error) {
	addr, port := []byte(nil), uint16(0)
	err = nested(b, attrDest, func(typ uint16, v []byte) error {
		switch typ {
		case destAddr:
			addr = v
		case destPort:
			port = bigPort(v)
		case destWeight:
			d.Weight = toU32(v)
		case destActive:
			d.Active = toU32(v)
		case destInactive:
			d.Inactive = toU32(v)
		}
		return nil
	})
	if err == nil {
		d.Addr, err = toAddr(is6, addr, port)
	}
	return d, err
}

func bigPort(v []byte) uint16 {
	if len(v) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(v)
}

// encode returns the attributes of the timeouts that are set.
func (t Timeouts) encode() (b []byte) {
	for _, a := range []struct {
		typ uint16
		d   time.Duration
	}{{attrTimeoutTCP, t.TCP}, {attrTimeoutTCPFin, t.TCPFin}, {attrTimeoutUDP, t.UDP}} {
		if a.d > 0 {
			b = appendU32(b, a.typ, uint32((a.d+time.Second-1)/time.Second))
		}
	}
	return b
}

func decodeTimeouts(b []byte) (t Timeouts, err error) {
	err = eachAttr(b, func(typ uint16, v []byte) error {
		d := time.Duration(toU32(v)) * time.Second
		switch typ {
		case attrTimeoutTCP:
			t.TCP = d
		case attrTimeoutTCPFin:
			t.TCPFin = d
		case attrTimeoutUDP:
			t.UDP = d
		}
		return nil
	})
	return t, err
}

// String returns the server as ipvsadm names it.
func (s *Server) String() string {
	if s.Mark != 0 {
		return fmt.Sprintf("mark %d", s.Mark)
	}
	protocol, ok := map[uint8]string{6: "TCP", 17: "UDP", 132: "SCTP"}[s.Protocol]
	if !ok {
		protocol = fmt.Sprint(s.Protocol)
	}
	return protocol + " " + s.Addr.String()
}
