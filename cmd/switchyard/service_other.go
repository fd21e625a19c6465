//go:build !windows

package main

import (
	"context"
	"errors"
)

// asService calls run: only Windows has a service manager that wants to be answered.
func asService(ctx context.Context, run func(context.Context) error) error { return run(ctx) }

// openEvents fails: only Windows has an event log.
func openEvents() (events, error) { return nil, errors.ErrUnsupported }
