package model

import "net/netip"

// broadcast stands for all hosts of a link.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// Special reports why an address cannot be that of an endpoint or an externalIP: it is "unspecified", or "a loopback address", "a link-local
// address", "a multicast address" or "the broadcast address". It returns the empty string for all other addresses.
//
// The API server refuses the same (k8s.io/kubernetes pkg/apis/core/validation, ValidateNonSpecialIP), but for multicast addresses
// beyond the link-local ones and 255.255.255.255. Connections that are sent to such an address, or taken from it, belong to a node or to many hosts:
// the metadata service of clouds at 169.254.169.254, what listens on loopback only, all hosts of a link that listen for DHCP. 240.0.0.0/4 is
// routed like other addresses, and some clusters have pods there.
func Special(addr netip.Addr) string {
	switch {
	case addr.IsUnspecified():
		return "unspecified"
	case addr.IsLoopback():
		return "a loopback address"
	case addr.IsLinkLocalUnicast():
		return "a link-local address"
	case addr.IsMulticast():
		return "a multicast address"
	case addr == broadcast:
		return "the broadcast address"
	}
	return ""
}
