package bench

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ofStream is every byte of a stream: the server discards them.
const ofStream = 1

// streamChunk is how much is given to the kernel at once.
const streamChunk = 256 << 10

// drain discards what has come on a stream, without a copy of it.
func drain(fd int) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), 0, streamChunk, unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// connectTo returns a connection.
func connectTo(to unix.Sockaddr) (int, error) {
	fd, err := newSocket(unix.SOCK_STREAM)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, to); err != nil {
		return -1, errors.Join(os.NewSyscallError("connect", err), unix.Close(fd))
	}
	return fd, nil
}

func closeAll(fds []int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

// hold closes the connections that there are, and makes so many others.
func hold(held []int, o *connectionOrder) (fds []int, err error) {
	if err := closeAll(held); err != nil {
		return nil, err
	}
	to := &unix.SockaddrInet4{Port: int(o.To.Port()), Addr: o.To.Addr().As4()}
	for range o.Count {
		fd, err := connectTo(to)
		if err == nil {
			fds = append(fds, fd)
			_, err = pingOnce(fd) // the whole way is there
		}
		if err != nil {
			return fds, fmt.Errorf("connection %d: %w", len(fds), err)
		}
	}
	return fds, nil
}

// stream sends as much as it can on several connections.
func stream(to unix.Sockaddr, o *connectionOrder) (a connectionAnswer, err error) {
	var fds []int
	for range o.Count {
		fd, err := connectTo(to)
		if err != nil {
			return a, errors.Join(err, closeAll(fds))
		}
		fds = append(fds, fd)
	}
	chunk := make([]byte, streamChunk)
	for i := range chunk {
		chunk[i] = ofStream
	}
	sent, errs := make([]int64, len(fds)), make([]error, len(fds))
	began := time.Now()
	var all sync.WaitGroup
	for i, fd := range fds {
		all.Go(func() {
			for time.Since(began) < o.For && errs[i] == nil {
				var n int
				n, errs[i] = unix.Write(fd, chunk)
				sent[i] += int64(max(n, 0))
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	for _, n := range sent {
		a.Bytes += n
	}
	a.Connections, a.PerSecond = len(fds), float64(a.Bytes)/took.Seconds()
	return a, errors.Join(append(errs, closeAll(fds))...)
}

// datagramWait is how long a datagram may be on its way before it counts as lost.
const datagramWait = 20 * time.Millisecond

// datagrams sends so many datagrams of a byte at a time, and counts those that come back.
func datagrams(to unix.Sockaddr, o *connectionOrder) (a connectionAnswer, err error) {
	fd, err := newSocket(unix.SOCK_DGRAM)
	if err != nil {
		return a, err
	}
	wait := unix.NsecToTimeval(datagramWait.Nanoseconds())
	err = errors.Join(os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)),
		os.NewSyscallError("connect", unix.Connect(fd, to)))
	var b [64]byte
	back := 0
	began := time.Now()
	for err == nil && time.Since(began) < o.For {
		for range o.Count {
			if _, err = unix.Write(fd, b[:1]); err != nil {
				break
			}
		}
		for range o.Count {
			_, errRead := unix.Read(fd, b[:])
			if errors.Is(errRead, unix.EAGAIN) {
				break // the others are lost
			}
			if err = errors.Join(err, errRead); err != nil {
				break
			}
			back++
		}
	}
	a.PerSecond = float64(back) / time.Since(began).Seconds()
	return a, errors.Join(err, unix.Close(fd))
}

// serveDatagrams starts to send back each datagram that comes to a port, until the process ends.
func serveDatagrams(at unix.Sockaddr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	// A datagram is answered from the address that it came to.
	err = errors.Join(os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)),
		os.NewSyscallError("bind", unix.Bind(fd, at)))
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	go func() {
		var b [64]byte
		control := make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Inet4Pktinfo{}))))
		for {
			n, have, _, from, err := unix.Recvmsg(fd, b[:], control, 0)
			if err == nil {
				err = unix.Sendmsg(fd, b[:n], control[:have], from, 0)
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "bench: server of datagrams: %v\n", err)
			}
		}
	}()
	return nil
}
