package userspace

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
)

// loop waits for the sockets of many connections and moves their data. There is one for each processor: a connection that waits has neither a goroutine nor
// a buffer, and nothing is handed from one goroutine to another for a message.
type loop struct {
	// poll is an epoll instance, for which the runtime waits as for a socket.
	poll *socket
	// events and unfinished belong to run. The latter are connections with more data than is moved at a time.
	events     [64]unix.EpollEvent
	unfinished []*conn

	mu    sync.Mutex    // guards conns
	conns map[int]*conn // by the file descriptor of each socket that is watched
}

func newLoop() (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	l := &loop{conns: map[int]*conn{}}
	if err := unix.SetNonblock(fd, true); err != nil { // the runtime waits for nothing else
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	if l.poll, err = newSocket(fd); err != nil {
		return nil, err
	}
	return l, nil
}

// run moves data until the loop is stopped or closed.
func (l *loop) run() {
	for l.poll.raw.Read(func(fd uintptr) bool { return l.turn(int(fd)) }) == nil {
	}
}

// turn handles what has happened. It reports whether there is more to do.
func (l *loop) turn(poll int) (more bool) {
	l.unfinished = slices.DeleteFunc(l.unfinished, func(c *conn) bool {
		c.unfinished = c.goOn()
		return !c.unfinished
	})
	n, _ := unix.EpollWait(poll, l.events[:], 0) // it does not fail on what newLoop has made
	for _, e := range l.events[:max(n, 0)] {
		if c := l.watched(&e); c != nil && c.handle(int(e.Fd), e.Events) && !c.unfinished {
			c.unfinished = true
			l.unfinished = append(l.unfinished, c)
		}
	}
	return n == len(l.events) || len(l.unfinished) > 0
}

// stop has run return after what it is doing. What happens until start is kept.
func (l *loop) stop() { _ = l.poll.file.SetReadDeadline(past) }

// start lets run be called again.
func (l *loop) start() { _ = l.poll.file.SetReadDeadline(time.Time{}) }

// watched returns the connection of an event, nil if its socket has been closed. Another connection may have the file descriptor by then.
func (l *loop) watched(e *unix.EpollEvent) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.conns[int(e.Fd)]; c != nil && c.number == uint32(e.Pad) {
		return c
	}
	return nil
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

// forget is called before a socket is closed, which ends what watch has begun, unless another process has the socket as well.
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

// newConn returns a connection with neither of its sockets.
func (r *relay) newConn(kind plan.Kind, client netip.AddrPort) *conn {
	n := r.begun.Add(1)
	return &conn{relay: r, loop: r.polls[n%uint32(len(r.polls))], number: n, kind: kind, client: client}
}

// poll has the loops run.
func (r *relay) poll() {
	for _, l := range r.polls {
		l.start()
		r.polling.Go(l.run)
	}
}

// pause ends what the loops do.
func (r *relay) pause() {
	for _, l := range r.polls {
		l.stop()
	}
	r.polling.Wait()
}

// newLoops makes so many loops.
func newLoops(n int) (loops []*loop, err error) {
	for range n {
		l, err := newLoop()
		if err != nil {
			return nil, errors.Join(err, closeLoops(loops))
		}
		loops = append(loops, l)
	}
	return loops, nil
}

func closeLoops(loops []*loop) (err error) {
	for _, l := range loops {
		err = errors.Join(err, l.poll.file.Close())
	}
	return err
}
