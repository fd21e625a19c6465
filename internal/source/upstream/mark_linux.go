package upstream

import "golang.org/x/sys/unix"

// setMark marks a socket, if this process may do so.
func setMark(fd uintptr, mark uint32) {
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
}
