package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// recvBufSize is twice the largest buffer that the kernel fills in a dump (32 KiB), so nothing is cut off.
	recvBufSize = 64 << 10
	// recvTimeout, in seconds, keeps a lost answer from blocking for ever. The kernel answers while the request is sent, so
	// there is never anything to wait for.
	recvTimeout = 5
)

// errIncomplete reports that an answer of the kernel has holes, so the question must be asked again.
var errIncomplete = errors.New("the answer is incomplete")

// socket is a netlink socket that carries one request at a time, or several in one message.
type socket struct {
	fd  int
	seq uint32
	buf []byte
}

// openSocket opens a socket in the network namespace of the calling thread. The socket stays in it.
func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	timeout := unix.Timeval{Sec: recvTimeout}
	if err := errors.Join(
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})),
		os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)),
	); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &socket{fd: fd, buf: make([]byte, recvBufSize)}, nil
}

func (s *socket) close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// request sends one message and waits until the kernel has acknowledged it, or refused it with an errno. each is called with
// the payload of an answer before that, and may be nil.
func (s *socket) request(typ uint16, payload []byte, each func([]byte)) error {
	if each == nil {
		each = func([]byte) {}
	}
	if err := s.send(typ, unix.NLM_F_ACK, payload); err != nil {
		return err
	}
	for {
		b, err := s.recv()
		if err != nil {
			return err
		}
		if done, err := parse(b, s.seq, each); done || err != nil {
			return err
		}
	}
}

// dump sends one message and calls each with the payload of every object in the answer; payloads are valid only during the
// call. It reads the answer to its end in any case, because the kernel starts no second dump on a socket before. If what
// each has seen is not the whole truth, the error is errIncomplete.
func (s *socket) dump(typ uint16, payload []byte, each func([]byte)) error {
	if err := s.send(typ, unix.NLM_F_DUMP, payload); err != nil {
		return err
	}
	var incomplete error
	for {
		b, err := s.recv()
		if errors.Is(err, errIncomplete) {
			incomplete = err
			continue
		}
		if err != nil {
			return err
		}
		done, err := parse(b, s.seq, each)
		if errors.Is(err, errIncomplete) {
			incomplete, err = err, nil
		}
		if done || err != nil {
			return errors.Join(err, incomplete)
		}
	}
}

// requestAll sends a message of one type for each payload at once, and waits until the kernel has acknowledged the
// last one. The kernel handles them in order, and continues after a message that it refuses. refused is called with
// the index of each refused message and the errno.
func (s *socket) requestAll(typ uint16, payloads [][]byte, refused func(i int, errno error)) error {
	first := s.seq + 1
	var all []byte
	for i, payload := range payloads {
		flags := uint16(unix.NLM_F_REQUEST) // a refusal is answered in any case
		if i == len(payloads)-1 {
			flags |= unix.NLM_F_ACK
		}
		s.seq++
		all = appendMessage(all, typ, flags, s.seq, payload)
	}
	if err := s.write(all); err != nil {
		return err
	}
	for {
		b, err := s.recv()
		if err != nil {
			return err
		}
		for len(b) > 0 {
			m, rest, err := next(b)
			if err != nil {
				return err
			}
			b = rest
			i := int(m.seq - first)
			if i >= len(payloads) || m.typ != unix.NLMSG_ERROR { // the answer to an older request
				continue
			}
			if errno := errnoOf(m.payload); errno != nil {
				refused(i, errno)
			}
			if i == len(payloads)-1 {
				return nil
			}
		}
	}
}

func (s *socket) send(typ, flags uint16, payload []byte) error {
	s.seq++
	return s.write(appendMessage(nil, typ, unix.NLM_F_REQUEST|flags, s.seq, payload))
}

func (s *socket) write(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// recv returns the next datagram of the kernel, which is valid until the next call. It returns errIncomplete if the kernel
// lost one, or had to cut one off.
func (s *socket) recv() ([]byte, error) {
	for {
		n, _, flags, from, err := unix.Recvmsg(s.fd, s.buf, nil, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ENOBUFS:
			return nil, fmt.Errorf("%w: the socket's buffer overran", errIncomplete)
		case err == unix.EAGAIN:
			return nil, fmt.Errorf("no answer from the kernel within %d s", recvTimeout)
		case err != nil:
			return nil, os.NewSyscallError("recvmsg", err)
		case flags&unix.MSG_TRUNC != 0:
			return nil, fmt.Errorf("%w: a message is longer than %d bytes", errIncomplete, len(s.buf))
		}
		if sa, ok := from.(*unix.SockaddrNetlink); ok && sa.Pid == 0 {
			return s.buf[:n], nil
		}
	}
}

// appendMessage appends a netlink message to b.
func appendMessage(b []byte, typ, flags uint16, seq uint32, payload []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, payload...)
}

// message is a netlink message of the kernel.
type message struct {
	typ, flags uint16
	seq        uint32
	payload    []byte
}

// next returns the first message in b, and what follows it. The error is errIncomplete.
func next(b []byte) (m message, rest []byte, err error) {
	if len(b) < unix.NLMSG_HDRLEN {
		return message{}, nil, fmt.Errorf("%w: %d bytes of a message", errIncomplete, len(b))
	}
	n := int(binary.NativeEndian.Uint32(b))
	if n < unix.NLMSG_HDRLEN || n > len(b) {
		return message{}, nil, fmt.Errorf("%w: a message of %d bytes in %d", errIncomplete, n, len(b))
	}
	return message{
		typ: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]), seq: binary.NativeEndian.Uint32(b[8:]),
		payload: b[unix.NLMSG_HDRLEN:n],
	}, b[min(align(n), len(b)):], nil
}

// parse reads the messages of one datagram that answer the request seq, and calls each with the payload of every object. done
// reports that the answer ends here, with the errno that the kernel gave, if any. errIncomplete means that there are holes
// in the answer.
func parse(b []byte, seq uint32, each func(payload []byte)) (done bool, err error) {
	for len(b) > 0 {
		m, rest, torn := next(b)
		if torn != nil {
			return false, torn
		}
		b = rest
		if m.seq != seq {
			continue
		}
		if m.flags&unix.NLM_F_DUMP_INTR != 0 {
			err = fmt.Errorf("%w: the table changed during the dump", errIncomplete)
		}
		switch m.typ {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if errno := errnoOf(m.payload); errno != nil {
				return true, errno
			}
			return true, err
		case unix.NLMSG_NOOP:
		default:
			each(m.payload)
		}
	}
	return false, err
}

// errnoOf reads the error number at the start of the last message of an answer.
func errnoOf(payload []byte) error {
	if len(payload) < 4 {
		// Old kernels end a dump with nothing in the message.
		return nil
	}
	switch errno := unix.Errno(-int32(binary.NativeEndian.Uint32(payload))); errno {
	case 0:
		return nil
	case unix.EINTR:
		return fmt.Errorf("%w: the dump was interrupted", errIncomplete)
	default:
		return errno
	}
}
