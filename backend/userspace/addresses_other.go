//go:build !linux && !windows

package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

// serviceInterface takes no addresses on this system.
type serviceInterface struct{}

// Added returns none.
func (serviceInterface) Added() ([]netip.Addr, error) { return nil, nil }

// Add fails.
func (serviceInterface) Add(netip.Addr) error {
	return fmt.Errorf("add an address to an interface: %w on %s: name what to serve in userspace.listen", errors.ErrUnsupported, runtime.GOOS)
}

// Remove does nothing.
func (serviceInterface) Remove(netip.Addr) error { return nil }
