//go:build !windows

package winkernel

import (
	"errors"
	"fmt"
	"log/slog"
)

func dial() (hns, error) {
	return nil, fmt.Errorf("HNS exists on Windows only: %w", errors.ErrUnsupported)
}

func watchRestarts(*slog.Logger, func()) (end func()) { return func() {} }
