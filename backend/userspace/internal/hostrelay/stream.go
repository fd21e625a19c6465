package hostrelay

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/proxyproto"
	"github.com/switchyard-net/switchyard/state"
)

// socket listens for a frontend at an address.
type socket struct {
	key state.FrontendKey
	at  netip.AddrPort
	tcp *net.TCPListener // nil for UDP
	udp *net.UDPConn     // nil for TCP
}

// listen has a frontend served at an address. The caller holds mu.
func (r *Relay) listen(key state.FrontendKey, at netip.AddrPort) (err error) {
	if err := r.hold(at.Addr()); err != nil {
		return err
	}
	s := &socket{key: key, at: at}
	network := map[state.Family]string{state.IPv4: "4", state.IPv6: "6"}[state.FamilyOf(at.Addr())]
	if key.Protocol == state.TCP {
		s.tcp, err = net.ListenTCP("tcp"+network, net.TCPAddrFromAddrPort(at))
	} else {
		s.udp, err = net.ListenUDP("udp"+network, net.UDPAddrFromAddrPort(at))
	}
	if err != nil {
		r.release(at.Addr())
		return err
	}
	if r.sockets[key] == nil {
		r.sockets[key] = map[netip.AddrPort]*socket{}
	}
	r.sockets[key][at] = s
	if s.tcp != nil {
		r.running.Go(func() { r.accept(s) })
	} else {
		r.running.Go(func() { r.receive(s) })
	}
	return nil
}

// closeSocket ends what listens, and the flows of UDP that come there. The caller holds mu.
func (r *Relay) closeSocket(s *socket) {
	s.refuse()
	if s.udp != nil {
		s.udp.Close()
		for key, f := range r.flows {
			if key.socket == s {
				r.endFlow(f)
			}
		}
	}
	of := r.sockets[s.key]
	if delete(of, s.at); len(of) == 0 {
		delete(r.sockets, s.key)
	}
	r.release(s.at.Addr())
}

// refuse has nothing new be taken.
func (s *socket) refuse() {
	if s.tcp != nil {
		s.tcp.Close()
	}
}

// awaitState waits until there is a state. It reports whether the relay goes on.
func (r *Relay) awaitState() bool {
	select {
	case <-r.started:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// acceptPause is how long nothing is accepted after a failure, such as for want of memory.
const acceptPause = 50 * time.Millisecond

// accept accepts connections until the socket is closed.
func (r *Relay) accept(s *socket) {
	if !r.awaitState() {
		return
	}
	for failing := false; ; {
		client, err := s.tcp.AcceptTCP()
		switch {
		case err == nil:
			failing = false
			r.awaitRoom()
			r.running.Go(func() { r.serve(s, client) })
			continue
		case errors.Is(err, net.ErrClosed):
			return
		case !failing:
			failing = true
			r.log.Warn("cannot accept connections, trying again", "listener", s.at, "error", err)
		}
		select {
		case <-time.After(acceptPause):
		case <-r.ctx.Done():
			return
		}
	}
}

// awaitRoom waits until there may be one more connection, and counts it. Those that come after it wait in the kernel meanwhile.
func (r *Relay) awaitRoom() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.open >= r.o.MaxConnections && r.ctx.Err() == nil {
		r.room.Wait()
	}
	r.open++
}

func (r *Relay) returnRoom() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	r.room.Signal()
}

// conn is a TCP connection of a client that is continued to an endpoint.
type conn struct {
	choice
	client, endpoint *net.TCPConn
}

// serve finds an endpoint for a connection, and relays it. It counts in r.open already.
func (r *Relay) serve(s *socket, client *net.TCPConn) {
	defer r.returnRoom()
	c := &conn{client: client}
	peer := client.RemoteAddr().(*net.TCPAddr).AddrPort()
	peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	r.mu.Lock()
	o := r.o
	r.mu.Unlock()
	q := request{key: s.key, client: peer.Addr()}
	for range o.DialAttempts {
		var ok bool
		if c.choice, ok = r.choose(&q); !ok {
			break
		}
		if c.endpoint = r.dial(c.choice.endpoint, o.DialTimeout); c.endpoint != nil {
			break
		}
		r.end(c.choice.endpoint)
		if r.ctx.Err() != nil {
			break
		}
		q.tried = append(q.tried, c.choice.endpoint)
	}
	if c.endpoint == nil {
		reset(client)
		return
	}
	if !r.note(c, s.at.Addr()) {
		c.abort()
		r.end(c.choice.endpoint)
		return
	}
	defer r.forget(c, s.at.Addr())
	if o.ProxyProtocol {
		if _, err := c.endpoint.Write(proxyproto.Header(peer, s.at)); err != nil {
			c.abort()
			return
		}
	}
	c.relay()
}

// dial connects to an endpoint. It returns nil if that fails.
func (r *Relay) dial(to netip.AddrPort, timeout time.Duration) *net.TCPConn {
	c, err := (&net.Dialer{Timeout: timeout}).DialContext(r.ctx, "tcp", to.String())
	r.dialed(to, err)
	if err != nil {
		return nil
	}
	return c.(*net.TCPConn)
}

// note takes a connection down, which keeps its address. It reports whether the connection may go on.
func (r *Relay) note(c *conn, at netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return false
	}
	of := r.conns[c.port.Service]
	if of == nil {
		of = map[*conn]bool{}
		r.conns[c.port.Service] = of
	}
	of[c] = true
	if r.users[at] > 0 {
		r.users[at]++
	}
	return true
}

func (r *Relay) forget(c *conn, at netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.conns[c.port.Service]
	if delete(of, c); len(of) == 0 {
		delete(r.conns, c.port.Service)
	}
	r.loads.End(c.choice.endpoint)
	r.release(at)
}

// relay copies both ways until both ends have nothing more to say, or one of them breaks.
func (c *conn) relay() {
	var other sync.WaitGroup
	other.Go(func() { c.copy(c.client, c.endpoint) })
	c.copy(c.endpoint, c.client)
	other.Wait()
	c.client.Close()
	c.endpoint.Close()
}

// copy passes on what comes from one end, and then its end. After a failure both ends are reset.
func (c *conn) copy(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		c.abort()
		return
	}
	_ = to.CloseWrite() // it fails if the other direction has broken, which sees to the rest
}

// abort ends a connection by a reset of both ends.
func (c *conn) abort() {
	reset(c.client)
	reset(c.endpoint)
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	c.Close()
}
