package nft

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// manyAnswers is how many datagrams are received with one system call.
	manyAnswers = 64
	// answerSize is more than an element takes, with a comment and all else that others may have put into it.
	answerSize = 1 << 10
)

// many are the buffers for answers that each hold one small message.
type many struct {
	headers [manyAnswers]unix.Mmsghdr
	vectors [manyAnswers]unix.Iovec
	buf     [manyAnswers * answerSize]byte
}

func newMany() *many {
	m := &many{}
	for i := range m.headers {
		m.vectors[i].Base = &m.buf[i*answerSize]
		m.vectors[i].SetLen(answerSize)
		m.headers[i].Hdr.Iov = &m.vectors[i]
		m.headers[i].Hdr.SetIovlen(1)
	}
	return m
}

// receiveMany is receive for many small datagrams: all that wait, up to manyAnswers, and one at least.
func (c *Conn) receiveMany(fn func(message) error) error {
	if c.many == nil {
		c.many = newMany()
	}
	var n int
	err := retry(func() error {
		r, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.many.headers[0])),
			manyAnswers, unix.MSG_WAITFORONE, 0, 0)
		if errno != 0 {
			return errno
		}
		n = int(r)
		return nil
	})
	for i := range n {
		h := &c.many.headers[i]
		if err == nil && h.Hdr.Flags&unix.MSG_TRUNC != 0 {
			err = fmt.Errorf("datagram is larger than the buffer of %d bytes", answerSize)
		}
		if err == nil {
			err = eachMessage(c.many.buf[i*answerSize:][:h.Len], fn)
		}
	}
	if err != nil {
		c.stale = true
		return fmt.Errorf("receiving from nf_tables: %w", err)
	}
	return nil
}
