//go:build !linux

package conntrack

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/switchyard-net/switchyard/state"
)

// Conn is a connection to a connection tracking table. There is none on this platform.
type Conn struct{}

// Open returns an error that wraps errors.ErrUnsupported.
func Open() (*Conn, error) { return nil, unsupported() }

// Close returns an error that wraps errors.ErrUnsupported.
func (*Conn) Close() error { return unsupported() }

// Len returns an error that wraps errors.ErrUnsupported.
func (*Conn) Len() (int, error) { return 0, unsupported() }

// Flows returns an error that wraps errors.ErrUnsupported.
func (*Conn) Flows(Filter, func([]Flow) error) error { return unsupported() }

// Find returns an error that wraps errors.ErrUnsupported.
func (*Conn) Find(state.Protocol, Tuple) (Flow, error) { return Flow{}, unsupported() }

// Delete returns an error that wraps errors.ErrUnsupported.
func (*Conn) Delete(...Flow) (int, error) { return 0, unsupported() }

// DeleteAll returns an error that wraps errors.ErrUnsupported.
func (*Conn) DeleteAll(Filter) (int, error) { return 0, unsupported() }

func unsupported() error {
	return fmt.Errorf("connection tracking over ctnetlink on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
