//go:build !windows

package server

import (
	"errors"
	"fmt"
	"net"
	"runtime"
)

// listenPipe fails: named pipes of Windows exist there only.
func listenPipe(string) (net.Listener, error) {
	return nil, fmt.Errorf("named pipes: %w on %s; choose a unix socket", errors.ErrUnsupported, runtime.GOOS)
}
