// Package ifaddr follows the addresses of this machine's interfaces, and says on which of them NodePorts are served.
//
// A [Watcher] belongs to the network namespace in which it was opened. The package exists on all platforms; outside Linux
// [Open] says that it is unsupported.
package ifaddr

import (
	"log/slog"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// Options are the settings of a [Watcher].
type Options struct {
	// Logger gets a warning when addresses cannot be read. Default: discard.
	Logger *slog.Logger
}

// Select returns the addresses on which npa serves NodePorts, sorted, out of the local addresses of this machine. The
// arguments are not modified.
//
// The primary addresses of the node count even if no interface has them: kube-proxy takes them from the Node object as well,
// and they are what clients know. On a cloud with one-to-one NAT or a virtual IP that is about to arrive they may never, or
// not yet, be on an interface.
//
// Loopback addresses are never selected, except by a range that lies within the loopback range: 127.0.0.0/8 names them,
// 0.0.0.0/0 does not.
func Select(local []netip.Addr, npa backend.NodePortAddresses, node *state.Node) []netip.Addr {
	var selected []netip.Addr
	if npa.Primary && node != nil {
		selected = primary(node.Addresses)
	}
	all := !npa.Primary && len(npa.CIDRs) == 0
	for _, addr := range local {
		if all && !addr.IsLoopback() || slices.ContainsFunc(npa.CIDRs, func(r netip.Prefix) bool { return admits(r, addr) }) {
			selected = append(selected, addr)
		}
	}
	return normalize(selected)
}

// primary returns the first address of each family.
func primary(addrs []netip.Addr) []netip.Addr {
	var first []netip.Addr
	for _, addr := range addrs {
		if !slices.ContainsFunc(first, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }) {
			first = append(first, addr)
		}
	}
	return first
}

func admits(r netip.Prefix, addr netip.Addr) bool {
	if !r.Contains(addr) {
		return false
	}
	// A range that begins on a loopback address and is no wider than the loopback range holds nothing else.
	loopbackBits := 8
	if addr.Is6() {
		loopbackBits = 128
	}
	return !addr.IsLoopback() || r.Bits() >= loopbackBits
}

// normalize sorts addrs in place and removes duplicates.
func normalize(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
