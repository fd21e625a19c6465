// Package ipset reads and writes the kernel's IP sets over netlink.
//
// It knows the few types of sets that Switchyard uses, and gives and takes their elements many at a time: one message
// holds hundreds. No program is executed. The kernel has no transactions for sets, so callers must order their
// changes: an element is added or deleted by itself. It is no error to add an existing element or to delete a missing
// one.
package ipset

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

var (
	// ErrFull is wrapped by errors about sets that have as many elements as they take, and about sets that there are too many of.
	ErrFull = errors.New("no room")
	// ErrUnsupported is wrapped by errors about sets that this kernel does not have.
	ErrUnsupported = fmt.Errorf("%w by this kernel", errors.ErrUnsupported)
)

// Type is a type of set.
type Type string

// The types of sets.
const (
	// IP has addresses.
	IP Type = "hash:ip"
	// Net has prefixes; the kernel takes none of length 0.
	Net Type = "hash:net"
	// IPPort has an address, a protocol and a port.
	IPPort Type = "hash:ip,port"
	// NetPort has a prefix, a protocol and a port.
	NetPort Type = "hash:net,port"
	// IPPortIP has an address, a protocol, a port and a second address.
	IPPortIP Type = "hash:ip,port,ip"
	// IPPortNet has an address, a protocol and a port, and a prefix of other addresses, not of length 0.
	IPPortNet Type = "hash:ip,port,net"
)

// MaxName is how long the name of a set may be.
const MaxName = 31

// Set is what a set is, without its elements.
type Set struct {
	Name   string
	Type   Type
	Family state.Family
	// MaxElements is how many elements the set takes.
	MaxElements uint32
	// Size is the expected number of elements, 0 for few. If there are more, the kernel repeatedly moves all elements to a larger table. Each
	// time it waits until nobody reads the smaller table.
	Size uint32
	// Timeout is after how many seconds an element leaves the set that was added without a timeout of its own. 0: elements have none.
	Timeout uint32
	// Counters has elements count the packets that rules find in the set.
	Counters bool
}

// Fits reports whether a set in the kernel can be used for another one. It ignores the sizes of the sets, and the timeouts of elements without
// a timeout of their own.
func (s Set) Fits(o Set) bool {
	return s.Type == o.Type && s.Family == o.Family && (s.Timeout > 0) == (o.Timeout > 0) && s.Counters == o.Counters
}

// Element is an element of a set. Which fields count depends on the type.
type Element struct {
	// Prefix holds the address, with all of its bits where the type has no prefixes.
	Prefix   netip.Prefix
	Protocol state.Protocol
	// Port is the type and the code where Protocol is ICMP.
	Port uint16
	// Second is the second address of [IPPortIP], and the first one of [IPPortNet].
	Second netip.Addr
}

// Counted is an element with the packets that it has counted since it was added.
type Counted struct {
	Element
	Packets uint64
}

// Addr returns the element of one address.
func Addr(a netip.Addr) Element { return Element{Prefix: netip.PrefixFrom(a, a.BitLen())} }

func (e Element) String() string {
	s := e.Prefix.String()
	if e.Protocol != 0 {
		s = fmt.Sprintf("%s,%v:%d", s, e.Protocol, e.Port)
	}
	if e.Second.IsValid() {
		s += "," + e.Second.String()
	}
	return s
}
