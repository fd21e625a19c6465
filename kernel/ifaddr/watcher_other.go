//go:build !linux

package ifaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

// Watcher knows the current addresses of all interfaces. There is none on this platform.
type Watcher struct{}

// Open returns an error that wraps errors.ErrUnsupported.
func Open(Options) (*Watcher, error) { return nil, unsupported() }

// Addrs returns nothing.
func (*Watcher) Addrs() []netip.Addr { return nil }

// Changed returns nil.
func (*Watcher) Changed() <-chan struct{} { return nil }

// Close returns an error that wraps errors.ErrUnsupported.
func (*Watcher) Close() error { return unsupported() }

func unsupported() error {
	return fmt.Errorf("watch interface addresses on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
