package state

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func addrs(s string) []netip.Addr {
	var a []netip.Addr
	for f := range strings.FieldsSeq(s) {
		a = append(a, netip.MustParseAddr(f))
	}
	return a
}

func TestSelectNodePortAddresses(t *testing.T) {
	const local = "10.0.0.5 127.0.0.1 127.0.0.53 169.254.0.5 192.168.1.5 ::1 fd00::5 fe80::5"
	for _, c := range []struct {
		name    string
		primary bool
		cidrs   string
		node    string
		want    string
	}{
		{"all but loopback and link-local", false, "", "10.0.0.5", "10.0.0.5 169.254.0.5 192.168.1.5 fd00::5"},
		{"primary of one family", true, "", "10.0.0.5 192.168.1.5", "10.0.0.5"},
		{"primary of both families", true, "", "fd00::5 10.0.0.5 192.168.1.5 fd00::6", "10.0.0.5 fd00::5"},
		{"primary that no interface has", true, "", "203.0.113.9", "203.0.113.9"},
		{"primary of a node without addresses", true, "", "", ""},
		{"one range", false, "192.168.0.0/16", "10.0.0.5", "192.168.1.5"},
		{"one range of each family", false, "10.0.0.0/8 fd00::/8", "", "10.0.0.5 fd00::5"},
		{"overlapping ranges", false, "10.0.0.0/8 10.0.0.0/16", "", "10.0.0.5"},
		{"a range without a local address", false, "172.16.0.0/12", "10.0.0.5", ""},
		{"everything of a family spares loopback", false, "0.0.0.0/0", "", "10.0.0.5 169.254.0.5 192.168.1.5"},
		{"everything IPv6 spares loopback and link-local", false, "::/0", "", "fd00::5"},
		{"a wide range spares link-local", false, "fc00::/6", "", "fd00::5"},
		{"link-local by its range", false, "fe80::/10", "", "fe80::5"},
		{"IPv4 link-local", false, "169.254.0.0/16", "", "169.254.0.5"},
		{"a wide range spares loopback", false, "126.0.0.0/7", "", ""},
		{"loopback by its range", false, "127.0.0.0/8", "", "127.0.0.1 127.0.0.53"},
		{"loopback by its address", false, "127.0.0.1/32 ::1/128", "", "127.0.0.1 ::1"},
		{"IPv6 loopback by a range", false, "::/127", "", ""},
		{"primary and a range", true, "192.168.0.0/16", "10.0.0.5", "10.0.0.5 192.168.1.5"},
		{"primary within the range", true, "10.0.0.0/8", "10.0.0.5", "10.0.0.5"},
	} {
		npa := NodePortAddresses{Primary: c.primary}
		for f := range strings.FieldsSeq(c.cidrs) {
			npa.CIDRs = append(npa.CIDRs, netip.MustParsePrefix(f))
		}
		node := &Node{Addresses: addrs(c.node)}
		if got, want := npa.Select(addrs(local), node), addrs(c.want); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", c.name, got, want)
		}
	}
	if got := (NodePortAddresses{Primary: true}).Select(nil, nil); len(got) != 0 {
		t.Errorf("without a node: got %v", got)
	}
}

func TestSettingsInWords(t *testing.T) {
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for want, got := range map[string]interface{ String() string }{
		"none":                            LocalDetector{},
		"ClusterCIDR 10.0.0.0/8,fd00::/8": LocalDetector{ClusterCIDRs: cidrs},
		"NodeCIDR":                        LocalDetector{NodeCIDR: true},
		"BridgeInterface cni0":            LocalDetector{BridgeInterface: "cni0"},
		"InterfaceNamePrefix veth":        LocalDetector{InterfacePrefix: "veth"},
		"all":                             NodePortAddresses{},
		"primary":                         NodePortAddresses{Primary: true},
		"10.0.0.0/8,fd00::/8":             NodePortAddresses{CIDRs: cidrs},
		"primary,10.0.0.0/8,fd00::/8":     NodePortAddresses{Primary: true, CIDRs: cidrs},
	} {
		if got.String() != want {
			t.Errorf("%+v is %q, want %q", got, got.String(), want)
		}
	}
}

func TestInterfaceNames(t *testing.T) {
	for name, want := range map[string]bool{
		"cni0": true, "veth": true, "fifteen-bytes-o": true, "br-\u00e4": true,
		"": false, "sixteen-bytes-on": false, "a b": false, "a/b": false, "a\tb": false, "a\nb": false, "veth\x00": false, "veth\xff": false,
	} {
		if got := IsInterfaceName(name); got != want {
			t.Errorf("%q is a name: %t, want %t", name, got, want)
		}
	}
}
