package peeruser

import (
	"net"
	"os"
	"syscall"
)

// supported reports whether this system reports who is at the other end.
const supported = true

// userOf returns the user of the process at the other end.
func userOf(conn *net.UnixConn) (user int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *syscall.Ucred
	var errOption error
	if err := raw.Control(func(fd uintptr) {
		cred, errOption = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if errOption != nil {
		return 0, os.NewSyscallError("getsockopt SO_PEERCRED", errOption)
	}
	return int(cred.Uid), nil
}
