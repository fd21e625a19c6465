//go:build linux

package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// Stray sends a packet without a flag but ACK in a connection of TCP that no other host knows, from the port. It reports whether the connection is reset, or false if nothing comes back
// before the timeout.
func (h *Host) Stray(dst netip.AddrPort, port uint16, timeout time.Duration) (reset bool, err error) {
	source, err := h.sourceFor(dst)
	if err != nil {
		return false, err
	}
	fd, err := h.socket(state.TCP, dst.Addr())
	if err != nil {
		return false, err
	}
	file := os.NewFile(uintptr(fd), "stray")
	defer file.Close()
	err = firstError( // in this mode, the kernel takes a connection for open without a handshake
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1),
		unix.Bind(fd, sockaddr(netip.AddrPortFrom(source, port))),
		unix.Connect(fd, sockaddr(dst)),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0), // the kernel asks for the window now
		file.SetDeadline(time.Now().Add(timeout)),
	)
	if err != nil {
		return false, fmt.Errorf("open a connection without a handshake: %w", err)
	}
	switch n, err := file.Read(make([]byte, 100)); {
	case errors.Is(err, unix.ECONNRESET):
		return true, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return false, nil
	default:
		return false, fmt.Errorf("%d bytes of an answer: %v", n, err)
	}
}
