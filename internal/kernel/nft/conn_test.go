//go:build linux

package nft

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeKernel returns a Conn to a peer that answers each request with the datagrams that answer returns.
func fakeKernel(t *testing.T, answer func(request []message) [][]byte) *Conn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(fds[1])
		buf := make([]byte, 1<<16)
		for {
			n, err := unix.Read(fds[1], buf)
			if err != nil || n == 0 {
				return
			}
			var request []message
			_ = eachMessage(buf[:n], func(m message) error { request = append(request, m); return nil })
			for _, a := range answer(request) {
				if _, err := unix.Write(fds[1], a); err != nil {
					return
				}
			}
		}
	}()
	t.Cleanup(func() {
		unix.Close(fds[0])
		<-done
	})
	return newConn(fds[0])
}

// datagram is one message of an answer.
func datagram(typ, flags uint16, seq uint32, payload []byte) []byte {
	b := native.AppendUint32(nil, uint32(16+len(payload)))
	b = native.AppendUint16(b, typ)
	b = native.AppendUint16(b, flags)
	b = native.AppendUint32(b, seq)
	b = native.AppendUint32(b, 0)
	return append(b, payload...)
}

func ack(seq uint32, errno unix.Errno) []byte {
	return datagram(unix.NLMSG_ERROR, 0, seq, native.AppendUint32(nil, uint32(-int32(errno))))
}

func oneElement() *Batch {
	var b Batch
	b.AddElem(Table{IPv4, "t"}, "s", Elem{Key: []byte{1, 2, 3, 4}})
	return &b
}

// TestLateAcknowledgement is about a batch that fails in its commit: the kernel says so first, and acknowledges the messages
// then. That must not be taken for the answer to the next batch or request.
func TestLateAcknowledgement(t *testing.T) {
	var round atomic.Int32
	c := fakeKernel(t, func(request []message) [][]byte {
		if round.Add(1) == 1 {
			return [][]byte{ack(1, unix.ENOMEM), ack(2, 0)}
		}
		return [][]byte{ack(2, unix.EINVAL)}
	})
	if err := c.Commit(oneElement()); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("a batch whose commit fails: %v", err)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}, 1000); err != nil {
		t.Fatal(err) // the real kernel has answered all before it returns from the call
	}
	if err := c.Commit(oneElement()); !errors.Is(err, unix.EINVAL) {
		t.Errorf("the batch after it: %v, want its own answer", err)
	}
}

// TestInterruptedBatch is about a kernel that gives up a batch because of a signal.
func TestInterruptedBatch(t *testing.T) {
	var round atomic.Int32
	c := fakeKernel(t, func([]message) [][]byte {
		if round.Add(1) < 3 {
			return [][]byte{ack(1, unix.EINTR)}
		}
		return [][]byte{ack(2, 0)}
	})
	if err := c.Commit(oneElement()); err != nil || round.Load() != 3 {
		t.Errorf("after %d rounds: %v", round.Load(), err)
	}
}

func TestUnexpectedAnswer(t *testing.T) {
	for name, answer := range map[string][]byte{
		"another type": datagram(99, 0, 2, make([]byte, 4)),
		"too short":    datagram(unix.NLMSG_ERROR, 0, 2, nil),
		"broken":       {1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	} {
		c := fakeKernel(t, func([]message) [][]byte { return [][]byte{answer} })
		if err := c.Commit(oneElement()); err == nil {
			t.Errorf("%s: taken for success", name)
		}
	}
}

// elemDump is one message of a dump with one element.
func elemDump(seq uint32, flags uint16, key byte) []byte {
	payload := append([]byte{2, 0, 0, 0}, encode(elemList(key))...)
	return datagram(subsystem|nftMsgNewSetElem, unix.NLM_F_MULTI|flags, seq, payload)
}

func done(seq uint32, errno unix.Errno) []byte {
	return datagram(unix.NLMSG_DONE, unix.NLM_F_MULTI, seq, native.AppendUint32(nil, uint32(-int32(errno))))
}

// TestInterruptedDump is about dumps that a commit interferes with, or that break off: none of them may pass for whole.
func TestInterruptedDump(t *testing.T) {
	set := func(c *Conn) ([]Elem, error) { return c.Elems(Table{IPv4, "t"}, "s") }
	var round atomic.Int32
	c := fakeKernel(t, func(request []message) [][]byte {
		seq := request[0].seq
		if request[0].typ == subsystem|nftMsgGetGen {
			return [][]byte{generation(seq, 5)}
		}
		if round.Add(1) == 1 {
			return [][]byte{elemDump(seq, 0, 1), elemDump(seq, unix.NLM_F_DUMP_INTR, 2), done(seq, 0)}
		}
		return [][]byte{elemDump(seq, 0, 3), elemDump(seq-1, 0, 4), done(seq, 0)} // one is left over
	})
	elems, err := set(c)
	if err != nil || len(elems) != 1 || elems[0].Key[0] != 3 {
		t.Errorf("after an interrupted dump: %v, %v", elems, err)
	}

	c = fakeKernel(t, func(request []message) [][]byte {
		seq := request[0].seq
		if request[0].typ == subsystem|nftMsgGetGen {
			return [][]byte{generation(seq, 5)}
		}
		return [][]byte{elemDump(seq, 0, 1), done(seq, unix.ENOENT)}
	})
	if elems, err := set(c); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dump that broke off passed for whole: %v, %v", elems, err)
	}

	c = fakeKernel(t, func(request []message) [][]byte {
		seq := request[0].seq
		if request[0].typ == subsystem|nftMsgGetGen {
			return [][]byte{generation(seq, 5)}
		}
		return [][]byte{elemDump(seq, unix.NLM_F_DUMP_INTR, 1), done(seq, 0)}
	})
	if elems, err := set(c); err != nil || len(elems) != 1 {
		t.Errorf("a dump that others' commits always interrupt: %v, %v", elems, err)
	}

	round.Store(0)
	c = fakeKernel(t, func(request []message) [][]byte { // no flag, but a commit all the same
		seq := request[0].seq
		if request[0].typ == subsystem|nftMsgGetGen {
			return [][]byte{generation(seq, min(uint32(round.Add(1)), 3))}
		}
		return [][]byte{elemDump(seq, 0, byte(round.Load())), done(seq, 0)}
	})
	if elems, err := set(c); err != nil || len(elems) != 1 || elems[0].Key[0] != 3 {
		t.Errorf("after a commit during the dump: %v, %v", elems, err)
	}
}

// generation is the answer to a question for it.
func generation(seq, n uint32) []byte {
	return datagram(subsystem|nftMsgGetGen, 0, seq, append([]byte{0, 0, 0, 0}, encode(attrU32(nftaGenID, n))...))
}

// FuzzAnswers lets a fake kernel answer with garbage, and then that the request failed: every call must return, and none that
// asks for something may make it out of the garbage of another request.
func FuzzAnswers(f *testing.F) {
	f.Add(ack(2, 0))
	f.Add(elemDump(1, 0, 1))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, garbage []byte) {
		c := fakeKernel(t, func(request []message) [][]byte {
			seq := request[0].seq
			answers := [][]byte{ack(seq, unix.EIO), done(seq, 0), ack(2, unix.EIO)} // what ends any call
			if len(garbage) > 0 {
				answers = append([][]byte{garbage}, answers...)
			}
			return answers
		})
		err := c.Commit(oneElement())
		answered := false
		_ = eachMessage(garbage, func(m message) error {
			no, err := m.errno()
			answered = answered || err == nil && no == 0 && m.seq == 2
			return err
		})
		if err == nil && !answered {
			t.Errorf("a batch succeeded that nobody has acknowledged: %x", garbage)
		}
		_, _ = c.Elems(Table{IPv4, "t"}, "s")
		_, _ = c.ReadSkeleton(Table{IPv4, "t"})
		_, _ = c.Generation()
	})
}
