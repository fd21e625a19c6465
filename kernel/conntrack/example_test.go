package conntrack_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// Print the flows to one frontend, and delete those that an endpoint which is gone should answer.
func Example() {
	_ = func() error {
		flows, err := conntrack.Open()
		if err != nil {
			return err
		}
		defer flows.Close()

		toDNS := conntrack.Filter{Family: state.IPv4, Protocol: state.UDP, Dst: netip.MustParseAddr("10.96.0.10"), DstPort: 53}
		if err := flows.Flows(toDNS, func(some []conntrack.Flow) error {
			for _, f := range some {
				fmt.Println(f)
			}
			return nil
		}); err != nil {
			return err
		}

		toDNS.From = netip.MustParseAddrPort("10.244.1.5:53")
		deleted, err := flows.DeleteAll(toDNS)
		log.Printf("deleted %d flows", deleted)
		return err // errors.ErrUnsupported before Linux 6.12: list them, and Delete each
	}
}

func ExampleFilter_Match() {
	client := netip.MustParseAddrPort("10.244.1.9:40000")
	flow := conntrack.Flow{
		Family: state.IPv4, Protocol: state.UDP,
		Orig:  conntrack.Tuple{Src: client, Dst: netip.MustParseAddrPort("10.96.0.10:53")},
		Reply: conntrack.Tuple{Src: netip.MustParseAddrPort("10.244.1.5:53"), Dst: client},
	}
	fmt.Println(flow)
	fmt.Println(conntrack.Filter{DstPort: 53}.Match(flow), conntrack.Filter{Family: state.IPv6}.Match(flow))
	// Output:
	// UDP 10.244.1.9:40000 -> 10.96.0.10:53, answered 10.244.1.5:53 -> 10.244.1.9:40000
	// true false
}
