//go:build !windows

package namedpipe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
)

// Dial fails: named pipes of Windows exist there only.
func Dial(_ context.Context, path string) (net.Conn, error) {
	return nil, fmt.Errorf("named pipe %s: %w on %s", path, errors.ErrUnsupported, runtime.GOOS)
}
