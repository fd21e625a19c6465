//go:build !linux

package userspace

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// errUnsupported is why there is no relay.
var errUnsupported = fmt.Errorf("userspace: %w on %s: Linux is needed", errors.ErrUnsupported, runtime.GOOS)

// Backend is a relay above another dataplane, on Linux.
type Backend struct{ backend.Backend }

// New fails: the relay needs Linux.
func New(backend.Backend, Options) (*Backend, error) { return nil, errUnsupported }

// Cleanup removes nothing: there is nothing.
func Cleanup(context.Context) (bool, error) { return false, nil }

// Remove removes nothing.
func Remove() (bool, error) { return false, nil }

// Programmed returns false.
func Programmed() (bool, error) { return false, nil }

// Reconfigure fails.
func (*Backend) Reconfigure(Options) error { return errUnsupported }

// Release fails.
func (*Backend) Release(context.Context) error { return errUnsupported }

// Drain fails.
func (*Backend) Drain(context.Context) error { return errUnsupported }

// Retire does nothing.
func (*Backend) Retire() {}

// Resume does nothing.
func (*Backend) Resume(backend.Backend) {}

// Carried returns 0.
func (*Backend) Carried() int { return 0 }

// Lingering returns s.
func (*Backend) Lingering(s *state.Service) *state.Service { return s }

// Close does nothing.
func (*Backend) Close() error { return nil }
