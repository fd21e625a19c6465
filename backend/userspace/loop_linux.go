package userspace

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
)

// loop waits for the sockets of many connections and moves their data. Each processor has one loop. A waiting connection has neither a
// goroutine nor a buffer, and no message passes from one goroutine to another.
type loop struct {
	// poll is an epoll instance. run waits for it in the kernel, with a thread of its own. If the runtime waited, each message would cause two
	// waits, and one thread would wake another.
	poll *socket
	// wake is an eventfd: something in it ends run.
	wake  *socket
	relay *relay
	// carried is how many connections are its own.
	carried atomic.Int32
	// events and unfinished belong to run. The latter are connections with more data than is moved at a time.
	events     [64]unix.EpollEvent
	unfinished []*conn

	mu sync.Mutex // guards all below
	// conns and listeners are by the file descriptors of the sockets that are watched.
	conns     map[int]*conn
	listeners map[int]*streamListener
}

func newLoop(r *relay) (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	l := &loop{relay: r, conns: map[int]*conn{}, listeners: map[int]*streamListener{}}
	if l.poll, err = newSocket(fd); err != nil {
		return nil, err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		l.poll.file.Close()
		return nil, os.NewSyscallError("eventfd2", err)
	}
	if l.wake, err = newSocket(wake); err != nil {
		l.poll.file.Close()
		return nil, err
	}
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, wake, &e); err != nil {
		return nil, errors.Join(os.NewSyscallError("epoll_ctl", err), l.close())
	}
	return l, nil
}

// close comes after run has returned for good.
func (l *loop) close() error { return errors.Join(l.poll.file.Close(), l.wake.file.Close()) }

// run moves data until the loop is stopped.
func (l *loop) run() {
	_ = l.poll.control(func(poll int) error {
		return l.wake.control(func(wake int) error {
			for l.turn(poll, wake) {
			}
			_, err := unix.Read(wake, make([]byte, 8))
			return err
		})
	})
}

// turn handles what has happened, and waits for it if nothing has. It reports false if the loop is to stop.
func (l *loop) turn(poll, wake int) (goOn bool) {
	l.unfinished = slices.DeleteFunc(l.unfinished, func(c *conn) bool {
		c.unfinished = c.goOn()
		return !c.unfinished
	})
	timeout := -1
	if len(l.unfinished) > 0 {
		timeout = 0
	}
	n, _ := unix.EpollWait(poll, l.events[:], timeout) // on what newLoop has made, it does not fail but for a signal
	now := int64(time.Since(l.relay.began))
	goOn = true
	for _, e := range l.events[:max(n, 0)] {
		if int(e.Fd) == wake {
			goOn = false
			continue
		}
		c, s := l.watched(&e)
		if c != nil {
			c.used.Store(now)
		}
		if s != nil {
			l.accept(s)
		}
		if c != nil && c.handle(int(e.Fd), e.Events) && !c.unfinished {
			c.unfinished = true
			l.unfinished = append(l.unfinished, c)
		}
	}
	return goOn
}

// acceptAtOnce is how many connections a loop accepts at most in a turn.
const acceptAtOnce = 64

// accept accepts a connection that waits, and leaves others to loops that wait. But a loop with much data to move is not back for long, and the other loops
// may be as busy.
func (l *loop) accept(s *streamListener) {
	for n := 1; l.relay.accept(s, l) && len(l.unfinished) > 0 && n < acceptAtOnce; n++ {
	}
}

// stop has run return after the current event, or at once if it begins later. Events are kept until it runs again.
func (l *loop) stop() { _, _ = l.wake.file.Write(binary.NativeEndian.AppendUint64(nil, 1)) }

// watched returns the connection of an event, or the listener. Both are nil if the socket has been closed: another connection may have the file
// descriptor by then.
func (l *loop) watched(e *unix.EpollEvent) (*conn, *streamListener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.conns[int(e.Fd)]; c != nil && c.number == uint32(e.Pad) {
		return c, nil
	}
	return nil, l.listeners[int(e.Fd)]
}

// listen begins to accept connections of a listener, or ends it. One that waits wakes one of the loops that do nothing.
func (l *loop) listen(s *streamListener, on bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	op := unix.EPOLL_CTL_ADD
	if !on {
		op = unix.EPOLL_CTL_DEL
		delete(l.listeners, s.fd)
	} else {
		l.listeners[s.fd] = s
	}
	return l.poll.control(func(poll int) error {
		e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: int32(s.fd)}
		return os.NewSyscallError("epoll_ctl", unix.EpollCtl(poll, op, s.fd, &e))
	})
}

// watch has run handle events of a socket, each once, and first those that there are already.
func (l *loop) watch(c *conn, fd int, events uint32, op int) error {
	if op == unix.EPOLL_CTL_ADD {
		l.mu.Lock()
		l.conns[fd] = c
		l.mu.Unlock()
	}
	return l.poll.control(func(poll int) error {
		e := unix.EpollEvent{Events: events | unix.EPOLLET, Fd: int32(fd), Pad: int32(c.number)}
		return os.NewSyscallError("epoll_ctl", unix.EpollCtl(poll, op, fd, &e))
	})
}

// forget must be called before a socket is closed. Closing it ends the watch, unless another process also has the
// socket.
func (l *loop) forget(fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, fd)
}

// all returns the connections.
func (l *loop) all() (conns []*conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		conns = append(conns, c)
	}
	return conns
}

// newConn returns a connection without sockets. It belongs to the loop that accepted it, unless that loop is nil or another one has fewer
// connections. So a short connection ends where it was accepted, and long connections spread over the loops.
func (r *relay) newConn(kind plan.Kind, client netip.AddrPort, l *loop) *conn {
	for _, other := range r.polls {
		if l == nil || other.carried.Load() < l.carried.Load() {
			l = other
		}
	}
	l.carried.Add(1)
	c := &conn{relay: r, loop: l, number: r.begun.Add(1), kind: kind, client: client}
	c.used.Store(int64(time.Since(r.began)))
	return c
}

// poll has the loops run.
func (r *relay) poll() {
	for _, l := range r.polls {
		r.polling.Go(l.run)
	}
}

// halt ends what the loops do.
func (r *relay) halt() {
	for _, l := range r.polls {
		l.stop()
	}
	r.polling.Wait()
}

// newLoops makes a loop for each processor.
func (r *relay) newLoops() (loops []*loop, err error) {
	for range processors.have() {
		l, err := newLoop(r)
		if err != nil {
			return nil, errors.Join(err, closeLoops(loops))
		}
		loops = append(loops, l)
	}
	return loops, nil
}

func closeLoops(loops []*loop) (err error) {
	for _, l := range loops {
		err = errors.Join(err, l.close())
	}
	return err
}

// processors are the processors of the runtime (GOMAXPROCS). A thread that waits in the kernel keeps one for up to 20 ms, until the
// runtime notices. With no more processors than loops, all other goroutines would wait for so long when connections are busy. So the
// relay adds one processor for each loop. Once the number has been set, the runtime no longer follows the CPU limit of the cgroup.
var processors counter

type counter struct {
	mu    sync.Mutex
	loops int
}

// have returns how many processors there are without the processors of loops.
func (c *counter) have() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(1, runtime.GOMAXPROCS(0)-c.loops)
}

// add adds the processors of n loops, or takes them away.
func (c *counter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loops += n
	runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)+n))
}
