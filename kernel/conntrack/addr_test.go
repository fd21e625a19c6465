package conntrack

import "net/netip"

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
