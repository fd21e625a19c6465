package namespace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// DialTCP connects to an address from within the namespace. Only the socket is made on a thread that is there: no thread waits for the answer, however many
// connections are pending. The caller must Close the connection.
func (n *Namespace) DialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	family, sockaddr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, sockaddr = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	var fd int
	if err := n.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	}); err != nil {
		return nil, dialError(to, err)
	}
	err := unix.Connect(fd, sockaddr) // before the file: the poller takes a socket that does not connect for one that has hung up
	file := os.NewFile(uintptr(fd), "tcp")
	defer file.Close() // the connection has a descriptor of its own
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		err = connected(ctx, file)
	} else {
		err = os.NewSyscallError("connect", err)
	}
	if err != nil {
		return nil, dialError(to, err)
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, dialError(to, err)
	}
	return conn, nil
}

func dialError(to netip.AddrPort, err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
}

// connected waits until a socket that connects has done so, or cannot.
func connected(ctx context.Context, file *os.File) error {
	defer context.AfterFunc(ctx, func() { _ = file.SetWriteDeadline(time.Unix(1, 0)) })() // fails if it is closed
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Write(func(fd uintptr) (done bool) {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			failure = os.NewSyscallError("connect", err)
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil // else it is still connecting
	})
	if ctx.Err() != nil && err != nil {
		return ctx.Err()
	}
	return errors.Join(err, failure)
}
