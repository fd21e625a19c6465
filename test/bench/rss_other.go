//go:build !linux

package bench

import (
	"errors"
	"fmt"
	"time"
)

// RSS returns the resident memory of this process in bytes. It needs Linux.
func RSS() (uint64, error) {
	now, _, err := residentMemory()
	return now, err
}

func residentMemory() (now, peak uint64, err error) {
	return 0, 0, fmt.Errorf("resident memory: %w", errors.ErrUnsupported)
}

func forgetPeak() error { return errors.ErrUnsupported }

func processCPU() time.Duration { return 0 }

func allowFiles(int) error { return fmt.Errorf("limit of open files: %w", errors.ErrUnsupported) }
