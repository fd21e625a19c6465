//go:build !linux

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// errUnsupported is why there is no IPVS.
var errUnsupported = fmt.Errorf("ipvs: %w on %s: Linux is needed", errors.ErrUnsupported, runtime.GOOS)

// Backend is IPVS above another dataplane, on Linux.
type Backend struct{ backend.Backend }

// New fails: IPVS needs Linux.
func New(backend.Backend, Options) (*Backend, error) { return nil, errUnsupported }

// Serves returns false.
func (*Backend) Serves(state.FrontendKey) bool { return false }

// Scheduled returns false.
func (*Backend) Scheduled(state.FrontendKey) bool { return false }

// Schedules returns false.
func (*Backend) Schedules() bool { return false }

// Close does nothing.
func (*Backend) Close() error { return nil }

// Reconfigure fails.
func (*Backend) Reconfigure(Options) error { return errUnsupported }

// Retire does nothing.
func (*Backend) Retire() {}

// Resume does nothing.
func (*Backend) Resume(backend.Backend) {}

// Carried returns 0.
func (*Backend) Carried() int { return 0 }

// Cleanup finds nothing.
func Cleanup(context.Context) (bool, error) { return false, nil }

// Remove fails.
func Remove() error { return errUnsupported }

// Available fails.
func Available() error { return errUnsupported }

// Programmed returns that the kernel holds nothing.
func Programmed() (bool, error) { return false, nil }
