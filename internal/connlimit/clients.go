package connlimit

import (
	"container/list"
	"fmt"
	"net"
	"net/netip"

	"github.com/switchyard-net/switchyard/client/peeruser"
)

// clientKey identifies a client: an address elsewhere, or another user of this machine. The zero value is this machine.
type clientKey struct {
	addr   netip.Prefix
	user   int
	isUser bool
}

// isKnown reports whether it is more than this machine as a whole.
func (k clientKey) isKnown() bool { return k != clientKey{} }

// String is for people.
func (k clientKey) String() string {
	switch {
	case k.addr.IsValid():
		return k.addr.String()
	case k.isUser:
		return fmt.Sprintf("user %d", k.user)
	}
	return "this machine"
}

// clientOf returns which client a connection comes from.
func clientOf(c net.Conn) clientKey {
	if user, ok := peeruser.Other(c); ok {
		return clientKey{user: user, isUser: true}
	}
	return clientKey{addr: addressOf(c)}
}

// addressOf returns the address of a client, the zero Prefix if it is on this machine.
func addressOf(c net.Conn) netip.Prefix {
	remote, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || remote.IP.IsLoopback() {
		return netip.Prefix{}
	}
	if local, ok := c.LocalAddr().(*net.TCPAddr); ok && local.IP.Equal(remote.IP) {
		return netip.Prefix{}
	}
	ip := remote.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = clientBits
	}
	client, _ := ip.Prefix(bits) // bits are within the address
	return client
}

// clients are the clients with connections in a pool. The cost of each method does not depend on their number.
type clients struct {
	open int // connections
	of   map[clientKey]*client
	// ranks are lists of clients by their number of connections, which is the index: *client, the least recently used first.
	ranks []*list.List
	most  int // the highest index with clients
}

type client struct {
	key   clientKey
	conns list.List     // *conn, the least recently used first
	at    *list.Element // in the list of its rank
}

// add gives a client one more connection.
func (m *clients) add(key clientKey, c *conn) (*client, *list.Element) {
	own := m.of[key]
	if own == nil {
		own = &client{key: key}
		m.of[key] = own
	} else {
		m.ranks[own.conns.Len()].Remove(own.at)
	}
	place := own.conns.PushBack(c)
	m.open++
	m.rank(own)
	m.most = max(m.most, own.conns.Len())
	return own, place
}

// remove takes a connection from a client.
func (m *clients) remove(own *client, place *list.Element) {
	m.ranks[own.conns.Len()].Remove(own.at)
	own.conns.Remove(place)
	m.open--
	if own.conns.Len() == 0 {
		delete(m.of, own.key)
	} else {
		m.rank(own)
	}
	if m.ranks[m.most].Len() == 0 {
		m.most-- // where the client is now, or at no client because there are none
	}
}

// rank puts a client that is in no list behind the others with as many connections.
func (m *clients) rank(own *client) {
	for len(m.ranks) <= own.conns.Len() {
		m.ranks = append(m.ranks, list.New())
	}
	own.at = m.ranks[own.conns.Len()].PushBack(own)
}

// used makes a connection, and its client, the most recently used ones.
func (m *clients) used(own *client, place *list.Element) {
	own.conns.MoveToBack(place)
	m.ranks[own.conns.Len()].MoveToBack(own.at)
}

// heaviest returns the client with the most connections, the least recently used of several. There must be one.
func (m *clients) heaviest() *client { return m.ranks[m.most].Front().Value.(*client) }

// oldest returns the connection that was used least recently.
func (c *client) oldest() *conn { return c.conns.Front().Value.(*conn) }
