//go:build linux

package topology

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netns"
)

// Host is a network namespace of a [Lab]. Its methods may be called from several goroutines.
type Host struct {
	Name string
	// Addrs are the addresses that the host began with.
	Addrs []netip.Addr
	// NodeInterface is the name of a pod's device on its node; empty for others.
	NodeInterface string

	ns   *netns.NS
	nl   *netlink.Handle
	node *Host // of a pod
	// closers are what else the host has.
	closers []io.Closer

	mu      sync.Mutex
	servers map[serverKey]io.Closer
	closed  bool
}

// NewHost makes a host that is linked with no other, for topologies other than a [Lab]. The caller must Close it. Addrs are what it is known by: the caller gives
// it devices with these addresses, by [Host.Netlink].
func NewHost(name string, addrs []netip.Addr, sysctls []netns.Sysctl) (*Host, error) {
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	h := &Host{Name: name, Addrs: addrs, ns: ns, servers: map[serverKey]io.Closer{}}
	err = firstError(
		ns.SetSysctls(sysctls...),
		ns.Do(func() (err error) { h.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); return err }),
	)
	if err == nil {
		err = h.startLoopback()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("host %s: %w", name, err), h.Close())
	}
	return h, nil
}

func (h *Host) startLoopback() error {
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	return h.nl.LinkSetUp(lo)
}

// Do runs fn on a thread inside the host's namespace; see [netns.NS.Do].
func (h *Host) Do(fn func() error) error { return h.ns.Do(fn) }

// SetSysctls writes kernel settings of the host.
func (h *Host) SetSysctls(settings ...netns.Sysctl) error { return h.ns.SetSysctls(settings...) }

// LeakLoopback makes the host send packets to IPv4 loopback addresses out on its network device, by its default
// route, and take answers from there. The host itself no longer has them.
func (h *Host) LeakLoopback() error {
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	loopback := netip.MustParsePrefix("127.0.0.1/8")
	err = h.nl.AddrDel(lo, &netlink.Addr{IPNet: ipNet(loopback)})
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("take the loopback address from %s: %w", h.Name, err)
	}
	outside := netip.MustParseAddr("198.51.100.1")
	out, err := h.nl.RouteGet(outside.AsSlice())
	if err != nil || len(out) == 0 {
		return fmt.Errorf("find the default route of %s: %w", h.Name, err)
	}
	route := &netlink.Route{LinkIndex: out[0].LinkIndex, Dst: ipNet(loopback.Masked()), Gw: out[0].Gw, Src: out[0].Src, Flags: int(netlink.FLAG_ONLINK)}
	return firstError(
		h.ns.SetSysctls(netns.Sysctl{Path: "net/ipv4/conf/all/route_localnet", Value: "1"}),
		h.nl.RouteReplace(route),
	)
}

// AddAddr gives the host another address on its network device. It is usable at once.
func (h *Host) AddAddr(prefix netip.Prefix) error {
	if err := h.changeAddr("add", prefix, h.nl.AddrReplace); err != nil {
		return err
	}
	return h.awaitAddr(prefix.Addr())
}

// awaitAddr waits until packets to an address of the host are taken in. For IPv6 the kernel makes the route for them in the
// background (addrconf_dad_work), also without duplicate address detection.
func (h *Host) awaitAddr(addr netip.Addr) error {
	return waitFor(fmt.Sprintf("address %v of %s", addr, h.Name), func() (bool, error) {
		routes, err := h.nl.RouteGet(addr.AsSlice())
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return false, nil
		}
		return len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, err
	})
}

// waitFor waits until something that the kernel does in the background is done.
func waitFor(what string, done func() (bool, error)) error {
	const timeout, pause = 10 * time.Second, time.Millisecond
	for began := time.Now(); time.Since(began) < timeout; time.Sleep(pause) {
		ok, err := done()
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
	}
	return fmt.Errorf("%s is not ready after %v", what, timeout)
}

// RemoveAddr takes an address from the host's network device.
func (h *Host) RemoveAddr(prefix netip.Prefix) error {
	return h.changeAddr("remove", prefix, h.nl.AddrDel)
}

func (h *Host) changeAddr(verb string, prefix netip.Prefix, change func(netlink.Link, *netlink.Addr) error) error {
	dev, err := h.nl.LinkByName(UnderlayInterface)
	if err == nil {
		addr := &netlink.Addr{IPNet: ipNet(prefix)}
		if prefix.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		err = change(dev, addr)
	}
	if err != nil {
		return fmt.Errorf("%s address %v on %s: %w", verb, prefix, h.Name, err)
	}
	return nil
}

// unlink removes a pod's device, and with it all routes to it, at once. The kernel would do so itself, but some time after
// the namespace is closed.
func (h *Host) unlink() error {
	dev, err := h.node.nl.LinkByName(h.NodeInterface)
	if err == nil {
		err = h.node.nl.LinkDel(dev)
	}
	if err != nil {
		return fmt.Errorf("remove the device of pod %s: %w", h.Name, err)
	}
	return nil
}

// Netlink returns a handle on the host's devices and routes, which is valid until the host is closed.
func (h *Host) Netlink() *netlink.Handle { return h.nl }

// Fd calls use with the file descriptor of the host's namespace; see [netns.NS.Fd].
func (h *Host) Fd(use func(fd int) error) error { return h.ns.Fd(use) }

// Close stops the host's servers and lets go of the namespace. A lab closes its own hosts.
func (h *Host) Close() error {
	h.mu.Lock()
	servers := h.servers
	h.servers, h.closed = nil, true
	h.mu.Unlock()
	for _, server := range servers {
		server.Close()
	}
	for _, c := range h.closers {
		c.Close()
	}
	if h.nl != nil {
		h.nl.Close()
	}
	return h.ns.Close()
}
