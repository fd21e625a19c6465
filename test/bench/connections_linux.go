package bench

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kinds of connections that are measured. Each is timed by itself, many times in a row.
const (
	doTCPConnect = "tcp-connect" // connect alone, of a new socket each time
	doReconnect  = "reconnect"   // connect alone, of one socket that is disconnected in between
	doUDPConnect = "udp-connect" // connect alone, of a new UDP socket
	doRequest    = "request"     // a socket, connect, one byte there and back, reset
	doPing       = "ping"        // one byte there and back on a connection that stays
	doServe      = "serve"       // not measured: answer connections from now on
	doStream     = "stream"      // as many bytes as go, on so many connections at once
	doDownload   = "download"    // as many bytes as come, on one connection
	doDatagrams  = "datagrams"   // UDP: so many on their way at once, which come back
	doHold       = "hold"        // not measured: so many connections, which stay open until the next order of this kind
)

// ConnectionOrder has a worker do something for some time. From is the number of the namespace, of those that the worker was started with.
type ConnectionOrder struct {
	Do   string
	From int
	To   netip.AddrPort
	For  time.Duration
	// Count is the number of operations at a time.
	Count int
}

// ConnectionAnswer is what came of an order.
type ConnectionAnswer struct {
	// P10, P50 and P99 are percentiles of the measured times.
	P10, P50, P99 time.Duration
	// Times is how often it was done, and PerSecond how often in a second, with all that is not timed.
	Times     int
	PerSecond float64
	// Rate is how often it was done in a second, with all that is not timed, when it went fastest. It is 0 if the time was too short.
	Rate float64
	// Connections is how many connections were made.
	Connections int
	// Bytes is how many were sent.
	Bytes int64
}

// rateOver is over how many in a row a rate is taken: 100 connections take less time than a process mostly has the processor for.
const rateOver = 100

// connections is a process that makes and answers connections. It is a process of its own because a socket is in the cgroup of the process that
// makes it. The files from number 3 on are network namespaces.
type connections struct {
	times []time.Duration // room for the times of one order
	held  []int           // open connections
}

func newConnections() *connections {
	debug.SetGCPercent(-1) // there is nothing to collect, and it would be measured
	return &connections{times: make([]time.Duration, 1<<18)}
}

// Do carries out an order.
func (c *connections) Do(o ConnectionOrder, a *ConnectionAnswer) (err error) {
	runtime.LockOSThread() // the thread is in the namespace, and ends with the goroutine
	if err := unix.Setns(firstFile+o.From, unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("setns", err)
	}
	to := &unix.SockaddrInet4{Port: int(o.To.Port()), Addr: o.To.Addr().As4()}
	switch o.Do {
	case doServe:
		err = errors.Join(serveBytes(to), serveDatagrams(to))
	case doStream:
		err = stream(to, &o, a)
	case doDownload:
		err = download(to, &o, a)
	case doDatagrams:
		err = datagrams(to, &o, a)
	case doHold:
		err = errors.Join(closeAll(c.held))
		c.held = nil
		for err == nil && len(c.held) < o.Count {
			var fd int
			if fd, err = connectTo(to); err == nil {
				c.held = append(c.held, fd)
				_, err = pingOnce(fd) // the whole way is there
			}
		}
	default:
		err = c.repeat(to, &o, a)
	}
	if err != nil {
		err = fmt.Errorf("%s to %v: %w", o.Do, o.To, err)
	}
	return err
}

// repeat does one thing again and again, and times each.
func (c *connections) repeat(to unix.Sockaddr, o *ConnectionOrder, a *ConnectionAnswer) (err error) {
	var once func() (time.Duration, error)
	fd := -1
	switch o.Do {
	case doTCPConnect:
		once = func() (time.Duration, error) { return connectOnce(unix.SOCK_STREAM, to) }
	case doUDPConnect:
		once = func() (time.Duration, error) { return connectOnce(unix.SOCK_DGRAM, to) }
	case doRequest:
		once = func() (time.Duration, error) { return requestOnce(to) }
	case doReconnect, doPing:
		if fd, err = connectTo(to); err != nil {
			return err
		}
		defer unix.Close(fd)
		a.Connections = 1
		once = func() (time.Duration, error) { return pingOnce(fd) }
		if o.Do == doReconnect {
			once = func() (time.Duration, error) { return reconnectOnce(fd, to) }
		}
	default:
		return errors.New("there is no such order")
	}
	began := time.Now()
	last, done := began, 0
	for err == nil && (done == 0 || done < len(c.times) && time.Since(began) < o.For) { // once at least, also if this thread had to wait
		c.times[done], err = once()
		if done++; done%rateOver == 0 {
			now := time.Now()
			a.Rate, last = max(a.Rate, rateOver/now.Sub(last).Seconds()), now
		}
	}
	a.Times, a.PerSecond = done, float64(done)/time.Since(began).Seconds()
	if o.Do != doPing {
		a.Connections += done
	}
	times := c.times[:done]
	a.P10, a.P50, a.P99 = Percentile(times, 10), Percentile(times, 50), Percentile(times, 99)
	return err
}

// newSocket returns a socket of IPv4 that is reset when it is closed, so that no connection lingers.
func newSocket(kind int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	if kind == unix.SOCK_STREAM {
		err = errors.Join(
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 10}), // of connect
		)
	}
	if err != nil {
		return 0, errors.Join(os.NewSyscallError("setsockopt", err), unix.Close(fd))
	}
	return fd, nil
}

func connectOnce(kind int, to unix.Sockaddr) (time.Duration, error) {
	fd, err := newSocket(kind)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = unix.Connect(fd, to)
	took := time.Since(began)
	return took, errors.Join(os.NewSyscallError("connect", err), unix.Close(fd))
}

func reconnectOnce(fd int, to unix.Sockaddr) (time.Duration, error) {
	if err := disconnect(fd); err != nil {
		return 0, err
	}
	began := time.Now()
	err := unix.Connect(fd, to)
	return time.Since(began), os.NewSyscallError("connect", err)
}

// disconnect resets a connection, and leaves a socket that can connect again.
func disconnect(fd int) error {
	nowhere := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&nowhere)), unsafe.Sizeof(nowhere))
	if errno != 0 {
		return os.NewSyscallError("disconnect", errno)
	}
	return nil
}

func requestOnce(to unix.Sockaddr) (time.Duration, error) {
	began := time.Now()
	fd, err := newSocket(unix.SOCK_STREAM)
	if err != nil {
		return 0, err
	}
	if err = os.NewSyscallError("connect", unix.Connect(fd, to)); err == nil {
		_, err = pingOnce(fd)
	}
	took := time.Since(began)
	return took, errors.Join(err, unix.Close(fd))
}

func pingOnce(fd int) (time.Duration, error) {
	var b [1]byte
	began := time.Now()
	if _, err := unix.Write(fd, b[:]); err != nil {
		return 0, os.NewSyscallError("write", err)
	}
	n, err := unix.Read(fd, b[:])
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return time.Since(began), os.NewSyscallError("read", err)
}

// serveBytes starts to answer each byte on each connection to a port, until the process ends.
func serveBytes(at unix.Sockaddr) error {
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	const backlog = 4096
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err = errors.Join(os.NewSyscallError("epoll_create1", err),
		os.NewSyscallError("bind", unix.Bind(listener, at)),
		os.NewSyscallError("listen", unix.Listen(listener, backlog)),
		watch(poll, listener)); err != nil {
		return err
	}
	go func() {
		for {
			if err := serveOnce(poll, listener); err != nil {
				fmt.Fprintf(os.Stderr, "bench: server of connections: %v\n", err)
				return
			}
		}
	}()
	return nil
}

func watch(poll, fd int) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}))
}

// serveOnce waits for connections and bytes, and answers.
func serveOnce(poll, listener int) error {
	var events [64]unix.EpollEvent
	n, err := unix.EpollWait(poll, events[:], -1)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("epoll_wait", err)
	}
	for _, e := range events[:max(n, 0)] {
		if fd := int(e.Fd); fd != listener {
			answerByte(poll, fd)
			continue
		}
		for {
			fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.ECONNABORTED) {
				continue
			}
			if err != nil {
				break // there is none left
			}
			if err := errors.Join(os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)), watch(poll, fd)); err != nil {
				return err
			}
		}
	}
	return nil
}

// answerByte sends back what has come, and closes the connection if it is over.
func answerByte(poll, fd int) {
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	if n > 0 && b[0] == ofDownload {
		upload(poll, fd)
		return
	}
	for ; n > 0 && b[0] == ofStream; n, err = drain(fd, unix.MSG_DONTWAIT) {
	}
	if errors.Is(err, unix.EAGAIN) {
		return
	}
	if n > 0 {
		_, err = unix.Write(fd, b[:n])
	}
	if n <= 0 || err != nil {
		_ = unix.Close(fd) // the client has gone
	}
}

// ofStream is every byte of a stream: the server discards them. To ofDownload, the server answers with as many bytes as go.
const ofStream, ofDownload = 1, 2

// streamChunk is how much is given to the kernel at once.
const streamChunk = 256 << 10

// drain discards what has come on a stream, without a copy of it.
func drain(fd, flags int) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), 0, streamChunk, uintptr(unix.MSG_TRUNC|flags), 0, 0)
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

// stream sends as much as it can on several connections.
func stream(to unix.Sockaddr, o *ConnectionOrder, a *ConnectionAnswer) error {
	var fds []int
	for range o.Count {
		fd, err := connectTo(to)
		if err != nil {
			return errors.Join(err, closeAll(fds))
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
	return errors.Join(append(errs, closeAll(fds))...)
}

// upload begins to send as much as it can, until the client has gone.
func upload(poll, fd int) {
	err := errors.Join(unix.EpollCtl(poll, unix.EPOLL_CTL_DEL, fd, nil), unix.SetNonblock(fd, false))
	go func() {
		for chunk := make([]byte, streamChunk); err == nil; {
			_, err = unix.Write(fd, chunk)
		}
		_ = unix.Close(fd)
	}()
}

// download takes as much as it can on one connection. It counts after a fifth of the time, when the connection has its speed.
func download(to unix.Sockaddr, o *ConnectionOrder, a *ConnectionAnswer) error {
	fd, err := connectTo(to)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte{ofDownload})
	began := time.Now()
	counted := began.Add(o.For / 5)
	for err == nil && time.Since(began) < o.For {
		var n int
		if n, err = drain(fd, 0); err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if time.Now().After(counted) {
			a.Bytes += int64(n)
		}
	}
	a.Connections, a.PerSecond = 1, float64(a.Bytes)/time.Since(counted).Seconds()
	return errors.Join(err, unix.Close(fd))
}

// datagramWait is how long a datagram may be on its way before it counts as lost.
const datagramWait = 20 * time.Millisecond

// datagrams sends so many datagrams of a byte at a time, and counts those that come back.
func datagrams(to unix.Sockaddr, o *ConnectionOrder, a *ConnectionAnswer) error {
	fd, err := newSocket(unix.SOCK_DGRAM)
	if err != nil {
		return err
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
	return errors.Join(err, unix.Close(fd))
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
