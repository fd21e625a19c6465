package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"syscall"
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
	doDatagrams  = "datagrams"   // UDP: so many on their way at once, which come back
	doHold       = "hold"        // not measured: so many connections, which stay open until the next order of this kind
)

// connectionOrder has a worker do something for some time. From is the number of the namespace, of those that the worker was started with.
type connectionOrder struct {
	Do   string
	From int
	To   netip.AddrPort
	For  time.Duration
	// Count is of what is done at once.
	Count int
}

// connectionAnswer is what came of an order.
type connectionAnswer struct {
	// Error is why it could not be done, empty otherwise.
	Error string
	// P10, P50 and P99 are percentiles of what is timed.
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

// connectionTimes is for how many times of one order there is room.
const connectionTimes = 1 << 18

// rateOver is over how many in a row a rate is taken: 100 connections take less time than a process mostly has the processor for.
const rateOver = 100

// MeasureConnections does what orders on stdin say until that ends, and answers on stdout. It is a process of its own because a socket is in
// the cgroup of the process that makes it. The files from number 3 on are network namespaces.
func MeasureConnections(stdin io.Reader, stdout io.Writer) error {
	debug.SetGCPercent(-1) // there is nothing to collect, and it would be measured
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	times := make([]time.Duration, connectionTimes)
	var held []int
	runtime.LockOSThread() // a thread is in a namespace, and no other one is asked for here
	for {
		var o connectionOrder
		if err := in.Decode(&o); err != nil {
			return nil // the process that gives orders is gone
		}
		var a connectionAnswer
		err := os.NewSyscallError("setns", unix.Setns(firstFile+o.From, unix.CLONE_NEWNET))
		switch {
		case err != nil:
		case o.Do == doHold:
			held, err = hold(held, &o)
		default:
			a, err = o.carryOut(times)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// firstFile is the number of the first file that a process gets in addition to its standard ones.
const firstFile = 3

func (o *connectionOrder) carryOut(times []time.Duration) (a connectionAnswer, err error) {
	var once func() (time.Duration, error)
	finish := func() error { return nil }
	to := &unix.SockaddrInet4{Port: int(o.To.Port()), Addr: o.To.Addr().As4()}
	switch o.Do {
	case doServe:
		return a, errors.Join(serveBytes(to), serveDatagrams(to))
	case doStream:
		return stream(to, o)
	case doDatagrams:
		return datagrams(to, o)
	case doTCPConnect:
		once = func() (time.Duration, error) { return connectOnce(unix.SOCK_STREAM, to) }
	case doUDPConnect:
		once = func() (time.Duration, error) { return connectOnce(unix.SOCK_DGRAM, to) }
	case doRequest:
		once = func() (time.Duration, error) { return requestOnce(to) }
	case doReconnect, doPing:
		fd, err := newSocket(unix.SOCK_STREAM)
		if err != nil {
			return a, err
		}
		finish = func() error { return unix.Close(fd) }
		if err := unix.Connect(fd, to); err != nil {
			return a, errors.Join(err, finish())
		}
		a.Connections = 1
		once = func() (time.Duration, error) { return pingOnce(fd) }
		if o.Do == doReconnect {
			once = func() (time.Duration, error) { return reconnectOnce(fd, to) }
		}
	default:
		return a, fmt.Errorf("no order is named %q", o.Do)
	}
	began := time.Now()
	last, done := began, 0
	for done < len(times) && time.Since(began) < o.For && err == nil {
		times[done], err = once()
		if done++; done%rateOver == 0 {
			now := time.Now()
			a.Rate, last = max(a.Rate, rateOver/now.Sub(last).Seconds()), now
		}
	}
	a.Times, a.PerSecond = done, float64(done)/time.Since(began).Seconds()
	if err = errors.Join(err, finish()); err != nil {
		return a, fmt.Errorf("%s to %v: %w", o.Do, o.To, err)
	}
	if o.Do != doPing {
		a.Connections += done
	}
	a.P10, a.P50, a.P99 = Percentile(times[:done], 10), Percentile(times[:done], 50), Percentile(times[:done], 99)
	return a, nil
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
			answerByte(fd)
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
func answerByte(fd int) {
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	for ; n > 0 && b[0] == ofStream; n, err = drain(fd) {
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

// connectionWorker is a process that makes or answers connections.
type connectionWorker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *json.Encoder
	in    *json.Decoder
}

// startConnectionWorker starts a process in a cgroup, or in this process's cgroup if cgroup is nil.
func startConnectionWorker(cmd *exec.Cmd, cgroup *os.File, namespaces []*os.File) (*connectionWorker, error) {
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, namespaces
	cmd.Env = append(cmd.Environ(), "GODEBUG=asyncpreemptoff=1") // its signals would interrupt system calls
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process that makes connections: %w", err)
	}
	return &connectionWorker{cmd, in, json.NewEncoder(in), json.NewDecoder(out)}, nil
}

func (w *connectionWorker) do(ctx context.Context, o connectionOrder) (a connectionAnswer, err error) {
	if err = w.ask(ctx, o, &a); err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

// ask sends an order and waits for the answer.
func (w *connectionWorker) ask(ctx context.Context, order, answer any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.out.Encode(order); err != nil {
		return err
	}
	return w.in.Decode(answer)
}

func (w *connectionWorker) close() error { return errors.Join(w.stdin.Close(), w.cmd.Wait()) }
