//go:build !linux

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// NFTables fails: nf_tables exists on Linux only.
func NFTables(context.Context, *Reporter, NFTablesOptions) error {
	return fmt.Errorf("benchmark nftables: %w", errors.ErrUnsupported)
}

// Memory fails: it measures the nftables dataplane too, which exists on Linux only.
func Memory(context.Context, *Reporter, Options) error {
	return fmt.Errorf("benchmark memory: %w", errors.ErrUnsupported)
}

// EBPF fails: sockets can be hooked on Linux only.
func EBPF(context.Context, *Reporter, EBPFOptions) error {
	return fmt.Errorf("benchmark ebpf: %w", errors.ErrUnsupported)
}

// MeasureConnections fails: network namespaces exist on Linux only.
func MeasureConnections(io.Reader, io.Writer) error {
	return fmt.Errorf("connections: %w", errors.ErrUnsupported)
}

// Dataplanes fails: network namespaces exist on Linux only.
func Dataplanes(context.Context, DataplanesOptions) (*DataplaneReport, error) {
	return nil, fmt.Errorf("benchmark dataplanes: %w", errors.ErrUnsupported)
}

// HoldDataplane fails: network namespaces exist on Linux only.
func HoldDataplane(context.Context, io.Reader, io.Writer) error {
	return fmt.Errorf("dataplane: %w", errors.ErrUnsupported)
}

// Userspace fails: the relay runs on Linux only.
func Userspace(context.Context, *Reporter, UserspaceOptions) (*UserspaceReport, error) {
	return nil, fmt.Errorf("benchmark userspace: %w", errors.ErrUnsupported)
}
