package connlimit

import "net"

// Move has c, a connection that was accepted through one part of a pool, count in another part of the same pool, once it is known
// that it belongs there. It returns false if there is no room, which the other part makes for nobody: then c counts where it did. A
// connection that is closed meanwhile, and one that is not of a pool, counts nowhere, and Move returns true.
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
	was := &own.seats[0] // that of the part; those of the pools around it stay
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
