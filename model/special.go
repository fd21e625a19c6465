package model

import "net/netip"

// broadcast stands for all hosts of a link.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// Special reports why an address cannot be the address of an endpoint or an externalIP. It returns "unspecified", "a
// loopback address", "a link-local address", "a multicast address" or "the broadcast address". It returns the empty
// string for all other addresses.
//
// The API server refuses the same addresses (k8s.io/kubernetes pkg/apis/core/validation, ValidateNonSpecialIP), except
// 255.255.255.255 and multicast addresses that are not link-local. A service with such an address would take
// connections that belong to a node or to many hosts. Examples are the metadata service of clouds at 169.254.169.254,
// loopback listeners, and DHCP listeners on a link. 240.0.0.0/4 is routed like other addresses, and some clusters have
// pods there.
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
