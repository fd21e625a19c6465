package hostrelay

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/drain"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
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

// acceptPause is how long nothing is accepted after a failure, such as a lack of memory.
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

// conn is a TCP connection of a client that is continued to an endpoint.
type conn struct {
	choice
	client *net.TCPConn
	began  time.Time // when the relay began
	// used is when data has come last, in nanoseconds since began.
	used  atomic.Int64
	place ledger.Place[*conn]

	mu sync.Mutex // guards all below
	// endpoint is nil until there is one.
	endpoint *net.TCPConn
	aborted  bool
	// deadline is when it ends because its endpoint takes no more connections.
	deadline drain.Deadline
}

// Used implements [ledger.Item].
func (c *conn) Used() time.Duration { return time.Duration(c.used.Load()) }

// serve finds an endpoint for a connection, and relays it.
func (r *Relay) serve(s *socket, client *net.TCPConn) {
	c := &conn{client: client, began: r.began}
	c.used.Store(int64(time.Since(r.began)))
	peer := client.RemoteAddr().(*net.TCPAddr).AddrPort()
	peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	r.mu.Lock()
	o, p := r.o, r.portOf(s.key)
	r.open++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.open--
		r.mu.Unlock()
	}()
	if p == nil {
		reset(client)
		return
	}
	r.places.Take(&c.place, c, ledger.Owner{Service: p.ID.Service, Client: ledger.ClientOf(peer.Addr())})
	defer r.places.Leave(&c.place)
	if other, full := r.places.MakeRoom(o.MaxConnections, &c.place, time.Now()); full {
		other.abort()
	}
	endpoint := r.connect(c, s, peer, &o)
	if endpoint == nil {
		reset(client)
		return
	}
	if !c.join(endpoint) {
		reset(endpoint)
		r.end(&c.choice)
		return
	}
	if !r.note(c, s.at.Addr()) {
		c.abort()
		r.end(&c.choice)
		return
	}
	defer r.forget(c, s.at.Addr())
	if o.ProxyProtocol {
		if _, err := endpoint.Write(plan.ProxyHeader(peer, s.at)); err != nil {
			c.abort()
			return
		}
	}
	c.relay()
}

// connect connects to one endpoint after the other, until one accepts. It returns nil if none does.
func (r *Relay) connect(c *conn, s *socket, peer netip.AddrPort, o *Options) *net.TCPConn {
	q := request{key: s.key, client: peer}
	for range o.DialAttempts {
		var ok bool
		if c.choice, ok = r.choose(&q); !ok {
			return nil
		}
		if endpoint := r.dial(&c.choice, o); endpoint != nil {
			return endpoint
		}
		r.end(&c.choice)
		if r.ctx.Err() != nil {
			return nil
		}
		q.tried = append(q.tried, c.choice.endpoint)
	}
	return nil
}

// dial connects to an endpoint. It returns nil if that fails.
func (r *Relay) dial(to *choice, o *Options) *net.TCPConn {
	c, err := (&net.Dialer{Timeout: o.DialTimeout}).DialContext(r.ctx, "tcp", to.endpoint.String())
	r.dialed(to, o.Ejection, err)
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
	if is := r.table.Get(c.port.Service); drain.Uses(nil, is) { // settle may not have seen it
		c.setDeadline(nil, is)
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
	r.end(&c.choice)
	r.release(at)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline.Stop()
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
	if _, err := io.Copy(to, source{c, from}); err != nil {
		c.abort()
		return
	}
	_ = to.CloseWrite() // it fails if the other direction has broken, which sees to the rest
}

// source is an end of a connection that notes when something has come.
type source struct {
	conn *conn
	from io.Reader
}

func (s source) Read(b []byte) (int, error) {
	n, err := s.from.Read(b)
	s.conn.used.Store(int64(time.Since(s.conn.began)))
	return n, err
}

// join gives a connection its endpoint, unless it has been aborted.
func (c *conn) join(endpoint *net.TCPConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoint = endpoint
	return !c.aborted
}

// setDeadline sets the deadline of a connection that follows from the previous and the present record of its service.
func (c *conn) setDeadline(was, is *state.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline.Set(drain.After(was, is, c.port, c.choice.endpoint), &c.mu, c.end)
}

// abort ends a connection by a reset of both ends.
func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

// end is abort for a caller that holds c.mu.
func (c *conn) end() {
	c.aborted = true
	reset(c.client)
	if c.endpoint != nil {
		reset(c.endpoint)
	}
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	c.Close()
}
