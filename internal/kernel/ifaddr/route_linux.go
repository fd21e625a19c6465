package ifaddr

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Router looks up where the kernel sends packets. A [netlink.Handle] is one.
type Router interface {
	RouteGet(net.IP) ([]netlink.Route, error)
}

const (
	// routeTimeout is how long the kernel may take to route addresses to this node after they were added.
	routeTimeout = time.Second
	routePause   = 500 * time.Microsecond
)

// AwaitRoutes waits, for a second at most, until the kernel routes packets to new addresses of an interface to this
// node. Until then the kernel has no route for connections that are led there. It makes the routes of IPv6 addresses
// in the background (addrconf_dad_work), also without duplicate address detection. It returns the addresses without a
// route, with the reason.
func AwaitRoutes(r Router, added []netip.Addr) (without map[netip.Addr]error) {
	without = map[netip.Addr]error{}
	deadline := time.Now().Add(routeTimeout)
	for _, a := range added {
		if err := awaitRoute(r, a, deadline); err != nil {
			without[a] = err
		}
	}
	return without
}

func awaitRoute(r Router, a netip.Addr, deadline time.Time) error {
	for a.Is6() {
		routes, err := r.RouteGet(a.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("the kernel does not route %v to this node within %v", a, routeTimeout), err)
		}
		time.Sleep(routePause)
	}
	return nil
}
