//go:build !linux

package edge

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/switchyard-net/switchyard/state"
)

// errUnsupported is why there is no edge here.
var errUnsupported = fmt.Errorf("the edge: %w on %s: Linux is needed", errors.ErrUnsupported, runtime.GOOS)

// Edge hands connections from outside over to other nodes, on Linux.
type Edge struct{}

// Available fails: the edge needs Linux.
func Available(Settings) error { return errUnsupported }

// Open fails: the edge needs Linux.
func Open(Settings) (*Edge, error) { return nil, errUnsupported }

// Apply fails: the edge needs Linux.
func (*Edge) Apply(*state.Update, map[state.ServiceName]error) error { return errUnsupported }

// Verify fails: the edge needs Linux.
func (*Edge) Verify() (repaired int, err error) { return 0, errUnsupported }

// Status returns that the edge is off.
func (*Edge) Status() Status { return Status{Reason: errUnsupported} }

// Silent returns nothing.
func (*Edge) Silent() []string { return nil }

// CheckNetwork returns nothing.
func (*Edge) CheckNetwork() error { return nil }

// Stats fails: the edge needs Linux.
func (*Edge) Stats() (Stats, error) { return Stats{}, errUnsupported }

// Slot returns nothing.
func (*Edge) Slot(state.Protocol, netip.AddrPort, netip.AddrPort) (Slot, bool) { return Slot{}, false }

// Close does nothing.
func (*Edge) Close() error { return nil }
