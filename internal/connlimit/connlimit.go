// Package connlimit limits the connections of servers, in total and for each client, so that one client takes no room
// from another.
//
// A client is an IPv4 address, or the first 64 bits of an IPv6 address, because a host can use any address of its /64.
// Over unix sockets, each user other than root and the user of this process is a client. All other connections from
// this machine, over loopback or from one of its addresses to the same address, belong to one client without a limit.
// Many processes share this client, and the kernel accepts no packet from elsewhere with such a source.
package connlimit

import (
	"container/list"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// warnPause is the least time between two warnings of one pool.
const warnPause = time.Minute

// clientBits is the length of the prefix that counts as one client of IPv6: the smallest that networks give to a host.
const clientBits = 64

// Options are the bounds of a [Pool].
type Options struct {
	// Name is the purpose of the connections, for warnings.
	Name string
	// Max is how many connections there may be at once, at least 1. Required.
	Max int
	// PerClient is how many of them may be from one client. Default: Max.
	PerClient int
	// ThisMachine is the number of connections from this machine in addition to Max, which then applies to other
	// clients only. So other clients cannot block a probe of this machine. Default: there is no such room.
	ThisMachine int
	// Replace makes room for a new connection. The client with the most connections, or one with more than PerClient,
	// loses its least recently used connection, as [Used] reports it. It is for servers that answer at once, whose old
	// connections are idle or slow. Default: a new connection without room is closed.
	Replace bool
	// Open counts the connections, perhaps of several pools. Closed counts connections that were closed because no room
	// was left. They may be nil.
	Open, Closed *atomic.Int64
	// Logger gets a warning when connections are closed because no room is left, at most once a minute. Required.
	Logger *slog.Logger
}

// Pool bounds the connections of the listeners that it is given. Its methods may be called concurrently.
type Pool struct {
	o           Options
	within      *Pool // nil for none
	thisMachine *Pool // nil for none

	mu *sync.Mutex // guards all below, and is shared with the pools around it and in it
	clients
	closed int // because no room was left, since the last warning
	warned time.Time
}

// New returns a pool without connections.
func New(o Options) *Pool { return newPool(o, nil) }

// Part returns a pool whose connections also count in p. The limits of p hold for all parts together. A part has no
// extra room for this machine. An unused part needs no release.
func (p *Pool) Part(o Options) *Pool {
	o.ThisMachine = 0
	return newPool(o, p)
}

func newPool(o Options, within *Pool) *Pool {
	o.Max = max(o.Max, 1)
	if o.PerClient == 0 {
		o.PerClient = o.Max
	}
	if o.Open == nil {
		o.Open = new(atomic.Int64)
	}
	if o.Closed == nil {
		o.Closed = new(atomic.Int64)
	}
	p := &Pool{o: o, within: within, clients: clients{of: make(map[clientKey]*client)}}
	if within != nil {
		p.mu = within.mu
	} else {
		p.mu = new(sync.Mutex)
	}
	if o.ThisMachine > 0 {
		own := o
		own.Max, own.PerClient, own.ThisMachine = o.ThisMachine, 0, 0
		p.thisMachine = newPool(own, nil)
	}
	return p
}

// Listener returns a listener that accepts the connections of l within the bounds.
func (p *Pool) Listener(l net.Listener) net.Listener {
	return Listen(l, func(net.Conn) []*Pool { return []*Pool{p} })
}

// Listen returns a listener that accepts the connections of l. choose returns pools for each connection, and the first
// pool with room takes it.
func Listen(l net.Listener, choose func(net.Conn) []*Pool) net.Listener { return &listener{l, choose} }

type listener struct {
	net.Listener
	choose func(net.Conn) []*Pool
}

// Accept returns the next connection within the bounds, and closes those before it. An error of the kernel, such as that the
// process has too many open files, is the caller's to wait after.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		for _, p := range l.choose(c) {
			if admitted := p.admit(c); admitted != nil {
				return admitted, nil
			}
		}
		_ = c.Close()
	}
}

// Used reports that c, a connection that was accepted through a pool, is in use: it has sent a request, or gets the
// answer. Other connections are ignored.
func Used(c net.Conn) {
	own, ok := c.(*conn)
	if !ok {
		return
	}
	own.pool.mu.Lock()
	defer own.pool.mu.Unlock()
	for _, s := range own.seats {
		s.pool.used(s.client, s.place)
	}
}

// conn counts until it is closed.
type conn struct {
	net.Conn
	pool  *Pool
	seats []seat // in its pool and those around it; nil after it has left. Guarded by pool.mu
}

// NetConn returns the connection that counts.
func (c *conn) NetConn() net.Conn { return c.Conn }

// seat is the place of a connection in one pool.
type seat struct {
	pool   *Pool
	client *client
	place  *list.Element
}

func (c *conn) Close() error {
	c.pool.mu.Lock()
	c.leave()
	c.pool.mu.Unlock()
	return c.Conn.Close()
}

// leave gives up the seats. The caller holds mu.
func (c *conn) leave() {
	for _, s := range c.seats {
		s.pool.remove(s.client, s.place)
		s.pool.o.Open.Add(-1)
	}
	c.seats = nil
}

// admit counts one more connection, and closes another one for it if it must and may. It returns nil if there is no room.
func (p *Pool) admit(raw net.Conn) *conn {
	key := clientOf(raw)
	if !key.addr.IsValid() && p.thisMachine != nil {
		p = p.thisMachine
	}
	c, victim := p.place(key, raw)
	if victim != nil {
		_ = victim.Conn.Close()
	}
	return c
}

// place finds a place for a new connection. If another connection loses its place, place returns it. It returns nil if
// there is none.
func (p *Pool) place(key clientKey, raw net.Conn) (c, victim *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := p; at != nil && victim == nil; at = at.within {
		from := at.tooMany(key)
		if from == nil {
			continue
		}
		at.closed++
		for in := at; in != nil; in = in.within {
			in.o.Closed.Add(1)
		}
		if !at.o.Replace {
			at.warn(from)
			return nil, nil
		}
		victim = from.oldest() // it also has a place in the pools around this one
		at.warn(from)
		victim.leave()
	}
	c = &conn{Conn: raw, pool: p}
	for at := p; at != nil; at = at.within {
		client, place := at.add(key, c)
		at.o.Open.Add(1)
		c.seats = append(c.seats, seat{at, client, place})
	}
	return c, victim
}

// tooMany returns the client with too many connections for one more of the client key, nil if there is room. The caller holds mu.
func (p *Pool) tooMany(key clientKey) *client {
	own, full := p.of[key], p.open >= p.o.Max
	switch {
	case own != nil && key.isKnown() && own.conns.Len() >= p.o.PerClient:
		return own
	case full && own != nil && own.conns.Len() == p.most: // it would have more than all others
		return own
	case full:
		return p.heaviest()
	}
	return nil
}

// warn logs that connections are closed. The caller holds mu.
func (p *Pool) warn(from *client) {
	now := time.Now()
	if now.Sub(p.warned) < warnPause {
		return
	}
	log := p.o.Logger.With("server", p.o.Name, "limit", p.o.Max, "limitPerClient", p.o.PerClient, "clientWithMost", from.key.String(), "itHas", from.conns.Len(),
		"remedy", "find out what connects so often, or raise the limit")
	if p.o.Replace {
		log.Warn("too many connections; closing the least recently used", "closedSinceLastWarning", p.closed)
	} else {
		log.Warn("too many connections; refusing new ones", "refusedSinceLastWarning", p.closed)
	}
	p.warned, p.closed = now, 0
}
