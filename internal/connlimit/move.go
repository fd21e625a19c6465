package connlimit

import "net"

// Move makes c count in another part of its pool, once the caller knows that c belongs there. c is a connection that
// was accepted through one part of the pool. Move returns false if the other part has no room, and replaces no other
// connection to make room. Then c stays in its part. A closed connection, and a connection without a pool, counts
// nowhere, and Move returns true.
func Move(c net.Conn, to *Pool) bool {
	own, ok := c.(*conn)
	if !ok {
		return true
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if own.seats == nil {
		return true
	}
	was := &own.seats[0] // the seat in the part; the seats in the pools around it stay
	if was.pool == to {
		return true
	}
	key := was.client.key
	if from := to.tooMany(key); from != nil {
		to.closed++
		to.warn(from)
		return false
	}
	was.pool.remove(was.client, was.place)
	was.pool.o.Open.Add(-1)
	client, place := to.add(key, own)
	to.o.Open.Add(1)
	*was = seat{to, client, place}
	return true
}
