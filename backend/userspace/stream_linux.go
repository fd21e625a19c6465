package userspace

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/drain"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
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
	// fd is watched by all loops while its connections are accepted.
	fd int
	// failing is set from a failure to accept a connection until one is accepted.
	failing atomic.Bool
	// accepting is set while loops watch it, and pausing for a moment after a failure. The relay's mu guards both.
	accepting, pausing bool
}

func (r *relay) addStreams(kind plan.Kind, class plan.Class, at, frontend netip.AddrPort, fd int) error {
	if err := prepare(fd); err != nil {
		unix.Close(fd)
		return err
	}
	bound(fd, mostBuffer) // for those that it accepts, whose handshake goes by it
	r.streams = append(r.streams, &streamListener{kind: kind, class: class, at: at, frontend: frontend, fd: fd})
	return nil
}

// acceptPause is how long nothing is accepted from a listener after a failure, such as a lack of file descriptors.
const acceptPause = 50 * time.Millisecond

// reconsider has the loops accept connections, or leaves these to wait in the kernel, by what holds now. It is called whenever that may have changed. The
// caller holds mu.
func (r *relay) reconsider() {
	want := r.listening && r.hasStarted() && r.ctx.Err() == nil
	if want == r.accepting {
		return
	}
	r.accepting = want
	for _, s := range r.streams {
		r.reconsiderOf(s)
	}
}

// reconsiderOf is reconsider for one listener, which may be pausing. The caller holds mu.
func (r *relay) reconsiderOf(s *streamListener) {
	want := r.accepting && !s.pausing
	if want == s.accepting {
		return
	}
	s.accepting = want
	for _, l := range r.polls {
		if err := l.listen(s, want); err != nil && want {
			r.pause(s, err)
			return
		}
	}
}

// pause has nothing accepted from a listener for a while after a failure. The caller holds mu.
func (r *relay) pause(s *streamListener, err error) {
	if !s.failing.Swap(true) {
		r.log.Warn("cannot accept connections, trying again", "listener", s.at, "error", err)
	}
	if s.pausing {
		return
	}
	s.pausing = true
	r.reconsiderOf(s)
	time.AfterFunc(acceptPause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		s.pausing = false
		r.reconsiderOf(s)
	})
}

// accept accepts a connection that waits. It reports whether there was one.
func (r *relay) accept(s *streamListener, l *loop) bool {
	if !r.count(s) {
		return false
	}
	fd, sa, err := syscall.Accept4(s.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err == nil {
		s.failing.Store(false)
		r.serve(s, l, fd, addrPort(sa))
		return true
	}
	r.uncount()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ECONNABORTED) { // another loop was first, or the client is gone
		return false
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		r.makeRoom(nil, r.places.Len()-1) // so that this one is accepted after the pause
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pause(s, os.NewSyscallError("accept4", err))
	return false
}

// count counts one more connection, unless none may be accepted now. Those that come wait in the kernel then.
func (r *relay) count(s *streamListener) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.accepting { // no longer
		return false
	}
	r.open++
	return true
}

// uncount undoes count.
func (r *relay) uncount() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
}

// conn is a TCP connection of a client that is continued to an endpoint.
type conn struct {
	choice // does not change once the connection is on the books
	relay  *relay
	loop   *loop
	// number distinguishes it from others that have had the same file descriptor.
	number uint32
	kind   plan.Kind
	client netip.AddrPort
	// buffer bounds the buffers of its sockets: see bufferOf.
	buffer int
	// unfinished is set while it is among the unfinished connections of the loop, which alone uses it.
	unfinished bool
	// place is its place among all.
	place ledger.Place[*conn]
	// used is when something has happened last, in nanoseconds since the relay began.
	used atomic.Int64

	mu sync.Mutex // guards all below
	// dialing is nil once there is an endpoint.
	dialing *dialing
	// ends are the sockets of the client and of the endpoint, and from what has come from each.
	ends [2]end
	from [2]direction
	// noted is set while it is on the books, and closed once both sockets are.
	noted, closed bool
	// deadline is when it ends because its endpoint takes no more connections.
	deadline drain.Deadline
}

// Used implements [ledger.Item].
func (c *conn) Used() time.Duration { return time.Duration(c.used.Load()) }

// end is a socket of a connection.
type end struct {
	fd   int
	open bool
	// gone is set once the other side has reset it.
	gone bool
	// awaited are the events that the loop waits for.
	awaited uint32
}

// dialing is what a connection needs until it has an endpoint.
type dialing struct {
	request
	timer *time.Timer
}

// serve relays a connection that a loop has accepted, once there is an endpoint for it. It counts in r.open already.
func (r *relay) serve(s *streamListener, l *loop, fd int, peer netip.AddrPort) {
	c := r.newConn(s.kind, peer, l)
	c.begin(s, fd)
	r.makeRoom(&c.place, r.options().MaxConnections)
}

// begin looks for an endpoint.
func (c *conn) begin(s *streamListener, fd int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends[0] = end{fd: fd, open: true}
	dst := s.frontend
	if !dst.IsValid() {
		var err error
		if dst, err = destination(fd, s.kind.Family); err != nil || dst == s.at {
			c.end(true) // it was not translated: the client has connected to the relay itself
			return
		}
	}
	p, _, _ := c.relay.lookup(s.kind, dst)
	if p == nil {
		c.end(true)
		return
	}
	hops, err := hopsOf(fd, s.at.Addr())
	if err != nil {
		c.end(true)
		return
	}
	if c.buffer = bufferOf(c.relay.o.sharedBuffers(), c.relay.places.Len()+1); c.buffer < mostBuffer {
		bound(fd, c.buffer)
	}
	c.relay.places.Take(&c.place, c, ledger.Owner{Service: p.ID.Service, Client: ledger.ClientOf(c.client.Addr())})
	c.dialing = &dialing{request: request{kind: s.kind, class: s.class, client: c.client, dst: dst, unguarded: s.frontend.IsValid(), hops: hopsLeft(hops)}}
	c.dial()
}

// dial connects to one endpoint after the other, until one accepts, or has to be waited for. The caller holds c.mu.
func (c *conn) dial() {
	r, d := c.relay, c.dialing
	o := r.options()
	for len(d.tried) < o.DialAttempts && r.ctx.Err() == nil {
		var ok bool
		if c.choice, ok = r.choose(&d.request); !ok {
			break
		}
		fd, err := r.maker.socket(c.kind)
		if err != nil {
			c.giveUp()
			continue
		}
		c.ends[1] = end{fd: fd, open: true}
		bound(fd, c.buffer)
		if err = errors.Join(prepare(fd), limitHops(fd, c.kind.Family, d.hops)); err == nil {
			err = connect(fd, c.endpoint)
		}
		if errors.Is(err, unix.EALREADY) {
			if err = c.await(1, unix.EPOLLOUT); err == nil {
				n := len(d.tried)
				d.timer = time.AfterFunc(o.DialTimeout, func() { c.expire(n) })
				return
			}
		}
		r.dialed(&c.choice, err)
		if err == nil {
			c.join()
			return
		}
		c.giveUp()
	}
	c.end(true)
}

// connect connects a socket to an endpoint, or looks how far it is. It returns EALREADY if there is no answer yet.
func connect(fd int, to netip.AddrPort) error {
	err := unix.Connect(fd, sockaddr(to))
	if err == unix.EINPROGRESS { // an endpoint of this node has answered by now
		err = unix.Connect(fd, sockaddr(to))
	}
	if err == unix.EISCONN {
		return nil
	}
	return os.NewSyscallError("connect", err)
}

// dialed goes on when the endpoint may have answered. The caller holds c.mu.
func (c *conn) dialed(err error) {
	if errors.Is(err, unix.EALREADY) {
		return
	}
	c.dialing.timer.Stop()
	c.relay.dialed(&c.choice, err)
	if err == nil {
		c.join()
		return
	}
	c.giveUp()
	c.dial()
}

// expire goes on if the endpoint has not answered in time that is tried after n others.
func (c *conn) expire(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.dialing != nil && len(c.dialing.tried) == n {
		c.dialed(os.ErrDeadlineExceeded)
	}
}

// giveUp leaves an endpoint that has not accepted. The caller holds c.mu.
func (c *conn) giveUp() {
	c.dialing.tried = append(c.dialing.tried, c.endpoint)
	c.relay.end(&c.choice)
	c.close(1)
}

// join has data move, now that there is an endpoint. The caller holds c.mu.
func (c *conn) join() {
	r := c.relay
	if r.options().ProxyProtocol {
		c.from[0].pending = plan.ProxyHeader(c.client, c.dialing.dst)
	}
	c.dialing = nil
	if stays := r.note(c); !stays || r.ctx.Err() != nil {
		c.end(true)
		return
	}
	if is := r.record(c.port.Service); drain.Uses(nil, is) { // settle may not have seen it
		c.endAfter(nil, is)
	}
	c.move(0, 1) // mostly the client has sent something by now
	c.attend()
}

// attend has the loop move data: also what has come before, since each socket is watched for it from now on only. The caller holds c.mu.
func (c *conn) attend() {
	for i := range c.ends {
		if !c.closed && c.await(i, unix.EPOLLIN) != nil {
			c.end(true)
		}
	}
}

// await has the loop handle some events of a socket, in addition to the events that it waits for already. The caller holds c.mu.
func (c *conn) await(i int, events uint32) error {
	e, op := &c.ends[i], unix.EPOLL_CTL_ADD
	if e.awaited&events == events {
		return nil
	}
	if e.awaited != 0 {
		op = unix.EPOLL_CTL_MOD
	}
	e.awaited |= events | unix.EPOLLRDHUP
	return c.loop.watch(c, e.fd, e.awaited, op)
}

// handle handles events of a socket. more is set if not all has been moved.
func (c *conn) handle(fd int, events uint32) (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ends {
		switch e, d := &c.ends[i], &c.from[i]; {
		case !e.open || e.fd != fd:
		case c.dialing != nil:
			c.dialed(connect(fd, c.endpoint))
		case d.ended && events&unix.EPOLLERR != 0:
			e.gone = true
			c.end(true)
		default:
			d.last = d.last || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
			if d.last || events&unix.EPOLLIN != 0 {
				more = c.move(i, turnBytes)
			}
			if c.from[1-i].blocked() {
				more = c.move(1-i, turnBytes) || more
			}
		}
	}
	return more
}

// goOn moves the data that was too much for one turn.
func (c *conn) goOn() (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.from {
		more = c.move(i, turnBytes) || more
	}
	return more
}

// note puts a connection on the books. stays is false if it is to be reset because its endpoint has left since it was chosen: settle has not seen it.
func (r *relay) note(c *conn) (stays bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.conns[c.port.Service]
	if of == nil {
		of = map[*conn]bool{}
		r.conns[c.port.Service] = of
	}
	of[c] = true
	c.noted = true
	return !r.o.ResetRemoved || !c.endpoint.IsValid() || !r.hasStarted() || r.serves(&c.choice)
}

// forget takes a connection off the books.
func (r *relay) forget(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.conns[c.port.Service]
	if delete(of, c); len(of) == 0 {
		delete(r.conns, c.port.Service)
	}
	r.end(&c.choice)
}

// abort ends a connection by a reset of both ends.
func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(true)
}

// setDeadline sets the deadline of a connection that follows from the previous and the present record of its service.
func (c *conn) setDeadline(was, is *state.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endAfter(was, is)
}

// endAfter is setDeadline for a caller that holds c.mu.
func (c *conn) endAfter(was, is *state.Service) {
	if !c.closed {
		c.deadline.Set(drain.After(was, is, c.port, c.endpoint), &c.mu, func() { c.end(true) })
	}
}

// end closes both sockets. With reset, both ends get one. The caller holds c.mu.
func (c *conn) end(reset bool) {
	if c.closed {
		return
	}
	c.closed = true
	c.deadline.Stop()
	for i := range c.ends {
		if e := &c.ends[i]; reset && e.open && !e.gone {
			_ = unix.SetsockoptLinger(e.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
	}
	r := c.relay
	switch {
	case c.noted:
		r.forget(c)
	case c.ends[1].open:
		r.end(&c.choice)
	}
	r.places.Leave(&c.place)
	if c.dialing != nil && c.dialing.timer != nil {
		c.dialing.timer.Stop()
	}
	for i := range c.ends {
		c.close(i)
		c.from[i].drop()
	}
	c.loop.carried.Add(-1)
	r.uncount()
}

// close closes a socket, if it is open. The caller holds c.mu.
func (c *conn) close(i int) {
	e := &c.ends[i]
	if !e.open {
		return
	}
	if e.awaited != 0 {
		c.loop.forget(e.fd)
	}
	unix.Close(e.fd)
	*e = end{}
}

// leave closes the sockets of a connection that another process has by now.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ends {
		if e := &c.ends[i]; e.open {
			_ = c.loop.watch(c, e.fd, 0, unix.EPOLL_CTL_DEL) // closing does not end it while the other process has the socket
		}
	}
	c.end(false)
}
