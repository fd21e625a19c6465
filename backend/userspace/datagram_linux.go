package userspace

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// batch is how many datagrams are read or written by one system call.
	batch = 16
	// maxDatagram is more than the longest datagram has.
	maxDatagram = 1 << 16
	// maxEarly is how many datagrams wait for the first records.
	maxEarly = 256
	// controlBytes is more than what the kernel reports of a datagram takes.
	controlBytes = 64
	// receiveBuffer is how many bytes of datagrams wait in the kernel, if it allows that.
	receiveBuffer = 4 << 20
)

// datagramListener receives the datagrams of one family and class, and answers their clients.
type datagramListener struct {
	kind  plan.Kind
	class plan.Class
	at    netip.AddrPort
	// frontend is the only one that it serves, if it is valid.
	frontend netip.AddrPort
	conn     *net.UDPConn
	batch    batchConn

	mu    sync.Mutex // guards flows
	flows map[netip.AddrPort]*flow
	// early are datagrams that have come before there were records. Only receive uses it.
	early []datagram
}

// batchConn is what package ipv4 and package ipv6 have in common.
type batchConn interface {
	ReadBatch([]ipv4.Message, int) (int, error)
	WriteBatch([]ipv4.Message, int) (int, error)
}

type datagram struct {
	from netip.AddrPort
	hops int // the hop limit that is left
	data []byte
}

func (r *relay) addDatagrams(kind plan.Kind, class plan.Class, at, frontend netip.AddrPort, fd int) error {
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close() // c uses a duplicate
	c, err := net.FilePacketConn(file)
	if err != nil {
		return err
	}
	if err := learnHops(fd, at.Addr()); err != nil {
		return err
	}
	l := &datagramListener{kind: kind, class: class, at: at, frontend: frontend, conn: c.(*net.UDPConn), flows: map[netip.AddrPort]*flow{}}
	_ = l.conn.SetReadBuffer(receiveBuffer)
	if l.batch = ipv4.NewPacketConn(l.conn); at.Addr().Is6() {
		l.batch = ipv6.NewPacketConn(l.conn)
	}
	r.datagrams = append(r.datagrams, l)
	return nil
}

// receive hands datagrams to their flows, until the listener is closed or the relay moves.
func (r *relay) receive(l *datagramListener) {
	messages := make([]ipv4.Message, batch)
	for i := range messages {
		messages[i].Buffers, messages[i].OOB = [][]byte{make([]byte, maxDatagram)}, make([]byte, controlBytes)
	}
	r.running.Go(func() { // at the first records, what has waited for them goes on
		select {
		case <-r.started:
			_ = l.conn.SetReadDeadline(time.Unix(1, 0))
		case <-r.ctx.Done():
		}
	})
	for {
		n, err := l.batch.ReadBatch(messages, 0)
		select {
		case <-r.started:
			for _, d := range l.early {
				r.pass(l, d)
			}
			l.early = nil
		default:
		}
		for _, m := range messages[:max(n, 0)] {
			from := m.Addr.(*net.UDPAddr).AddrPort()
			r.pass(l, datagram{netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), hopsLeft(hopsIn(m.OOB[:m.NN])), m.Buffers[0][:m.N]})
		}
		switch {
		case err == nil:
		case r.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = l.conn.SetReadDeadline(time.Time{})
			if r.isMoving() {
				return
			}
		default: // an ICMP message about an answer
		}
	}
}

func (r *relay) isMoving() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.moving
}

// attempts is how often an endpoint is looked for at most, when the one that was found leaves at that moment.
const attempts = 3

// pass passes a datagram on to the endpoint of its flow.
func (r *relay) pass(l *datagramListener, d datagram) {
	for range attempts {
		if r.passOnce(l, d) {
			return
		}
	}
}

// passOnce returns false if the flow ended before it took the datagram.
func (r *relay) passOnce(l *datagramListener, d datagram) bool {
	l.mu.Lock()
	f := l.flows[d.from]
	l.mu.Unlock()
	if f == nil {
		select {
		case <-r.started:
			f = r.begin(l, d.from, d.hops)
		default:
			if len(l.early) < maxEarly {
				l.early = append(l.early, datagram{d.from, d.hops, append([]byte(nil), d.data...)})
			}
		}
	}
	if f == nil {
		return true
	}
	f.touch()
	if f.sent.Load() < streamDatagrams {
		f.sent.Add(1)
	}
	return f.send(d.data)
}

// flow is the datagrams of one client to one frontend.
type flow struct {
	choice
	kind     plan.Kind
	client   netip.AddrPort
	tracked  conntrack.Flow
	listener *datagramListener
	socket   *socket // connected to the endpoint
	// last is when a datagram has come last, in nanoseconds since began, which is the relay's: the wall clock may jump. sent is how many the client has
	// sent, up to streamDatagrams.
	began time.Time
	last  atomic.Int64
	sent  atomic.Int32
	place ledger.Place[*flow]
	// moved is set when the flow is to go on in another process, and rested is closed when it is ready to.
	moved  atomic.Bool
	rested chan struct{}
	forget func()
	once   sync.Once
}

// streamDatagrams is how many datagrams a client has sent that does more than ask a question.
const streamDatagrams = 3

// questionTimeout is how long a flow is kept at most whose client has sent fewer.
const questionTimeout = 10 * time.Second

// begin makes the flow of a client that has none. It returns nil if there is no endpoint for it.
func (r *relay) begin(l *datagramListener, client netip.AddrPort, hops int) *flow {
	tracked, err := r.track(l, client)
	if err != nil || tracked.Orig.Dst == l.at {
		return nil // it was not translated: the client sends to the relay itself
	}
	q := request{kind: l.kind, class: l.class, client: tracked.Orig.Src, dst: tracked.Orig.Dst, unguarded: l.frontend.IsValid(), hops: hops}
	for range attempts {
		choice, ok := r.choose(&q)
		if !ok {
			r.untrack(tracked) // what comes next meets the base's rules
			return nil
		}
		f := &flow{choice: choice, kind: l.kind, client: client, tracked: tracked, listener: l, rested: make(chan struct{})}
		if f.socket, err = r.connected(l.kind, choice.endpoint, hops); err != nil {
			r.end(&choice)
			return nil
		}
		if r.carry(f) {
			return f
		}
		r.end(&choice)
		f.socket.file.Close()
	}
	return nil
}

// track returns what the kernel knows of a flow.
func (r *relay) track(l *datagramListener, client netip.AddrPort) (conntrack.Flow, error) {
	if l.frontend.IsValid() {
		return conntrack.Flow{Orig: conntrack.Tuple{Src: client, Dst: l.frontend}}, nil
	}
	return r.tracked.Find(state.UDP, conntrack.Tuple{Src: l.at, Dst: client})
}

// connected returns a socket that exchanges datagrams with an endpoint, to which they go with a hop limit.
func (r *relay) connected(k plan.Kind, endpoint netip.AddrPort, hops int) (*socket, error) {
	fd, err := r.maker.socket(k)
	if err != nil {
		return nil, err
	}
	s, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	if err := s.control(func(fd int) error {
		return errors.Join(limitHops(fd, k.Family, hops), unix.Connect(fd, sockaddr(endpoint)))
	}); err != nil {
		s.file.Close()
		return nil, os.NewSyscallError("connect", err)
	}
	return s, nil
}

// carry puts a flow on the books, and passes on its answers. It returns false if its endpoint has left since it was chosen: settle has not seen
// the flow.
func (r *relay) carry(f *flow) bool {
	l := f.listener
	f.began = r.began
	f.touch()
	f.forget = func() { r.forgetFlow(f) }
	r.mu.Lock()
	if r.hasStarted() && !r.serves(&f.choice) {
		r.mu.Unlock()
		return false
	}
	l.mu.Lock()
	l.flows[f.client] = f
	l.mu.Unlock()
	of := r.flows[f.port.Service]
	if of == nil {
		of = map[*flow]bool{}
		r.flows[f.port.Service] = of
	}
	of[f] = true
	r.openFlows++
	timeout := r.o.UDPIdleTimeout
	r.flowPlaces.Take(&f.place, f, ledger.Owner{Service: f.port.Service, Client: ledger.ClientOf(f.client.Addr())})
	r.mu.Unlock()
	r.makeRoomForFlow(&f.place)
	r.running.Go(func() { f.answer(timeout) })
	return true
}

func (r *relay) forgetFlow(f *flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.flows[f.port.Service]
	if delete(of, f); len(of) == 0 {
		delete(r.flows, f.port.Service)
	}
	r.openFlows--
	r.flowPlaces.Leave(&f.place)
	r.end(&f.choice)
}

// close ends a flow.
func (f *flow) close() {
	f.once.Do(func() {
		f.leave()
		f.forget()
		f.socket.file.Close()
	})
}

// leave has the listener forget the flow.
func (f *flow) leave() {
	l := f.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flows[f.client] == f {
		delete(l.flows, f.client)
	}
}

// send sends a datagram to the endpoint. If the socket has no room for it, it is lost, as on any way. It returns false if the flow has ended.
func (f *flow) send(data []byte) bool {
	for range 2 { // the first answer may be about an earlier datagram that the endpoint has refused
		err := f.socket.control(func(fd int) error { return unix.Send(fd, data, 0) })
		if !errors.Is(err, unix.ECONNREFUSED) {
			return !errors.Is(err, os.ErrClosed)
		}
	}
	return true
}

// buffers are some that a datagram fits into.
var buffers = sync.Pool{New: func() any { b := make([]byte, maxDatagram); return &b }}

// answer passes on what the endpoint sends, until the flow is idle for too long, is closed or moves.
func (f *flow) answer(timeout time.Duration) {
	defer close(f.rested)
	client := net.UDPAddrFromAddrPort(f.client)
	messages := make([]ipv4.Message, 0, 1)
	for {
		_ = f.socket.file.SetReadDeadline(f.expires(timeout))
		if f.moved.Load() {
			return
		}
		var used []*[]byte
		err := f.socket.raw.Read(func(fd uintptr) bool {
			for len(used) < batch {
				b := buffers.Get().(*[]byte)
				n, err := unix.Read(int(fd), *b)
				if err != nil {
					buffers.Put(b)
					if err == unix.EINTR || err == unix.ECONNREFUSED {
						continue // the endpoint has refused a datagram
					}
					return err != unix.EAGAIN || len(used) > 0
				}
				used = append(used, b)
				messages = append(messages, ipv4.Message{Buffers: [][]byte{(*b)[:n]}, Addr: client})
			}
			return true
		})
		if len(used) > 0 {
			f.touch()
		}
		for rest := messages; len(rest) > 0; {
			n, err := f.listener.batch.WriteBatch(rest, 0)
			if err != nil || n <= 0 {
				n = 1 // this one is lost
			}
			rest = rest[n:]
		}
		for _, b := range used {
			buffers.Put(b)
		}
		clear(messages)
		messages = messages[:0]
		switch {
		case err == nil:
		case f.moved.Load():
			return
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(f.expires(timeout)):
		default:
			f.close()
			return
		}
	}
}

// Used implements [ledger.Item].
func (f *flow) Used() time.Duration { return time.Duration(f.last.Load()) }

// touch notes that a datagram has come.
func (f *flow) touch() { f.last.Store(int64(time.Since(f.began))) }

// expires is when the flow ends if nothing more comes.
func (f *flow) expires(timeout time.Duration) time.Time {
	if f.sent.Load() < streamDatagrams {
		timeout = min(timeout, questionTimeout)
	}
	return f.began.Add(time.Duration(f.last.Load())).Add(timeout)
}
