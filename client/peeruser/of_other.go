//go:build !linux

package peeruser

import (
	"errors"
	"net"
)

// supported reports whether this system reports who is at the other end.
const supported = false

// userOf fails: it is not known who is at the other end.
func userOf(*net.UnixConn) (user int, err error) { return 0, errors.ErrUnsupported }
