//go:build !linux

package bench

import (
	"errors"
	"fmt"
)

// RSS returns the resident memory of this process in bytes. It needs Linux.
func RSS() (uint64, error) {
	return 0, fmt.Errorf("resident memory: %w", errors.ErrUnsupported)
}
