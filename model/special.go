package model

import "net/netip"

// Special reports why an address cannot be that of an endpoint or an externalIP: it is "unspecified", or "a loopback address", "a link-local
// address" or "a multicast address". It returns the empty string for all other addresses.
//
// The API server refuses the same (k8s.io/kubernetes pkg/apis/core/validation, ValidateNonSpecialIP), but for multicast addresses
// beyond the link-local ones. Connections that are sent to such an address, or taken from it, belong to a node or to many hosts:
// the metadata service of clouds at 169.254.169.254, what listens on loopback only.
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
	}
	return ""
}
