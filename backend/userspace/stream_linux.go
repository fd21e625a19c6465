package userspace

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// streamListener accepts the TCP connections of one family and class.
type streamListener struct {
	kind  plan.Kind
	class plan.Class
	at    netip.AddrPort
	// frontend is the only one that it serves, if it is valid.
	frontend netip.AddrPort
	socket   *socket
}

func (r *relay) addStreams(kind plan.Kind, class plan.Class, at, frontend netip.AddrPort, fd int) error {
	s, err := newSocket(fd)
	if err != nil {
		return err
	}
	if err := s.control(prepare); err != nil {
		s.file.Close()
		return err
	}
	r.streams = append(r.streams, &streamListener{kind, class, at, frontend, s})
	return nil
}

// acceptPause is how long nothing is accepted after a failure, such as for want of file descriptors.
const acceptPause = 50 * time.Millisecond

// accept accepts connections until the listener is closed or the relay moves.
func (r *relay) accept(l *streamListener) {
	select {
	case <-r.started:
	case <-r.ctx.Done():
		return
	}
	failing := false
	for {
		fd, peer, err := l.next()
		if err == nil {
			failing = false
			r.awaitRoom()
			r.running.Go(func() { r.serve(l, fd, peer) })
			continue
		}
		switch {
		case errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded):
			return
		case !failing && !errors.Is(err, unix.ECONNABORTED):
			failing = true
			r.log.Warn("cannot accept connections, trying again", "listener", l.at, "error", err)
		}
		select {
		case <-time.After(acceptPause):
		case <-r.ctx.Done():
			return
		}
	}
}

// awaitRoom waits until there may be one more connection, and counts it. Those that come after it wait in the kernel meanwhile.
func (r *relay) awaitRoom() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.open >= r.o.MaxConnections && !r.moving && r.ctx.Err() == nil {
		r.room.Wait()
	}
	r.open++
}

func (r *relay) returnRoom() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	r.room.Signal()
}

func (l *streamListener) next() (fd int, peer netip.AddrPort, err error) {
	var sa unix.Sockaddr
	waitErr := l.socket.raw.Read(func(listener uintptr) bool {
		fd, sa, err = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return -1, peer, waitError(waitErr)
	}
	return fd, addrPort(sa), os.NewSyscallError("accept4", err)
}

// conn is a TCP connection of a client that is continued to an endpoint.
type conn struct {
	choice
	kind   plan.Kind
	client netip.AddrPort
	// ends are the sockets of the client and of the endpoint, and from what has come from each.
	ends [2]*socket
	from [2]direction
	// moved is set when the connection is to go on in another process, and rested is closed when it is ready to.
	moved  atomic.Bool
	rested chan struct{}
	// resting is set before rested is closed if there is something to go on with.
	resting bool
	broken  atomic.Bool
	once    sync.Once
}

// direction is how far the data of one end has got.
type direction struct {
	// pending is for the other end, before all that is still in the socket.
	pending []byte
	// ended is set once the other end knows that nothing more comes.
	ended bool
}

// serve finds an endpoint for a connection, and relays it. It counts in r.open already.
func (r *relay) serve(l *streamListener, fd int, peer netip.AddrPort) {
	defer r.returnRoom()
	client, err := newSocket(fd)
	if err != nil {
		return
	}
	dst := l.frontend
	if !dst.IsValid() {
		err = client.control(func(fd int) (err error) { dst, err = destination(fd, l.kind.Family); return err })
	}
	if err != nil || dst == l.at {
		// It was not translated: somebody has connected to the relay itself.
		client.reset()
		client.file.Close()
		return
	}
	c := &conn{kind: l.kind, client: peer, rested: make(chan struct{})}
	c.ends[0] = client
	o := r.options()
	q := request{kind: l.kind, class: l.class, client: peer, dst: dst, unguarded: l.frontend.IsValid()}
	for range o.DialAttempts {
		var ok bool
		if c.choice, ok = r.choose(&q); !ok {
			break
		}
		if c.ends[1], err = r.dial(l.kind, c.endpoint, o.DialTimeout); err == nil {
			break
		}
		r.end(c.endpoint)
		if r.ctx.Err() != nil {
			break
		}
		q.tried = append(q.tried, c.endpoint)
	}
	if c.ends[1] == nil {
		client.reset()
		client.file.Close()
		return
	}
	if o.ProxyProtocol {
		c.from[0].pending = proxyHeader(peer, dst)
	}
	r.relay(c)
}

// dial connects to an endpoint.
func (r *relay) dial(k plan.Kind, to netip.AddrPort, timeout time.Duration) (*socket, error) {
	fd, err := r.maker.socket(k)
	if err != nil {
		return nil, err
	}
	s, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	if err = s.control(prepare); err == nil {
		err = s.connect(to, time.Now().Add(timeout))
	}
	r.dialed(to, err)
	if err != nil {
		s.file.Close()
		return nil, err
	}
	return s, nil
}

// relay copies both ways until both ends have nothing more to say, one of them breaks, or the connection moves.
func (r *relay) relay(c *conn) {
	r.note(c)
	if r.ctx.Err() != nil {
		c.abort()
	}
	var other sync.WaitGroup
	other.Go(func() { c.finish(c.copy(1)) })
	c.finish(c.copy(0))
	other.Wait()
	defer close(c.rested)
	if c.resting = c.moved.Load() && !c.broken.Load() && !(c.from[0].ended && c.from[1].ended); c.resting {
		return
	}
	c.done()
	r.forget(c)
}

func (r *relay) note(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.conns[c.port.Service]
	if of == nil {
		of = map[*conn]bool{}
		r.conns[c.port.Service] = of
	}
	of[c] = true
}

// forget takes a connection off the books. It counts in r.open still.
func (r *relay) forget(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.conns[c.port.Service]
	if delete(of, c); len(of) == 0 {
		delete(r.conns, c.port.Service)
	}
	r.loads.End(c.endpoint)
}

// finish sees to the end of one direction: after a failure, the other one ends as well, and so do both sockets, by a reset.
func (c *conn) finish(err error) {
	if err != nil && !(c.moved.Load() && errors.Is(err, os.ErrDeadlineExceeded)) {
		c.abort()
	}
}

// abort ends a connection by a reset of both ends.
func (c *conn) abort() {
	c.broken.Store(true)
	for _, s := range c.ends {
		if s != nil {
			s.reset()
		}
	}
	c.done()
}

func (c *conn) done() {
	c.once.Do(func() {
		for _, s := range c.ends {
			if s != nil {
				s.file.Close()
			}
		}
	})
}

// copy moves what comes from one end to the other, until there is no more. After an error, what could not be passed on is in from.
func (c *conn) copy(i int) error {
	d, src, dst := &c.from[i], c.ends[i], c.ends[1-i]
	if len(d.pending) > 0 {
		n, err := dst.file.Write(d.pending)
		d.pending = d.pending[n:]
		if err != nil {
			return err
		}
		d.pending = nil
	}
	for !d.ended {
		p, n, err := src.spliceIn()
		if err != nil {
			return err
		}
		if n == 0 {
			d.ended = true
			return dst.control(func(fd int) error { return os.NewSyscallError("shutdown", unix.Shutdown(fd, unix.SHUT_WR)) })
		}
		left, err := dst.spliceOut(p, n)
		if err != nil {
			if c.moved.Load() {
				d.pending = p.take(left)
			}
			p.close()
			return err
		}
		p.release()
	}
	return nil
}

// pipe is what data goes through from one socket to another without being copied.
type pipe struct{ r, w int }

// pipes are some that are empty.
var pipes = make(chan *pipe, 256)

// pipeSize is how many bytes one may hold, if the system allows that.
const pipeSize = 256 << 10

func newPipe() (*pipe, error) {
	select {
	case p := <-pipes:
		return p, nil
	default:
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // it works with any size
	return &pipe{fds[0], fds[1]}, nil
}

// release makes an empty pipe one for the next that needs one.
func (p *pipe) release() {
	select {
	case pipes <- p:
	default:
		p.close()
	}
}

func (p *pipe) close() {
	unix.Close(p.r)
	unix.Close(p.w)
}

// take returns the n bytes that are in the pipe.
func (p *pipe) take(n int) []byte {
	b := make([]byte, n)
	for at := 0; at < n; {
		m, err := unix.Read(p.r, b[at:])
		if err == unix.EINTR {
			continue
		}
		if m <= 0 || err != nil {
			return b[:at]
		}
		at += m
	}
	return b
}

const spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK

// spliceIn waits for data and moves some of it into a pipe. There is none at the end, and then n is 0.
func (s *socket) spliceIn() (p *pipe, n int, err error) {
	waitErr := s.raw.Read(func(fd uintptr) bool {
		if p, err = newPipe(); err != nil {
			return true
		}
		for {
			m, errSplice := unix.Splice(int(fd), nil, p.w, nil, pipeSize, spliceFlags)
			if n, err = int(m), errSplice; err != unix.EINTR {
				break
			}
		}
		if err != nil || n == 0 {
			p.release()
			p = nil
		}
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return nil, 0, waitError(waitErr)
	}
	if err != nil {
		return nil, 0, os.NewSyscallError("splice", err)
	}
	return p, n, nil
}

// spliceOut moves n bytes from a pipe into the socket. left is how many are still in the pipe.
func (s *socket) spliceOut(p *pipe, n int) (left int, err error) {
	left = n
	waitErr := s.raw.Write(func(fd uintptr) bool {
		for left > 0 {
			m, errSplice := unix.Splice(p.r, nil, int(fd), nil, left, spliceFlags)
			switch err = errSplice; err {
			case nil:
				left -= int(m)
			case unix.EINTR:
			default:
				return err != unix.EAGAIN
			}
		}
		return true
	})
	if waitErr != nil {
		return left, waitError(waitErr)
	}
	return left, os.NewSyscallError("splice", err)
}

// proxyHeader returns a header of the PROXY protocol, version 2, that names a TCP client and the address that it has connected to.
func proxyHeader(client, dst netip.AddrPort) []byte {
	b := []byte("\r\n\r\n\x00\r\nQUIT\n\x21") // version 2, a connection of somebody else
	if state.FamilyOf(client.Addr()) == state.IPv4 {
		b = append(b, 0x11, 0, 12)
	} else {
		b = append(b, 0x21, 0, 36)
	}
	b = append(append(b, client.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	return append(b, byte(client.Port()>>8), byte(client.Port()), byte(dst.Port()>>8), byte(dst.Port()))
}
