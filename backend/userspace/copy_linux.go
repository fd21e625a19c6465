package userspace

import (
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// direction is what comes from one end of a connection and goes to the other.
type direction struct {
	// pending is for the other end, and after it the piped bytes in the pipe, before all that is still in the socket. pipe is nil if there is nothing in it.
	pending []byte
	pipe    *pipe
	piped   int
	// bulk is set while much comes at a time: then it goes through a pipe, without being copied.
	bulk bool
	// last is set once the rest of the socket's data is known to be followed by its end or a failure.
	last bool
	// ended is set once the other end knows that nothing more comes.
	ended bool
}

const (
	// chunk is how many bytes are read at a time, unless much comes.
	chunk = 16 << 10
	// turnBytes is after how many bytes the other connections have their turn.
	turnBytes = 1 << 20
)

// move moves what comes from one end to the other, about so many bytes at most. more is set if there may be more. The caller holds c.mu.
func (c *conn) move(i, most int) (more bool) {
	d := &c.from[i]
	if c.closed || d.ended {
		return false
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	buf := (*b)[:chunk]
	for drained := false; ; {
		switch err := d.flush(c.ends[1-i].fd); {
		case err == unix.EAGAIN:
			d.pending = slices.Clone(d.pending) // it may be in buf
			if c.await(1-i, unix.EPOLLOUT) != nil {
				c.end(true)
			}
			return false
		case err != nil:
			c.end(true)
			return false
		case drained:
			return false
		case most <= 0:
			return true
		}
		n, err := d.fill(c.ends[i].fd, buf)
		switch {
		case err == unix.EAGAIN:
			return false
		case err != nil:
			c.ends[i].gone = err == unix.ECONNRESET
			c.end(true)
			return false
		case n == 0:
			c.pass(i)
			return false
		}
		most -= n
		drained = n < len(buf) && d.pipe == nil && !d.last // what comes from now on is another event
	}
}

// pass has the other end know that nothing more comes from one. The caller holds c.mu.
func (c *conn) pass(i int) {
	c.from[i].ended = true
	if c.from[1-i].ended {
		c.end(false)
	} else if unix.Shutdown(c.ends[1-i].fd, unix.SHUT_WR) != nil {
		c.end(true)
	}
}

// blocked reports whether the other end does not take for now what has come.
func (d *direction) blocked() bool { return len(d.pending) > 0 || d.pipe != nil }

// fill takes some of what has come to a socket. At the end, n is 0.
func (d *direction) fill(fd int, buf []byte) (n int, err error) {
	var p *pipe
	if d.bulk {
		p = pipes.get() // without one, data is copied
	}
	if p == nil {
		if n, err = retried(func() (int, error) { return unix.Read(fd, buf) }); n > 0 {
			d.pending = buf[:n]
		}
		d.bulk = n == len(buf)
		return n, err
	}
	if n, err = splice(fd, p.w, pipeSize); n <= 0 {
		pipes.put(p)
		return n, err
	}
	d.pipe, d.piped = p, n
	d.bulk = n >= len(buf)
	return n, nil
}

// flush writes the pending and piped bytes to a socket. It returns EAGAIN if the socket does not take all of them.
func (d *direction) flush(fd int) error {
	for len(d.pending) > 0 {
		n, err := retried(func() (int, error) { return unix.Write(fd, d.pending) })
		if err != nil {
			return err
		}
		d.pending = d.pending[n:]
	}
	d.pending = nil
	for d.piped > 0 {
		n, err := splice(d.pipe.r, fd, d.piped)
		if err != nil {
			return err
		}
		d.piped -= n
	}
	if d.pipe != nil {
		pipes.put(d.pipe)
		d.pipe = nil
	}
	return nil
}

// unpipe moves the bytes in the pipe to pending.
func (d *direction) unpipe() {
	if d.pipe != nil {
		d.pending = append(d.pending, d.pipe.take(d.piped)...)
		d.drop()
	}
}

// drop discards the pipe and its bytes.
func (d *direction) drop() {
	if d.pipe != nil {
		pipes.close(d.pipe)
		d.pipe, d.piped = nil, 0
	}
}

// retried calls fn until no signal interrupts it.
func retried(fn func() (int, error)) (int, error) {
	for {
		if n, err := fn(); err != unix.EINTR {
			return n, err
		}
	}
}

// splice moves up to n bytes. One side must be a pipe.
func splice(from, to, n int) (int, error) {
	return retried(func() (int, error) {
		m, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		return int(m), err
	})
}

// pipe is what data goes through from one socket to another without being copied.
type pipe struct{ r, w int }

// pipePool has the pipes of this process: those that are empty, and a count of all.
type pipePool struct {
	empty chan *pipe
	made  atomic.Int32
	// most is how many there may be. Data is copied while all of them are in use.
	most atomic.Int32
}

// pipes are two descriptors each, and hold at most [pipeSize] bytes of the kernel. Together they take no more than the system allows for
// the pipes of one user (fs.pipe-user-pages-soft).
var pipes = newPipePool(mostPipes)

// pipeSize is how many bytes one may hold, if the system allows that.
const pipeSize = 256 << 10

func newPipePool(most int32) *pipePool {
	p := &pipePool{empty: make(chan *pipe, most)}
	p.most.Store(most)
	return p
}

// get returns an empty pipe, nil if there is none.
func (p *pipePool) get() *pipe {
	select {
	case empty := <-p.empty:
		return empty
	default:
	}
	if p.made.Add(1) > p.most.Load() {
		p.made.Add(-1)
		return nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		p.made.Add(-1)
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // it works with any size
	return &pipe{fds[0], fds[1]}
}

// put makes an empty pipe one for the next that needs one.
func (p *pipePool) put(empty *pipe) {
	if p.made.Load() <= p.most.Load() {
		select {
		case p.empty <- empty:
			return
		default:
		}
	}
	p.close(empty)
}

// close closes a pipe and discards its bytes.
func (p *pipePool) close(full *pipe) {
	unix.Close(full.r)
	unix.Close(full.w)
	p.made.Add(-1)
}

// take returns the n bytes that are in the pipe.
func (p *pipe) take(n int) []byte {
	b := make([]byte, n)
	for at := 0; at < n; {
		m, err := unix.Read(p.r, b[at:])
		if err == unix.EINTR {
			continue
		}
		if m <= 0 || err != nil {
			return b[:at]
		}
		at += m
	}
	return b
}
