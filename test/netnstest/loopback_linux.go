package netnstest

import (
	"errors"
	"net"

	"github.com/vishvananda/netlink"
)

// Alone prepares the calling thread's network namespace for a node that is alone: the loopback interface is up, and has addresses. Connections
// to 10.96.0.0/16 leave from the address source, for a dataplane to turn them elsewhere.
func Alone(source string, addresses ...string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	errs := []error{netlink.LinkSetUp(lo)}
	for _, a := range append(addresses, source) {
		errs = append(errs, netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(a), Mask: net.CIDRMask(32, 32)}}))
	}
	_, services, _ := net.ParseCIDR("10.96.0.0/16")
	errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: services, Src: net.ParseIP(source), Scope: netlink.SCOPE_LINK}))
	return errors.Join(errs...)
}
