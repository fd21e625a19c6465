// Package ifaddr follows the addresses of this machine's interfaces: those on which node ports are served, and whose connections are
// the node's own.
//
// [Open] reads them and follows every change. state.NodePortAddresses.Select picks the addresses that serve node
// ports. Call it again after each value of [Watcher.Changed] and after each change of the Node. A dataplane hands
// that on as its backend.Backend.Disturbed, so that a Verify brings the new addresses into the kernel.
//
// A [Watcher] belongs to the network namespace in which it was opened, and needs no capability. Outside Linux, it knows the
// addresses of the whole machine, and looks at them every two seconds.
package ifaddr

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
)

// Options are the settings of a [Watcher].
type Options struct {
	// Logger gets a warning when addresses cannot be read. Default: discard.
	Logger *slog.Logger
}

// ServiceDevice is the device on which the IPVS dataplane has the addresses of Services. They are not this machine's, so that they are left
// out, as those on kube-proxy's.
const ServiceDevice = "switchyard-ipvs"

// serviceDevices are the devices whose addresses belong to Services.
var serviceDevices = []string{ServiceDevice, "kube-ipvs0"}

// current is what a Watcher knows, on every system.
type current struct {
	changed chan struct{}

	mu    sync.Mutex // guards addrs
	addrs []netip.Addr
}

func newCurrent() current { return current{changed: make(chan struct{}, 1)} }

// Addrs returns the addresses of both families that are on an interface, sorted, without zones and duplicates.
// Loopback and link-local addresses are among them; on Linux, addresses that another host on the link also has are
// not. The slice must not be modified.
func (c *current) Addrs() []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addrs
}

// Changed gets a value when what Addrs returns has changed. Changes that come before the value is taken share one value.
func (c *current) Changed() <-chan struct{} { return c.changed }

func (c *current) set(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(c.addrs, addrs) {
		return
	}
	c.addrs = addrs
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// normalize sorts addrs in place and removes duplicates.
func normalize(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
