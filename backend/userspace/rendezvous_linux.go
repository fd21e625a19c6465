package userspace

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// Two processes meet without a name, a file or a user that either would have to trust. Each process binds a unix socket
// to a random abstract name of the network namespace. No other socket can have the name while this one is open. The
// process shows the name as the comment of an nf_tables table that it owns. Such a table needs CAP_NET_ADMIN and ends
// with the process. So the name in the table belongs to a process that may change every rule of the node in any case.
// These are datagram sockets, because no third process can fill the queue of a datagram socket that is connected to
// another. One end of a pair of stream sockets passes through them, and everything else passes through the pair. See
// ADR 33.

var (
	predecessorTable = nft.Table{Family: nft.IPv4, Name: "switchyard-leaves"}
	successorTable   = nft.Table{Family: nft.IPv4, Name: "switchyard-follows"}
)

// meetingFlags has a second flag for the reason that nodelock has it for.
const meetingFlags = nft.Owned | nft.Dormant

// badge is a unix socket, and what shows others whose it is.
type badge struct {
	fd   int
	nft  *nft.Conn
	name string // of the socket, empty before show
}

// newBadge opens what a badge takes in the calling thread's network namespace.
func newBadge() (*badge, error) {
	conn, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("socket", err), conn.Close())
	}
	return &badge{fd: fd, nft: conn}, nil
}

// show gives the socket a name, and shows it in a table.
func (b *badge) show(in nft.Table) error {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // it never fails
	name := "@switchyard-" + hex.EncodeToString(random)
	if err := unix.Bind(b.fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return fmt.Errorf("bind to unix socket %s: %w", name, err)
	}
	var batch nft.Batch
	if info, err := b.nft.Table(in); err == nil && info.Flags&nft.Owned == 0 { // a copy that another program has loaded
		batch.DeleteTable(in)
	}
	batch.CreateTable(in, meetingFlags, name)
	if err := b.nft.Commit(&batch); err != nil {
		return fmt.Errorf("creating table %s: %w", in.Name, err)
	}
	b.name = name
	return nil
}

// other returns the name that another process shows in a table. Who is the same later has had the name all the time.
func (b *badge) other(in nft.Table) (shown nft.TableInfo, ok bool) {
	shown, err := b.nft.Table(in)
	return shown, err == nil && shown.Flags&nft.Owned != 0 && len(shown.Comment) > 1 && shown.Comment[0] == '@'
}

// close takes the name out of the table before others can have it.
func (b *badge) close() error {
	return errors.Join(b.nft.Close(), unix.Close(b.fd))
}

// successor waits for a process that takes over.
type successor struct {
	*badge
	// met is the name of the last one that was there.
	met string
}

// newSuccessor opens the sockets in the calling thread's network namespace. Afterwards, listen may run on any thread.
func newSuccessor() (*successor, error) {
	b, err := newBadge()
	if err != nil {
		return nil, err
	}
	return &successor{badge: b}, nil
}

// listen begins to wait. A successor that is nil is one without rights.
func (s *successor) listen() error {
	if s == nil {
		return fs.ErrPermission
	}
	if s.waits() {
		return nil
	}
	return s.show(predecessorTable)
}

// waits reports whether a process could take over.
func (s *successor) waits() bool { return s != nil && s.name != "" }

// look returns a connection to a process that takes over, nil if there is none yet.
func (s *successor) look() (*net.UnixConn, error) {
	if !s.waits() {
		return nil, nil
	}
	who, there := s.other(successorTable)
	if !there || who.Comment == s.met {
		return nil, nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[1])
	conn, err := unixConn(pair[0])
	if err != nil {
		return nil, err
	}
	s.met = who.Comment
	err = os.NewSyscallError("sendmsg", unix.Sendmsg(s.fd, []byte{0}, unix.UnixRights(pair[1]), &unix.SockaddrUnix{Name: who.Comment}, 0))
	if again, there := s.other(successorTable); err == nil && (!there || again != who) {
		err = errors.New("the next process has ended")
	}
	if err == nil {
		_, err = conn.Write([]byte{0}) // the other end has shown itself until here
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// meetingPeriod is how often it is looked whether the other end is still there.
const meetingPeriod = 50 * time.Millisecond

// meetPredecessor returns a connection to a process that has released its relay in the calling thread's network namespace, nil if there is none.
func meetPredecessor() (*net.UnixConn, error) {
	b, err := newBadge()
	if err != nil {
		return nil, err
	}
	defer b.close()
	who, there := b.other(predecessorTable)
	if !there {
		return nil, nil
	}
	if err := unix.Connect(b.fd, &unix.SockaddrUnix{Name: who.Comment}); err != nil { // from now on no other process can send to this one
		if _, there := b.other(predecessorTable); !there {
			return nil, nil
		}
		return nil, os.NewSyscallError("connect", err)
	}
	isThere := func() bool { again, there := b.other(predecessorTable); return there && again == who }
	if !isThere() {
		return nil, nil
	}
	if err := b.show(successorTable); err != nil {
		return nil, err
	}
	for began := time.Now(); time.Since(began) < handoverTimeout; {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}}, int(meetingPeriod.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, os.NewSyscallError("poll", err)
		}
		conn, err := b.receive()
		switch {
		case conn != nil || err != nil:
			return conn, err
		case !isThere():
			return nil, nil // it has nothing left
		}
	}
	return nil, fmt.Errorf("a previous process shows itself in table %s, but does not hand over: %w", predecessorTable.Name, os.ErrDeadlineExceeded)
}

// receive returns the connection that the other end has sent, nil if there is none yet. The other end has seen in the table then whom it has sent it to.
func (b *badge) receive() (*net.UnixConn, error) {
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(b.fd, make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil {
		return nil, err
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil && len(fds) == 1 {
			conn, err := unixConn(fds[0])
			if err != nil {
				return nil, err
			}
			err = conn.SetReadDeadline(time.Now().Add(handoverTimeout))
			if err == nil {
				_, err = io.ReadFull(conn, make([]byte, 1))
			}
			if err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return conn, nil
		}
	}
	return nil, errors.New("a message without a socket")
}

// unixConn takes over a file descriptor.
func unixConn(fd int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(fd), "handover")
	defer file.Close() // the connection is a duplicate
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a %T", c), c.Close())
	}
	return conn, nil
}
