package state_test

import (
	"fmt"
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// Which addresses serve node ports, out of those that package internal/kernel/ifaddr reads from the machine.
func ExampleNodePortAddresses_Select() {
	local := []netip.Addr{
		netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"),
	}
	node := &state.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	fmt.Println(state.NodePortAddresses{}.Select(local, node))
	fmt.Println(state.NodePortAddresses{Primary: true}.Select(local, node))
	fmt.Println(state.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}.Select(local, node))
	// Output:
	// [10.0.0.5 192.0.2.1 2001:db8::1]
	// [192.0.2.1 2001:db8::1]
	// [10.0.0.5]
}

// A cluster CIDR of one family distinguishes the pods of that family. An interface distinguishes the pods of both families.
func ExampleLocalDetector_Detects() {
	byAddress := state.LocalDetector{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	fmt.Println(byAddress.Detects(state.IPv4), byAddress.Detects(state.IPv6))
	byInterface := state.LocalDetector{BridgeInterface: "cni0"}
	fmt.Println(byInterface.Detects(state.IPv4), byInterface.Detects(state.IPv6))
	// Output:
	// true false
	// true true
}
