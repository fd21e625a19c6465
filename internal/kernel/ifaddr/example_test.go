package ifaddr_test

import (
	"context"
	"fmt"

	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/state"
)

// Follow the addresses on which a node serves node ports.
func Example() {
	_ = func(ctx context.Context, on state.NodePortAddresses, node *state.Node) error {
		addrs, err := ifaddr.Open(ifaddr.Options{})
		if err != nil {
			return err
		}
		defer addrs.Close()
		for {
			fmt.Println("node ports are served on", on.Select(addrs.Addrs(), node))
			select {
			case <-ctx.Done():
				return nil
			case <-addrs.Changed():
			}
		}
	}
}
