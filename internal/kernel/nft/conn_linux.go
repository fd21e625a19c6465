package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Conn is a netlink socket to nf_tables in the network namespace in which it was opened. It may be used from any thread, but
// by one goroutine at a time.
type Conn struct {
	fd  int
	seq uint32
	buf []byte
	// stale is set if answers may be left in the socket by a call that failed.
	stale bool
	// room is how many elements Find asks for at once. Their answers wait in the socket's buffer.
	room int
	out  []byte // the last request of Find
	many *many  // for the answers to Find, nil before the first
}

// A batch is one datagram, so the socket's buffers bound its size. 120,000 elements take about 8 MiB. The kernel only accounts data in
// flight.
const socketBuffer = 256 << 20

// Dial opens a socket in the calling thread's network namespace. It needs CAP_NET_ADMIN there.
func Dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netfilter netlink socket: %w", err)
	}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		// So the socket takes nothing from other processes, which can also send to it with CAP_NET_ADMIN.
		unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF),
		setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF),
		// The original request is not needed in error messages: sequence numbers name it.
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(dropSilent)), Filter: &dropSilent[0]}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("setting up a netfilter netlink socket: %w", err)
	}
	c := newConn(fd)
	if _, err := c.Generation(); err != nil { // the simplest request: none is answered without the right
		unix.Close(fd)
		return nil, fmt.Errorf("asking nf_tables (CAP_NET_ADMIN is required): %w", err)
	}
	return c, nil
}

func newConn(fd int) *Conn { return &Conn{fd: fd, buf: make([]byte, 64<<10), room: maxRoom} }

// silent is set in the sequence numbers of requests whose answers are not wanted, but for acknowledgements. In others it is never set.
const silent = 1 << 31

// nextSeq returns the sequence number of the next request, which is c.seq from then on.
func (c *Conn) nextSeq() uint32 {
	c.seq = (c.seq + 1) &^ silent
	return c.seq
}

// dropSilent is a socket filter. With it, the kernel drops the answers to a silent request before they are queued: elements with the
// request's sequence number. It loads numbers in network byte order.
var dropSilent = func() [6]unix.SockFilter {
	const typeAt, seqAt = 4, 8 // in struct nlmsghdr
	answer := binary.BigEndian.Uint16(native.AppendUint16(nil, subsystem|nftMsgNewSetElem))
	flag := binary.BigEndian.Uint32(native.AppendUint32(nil, silent))
	return [...]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: typeAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(answer), Jf: 2},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: seqAt},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: flag, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32}, // all of it
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}()

// setBuffer sizes one of a socket's buffers. To exceed the system's limit takes CAP_NET_ADMIN in the first user namespace; in
// others the limit, net.core.wmem_max or rmem_max, bounds what fits into one batch.
func setBuffer(fd, force, option int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuffer)
	if errors.Is(err, unix.EPERM) {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, socketBuffer)
	}
	return err
}

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Commit carries out a batch in one transaction. An empty batch does nothing. If it fails, nothing was changed; the error
// wraps the kernel's error number, and [ErrNoRoom] if a smaller batch may fare better. Only if the answer cannot be received, which
// wraps neither, it is not known whether the batch was carried out.
func (c *Conn) Commit(b *Batch) error {
	if b.Len() == 0 {
		return nil
	}
	msg, ack := b.seal()
	const attempts = 100
	var err error
	for range attempts {
		// A signal, such as those with which Go preempts goroutines, makes some kernels give up a batch.
		if err = c.commit(msg, ack); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return err
}

// noRoom marks errors that smaller batches may avoid.
func noRoom(err error) error {
	if errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	return err
}

func (c *Conn) commit(msg []byte, ack uint32) error {
	if err := c.send(msg); err != nil {
		return err
	}
	var failed error
	for done := false; !done; {
		err := c.receive(func(m message) error {
			errno, err := m.errno()
			if err != nil {
				return err
			}
			if errno != 0 && failed == nil {
				failed = fmt.Errorf("nf_tables refused message %d of the batch: %w", m.seq, noRoom(errno))
			}
			// A batch that fails as a whole is answered to its first message, which has sequence number 1. Where that is for
			// the commit itself, answers to the other messages are queued behind.
			if errno != 0 && m.seq == 1 {
				c.stale = true
			}
			done = done || m.seq == ack || c.stale
			return nil
		})
		if err != nil {
			return err
		}
	}
	return failed
}

// send sends one datagram. The kernel carries it out before send returns. So all answers to earlier datagrams have been read, or are left
// over from a failure and are discarded.
func (c *Conn) send(msg []byte) error {
	for c.stale {
		_, _, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT)
		c.stale = err == nil || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS)
	}
	err := retry(func() error {
		_, err := unix.Write(c.fd, msg)
		return err
	})
	if err != nil {
		return fmt.Errorf("sending %d bytes to nf_tables: %w", len(msg), noRoom(err))
	}
	return nil
}

// message is one netlink message of an answer.
type message struct {
	typ, flags uint16
	seq        uint32
	payload    []byte
}

func (m message) errno() (unix.Errno, error) {
	if m.typ != unix.NLMSG_ERROR || len(m.payload) < 4 {
		return 0, fmt.Errorf("unexpected netlink message of type %d", m.typ)
	}
	return unix.Errno(-int32(native.Uint32(m.payload))), nil
}

// doneErrno returns the error number at the end of a dump, which is 0 if the dump is whole.
func (m message) doneErrno() unix.Errno {
	if len(m.payload) < 4 {
		return 0
	}
	return unix.Errno(max(-int32(native.Uint32(m.payload)), 0))
}

// receive reads one datagram of the kernel and calls fn for each message in it.
func (c *Conn) receive(fn func(message) error) error {
	var n int
	err := retry(func() (err error) { n, err = unix.Read(c.fd, c.buf); return err })
	if err == nil && n == len(c.buf) {
		err = fmt.Errorf("datagram is larger than the buffer of %d bytes", n) // the rest of it is lost
	}
	if err == nil {
		err = eachMessage(c.buf[:n], fn)
	}
	if err != nil {
		c.stale = true
		return fmt.Errorf("receiving from nf_tables: %w", err)
	}
	return nil
}

func eachMessage(b []byte, fn func(message) error) error {
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(native.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return errTruncated
		}
		m := message{typ: native.Uint16(b[4:]), flags: native.Uint16(b[6:]), seq: native.Uint32(b[8:]), payload: b[16:n]}
		if err := fn(m); err != nil {
			return err
		}
		b = b[min(align4(n), len(b)):]
	}
	if len(b) > 0 {
		return errTruncated
	}
	return nil
}

func retry(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// errInterrupted reports that something was committed while a dump ran, so that the dump, whole as it is, may show neither state.
var errInterrupted = errors.New("nf_tables changed during a dump")

// request sends one request and calls fn with the attributes of each message of the answer.
func (c *Conn) request(typ, flags uint16, f Family, attrs []Attr, fn func(attrs []byte) error) error {
	var b Batch
	b.seq = c.nextSeq() - 1
	b.message(subsystem|typ, unix.NLM_F_REQUEST|flags, f, 0)
	for _, a := range attrs {
		b.buf = appendAttr(b.buf, a)
	}
	b.finish()
	if err := c.send(b.buf); err != nil {
		return err
	}
	var firstErr error
	interrupted := false
	for done := false; !done; {
		err := c.receive(func(m message) error {
			if m.seq != c.seq {
				return nil // left over from a request that was given up
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch m.typ {
			case unix.NLMSG_DONE:
				done = true
				// A dump that breaks off half-way, as when its set is deleted, ends with an error number.
				if errno := m.doneErrno(); errno != 0 && firstErr == nil {
					firstErr = errno
				}
				return nil
			case unix.NLMSG_ERROR:
				done = true
				errno, err := m.errno()
				if errno != 0 {
					err = errno
				}
				firstErr = errors.Join(firstErr, err)
				return nil
			}
			done = m.flags&unix.NLM_F_MULTI == 0
			if len(m.payload) < 4 || firstErr != nil {
				return nil
			}
			firstErr = fn(m.payload[4:])
			return nil
		})
		if err != nil {
			return err
		}
	}
	if firstErr == nil && interrupted {
		return errInterrupted
	}
	return firstErr
}

// Generation returns the number of the ruleset's generation in this namespace. Every commit, by anybody, raises it.
func (c *Conn) Generation() (uint32, error) {
	var id uint32
	err := c.request(nftMsgGetGen, 0, 0, nil, func(attrs []byte) error {
		if v := findAttr(attrs, nftaGenID, 0); len(v) == 4 {
			id = beUint32(v)
		}
		return nil
	})
	return id, err
}

// Has reports whether the kernel has a feature. It changes nothing.
func (c *Conn) Has(f Feature) (bool, error) {
	var has, lacks unix.Errno
	var err error
	none := Table{IPv4, "no-such-table"}
	switch f {
	case PersistentTables:
		// The second message makes the batch fail, so that there is no such table afterwards, either.
		var b Batch
		b.AddTableAs(none, Owned|Persistent)
		b.DeleteChain(none, "no-such-chain")
		has, lacks, err = unix.ENOENT, unix.EOPNOTSUPP, c.Commit(&b)
	case Hashing:
		// A hash of no size is out of range. The batch fails, so that there is no such table afterwards.
		var b Batch
		b.AddTableAs(none, 0)
		b.AddChain(none, &Chain{Name: "no-such-chain"})
		b.AddRule(none, "no-such-chain", []Expr{Meta(Reg0, MetaMark), Hash(Reg0, 4, Reg0, 0, 0)})
		has, lacks, err = unix.ERANGE, unix.ENOENT, c.Commit(&b)
	case ElementCounts:
		// Kernels that know the attribute refuse it in requests; others do not look at it.
		has, lacks = unix.EINVAL, unix.ENOENT
		err = c.request(nftMsgGetSet, 0, none.Family,
			[]Attr{attrString(nftaSetTable, none.Name), attrString(nftaSetName, "no-such-set"), attrU32(nftaSetCount, 0)},
			func([]byte) error { return nil })
	}
	switch {
	case has != 0 && errors.Is(err, has):
		return true, nil
	case lacks != 0 && errors.Is(err, lacks):
		return false, nil
	}
	return false, fmt.Errorf("finding out whether the kernel has %s (Linux %s): unexpected answer: %w", f.Name, f.Since, err)
}

// Port returns the socket's netlink port, by which the kernel names the owner of tables.
func (c *Conn) Port() (uint32, error) {
	sa, err := unix.Getsockname(c.fd)
	if err != nil {
		return 0, fmt.Errorf("netlink port: %w", err)
	}
	nl, ok := sa.(*unix.SockaddrNetlink)
	if !ok {
		return 0, fmt.Errorf("netlink port: unexpected address %v", sa)
	}
	return nl.Pid, nil
}

// Table returns what a table itself shows. A table that does not exist is an error that wraps [os.ErrNotExist].
func (c *Conn) Table(t Table) (info TableInfo, err error) {
	err = c.request(nftMsgGetTable, 0, t.Family, []Attr{attrString(nftaTableName, t.Name)}, func(attrs []byte) error {
		info = decodeTable(attrs)
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		err = os.ErrNotExist
	}
	if err != nil {
		return TableInfo{}, fmt.Errorf("table %s: %w", t.Name, err)
	}
	return info, nil
}

// HasTable reports whether a table exists.
func (c *Conn) HasTable(t Table) (bool, error) {
	err := c.request(nftMsgGetTable, 0, t.Family, []Attr{attrString(nftaTableName, t.Name)}, func([]byte) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// How often a dump is made that is not whole, and how often one that commits interrupt, before it is taken for true.
const (
	dumpAttempts  = 20
	quietAttempts = 5
)

// dump calls fn for all objects of a kind in a table's family. A dump that was interrupted by a commit is repeated, after a call of again.
// The kernel only reports a commit between two messages of a dump, not a commit while it fills a message. So the generation is also
// compared.
//
// Commits to other tables also interrupt a dump, on a busy node perhaps every time. They do not change its content, because a table of ours
// has one writer. So after some attempts an interrupted dump is accepted. If there was another writer, the generation shows its commits,
// and they are looked into.
func (c *Conn) dump(typ uint16, t Table, attrs []Attr, again func(), fn func(attrs []byte) error) error {
	before, err := c.Generation()
	if err != nil {
		return err
	}
	for attempt := range dumpAttempts {
		again()
		err := c.request(typ, unix.NLM_F_DUMP, t.Family, attrs, fn)
		interrupted := errors.Is(err, errInterrupted)
		if err != nil && !interrupted && !errors.Is(err, unix.EINTR) {
			return err
		}
		after, genErr := c.Generation()
		if genErr != nil {
			return genErr
		}
		undisturbed := err == nil && after == before
		if undisturbed || (err == nil || interrupted) && attempt+1 >= quietAttempts {
			return nil
		}
		before = after
	}
	return fmt.Errorf("reading table %s: %w in each of %d attempts", t.Name, errInterrupted, dumpAttempts)
}

// Elems returns all elements of a set, in no particular order. A set that does not exist is an error that wraps [os.ErrNotExist].
//
// A dump continues by counting elements in the kernel's hash table. The kernel resizes the table in the background after many elements were
// added. A dump during a resize has some elements twice and misses as many: 10,000 of 100,000 right after they were added. So a dump with
// repetitions is incomplete, and is repeated.
//
// But a set to which packets add elements can permanently hold an element twice. This was seen with Linux 6.18, in 1 of some 20 restarts
// with two processors full of packets. Elems returns both. A deletion of one leaves the other.
func (c *Conn) Elems(t Table, set string) ([]Elem, error) {
	var elems []Elem
	read := func() error {
		return c.dump(nftMsgGetSetElem, t, []Attr{attrString(nftaSetElemListTable, t.Name), attrString(nftaSetElemListSet, set)},
			func() { elems = elems[:0] },
			func(attrs []byte) error {
				var err error
				elems, err = decodeElems(attrs, elems)
				return err
			})
	}
	err := whole(read, func() []uint64 { return repeated(elems) })
	if errors.Is(err, unix.ENOENT) {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("set %s of table %s: %w", set, t.Name, err)
	}
	return elems, nil
}

// Fill returns how full a set is, without a look at its elements. It takes the same time for all sets, and waits for no commit. ok is false
// if the set does not exist, or if the kernel does not count ([ElementCounts]).
func (c *Conn) Fill(t Table, set string) (f Fill, ok bool, err error) {
	err = c.request(nftMsgGetSet, 0, t.Family, []Attr{attrString(nftaSetTable, t.Name), attrString(nftaSetName, set)}, func(attrs []byte) error {
		f, ok = setFill(attrs)
		return nil
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return Fill{}, false, nil
	case err != nil:
		return Fill{}, false, fmt.Errorf("set %s of table %s: %w", set, t.Name, err)
	}
	return f, ok, nil
}

// whole reads a set until no element has come twice, or the same ones come twice again and again: those are there twice.
func whole(read func() error, repeated func() []uint64) error {
	var before []uint64
	for attempt := range dumpAttempts {
		if err := read(); err != nil {
			return err
		}
		twice := repeated()
		if len(twice) == 0 || attempt >= quietAttempts && slices.Equal(twice, before) {
			return nil
		}
		before = twice
	}
	return fmt.Errorf("the kernel resized the set in each of %d attempts", dumpAttempts)
}

// ReadSkeleton reads the contents of a table without elements. A table that does not exist is an error that wraps
// [os.ErrNotExist].
func (c *Conn) ReadSkeleton(t Table) (*Skeleton, error) {
	s := newSkeleton()
	table := []Attr{attrString(nameOfTable, t.Name)}
	ours := func(add func([]byte)) func([]byte) error {
		return func(attrs []byte) error {
			if attrStr(attrs, nameOfTable) == t.Name { // the kernel does not filter chains by table
				add(attrs)
			}
			return nil
		}
	}
	err := errors.Join(
		c.request(nftMsgGetTable, 0, t.Family, table, func(attrs []byte) error { s.setTable(attrs); return nil }),
		c.dump(nftMsgGetSet, t, table, func() { clear(s.sets) }, ours(s.addSet)),
		c.dump(nftMsgGetChain, t, table, func() { clear(s.chains) }, ours(s.addChain)),
		c.dump(nftMsgGetRule, t, table, func() { clear(s.rules) }, ours(s.addRule)),
	)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("table %s: %w", t.Name, os.ErrNotExist)
	}
	return s, err
}
