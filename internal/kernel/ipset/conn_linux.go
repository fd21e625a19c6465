package ipset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// Conn is a connection to the sets of one network namespace. It is used by one goroutine at a time.
type Conn struct {
	socket *nl.NetlinkSocket
	// sockets make requests use it.
	sockets map[int]*nl.SocketHandle
	// revisions holds, for each type that was asked for, the greatest revision that the kernel knows.
	revisions map[Type]uint8
}

// Open connects to the sets of the calling thread's network namespace. Whether the kernel has any shows with the first call.
func Open() (*Conn, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &Conn{socket: s, sockets: map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s}}, revisions: map[Type]uint8{}}, nil
}

// Check returns nil if the kernel has sets of all types but [IPPortNet]. It may load modules for them.
func (c *Conn) Check() error {
	for _, t := range []Type{IP, Net, IPPort, NetPort, IPPortIP} {
		if err := c.Has(t); err != nil {
			return err
		}
	}
	return nil
}

// Has returns nil if the kernel has sets of a type, and otherwise why not. It may load a module for them.
func (c *Conn) Has(t Type) error {
	if _, err := c.revision(t); err != nil {
		return fmt.Errorf("sets of type %s: %w; they need the kernel modules ip_set and ip_set_%s, which a container cannot load: load "+
			"them on the node", t, err, strings.NewReplacer(":", "_", ",", "").Replace(string(t)))
	}
	return nil
}

// Close closes the connection.
func (c *Conn) Close() { c.socket.Close() }

// request sends a message about sets and returns the answers. Strict asks the kernel to complain of what exists already.
func (c *Conn) request(cmd int, strict bool, attrs ...*nl.RtAttr) ([][]byte, error) {
	flags := unix.NLM_F_REQUEST | unix.NLM_F_ACK
	if strict {
		flags |= unix.NLM_F_EXCL
	}
	if cmd == nl.IPSET_CMD_LIST {
		flags = unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_DUMP
	}
	req := nl.NewNetlinkRequest(cmd|unix.NFNL_SUBSYS_IPSET<<8, flags)
	req.Sockets = c.sockets
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	for _, a := range attrs {
		req.AddData(a)
	}
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return msgs, readable(err)
}

// errHashFull is the kernel's IPSET_ERR_HASH_FULL.
const errHashFull = nl.IPSET_ERR_TYPE_SPECIFIC

// readable gives errors of ipset's own their names.
func readable(err error) error {
	errno, ok := errors.AsType[unix.Errno](err)
	switch {
	case errno == unix.EINVAL || errno == nl.IPSET_ERR_FIND_TYPE:
		return ErrUnsupported
	case !ok || errno < nl.IPSET_ERR_PRIVATE:
		return err
	case errno == errHashFull:
		return fmt.Errorf("%w: the set is full", ErrFull)
	case errno == nl.IPSET_ERR_MAX_SETS:
		return fmt.Errorf("%w: there are as many sets as the kernel takes", ErrFull)
	}
	return nl.IPSetError(errno)
}

// IsBusy reports whether a set could not be destroyed because rules refer to it.
func IsBusy(err error) bool { return errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) }

func nameAttr(name string) *nl.RtAttr {
	return nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name))
}

// bigEndian makes a number of 32 bits an attribute.
func bigEndian(kind int, v uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, v))
}

// revision returns the greatest revision of a type that the kernel knows.
func (c *Conn) revision(t Type) (uint8, error) {
	if r, ok := c.revisions[t]; ok {
		return r, nil
	}
	msgs, err := c.request(nl.IPSET_CMD_TYPE, false,
		nl.NewRtAttr(nl.IPSET_ATTR_TYPENAME, nl.ZeroTerminated(string(t))), nl.NewRtAttr(nl.IPSET_ATTR_FAMILY, nl.Uint8Attr(unix.AF_INET)))
	if err != nil {
		return 0, err
	}
	for _, msg := range msgs {
		for kind, value := range attrsOf(msg[nl.SizeofNfgenmsg:]) {
			if kind == nl.IPSET_ATTR_REVISION && len(value) > 0 {
				c.revisions[t] = value[0]
				return value[0], nil
			}
		}
	}
	return 0, errors.New("the kernel's answer names no revision")
}

// Create makes an empty set. It is not an error if there is one already that is the same.
func (c *Conn) Create(s Set) error {
	revision, err := c.revision(s.Type)
	if err != nil {
		return fmt.Errorf("create ipset %s of type %s: %w", s.Name, s.Type, err)
	}
	data := nl.NewRtAttr(nl.IPSET_ATTR_DATA|unix.NLA_F_NESTED, nil)
	data.AddChild(bigEndian(nl.IPSET_ATTR_HASHSIZE, max(leastHashSize, s.Size/perBucket)))
	data.AddChild(bigEndian(nl.IPSET_ATTR_MAXELEM, s.MaxElements))
	if s.Timeout > 0 {
		data.AddChild(bigEndian(nl.IPSET_ATTR_TIMEOUT, s.Timeout))
	}
	if s.Counters {
		data.AddChild(bigEndian(nl.IPSET_ATTR_CADT_FLAGS, nl.IPSET_FLAG_WITH_COUNTERS))
	}
	_, err = c.request(nl.IPSET_CMD_CREATE, false, nameAttr(s.Name),
		nl.NewRtAttr(nl.IPSET_ATTR_TYPENAME, nl.ZeroTerminated(string(s.Type))),
		nl.NewRtAttr(nl.IPSET_ATTR_REVISION, nl.Uint8Attr(revision)),
		nl.NewRtAttr(nl.IPSET_ATTR_FAMILY, nl.Uint8Attr(netFamily(s.Family))), data)
	if err != nil {
		return fmt.Errorf("create ipset %s: %w", s.Name, err)
	}
	return nil
}

const (
	// leastHashSize is how many buckets the table of a new set has at least: many sets have few elements.
	leastHashSize = 64
	// perBucket is the number of elements for each bucket. The kernel rounds the number of buckets up to a power of two. It enlarges the table
	// when a bucket has 12 elements: AHASH_MAX_SIZE in net/netfilter/ipset/ip_set_hash_gen.h.
	perBucket = 2
)

func netFamily(f state.Family) uint8 {
	if f == state.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// Destroy removes a set. It is not an error if there is none.
func (c *Conn) Destroy(name string) error {
	_, err := c.request(nl.IPSET_CMD_DESTROY, false, nameAttr(name))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("destroy ipset %s: %w", name, err)
	}
	return nil
}

// Empty removes all elements of a set.
func (c *Conn) Empty(name string) error {
	if _, err := c.request(nl.IPSET_CMD_FLUSH, false, nameAttr(name)); err != nil {
		return fmt.Errorf("empty ipset %s: %w", name, err)
	}
	return nil
}

// Add adds elements to a set.
func (c *Conn) Add(s Set, elements []Element) error { return c.change(nl.IPSET_CMD_ADD, s, elements) }

// Delete deletes elements from a set.
func (c *Conn) Delete(s Set, elements []Element) error {
	return c.change(nl.IPSET_CMD_DEL, s, elements)
}

// perMessage is how many elements a message has: they are in one attribute, whose length has 16 bits.
const perMessage = 500

func (c *Conn) change(cmd int, s Set, elements []Element) error {
	for len(elements) > 0 {
		n := min(perMessage, len(elements))
		list := nl.NewRtAttr(nl.IPSET_ATTR_ADT|unix.NLA_F_NESTED, nil)
		for _, e := range elements[:n] {
			list.AddChild(s.attr(e))
		}
		elements = elements[n:]
		_, err := c.request(cmd, false, nameAttr(s.Name), list, nl.NewRtAttr(nl.IPSET_ATTR_LINENO, nl.Uint32Attr(0)))
		if err != nil {
			return fmt.Errorf("change ipset %s: %w", s.Name, err)
		}
	}
	return nil
}

// attr encodes an element.
func (s Set) attr(e Element) *nl.RtAttr {
	data := nl.NewRtAttr(nl.IPSET_ATTR_DATA|unix.NLA_F_NESTED, nil)
	first := e.Prefix.Addr()
	if s.Type == IPPortNet {
		first = e.Second
	}
	data.AddChild(addrAttr(nl.IPSET_ATTR_IP, first))
	if s.Type == Net || s.Type == NetPort {
		data.AddChild(nl.NewRtAttr(nl.IPSET_ATTR_CIDR, nl.Uint8Attr(uint8(e.Prefix.Bits()))))
	}
	if s.Type == IPPort || s.Type == NetPort || s.Type == IPPortIP || s.Type == IPPortNet {
		data.AddChild(nl.NewRtAttr(nl.IPSET_ATTR_PROTO, nl.Uint8Attr(uint8(e.Protocol))))
		data.AddChild(nl.NewRtAttr(nl.IPSET_ATTR_PORT|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, e.Port)))
	}
	if s.Type == IPPortIP {
		data.AddChild(addrAttr(nl.IPSET_ATTR_IP2, e.Second))
	}
	if s.Type == IPPortNet {
		data.AddChild(addrAttr(nl.IPSET_ATTR_IP2, e.Prefix.Addr()))
		data.AddChild(nl.NewRtAttr(nl.IPSET_ATTR_CIDR2, nl.Uint8Attr(uint8(e.Prefix.Bits()))))
	}
	if s.Counters {
		// The kernel may put an element where another one was, with what that has counted.
		for _, kind := range []int{nl.IPSET_ATTR_PACKETS, nl.IPSET_ATTR_BYTES} {
			data.AddChild(nl.NewRtAttr(kind|unix.NLA_F_NET_BYTEORDER, make([]byte, 8)))
		}
	}
	return data
}

func addrAttr(kind int, a netip.Addr) *nl.RtAttr {
	inner := nl.IPSET_ATTR_IPADDR_IPV4
	if a.Is6() {
		inner = nl.IPSET_ATTR_IPADDR_IPV6
	}
	attr := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	attr.AddRtAttr(inner|unix.NLA_F_NET_BYTEORDER, a.AsSlice())
	return attr
}

// Sets returns the sets whose names begin with prefix. It reads no elements.
func (c *Conn) Sets(prefix string) ([]Set, error) {
	var sets []Set
	const onlyHeaders = 1 << 2 // IPSET_FLAG_LIST_HEADER
	msgs, err := c.request(nl.IPSET_CMD_LIST, false, bigEndian(nl.IPSET_ATTR_FLAGS, onlyHeaders))
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	for _, msg := range msgs {
		s := Set{Family: state.IPv4}
		for kind, value := range attrsOf(msg[nl.SizeofNfgenmsg:]) {
			switch kind {
			case nl.IPSET_ATTR_SETNAME:
				s.Name = strings.TrimRight(string(value), "\x00")
			case nl.IPSET_ATTR_TYPENAME:
				s.Type = Type(strings.TrimRight(string(value), "\x00"))
			case nl.IPSET_ATTR_FAMILY:
				if len(value) > 0 && value[0] == unix.AF_INET6 {
					s.Family = state.IPv6
				}
			case nl.IPSET_ATTR_DATA:
				for kind, value := range attrsOf(value) {
					switch kind {
					case nl.IPSET_ATTR_MAXELEM:
						s.MaxElements = number(value)
					case nl.IPSET_ATTR_TIMEOUT:
						s.Timeout = number(value)
					case nl.IPSET_ATTR_CADT_FLAGS:
						s.Counters = number(value)&nl.IPSET_FLAG_WITH_COUNTERS != 0
					}
				}
			}
		}
		if strings.HasPrefix(s.Name, prefix) {
			sets = append(sets, s)
		}
	}
	return sets, nil
}

// Read returns the elements of a set.
func (c *Conn) Read(s Set) ([]Element, error) {
	var elements []Element
	err := c.read(s, func(data []byte) { elements = append(elements, s.element(data)) })
	return elements, err
}

// Counts returns the elements of a set with counters, and their counts. A set that does not exist has no elements.
func (c *Conn) Counts(s Set) ([]Counted, error) {
	var elements []Counted
	err := c.read(s, func(data []byte) {
		e := Counted{Element: s.element(data)}
		for kind, value := range attrsOf(data) {
			if kind == nl.IPSET_ATTR_PACKETS && len(value) == 8 {
				e.Packets = binary.BigEndian.Uint64(value)
			}
		}
		elements = append(elements, e)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return elements, err
}

// read calls element with each element of a set, as the kernel sends it.
func (c *Conn) read(s Set, element func(data []byte)) error {
	msgs, err := c.request(nl.IPSET_CMD_LIST, false, nameAttr(s.Name))
	if err != nil {
		return fmt.Errorf("read ipset %s: %w", s.Name, err)
	}
	for _, msg := range msgs {
		for kind, list := range attrsOf(msg[nl.SizeofNfgenmsg:]) {
			if kind != nl.IPSET_ATTR_ADT {
				continue
			}
			for kind, data := range attrsOf(list) {
				if kind == nl.IPSET_ATTR_DATA {
					element(data)
				}
			}
		}
	}
	return nil
}

// element decodes an element.
func (s Set) element(data []byte) Element {
	var e Element
	var addr netip.Addr
	bits := -1
	for kind, value := range attrsOf(data) {
		switch kind {
		case nl.IPSET_ATTR_IP:
			addr = addrOf(value)
		case nl.IPSET_ATTR_IP2:
			e.Second = addrOf(value)
		case nl.IPSET_ATTR_CIDR, nl.IPSET_ATTR_CIDR2:
			bits = int(value[0])
		case nl.IPSET_ATTR_PROTO:
			e.Protocol = state.Protocol(value[0])
		case nl.IPSET_ATTR_PORT:
			e.Port = binary.BigEndian.Uint16(value)
		}
	}
	if s.Type == IPPortNet {
		addr, e.Second = e.Second, addr
	}
	if bits < 0 {
		bits = addr.BitLen()
	}
	e.Prefix = netip.PrefixFrom(addr, bits)
	return e
}

func addrOf(nested []byte) netip.Addr {
	for _, value := range attrsOf(nested) {
		a, _ := netip.AddrFromSlice(value)
		return a
	}
	return netip.Addr{}
}

func number(value []byte) uint32 {
	if len(value) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// attrsOf goes through attributes, without the flags of their kinds.
func attrsOf(b []byte) func(yield func(int, []byte) bool) {
	return func(yield func(int, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			kind := int(binary.NativeEndian.Uint16(b[2:]) & nl.NLA_TYPE_MASK)
			if size < unix.SizeofNlAttr || size > len(b) {
				return
			}
			if !yield(kind, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}
