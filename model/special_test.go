package model

import (
	"net/netip"
	"testing"
)

func TestSpecial(t *testing.T) {
	for addr, want := range map[string]string{
		"0.0.0.0": "unspecified", "::": "unspecified",
		"127.0.0.1": "a loopback address", "127.255.255.255": "a loopback address", "::1": "a loopback address",
		"169.254.169.254": "a link-local address", "fe80::1": "a link-local address", "febf::1": "a link-local address",
		"224.0.0.1": "a multicast address", "239.255.255.255": "a multicast address", "ff02::1": "a multicast address", "ff0e::1": "a multicast address",
		"255.255.255.255": "the broadcast address",
		"0.0.0.1":         "", "10.0.0.1": "", "126.255.255.255": "", "128.0.0.1": "", "169.253.255.255": "", "169.255.0.0": "",
		"223.255.255.255": "", "240.0.0.1": "", "255.255.255.254": "", "::2": "", "fc00::1": "", "fec0::1": "", "2001:db8::1": "",
	} {
		if got := Special(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is %q, want %q", addr, got, want)
		}
	}
}
