package ipvs

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
)

// links has the required operations on network devices. A netlink.Handle implements it.
type links interface {
	LinkByName(string) (netlink.Link, error)
	LinkAdd(netlink.Link) error
	LinkDel(netlink.Link) error
	LinkSetUp(netlink.Link) error
	LinkSetAlias(netlink.Link, string) error
	AddrList(netlink.Link, int) ([]netlink.Addr, error)
	AddrReplace(netlink.Link, *netlink.Addr) error
	AddrDel(netlink.Link, *netlink.Addr) error
	RouteGet(net.IP) ([]netlink.Route, error)
}

// device holds the addresses of virtual servers. So they are addresses of the node: IPVS sees only packets to the node.
type device struct {
	links links
	link  netlink.Link // nil if it is not there
	// wanted counts what needs an address.
	wanted  map[netip.Addr]int
	held    map[netip.Addr]bool
	written int
}

func newDevice(l links) *device {
	return &device{links: l, wanted: map[netip.Addr]int{}, held: map[netip.Addr]bool{}}
}

// find returns the device, nil if there is none.
func find(l links) (netlink.Link, error) {
	link, err := l.LinkByName(ifaddr.ServiceDevice)
	if _, absent := errors.AsType[netlink.LinkNotFoundError](err); absent || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", ifaddr.ServiceDevice, err)
	}
	if link.Type() != "dummy" {
		return nil, fmt.Errorf("device %s: somebody else's, of type %s: rename it", ifaddr.ServiceDevice, link.Type())
	}
	return link, nil
}

// read takes down which addresses the kernel holds.
func (d *device) read() (err error) {
	d.held = map[netip.Addr]bool{}
	if d.link, err = find(d.links); err != nil || d.link == nil {
		return err
	}
	list, err := d.links.AddrList(d.link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("device %s: listing its addresses: %w", ifaddr.ServiceDevice, err)
	}
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.Unmap().IsLinkLocalUnicast() {
			d.held[addr.Unmap()] = true
		}
	}
	return nil
}

// make makes the device if it is not there, and takes it into use.
func (d *device) make() error {
	if d.link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = ifaddr.ServiceDevice
		if err := d.links.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) {
				err = fmt.Errorf("this kernel has no dummy devices: module dummy is not there, or may not be loaded (%w)", err)
			}
			return fmt.Errorf("making device %s: %w", ifaddr.ServiceDevice, err)
		}
		var err error
		if d.link, err = find(d.links); err != nil {
			return err
		}
		if d.link == nil {
			return fmt.Errorf("device %s vanished", ifaddr.ServiceDevice)
		}
		d.written++
	}
	if d.link.Attrs().Flags&net.FlagUp == 0 {
		if err := d.links.LinkSetUp(d.link); err != nil {
			return fmt.Errorf("device %s: %w", ifaddr.ServiceDevice, err)
		}
		d.link.Attrs().Flags |= net.FlagUp
	}
	return nil
}

func (d *device) want(a netip.Addr) { d.wanted[a]++ }
func (d *device) unwant(a netip.Addr) {
	if d.wanted[a]--; d.wanted[a] == 0 {
		delete(d.wanted, a)
	}
}

// address returns an address as the device has it. It is no source for connections to elsewhere: the scope says so for IPv4, that it is
// not preferred for IPv6.
func address(a netip.Addr) *netlink.Addr {
	n := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if a.Is4() {
		n.Scope = unix.RT_SCOPE_HOST
	} else {
		n.Flags = unix.IFA_F_NODAD
		n.ValidLft = min(math.MaxUint32, math.MaxInt) // for ever, or for 68 years where an int has 32 bits
	}
	return n
}

// hold has the device hold the addresses of servers, and returns those that it cannot have, with the reason.
func (d *device) hold(keys []plan.Key) (unheld map[netip.Addr]error) {
	unheld = map[netip.Addr]error{}
	var added []netip.Addr
	for _, k := range keys {
		a := k.Addr.Addr()
		if d.held[a] || unheld[a] != nil {
			continue
		}
		if err := d.links.AddrReplace(d.link, address(a)); err != nil {
			unheld[a] = fmt.Errorf("device %s: adding %v: %w", ifaddr.ServiceDevice, a, err)
			continue
		}
		d.held[a] = true
		d.written++
		added = append(added, a)
	}
	for a, err := range ifaddr.AwaitRoutes(d.links, added) {
		unheld[a] = fmt.Errorf("device %s: %w", ifaddr.ServiceDevice, err)
	}
	return unheld
}

// release deletes the addresses of a list that no server needs.
func (d *device) release(list []netip.Addr) error {
	slices.SortFunc(list, netip.Addr.Compare)
	var errs []error
	for _, a := range slices.Compact(list) {
		if d.wanted[a] > 0 || !d.held[a] {
			continue
		}
		if err := d.links.AddrDel(d.link, address(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("device %s: deleting %v: %w", ifaddr.ServiceDevice, a, err))
			continue
		}
		delete(d.held, a)
		d.written++
	}
	return errors.Join(errs...)
}

// strays returns the addresses of the device that no server needs.
func (d *device) strays() (list []netip.Addr) {
	for a := range d.held {
		if d.wanted[a] == 0 {
			list = append(list, a)
		}
	}
	return list
}
