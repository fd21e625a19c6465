package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// maker opens sockets in the network namespace in which it was made, whichever thread asks.
type maker struct {
	// direct is set if that is the namespace of the whole process: then the thread that asks opens the socket. Otherwise threads of the maker do, ahead of
	// time, but each socket costs a switch to one.
	direct bool
	// mark is the mark of the packets of its sockets.
	mark    int
	ready   map[plan.Kind]chan made
	stop    chan struct{}
	running sync.WaitGroup
}

// made is a socket, or why there is none.
type made struct {
	fd  int
	err error
}

// kinds are the kinds of sockets that endpoints are connected to.
var kinds = []plan.Kind{
	{Family: state.IPv4, Protocol: state.TCP}, {Family: state.IPv4, Protocol: state.UDP},
	{Family: state.IPv6, Protocol: state.TCP}, {Family: state.IPv6, Protocol: state.UDP},
}

// madeAhead is how many sockets of each kind are there before they are asked for.
const madeAhead = 16

func newMaker(mark int) (*maker, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	m := &maker{mark: mark, ready: map[plan.Kind]chan made{}, stop: make(chan struct{})}
	if m.direct, err = ofAllThreads(ns); err != nil || m.direct {
		return m, err
	}
	for _, k := range kinds {
		m.ready[k] = make(chan made, madeAhead)
	}
	entered := make(chan error)
	for _, k := range kinds {
		m.running.Go(func() { m.run(ns, k, entered) })
	}
	for range kinds {
		err = errors.Join(err, <-entered)
	}
	if err != nil {
		m.close()
		return nil, fmt.Errorf("enter the network namespace: %w", err)
	}
	return m, nil
}

// run makes sockets of one kind on a thread that ends with it.
func (m *maker) run(ns *os.File, k plan.Kind, entered chan<- error) {
	runtime.LockOSThread()
	err := enter(ns)
	entered <- err
	if err != nil {
		return
	}
	for {
		fd, err := m.open(k)
		select {
		case m.ready[k] <- made{fd, err}:
		case <-m.stop:
			if err == nil {
				unix.Close(fd)
			}
			return
		}
	}
}

// enter moves the calling thread into a network namespace. Mostly it is in it already, and needs no right for that.
func enter(ns *os.File) error {
	if same, err := sameNamespace(ns, "/proc/thread-self/ns/net"); same || err != nil {
		return err
	}
	return os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET))
}

// ofAllThreads reports whether all threads of this process are in a namespace: then so are those that come. One that has left it, as tests have them,
// may be any, also the first.
func ofAllThreads(ns *os.File) (bool, error) {
	paths, err := filepath.Glob("/proc/self/task/*/ns/net")
	for _, path := range paths {
		same, err := sameNamespace(ns, path)
		if !same && !errors.Is(err, unix.ENOENT) { // else the thread has just ended
			return false, err
		}
	}
	return len(paths) > 0, err
}

// sameNamespace reports whether a path leads to a namespace.
func sameNamespace(ns *os.File, path string) (bool, error) {
	var want, have unix.Stat_t
	err := errors.Join(unix.Fstat(int(ns.Fd()), &want), unix.Stat(path, &have))
	return err == nil && want.Ino == have.Ino && want.Dev == have.Dev, err
}

func (m *maker) close() {
	close(m.stop)
	m.running.Wait() // ready has all its sockets then
	for _, ready := range m.ready {
		for {
			select {
			case s := <-ready:
				if s.err == nil {
					unix.Close(s.fd)
				}
				continue
			default:
			}
			break
		}
	}
}

// socket returns a new socket.
func (m *maker) socket(k plan.Kind) (int, error) {
	if m.direct {
		return m.open(k)
	}
	select {
	case s := <-m.ready[k]:
		return s.fd, s.err
	case <-m.stop:
		return -1, os.ErrClosed
	}
}

// open opens a socket on the calling thread.
func (m *maker) open(k plan.Kind) (int, error) {
	fd, err := openSocket(k)
	if err != nil || m.mark == 0 {
		return fd, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, m.mark); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("setsockopt SO_MARK", err)
	}
	return fd, nil
}

func openSocket(k plan.Kind) (int, error) {
	family, typ := unix.AF_INET, unix.SOCK_STREAM
	if k.Family == state.IPv6 {
		family = unix.AF_INET6
	}
	if k.Protocol == state.UDP {
		typ = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return fd, os.NewSyscallError("socket", err)
}

// preferredPorts are what the relay listens on, by class, unless something else has them. They are beyond NodePorts and what
// kernels give to clients.
var preferredPorts = [2]uint16{61871, 61872}

// bindPatience is how long a starting relay waits for its ports: the ports of a process that was killed are free in a moment.
const bindPatience = 200 * time.Millisecond

// listen opens a socket that listens, on the calling thread. It waits for the preferred port until patience ends.
//
// A process that has a port of the relay before it starts gets nothing for it: the base learns where the relay is.
func listen(k plan.Kind, addr netip.Addr, class plan.Class, patience time.Time) (fd int, at netip.AddrPort, err error) {
	fd, at, err = bindTo(k, netip.AddrPortFrom(addr, preferredPorts[class]))
	for errors.Is(err, unix.EADDRINUSE) && time.Now().Before(patience) {
		time.Sleep(bindPatience / 20)
		fd, at, err = bindTo(k, netip.AddrPortFrom(addr, preferredPorts[class]))
	}
	if errors.Is(err, unix.EADDRINUSE) {
		fd, at, err = bindTo(k, netip.AddrPortFrom(addr, 0))
	}
	if err != nil {
		err = fmt.Errorf("listen on %v: %w", addr, err)
	}
	return fd, at, err
}

// backlog is how many connections may wait to be accepted; the kernel takes the lower of this and somaxconn.
const backlog = 4096

// bindTo opens a socket that listens on an address.
func bindTo(k plan.Kind, want netip.AddrPort) (fd int, at netip.AddrPort, err error) {
	if fd, err = openSocket(k); err != nil {
		return -1, at, err
	}
	if err = bind(fd, k, want); err == nil && k.Protocol == state.TCP {
		err = os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	if err == nil {
		at, err = boundTo(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, at, err
	}
	return fd, at, nil
}

// bind gives a socket an address.
func bind(fd int, k plan.Kind, want netip.AddrPort) error {
	if k.Protocol == state.TCP {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(want)))
}

func boundTo(fd int) (netip.AddrPort, error) {
	sa, err := syscall.Getsockname(fd)
	return addrPort(sa), os.NewSyscallError("getsockname", err)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// addrPort converts an address of package syscall. Package unix would also ask the kernel for the protocol of each
// socket.
func addrPort(sa syscall.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// socket is an open socket whose operations wait without a thread, or what a loop waits for in the kernel.
type socket struct {
	file *os.File
	raw  syscall.RawConn
}

// newSocket takes over a file descriptor that does not block. After an error it is closed.
func newSocket(fd int) (*socket, error) {
	file := os.NewFile(uintptr(fd), "socket")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &socket{file, raw}, nil
}

// control calls fn with the file descriptor. It fails if the socket is closed.
func (s *socket) control(fn func(fd int) error) error {
	var inner error
	if err := s.raw.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return waitError(err)
	}
	return inner
}

// waitError returns why a wait for a socket has ended. If its deadline has not passed, the socket was closed, for which package os has an
// error of its own here.
func waitError(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return os.ErrClosed
}

// The bounds of a socket's buffers, for each direction. The kernel counts its own overhead, so these bytes are about
// twice the data. Without bounds, each buffer can grow to net.ipv4.tcp_rmem and tcp_wmem: to several MiB for each
// connection that somebody does not read from.
const (
	// mostBuffer is for a connection among few.
	mostBuffer = 1 << 20
	// leastBuffer is for a connection among many.
	leastBuffer = 16 << 10
	// buffersOfConn is how many buffers a connection has: two sockets, each way.
	buffersOfConn = 4
	// mostShared is what bufferOf divides at most.
	mostShared = 256 << 20
)

// sharedBuffers is the memory that connections share as long as each may have more than leastBuffer. It is a small part of the process's
// memory, because older connections keep their buffers.
func (o *Options) sharedBuffers() int {
	if o.Memory <= 0 {
		return mostShared
	}
	return int(min(o.Memory/32, mostShared))
}

// bufferOf is how large each buffer of a connection's sockets may become, with so many other connections.
func bufferOf(shared, conns int) int {
	return min(max(shared/buffersOfConn/max(conns, 1), leastBuffer), mostBuffer)
}

// withinMemory lowers MaxConnections to as many as may hold leastBuffer in all of their buffers in half of the memory.
func (o Options) withinMemory() Options {
	if o.Memory > 0 {
		o.MaxConnections = min(o.MaxConnections, max(int(o.Memory/2/buffersOfConn/leastBuffer), 1))
	}
	return o
}

// bound sets how large the buffers of a TCP socket may become, each way.
func bound(fd, bytes int) {
	for _, way := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, way[0], bytes/2) != nil { // the kernel doubles it
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, way[1], bytes/2) // without the right, net.core.rmem_max and wmem_max also apply
		}
	}
}

// prepare sets the options of all TCP sockets of the relay. Data is sent without delay, and a dead peer is noticed. Accepted sockets
// inherit the options from their listener.
func prepare(fd int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepIdle),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepInterval),
	)
}

// Seconds without data until an end is asked whether it is still there, and between questions.
const (
	keepIdle     = 60
	keepInterval = 15
)

// Of linux/netfilter_ipv4.h and linux/netfilter_ipv6/ip6_tables.h.
const originalDst = 80

// destination returns where an accepted connection was addressed to, before it was translated.
func destination(fd int, f state.Family) (netip.AddrPort, error) {
	// The values of the options are a struct sockaddr_in and a struct sockaddr_in6. Package unix has them as parts of other types.
	if f == state.IPv4 {
		v, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, originalDst)
		if err != nil {
			return netip.AddrPort{}, os.NewSyscallError("getsockopt SO_ORIGINAL_DST", err)
		}
		b := v.Multiaddr
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
	}
	v, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, originalDst)
	if err != nil {
		return netip.AddrPort{}, os.NewSyscallError("getsockopt IP6T_SO_ORIGINAL_DST", err)
	}
	port := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v.Addr.Port))
	return netip.AddrPortFrom(netip.AddrFrom16(v.Addr.Addr), port), nil
}
