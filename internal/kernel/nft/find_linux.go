package nft

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// maxRoom is how many elements are asked for at once, if the socket's buffer has room for the answers. More would not be faster.
const maxRoom = 512

// Find looks up elements of a set by their keys, and calls found for each existing one, in order. found gets the index of the key and the
// data of the element, which is only valid during the call. keys holds the keys one after another, each of width bytes. Find takes about 2
// microseconds for each key. A dump takes less for sets of up to some ten thousand elements, and quadratic time for larger ones. A set that
// does not exist has no elements.
//
// The kernel answers each element in a separate message, and stops at the first missing key.
func (c *Conn) Find(t Table, set string, width int, keys []byte, found func(i int, data []byte)) error {
	return c.FindElems(t, set, width, keys, func(i int, e Elem) { found(i, e.Data) })
}

// FindElems is Find for callers that want whole elements. They are only valid during the call.
func (c *Conn) FindElems(t Table, set string, width int, keys []byte, found func(i int, e Elem)) error {
	for at := 0; at < len(keys); {
		asked := keys[at:min(at+c.room*width, len(keys))]
		n, err := c.findEach(t, set, width, asked, func(i int, e Elem) { found(at/width+i, e) })
		at += n * width
		switch {
		case errors.Is(err, unix.ENOENT):
			at += width
		case errors.Is(err, unix.ENOBUFS) && c.room > 1:
			// In a user namespace the buffer holds what net.core.rmem_max says: some 250 answers.
			c.room /= 2
		case err != nil:
			return fmt.Errorf("set %s of table %s: %w", set, t.Name, err)
		}
	}
	return nil
}

// HasAll reports whether a set has elements with all these keys, which are given as to [Conn.Find]. It takes less than that: the elements
// themselves do not reach the socket.
func (c *Conn) HasAll(t Table, set string, width int, keys []byte) (all bool, err error) {
	for asked := range slices.Chunk(keys, maxRoom*width) {
		err := c.ask(c.nextSeq()|silent, t, set, width, asked)
		if err == nil {
			err = c.acknowledged()
		}
		switch {
		case errors.Is(err, unix.ENOENT):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("set %s of table %s: %w", set, t.Name, err)
		}
	}
	return true, nil
}

// acknowledged receives the acknowledgement of the last request, and returns the error that it reports.
func (c *Conn) acknowledged() error {
	var failed error
	for done := false; !done; {
		err := c.receive(func(m message) error {
			if m.seq != c.seq {
				return nil // left over from a request that was given up
			}
			done = true
			errno, err := m.errno()
			if errno != 0 {
				failed = errno
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return failed
}

// findEach asks for elements in one message and returns how many were found before the first that was not.
func (c *Conn) findEach(t Table, set string, width int, keys []byte, found func(i int, e Elem)) (n int, err error) {
	if err := c.ask(c.nextSeq(), t, set, width, keys); err != nil {
		return 0, err
	}
	for done := false; !done; {
		var failed error
		err := c.receiveMany(func(m message) error {
			if m.seq != c.seq || done {
				return nil // left over from a request that was given up
			}
			if m.typ == unix.NLMSG_ERROR {
				done = true
				errno, err := m.errno()
				if errno != 0 {
					err = errno
				}
				failed = err
				return nil
			}
			if len(m.payload) < 4 || n*width >= len(keys) {
				return errTruncated
			}
			e, err := decodeElem(findAttr(findAttr(m.payload[4:], nftaSetElemListElements, 0), nftaListElem, 0))
			if err != nil {
				return err
			}
			if !bytes.Equal(e.Key, keys[n*width:(n+1)*width]) {
				return fmt.Errorf("asked for the element with key %x, got %x", keys[n*width:(n+1)*width], e.Key)
			}
			found(n, e)
			n++
			return nil
		})
		if err = errors.Join(err, failed); err != nil {
			return n, err
		}
	}
	if n*width < len(keys) {
		return n, errTruncated
	}
	return n, nil
}

// ask sends a request for elements, which the kernel answers up to the first key that is not there, and acknowledges then.
func (c *Conn) ask(seq uint32, t Table, set string, width int, keys []byte) error {
	c.seq = seq
	b := Batch{seq: seq - 1, buf: c.out[:0]}
	b.message(subsystem|nftMsgGetSetElem, unix.NLM_F_REQUEST|unix.NLM_F_ACK, t.Family, 0)
	b.buf = appendAttrString(b.buf, nftaSetElemListTable, t.Name)
	b.buf = appendAttrString(b.buf, nftaSetElemListSet, set)
	var list, elem int
	b.buf, list = beginNest(b.buf, nftaSetElemListElements)
	for at := 0; at < len(keys); at += width {
		b.buf, elem = beginNest(b.buf, nftaListElem)
		b.buf = endNest(appendData(b.buf, nftaSetElemKey, keys[at:at+width]), elem)
	}
	b.buf = endNest(b.buf, list)
	b.finish()
	c.out = b.buf
	return c.send(b.buf)
}
