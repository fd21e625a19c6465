// Package protoconv converts values of packages state and model into messages of the node-local API and of the protocol
// between relays, and back.
//
// The conversion to messages never fails. The conversion back trusts nothing. If a message breaks the protocol, the
// error names the object, the field, and the valid values. A round trip returns an equal value for every record and
// object that keeps the promises of its package.
package protoconv

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// Position names a state within the life of a server. The zero Position names none.
type Position struct {
	// Instance is the server's life.
	Instance uint64
	// Revision is the revision of the state.
	Revision state.Revision
}

// Message returns the position as a message, nil for the zero Position.
func (p Position) Message() *localnetv1.Position {
	if p == (Position{}) {
		return nil
	}
	return &localnetv1.Position{InstanceId: p.Instance, Rev: uint64(p.Revision)}
}

// ParsePosition reads a position. An unset message gives the zero Position.
func ParsePosition(m *localnetv1.Position) Position {
	return Position{m.GetInstanceId(), state.Revision(m.GetRev())}
}

// ServiceName returns the message of a service's name.
func ServiceName(n state.ServiceName) *localnetv1.ServiceName {
	return &localnetv1.ServiceName{Namespace: text(n.Namespace), Name: text(n.Name)}
}

// ParseServiceName reads a service's name.
func ParseServiceName(m *localnetv1.ServiceName) state.ServiceName {
	return state.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()}
}

// text makes a string fit for a message: protocol buffers take UTF-8 only. Kubernetes' names are.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// messages makes one message for each item. They share one piece of memory.
func messages[T, M any](items []T, fill func(*T, *M)) []*M {
	if len(items) == 0 {
		return nil
	}
	block, list := make([]M, len(items)), make([]*M, len(items))
	for i := range items {
		fill(&items[i], &block[i])
		list[i] = &block[i]
	}
	return list
}

// parse reads the messages of the field what.
func parse[M, T any](what string, list []*M, read func(*M) (T, error)) ([]T, error) {
	if len(list) == 0 {
		return nil, nil
	}
	items := make([]T, len(list))
	for i, m := range list {
		var err error
		if items[i], err = read(m); err != nil {
			return nil, fmt.Errorf("%s[%d]%w", what, i, err)
		}
	}
	return items, nil
}

// ascending checks that the items of the field what are in strict order.
func ascending[T any](what, order string, items []T, compare func(a, b T) int) error {
	for i := 1; i < len(items); i++ {
		switch c := compare(items[i-1], items[i]); {
		case c == 0:
			return fmt.Errorf("%s[%d] is the same as the one before; each must occur once", what, i)
		case c > 0:
			return fmt.Errorf("%s[%d] must come before %s[%d]; they are ordered by %s", what, i, what, i-1, order)
		}
	}
	return nil
}

func addresses(addrs []netip.Addr) [][]byte {
	if len(addrs) == 0 {
		return nil
	}
	list := make([][]byte, len(addrs))
	for i, a := range addrs {
		list[i] = bytesOf(a)
	}
	return list
}

// bytesOf returns an address as it is in messages. One with a zone, which no source lets in, is left out: it would come back as
// another address.
func bytesOf(a netip.Addr) []byte {
	if a.Zone() != "" {
		return nil
	}
	return a.AsSlice()
}

// parseAddresses reads addresses of either family.
func parseAddresses(what string, list [][]byte) ([]netip.Addr, error) {
	if len(list) == 0 {
		return nil, nil
	}
	addrs := make([]netip.Addr, len(list))
	for i, b := range list {
		var err error
		if addrs[i], err = parseAddress(b); err != nil {
			return nil, fmt.Errorf("%s[%d] %w", what, i, err)
		}
	}
	return addrs, nil
}

// parseAddress reads an address of either family. Its errors continue a sentence that begins with the field.
func parseAddress(b []byte) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(b)
	switch {
	case !ok:
		return a, fmt.Errorf("has %d bytes; it must have 4 or 16", len(b))
	case a.Is4In6():
		return a, fmt.Errorf("is %v; an IPv4 address must have 4 bytes", a)
	}
	return a, nil
}

// parseAddressOf reads an address of a family.
func parseAddressOf(f state.Family, b []byte) (netip.Addr, error) {
	a, err := parseAddress(b)
	if err == nil && state.FamilyOf(a) != f {
		err = fmt.Errorf("is %v; it must be of the family %v", a, f)
	}
	return a, err
}

// parsePort reads a port that must be one.
func parsePort(n uint32) (uint16, error) {
	if n == 0 || n > math.MaxUint16 {
		return 0, fmt.Errorf("is %d; it must be from 1 to 65535", n)
	}
	return uint16(n), nil
}

// parsePrefix reads a range of addresses of either family.
func parsePrefix(address []byte, length uint32) (netip.Prefix, error) {
	a, err := parseAddress(address)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf(".address %w", err)
	}
	if length > uint32(a.BitLen()) {
		return netip.Prefix{}, fmt.Errorf(".length is %d; it must be %d at most", length, a.BitLen())
	}
	return netip.PrefixFrom(a, int(length)), nil
}

// quote is for names in errors.
func quote(s string) string { return strconv.Quote(s) }
