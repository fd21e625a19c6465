// Package ifaddr follows the addresses of this machine's interfaces.
//
// A [Watcher] belongs to the network namespace in which it was opened. The package exists on all platforms; outside Linux
// [Open] reports that it is unsupported.
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

// normalize sorts addrs in place and removes duplicates.
func normalize(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
