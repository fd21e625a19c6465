package ifaddr

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// slowRouter has routes to IPv6 addresses some time after it was made.
type slowRouter struct {
	began time.Time
	after map[netip.Addr]time.Duration
}

func (r slowRouter) RouteGet(ip net.IP) ([]netlink.Route, error) {
	a, _ := netip.AddrFromSlice(ip)
	after, ok := r.after[a]
	switch {
	case !ok:
		return nil, unix.ENETUNREACH
	case time.Since(r.began) < after:
		return []netlink.Route{{Type: unix.RTN_UNICAST}}, nil // the default route
	}
	return []netlink.Route{{Type: unix.RTN_LOCAL}}, nil
}

// TestAwaitRoutes: connections are led to an address only once the kernel has made its route, and an address that gets none is named.
func TestAwaitRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v4, late, never := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		r := slowRouter{time.Now(), map[netip.Addr]time.Duration{late: 40 * time.Millisecond}}
		if without := AwaitRoutes(r, []netip.Addr{v4, late}); len(without) > 0 {
			t.Errorf("without a route are %v", without)
		}
		if took := time.Since(r.began); took < 40*time.Millisecond || took > 50*time.Millisecond {
			t.Errorf("it took %v, want the 40 ms until there is a route", took)
		}
		without := AwaitRoutes(r, []netip.Addr{late, never})
		if len(without) != 1 || without[never] == nil {
			t.Errorf("without a route are %v, want %v", without, never)
		}
	})
}
