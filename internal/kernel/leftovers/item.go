package leftovers

import (
	"fmt"
	"strings"
)

// Kind specifies what an [Item] is about.
type Kind string

// The kinds.
const (
	// Chains are chains of iptables with their rules. A chain that other programs' rules lead to is emptied instead.
	Chains Kind = "chain"
	// Jumps are rules in built-in chains that lead to such chains; each is named "from -> to".
	Jumps Kind = "jump"
	// Tables are tables of nftables mode.
	Tables Kind = "table"
	// VirtualServers are the virtual servers of IPVS, such as "TCP 10.96.0.1:443".
	VirtualServers Kind = "virtual server"
	// Devices are network devices.
	Devices Kind = "device"
	// IPSets are sets of addresses and ports.
	IPSets Kind = "ipset"
)

// Item describes the leftovers of one kind in one place, which were found or removed.
type Item struct {
	Kind Kind
	// Place is where it is, such as "table ip nat of iptables-nft".
	Place string
	// Names are at least one, sorted, and as often as they are there.
	Names []string
}

// shown is how many names a line of output holds.
const shown = 4

// String is a line for an operator, such as "2 jumps in table ip nat of iptables-nft: OUTPUT -> KUBE-SERVICES, ...".
func (i Item) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", len(i.Names), i.Kind)
	if len(i.Names) != 1 {
		b.WriteByte('s')
	}
	fmt.Fprintf(&b, " in %s: %s", i.Place, strings.Join(i.Names[:min(shown, len(i.Names))], ", "))
	if more := len(i.Names) - shown; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}
