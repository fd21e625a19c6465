//go:build !linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// errUnsupported is why there is no dataplane.
var errUnsupported = fmt.Errorf("iptables: %w on %s: Linux is needed", errors.ErrUnsupported, runtime.GOOS)

// Backend is the iptables dataplane, on Linux.
type Backend struct{}

// New fails: iptables needs Linux.
func New(context.Context, Options) (*Backend, error) { return nil, errUnsupported }

// Apply fails.
func (*Backend) Apply(context.Context, *state.Update) (backend.Result, error) {
	return backend.Result{}, errUnsupported
}

// Verify fails.
func (*Backend) Verify(context.Context) (backend.Result, error) {
	return backend.Result{}, errUnsupported
}

// Counts fails.
func (*Backend) Counts([]state.FrontendKey) ([]backend.Counts, error) { return nil, errUnsupported }

// DroppedInvalid fails.
func (*Backend) DroppedInvalid() (uint64, error) { return 0, errUnsupported }

// Disturbed returns nil.
func (*Backend) Disturbed() <-chan struct{} { return nil }

// Reconfigure fails.
func (*Backend) Reconfigure(Options) error { return errUnsupported }

// Close does nothing.
func (*Backend) Close() error { return nil }

// LeaveFlows does nothing.
func (*Backend) LeaveFlows() {}

// ServesLoopback returns false.
func (*Backend) ServesLoopback() bool { return false }

// Remove fails.
func Remove(context.Context, bool) (bool, error) { return false, errUnsupported }

// Available fails: iptables needs Linux.
func Available() error { return errUnsupported }

// Cleanup fails.
func Cleanup(context.Context) (bool, error) { return false, errUnsupported }

// Programmed fails.
func Programmed() (bool, error) { return false, errUnsupported }
