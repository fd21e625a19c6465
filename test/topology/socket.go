//go:build linux

package topology

import (
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// HasSCTP reports whether this kernel has SCTP sockets.
var HasSCTP = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
})

// socket opens a non-blocking socket in the host's namespace. Raw sockets serve all protocols alike, and SCTP is not in
// package net.
func (h *Host) socket(proto state.Protocol, addr netip.Addr) (fd int, err error) {
	kind := unix.SOCK_STREAM
	if proto == state.UDP {
		kind = unix.SOCK_DGRAM
	}
	err = h.ns.Do(func() (err error) {
		fd, err = unix.Socket(family(addr), kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(proto))
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return -1, fmt.Errorf("open a %v socket: %w", proto, err)
	}
	return fd, nil
}

func sockaddr(addr netip.AddrPort) unix.Sockaddr {
	if addr.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
}
