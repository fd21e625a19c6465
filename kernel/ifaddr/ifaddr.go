// Package ifaddr follows the addresses of this machine's interfaces: those on which node ports are served, and whose connections are
// the node's own.
//
// [Open] reads them and follows every change. state.NodePortAddresses.Select picks those that serve node ports, again after each
// value of [Watcher.Changed] and after each change of the Node. A dataplane hands that on as its backend.Backend.Disturbed, so that a
// Verify brings the new addresses into the kernel.
//
// A [Watcher] belongs to the network namespace in which it was opened, and needs no capability. The package exists on all platforms;
// outside Linux [Open] returns an error that wraps errors.ErrUnsupported.
package ifaddr

import (
	"log/slog"
	"net/netip"
	"slices"
)

// Options are the settings of a [Watcher].
type Options struct {
	// Logger gets a warning when addresses cannot be read. Default: discard.
	Logger *slog.Logger
}

// ServiceDevice is the device on which the IPVS dataplane has the addresses of Services. They are not this machine's, so that they are left
// out, as those on kube-proxy's.
const ServiceDevice = "switchyard-ipvs"

// serviceDevices are the devices whose addresses are those of Services.
var serviceDevices = []string{ServiceDevice, "kube-ipvs0"}

// normalize sorts addrs in place and removes duplicates.
func normalize(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
