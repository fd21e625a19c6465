package userspace

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
)

// addresses are the addresses of the relay, on the loopback interface of one network namespace.
type addresses struct {
	handle *netlink.Handle
	wanted []netip.Addr
}

func openAddresses(wanted []netip.Addr) (*addresses, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &addresses{handle, wanted}, nil
}

func (a *addresses) close() { a.handle.Close() }

// loopback returns the loopback interface and which of the relay's addresses it has.
func (a *addresses) loopback() (lo netlink.Link, has []netip.Addr, err error) {
	if lo, err = a.handle.LinkByName("lo"); err != nil {
		return nil, nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	list, err := a.handle.AddrList(lo, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("list the addresses of the loopback interface: %w", err)
	}
	for _, item := range list {
		if addr, ok := netip.AddrFromSlice(item.IP); ok && slices.Contains(a.wanted, addr.Unmap()) {
			has = append(has, addr.Unmap())
		}
	}
	return lo, has, nil
}

// add adds the addresses that are missing, and returns how many were missing, once connections can be led there. The error joins the
// errors of single addresses.
func (a *addresses) add() (added int, err error) {
	lo, has, err := a.loopback()
	if err != nil {
		return 0, err
	}
	var errs []error
	var missing []netip.Addr
	for _, addr := range a.wanted {
		if slices.Contains(has, addr) {
			continue
		}
		if err := a.handle.AddrAdd(lo, address(addr)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("add address %v to the loopback interface: %w", addr, err))
			continue
		}
		missing = append(missing, addr)
	}
	for _, err := range ifaddr.AwaitRoutes(a.handle, missing) {
		errs = append(errs, err)
	}
	return len(missing), errors.Join(errs...)
}

// remove removes those that are there, and reports whether there were any.
func (a *addresses) remove() (removed bool, err error) {
	lo, has, err := a.loopback()
	if err != nil {
		return false, err
	}
	var errs []error
	for _, addr := range has {
		if err := a.handle.AddrDel(lo, address(addr)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("remove address %v from the loopback interface: %w", addr, err))
		}
	}
	return len(has) > 0, errors.Join(errs...)
}

// address is addr as one that the node never takes for the source of a connection of its own accord.
func address(addr netip.Addr) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}}
	if addr.Is4() {
		a.Scope = unix.RT_SCOPE_HOST
		return a
	}
	// Deprecated: it has no preferred lifetime left, but is valid.
	a.Flags, a.PreferedLft, a.ValidLft = unix.IFA_F_NODAD, 0, math.MaxInt32
	return a
}
