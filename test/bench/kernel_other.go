//go:build !linux

package bench

import (
	"context"
	"errors"
	"fmt"
)

// NFTables fails: nf_tables exists on Linux only.
func NFTables(context.Context, *Reporter, NFTablesOptions) error {
	return fmt.Errorf("benchmark nftables: %w", errors.ErrUnsupported)
}

// Memory fails: it measures the nftables dataplane too, which exists on Linux only.
func Memory(context.Context, *Reporter, Options) error {
	return fmt.Errorf("benchmark memory: %w", errors.ErrUnsupported)
}
