//go:build linux

package loadcheck

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// stream is a running Stream. All of it belongs to its thread.
type stream struct {
	*Stream
	o       *Options
	counter *Counter
	src     netip.Addr
	epoll   int
	conns   map[int32]*conn // by file descriptor
	flows   []*conn         // those that are kept open, also while they are not
	recent  []answered      // new connections that were answered lately, if they are to stick
	latest  answered        // the new connection that was answered last
	port    int             // the last source port

	counts             Counts
	fresh, established record
}

// conn is one connection, or a UDP socket.
type conn struct {
	fd      int
	number  uint64
	kept    bool           // open after the first answer
	server  netip.AddrPort // who has answered; invalid before the first answer
	heard   time.Time      // when that was last
	request uint64
	since   time.Time // when the connection, or the request, began; zero if none is under way
	due     time.Time // of a kept connection: when to send the next request, or to connect again
	sent    bool
	line    []byte // what has arrived of an answer
}

func newStream(c *Counter, s *Stream, o *Options) *stream {
	st := &stream{Stream: s, o: o, counter: c, conns: map[int32]*conn{}}
	st.fresh.stream, st.established.stream = st, st
	for _, a := range s.From.Addrs {
		if !st.src.IsValid() && a.Is4() == s.Target.Addr.Addr().Is4() {
			st.src = a
		}
	}
	for range s.Flows {
		st.flows = append(st.flows, &conn{fd: -1, kept: true})
	}
	return st
}

func (s *stream) String() string {
	return fmt.Sprintf("%s %v %s (%v)", s.From.Name, s.Target.Protocol, s.Target.Name, s.Target.Addr)
}

// tick is how precisely streams are paced. Events of a socket are noticed at once.
const tick = time.Millisecond

// run runs inside the host's namespace from a time until ctx has ended and all requests have finished.
func (s *stream) run(ctx context.Context, next time.Time) (err error) {
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create", err)
	}
	defer unix.Close(s.epoll)
	defer func() {
		for _, c := range s.conns {
			unix.Close(c.fd)
		}
	}()
	for i, c := range s.flows {
		c.due = next.Add(s.Pause * time.Duration(i) / time.Duration(s.Flows))
	}
	events := make([]unix.EpollEvent, 64)
	for {
		now := time.Now()
		stopping := ctx.Err() != nil
		if stopping && !s.busy() {
			s.fresh.end(now)
			s.established.end(now)
			return nil
		}
		if !stopping {
			for ; s.Every > 0 && !next.After(now); next = next.Add(s.Every) {
				if late := now.Sub(next); late > time.Second {
					next = now // this thread has slept; connections are not made up for
					s.counts.Skipped += int(late / s.Every)
				}
				s.connect(&conn{fd: -1})
			}
			s.runFlows(now)
		}
		now = time.Now()
		n, err := unix.EpollWait(s.epoll, events, s.timeout(next))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, e := range events[:max(n, 0)] {
			if c := s.conns[e.Fd]; c != nil {
				s.progress(c)
			}
		}
		if n < len(events) {
			// After the events, and by the time before them: where this thread had to wait, answers wait too.
			s.expire(now)
		}
	}
}

// timeout returns how long to wait for sockets, in milliseconds.
func (s *stream) timeout(next time.Time) int {
	until := 10 * tick // the deadlines of connections are not more precise
	if s.Every > 0 {
		until = min(until, time.Until(next))
	}
	for _, c := range s.flows {
		if c.since.IsZero() {
			until = min(until, time.Until(c.due))
		}
	}
	return int(max(until+tick-1, 0) / tick)
}

// busy reports whether a connection or a request is under way.
func (s *stream) busy() bool {
	for _, c := range s.conns {
		if !c.since.IsZero() {
			return true
		}
	}
	return false
}

// runFlows opens the connections that are to be kept, and sends the requests that are due.
func (s *stream) runFlows(now time.Time) {
	for _, c := range s.flows {
		switch {
		case !c.since.IsZero() || c.due.After(now):
		case c.fd < 0:
			s.connect(c)
		default:
			c.since = time.Now()
			s.send(c)
		}
	}
}

// connect begins a connection.
func (s *stream) connect(c *conn) {
	s.counts.Connections++
	*c = conn{fd: -1, kept: c.kept, number: numbers.Add(1), since: time.Now()}
	kind, family := unix.SOCK_STREAM, unix.AF_INET6
	if s.Target.Protocol == state.UDP {
		kind = unix.SOCK_DGRAM
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(s.Target.Addr.Port()), Addr: s.Target.Addr.Addr().As16()}
	if s.Target.Addr.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(s.Target.Addr.Port()), Addr: s.Target.Addr.Addr().As4()}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		s.counter.fail(fmt.Errorf("stream %v: %w", s, os.NewSyscallError("socket", err)))
		s.counts.Connections--
		c.since, c.due = time.Time{}, time.Now().Add(time.Second)
		return
	}
	c.fd = fd
	s.conns[int32(fd)] = c
	if kind == unix.SOCK_STREAM {
		// Closing resets: no TIME_WAIT, which would use up the ports.
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err = s.bindFresh(fd, family); err == nil {
		err = unix.Connect(fd, to)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		s.failed(c, err)
		return
	}
	if kind == unix.SOCK_DGRAM {
		s.send(c)
		if c.fd < 0 {
			return
		}
	}
	event := &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, event); err != nil {
		s.failed(c, err)
	}
}

// The source ports: those that systems choose from, among which there are no NodePorts.
const firstPort, lastPort = 32768, 60999

// spread gives streams their first ports, with the greatest possible distance: the streams of one host may be led to
// the same endpoint.
func spread(streams []*stream) {
	const all = lastPort - firstPort + 1
	first := int(numbers.Add(997)) // a port other than the earlier streams have
	for i, s := range streams {
		s.port = firstPort + (first+i*all/len(streams))%all
	}
}

// bindFresh gives a socket a port that this stream has not used for long. The node remembers flows of datagrams for half a minute or more,
// so that the same port would continue the same flow. It remembers TCP connections for 10 s after a reset. A connection may have had
// another last packet on the node than the client's reset, for example when the reset overtook its last ACK. Connection tracking then sends
// a new connection from the same port to the old destination, and no rule is evaluated. A port of the system's choice may be such a port,
// because Linux restarts from a random one every 10 s.
func (s *stream) bindFresh(fd, family int) error {
	for {
		s.port++
		if s.port < firstPort || s.port > lastPort {
			s.port = firstPort
		}
		var at unix.Sockaddr = &unix.SockaddrInet6{Port: s.port}
		if family == unix.AF_INET {
			at = &unix.SockaddrInet4{Port: s.port}
		}
		if err := unix.Bind(fd, at); !errors.Is(err, unix.EADDRINUSE) {
			return os.NewSyscallError("bind", err)
		}
	}
}

// send sends the next request. EPERM reports that this host's own rules stopped a datagram: whether for good is still to be seen.
func (s *stream) send(c *conn) {
	c.sent = true
	c.request++
	s.counts.Requests++
	_, err := unix.Write(c.fd, fmt.Appendf(nil, "%d %d\n", c.number, c.request))
	if err != nil && !errors.Is(err, unix.EPERM) {
		s.failed(c, err)
	}
}

// progress looks what has happened in a socket.
func (s *stream) progress(c *conn) {
	if !c.sent {
		code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			s.failed(c, err)
			return
		}
		if _, err := unix.Getpeername(c.fd); err != nil {
			return // not connected yet
		}
		s.send(c)
	}
	buf := make([]byte, 256)
	for c.fd >= 0 {
		n, err := unix.Read(c.fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.EINTR):
		case err != nil:
			s.failed(c, err)
		case n == 0 && s.Target.Protocol == state.TCP:
			s.failed(c, errEnd)
		default:
			s.take(c, buf[:n])
		}
	}
}

var (
	errEnd     = errors.New("the connection was ended without a word")
	errTimeout = errors.New("no answer")
)

// take takes in what has arrived.
func (s *stream) take(c *conn, data []byte) {
	c.line = append(c.line, data...)
	for c.fd >= 0 {
		i := slices.Index(c.line, '\n')
		if i < 0 {
			return
		}
		a, err := parseAnswer(string(c.line[:i]))
		c.line = c.line[i+1:]
		switch {
		case err != nil:
			s.bad(c, &s.counts.WrongEndpoint, err.Error())
			s.close(c, time.Now())
		case a.bye && c.server.IsValid() && a.server == c.server:
			s.counts.Ended++
			s.close(c, time.Now())
		case a.bye:
			s.bad(c, &s.counts.Reset, fmt.Sprintf("was given to %v, which was ending", a.server))
			s.close(c, time.Now())
		case a.connection != c.number:
			s.bad(c, &s.counts.WrongEndpoint, fmt.Sprintf("got the answer of %v to connection %d", a.server, a.connection))
			s.close(c, time.Now())
		case a.request == c.request && !c.since.IsZero():
			s.answered(c, a.server, a.client)
		default:
			s.bad(c, &s.counts.WrongEndpoint, fmt.Sprintf("got an answer of %v to request %d, the last of them was %d", a.server, a.request, c.request))
			s.close(c, time.Now())
		}
	}
}

// expire gives up what has been under way for too long.
func (s *stream) expire(now time.Time) {
	for _, c := range s.conns {
		timeout := s.o.Timeout
		if c.server.IsValid() && s.Target.Protocol == state.TCP {
			timeout = s.o.EstablishedTimeout
		}
		if !c.since.IsZero() && now.Sub(c.since) > timeout {
			s.failed(c, errTimeout)
		}
	}
}

// answered judges an answer.
func (s *stream) answered(c *conn, server, client netip.AddrPort) {
	now, since := time.Now(), c.since
	c.since = time.Time{}
	c.due = now.Add(s.Pause)
	defer func() { c.heard = now }()
	own := client.Addr() == s.src
	if s.Own && !own {
		s.bad(c, &s.counts.WrongEndpoint, fmt.Sprintf("was answered by %v, which sees the client %v", server, client))
	}
	if c.server.IsValid() {
		s.established.success(since, now, s.o.EstablishedTimeout)
		s.judgeEstablished(c, server, since, now)
		c.server = server
		return
	}
	if now.Sub(since) > interruptedLate && s.interrupted(since, now) {
		// Its data was lost, and TCP sent it again. Only the waiting time of the others counts.
		s.fresh.failure(since)
	} else {
		s.fresh.success(since, now, s.o.Timeout)
	}
	c.server = server
	if own {
		s.counts.Own++
	}
	s.judgeNew(c, since, now)
	if !c.kept {
		s.close(c, now)
	}
}

// interruptedLate is less than the time after which TCP sends something again, which is 200 ms.
const interruptedLate = 150 * time.Millisecond

func (s *stream) judgeNew(c *conn, since, now time.Time) {
	states := s.states(since, now)
	if len(states) == 1 {
		s.counts.Strict++
	}
	if !slices.ContainsFunc(states, func(st State) bool { return slices.Contains(st.Allowed, c.server) }) {
		s.bad(c, &s.counts.WrongEndpoint, fmt.Sprintf("was answered by %v after %v; allowed are %v", c.server,
			now.Sub(since).Round(time.Microsecond), states[len(states)-1].Allowed))
		return
	}
	if s.Sticky {
		s.judgeSticky(c, since, now)
	}
	s.judgeHash(c, since, now)
}

// judgeHash compares a connection with the last one that was answered. If a hash of the client's address chose their endpoints, and only one state counted
// from the beginning of both, they have the same.
func (s *stream) judgeHash(c *conn, since, now time.Time) {
	last := s.latest
	s.latest = answered{c.server, since, now}
	if !last.server.IsValid() {
		return
	}
	if last.since.Before(since) {
		since = last.since
	}
	if states := s.states(since, now); len(states) != 1 || !states[0].Hashed {
		return
	}
	s.counts.Hashed++
	if c.server != last.server {
		s.bad(c, &s.counts.WrongEndpoint, fmt.Sprintf("was answered by %v, although a hash had led this client to %v", c.server, last.server))
	}
}

// answered is a new connection that was answered.
type answered struct {
	server       netip.AddrPort
	since, until time.Time
}

// judgeSticky compares a connection with the last connection that had been answered when it began. It also accepts the endpoints of
// connections that overlapped with that one, because several concurrent connections may have been the first of the client.
func (s *stream) judgeSticky(c *conn, since, now time.Time) {
	var last *answered
	for i := range s.recent {
		f := &s.recent[i]
		if f.until.Before(since) && (last == nil || f.since.After(last.since)) {
			last = f
		}
	}
	if last != nil {
		free := false // to go elsewhere
		states := s.states(last.since, now)
		for _, f := range s.recent {
			overlaps := !f.since.After(last.until) && !f.until.Before(last.since)
			gone := slices.ContainsFunc(states, func(st State) bool { return !slices.Contains(st.Allowed, f.server) || st.Interrupted })
			free = free || overlaps && (gone || f.server == c.server)
		}
		if !free && slices.ContainsFunc(states, func(st State) bool { return st.ForgotClients }) {
			s.counts.Moved++
		} else if !free {
			s.bad(c, &s.counts.WrongEndpoint, fmt.Sprintf("was answered by %v, although %v had this client and is still allowed", c.server, last.server))
		}
	}
	const enough = 64
	if len(s.recent) == enough {
		s.recent = slices.Delete(s.recent, 0, enough/2)
	}
	s.recent = append(s.recent, answered{c.server, since, now})
}

// judgeEstablished: a TCP connection stays with its server. A flow of datagrams does as long as the endpoint serves.
func (s *stream) judgeEstablished(c *conn, server netip.AddrPort, since, now time.Time) {
	if s.Target.Protocol == state.TCP {
		if server != c.server {
			s.bad(c, &s.counts.WrongEndpoint, fmt.Sprintf("was with %v and is answered by %v", c.server, server))
		}
		return
	}
	if server == c.server {
		if !s.servedSince(server, since, now) {
			s.bad(c, &s.counts.WrongEndpoint, fmt.Sprintf("is still with %v, which serves no longer", server))
		}
		return
	}
	states := s.states(c.heard, now) // it may have been cut as soon as it had been answered the last time
	gone := slices.ContainsFunc(states, func(st State) bool { return !slices.Contains(st.Serving, c.server) })
	allowed := slices.ContainsFunc(states, func(st State) bool { return slices.Contains(st.Allowed, server) })
	if !gone && allowed && slices.ContainsFunc(states, func(st State) bool { return st.ForgotFlows }) {
		s.counts.Moved++
		return
	}
	if gone && allowed {
		s.counts.Ended++ // and begun again, by the same socket
		return
	}
	s.bad(c, &s.counts.WrongEndpoint, fmt.Sprintf("was with %v and is answered by %v; states %v", c.server, server, states))
}

// servedSince reports whether an endpoint may answer a request on an open flow. It may if it served during the request or shortly before
// it, or if no process deleted flows in that time.
func (s *stream) servedSince(server netip.AddrPort, since, now time.Time) bool {
	return slices.ContainsFunc(s.states(since.Add(-s.o.CutTimeout), now), func(st State) bool {
		return st.LeftFlows || slices.Contains(st.Serving, server)
	})
}

// failed judges a connection that failed.
func (s *stream) failed(c *conn, err error) {
	now := time.Now()
	since := c.since
	if since.IsZero() { // nothing was asked
		since = now
	}
	count, verb := &s.counts.Reset, "was reset"
	if err == errTimeout {
		count, verb = &s.counts.Lost, "was lost"
	}
	text := fmt.Sprintf("%s after %v: %v", verb, now.Sub(since).Round(time.Microsecond), err)
	switch {
	case c.server.IsValid() && s.Target.Protocol == state.UDP && s.gone(c.server, c.heard, now) && s.servedSince(c.server, since, now):
		s.counts.Ended++ // the flow had to be cut, perhaps right after its last answer; requests under way are lost with it
	case !c.server.IsValid() && s.Target.Protocol == state.UDP && s.cutUnanswered(c, since, now):
		s.counts.Ended++ // the same before the first answer
	case c.server.IsValid() && slices.ContainsFunc(s.states(since, now), func(st State) bool { return st.EndedOpen }):
		s.counts.Ended++
	case c.server.IsValid() && s.interrupted(since, now) && (err != errTimeout || s.Target.Protocol == state.UDP):
		// An open TCP connection may be reset while there are no rules. If it survives, its data must arrive after the
		// repair.
		s.established.failure(since)
		s.counts.ExpectedFailures++
		s.counts.Broken++
	case c.server.IsValid():
		s.established.failure(since)
		s.bad(c, count, fmt.Sprintf("with %v %s", c.server, text))
	case s.interrupted(since, now):
		s.fresh.failure(since)
		s.counts.ExpectedFailures++
	case slices.ContainsFunc(s.states(since, now), func(st State) bool { return len(st.Allowed) == 0 }):
		s.counts.ExpectedFailures++
	default:
		s.fresh.failure(since)
		s.bad(c, count, text)
	}
	s.close(c, now)
}

// cutUnanswered reports whether the first datagram of a flow has reached an endpoint that did not serve at some moment before the answer
// arrived.
func (s *stream) cutUnanswered(c *conn, since, now time.Time) bool {
	server := s.o.Receipts.of(c.number)
	return server.IsValid() && s.gone(server, since, now)
}

// gone reports whether there was a moment in which an endpoint did not serve.
func (s *stream) gone(server netip.AddrPort, since, now time.Time) bool {
	return slices.ContainsFunc(s.states(since, now), func(st State) bool { return !slices.Contains(st.Serving, server) })
}

// interrupted reports whether a connection may have failed because of somebody other than the proxy.
func (s *stream) interrupted(since, now time.Time) bool {
	return slices.ContainsFunc(s.states(since, now), func(st State) bool { return st.Interrupted })
}

func (s *stream) states(since, until time.Time) []State {
	return s.Judge.States(&s.Target, s.Client, s.src, since, until)
}

func (s *stream) bad(c *conn, count *int, text string) {
	*count++
	var explain func() string
	from := localAddr(c.fd)
	if count == &s.counts.WrongEndpoint && s.o.Explain != nil {
		explain = func() string { return s.o.Explain(s.Target.Protocol, from) }
	}
	s.counter.fault(fmt.Sprintf("connection %d, %v, from %v: %s", c.number, s, from, text), explain)
}

// localAddr returns the address of a socket, the zero value if it has none.
func localAddr(fd int) netip.AddrPort {
	addr, _ := unix.Getsockname(fd)
	switch a := addr.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// close closes a connection. One that is to be kept is opened again after a pause.
func (s *stream) close(c *conn, now time.Time) {
	if c.fd >= 0 {
		unix.Close(c.fd)
		delete(s.conns, int32(c.fd))
	}
	*c = conn{fd: -1, kept: c.kept, due: now.Add(s.Pause)}
}
