package userspace

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// handoverTimeout is how long each step of a handover may take.
	handoverTimeout = 5 * time.Second
	// restTimeout is how long busy connections may take to come to rest.
	restTimeout = time.Second
	// maxItem bounds the bytes of an item: the contents of two pipes, as text.
	maxItem = 4 << 20
	// visitsPerItem is how many clients are in one item.
	visitsPerItem = 1000
)

// item is one thing that is handed over. Its file descriptors come with it.
type item struct {
	Kind     itemKind
	Of       plan.Kind
	Class    plan.Class
	At       netip.AddrPort // the address of a listener or a flow
	Frontend netip.AddrPort
	Choice   *itemChoice
	Client   netip.AddrPort
	Pending  [2][]byte
	Ended    [2]bool
	Tracked  conntrack.Flow
	Sent     int32
	Visits   []balance.Visit
}

type itemChoice struct {
	Port     plan.PortID
	Frontend state.FrontendKey
	Endpoint netip.AddrPort
}

type itemKind string

const (
	itemListener itemKind = "listener"
	itemConn     itemKind = "connection"
	itemFlow     itemKind = "flow"
	itemVisits   itemKind = "affinity"
	itemEnd      itemKind = "end"
)

func send(conn *net.UnixConn, i *item, fds ...int) error {
	data, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(handoverTimeout)); err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix(binary.BigEndian.AppendUint32(nil, uint32(len(data))), rights, nil); err != nil {
		return err
	}
	_, err = conn.Write(data)
	return err
}

func receive(conn *net.UnixConn) (i *item, fds []int, err error) {
	if err := conn.SetDeadline(time.Now().Add(handoverTimeout)); err != nil {
		return nil, nil, err
	}
	var head [4]byte
	rights := make([]byte, unix.CmsgSpace(2*4))
	n, m, _, _, err := conn.ReadMsgUnix(head[:], rights)
	if err != nil {
		return nil, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		return nil, nil, err
	}
	for _, message := range messages {
		some, err := unix.ParseUnixRights(&message)
		if err != nil {
			return nil, nil, err
		}
		fds = append(fds, some...)
	}
	size := binary.BigEndian.Uint32(head[:])
	if n != len(head) || size > maxItem {
		closeAll(fds)
		return nil, nil, fmt.Errorf("an item of %d bytes", size)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(conn, data); err != nil {
		closeAll(fds)
		return nil, nil, err
	}
	i = &item{}
	if err := json.Unmarshal(data, i); err != nil {
		closeAll(fds)
		return nil, nil, err
	}
	return i, fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// handOver hands all that is open over to the process at the other end. After an error, everything goes on here.
func (r *relay) handOver(conn *net.UnixConn) error {
	defer conn.Close()
	conns, flows := r.rest()
	err := r.sendAll(conn, conns, flows)
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1)) // the other end has them
	}
	if err != nil {
		r.resume(flows)
		return err
	}
	for _, c := range conns {
		c.leave()
	}
	r.poll() // for those without an endpoint
	for _, f := range flows {
		f.close()
	}
	r.loads.Visits.Reset(0)
	r.log.Info("another process has taken over what is open", "connections", len(conns), "flows", len(flows))
	return nil
}

// rest brings the relay to rest, and returns what can be handed over. Connections that have no endpoint yet stay here.
func (r *relay) rest() (conns []*conn, flows []*flow) {
	r.mu.Lock()
	r.moving = true
	r.listening = false
	r.reconsider()
	r.mu.Unlock()
	for _, l := range r.datagrams {
		_ = l.conn.SetReadDeadline(past)
	}
	r.receiving.Wait()
	for began := time.Now(); r.connecting() > 0 && time.Since(began) < restTimeout; {
		time.Sleep(time.Millisecond)
	}
	r.halt()
	r.mu.Lock()
	for _, of := range r.conns {
		for c := range of {
			conns = append(conns, c)
		}
	}
	for _, of := range r.flows {
		for f := range of {
			flows = append(flows, f)
		}
	}
	r.mu.Unlock()
	for _, f := range flows {
		f.moved.Store(true)
		_ = f.socket.file.SetReadDeadline(past)
	}
	for _, f := range flows {
		<-f.rested
	}
	return conns, flows
}

// past is a deadline that ends what waits.
var past = time.Unix(1, 0)

// connecting is how many connections have no endpoint yet.
func (r *relay) connecting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.open
	for _, of := range r.conns {
		n -= len(of)
	}
	return n
}

func (r *relay) sendAll(conn *net.UnixConn, conns []*conn, flows []*flow) error {
	for _, l := range r.streams {
		if err := send(conn, &item{Kind: itemListener, Of: l.kind, Class: l.class, At: l.at, Frontend: l.frontend}, l.fd); err != nil {
			return err
		}
	}
	for _, l := range r.datagrams {
		raw, err := l.conn.SyscallConn()
		if err != nil {
			return err
		}
		if errControl := raw.Control(func(fd uintptr) {
			err = send(conn, &item{Kind: itemListener, Of: l.kind, Class: l.class, At: l.at, Frontend: l.frontend}, int(fd))
		}); errControl != nil || err != nil {
			return errors.Join(errControl, err)
		}
	}
	for _, c := range conns {
		if err := c.send(conn); err != nil {
			return err
		}
	}
	for _, f := range flows {
		i := &item{
			Kind: itemFlow, Of: f.kind, Class: f.listener.class, At: f.listener.at, Choice: &itemChoice{f.port, f.choice.frontend, f.endpoint}, Client: f.client,
			Tracked: f.tracked, Sent: f.sent.Load(),
		}
		err := f.socket.control(func(fd int) error { return send(conn, i, fd) })
		if err != nil && !errors.Is(err, os.ErrClosed) { // it has ended
			return err
		}
	}
	for _, visits := range r.visits() {
		if err := send(conn, &item{Kind: itemVisits, Visits: visits}); err != nil {
			return err
		}
	}
	return send(conn, &item{Kind: itemEnd})
}

// send hands a connection over, unless it has ended.
func (c *conn) send(to *net.UnixConn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	i := &item{Kind: itemConn, Of: c.kind, Choice: &itemChoice{c.port, c.frontend, c.endpoint}, Client: c.client}
	for n := range c.from {
		d := &c.from[n]
		d.unpipe()
		i.Pending[n], i.Ended[n] = d.pending, d.ended
	}
	return send(to, i, c.ends[0].fd, c.ends[1].fd)
}

// visits returns the remembered clients with affinity, in parts.
func (r *relay) visits() (parts [][]balance.Visit) {
	return slices.Collect(slices.Chunk(r.loads.Visits.All(time.Now()), visitsPerItem))
}

// resume goes on with what could not be handed over.
func (r *relay) resume(flows []*flow) {
	r.mu.Lock()
	r.moving = false
	timeout := r.o.UDPIdleTimeout
	r.mu.Unlock()
	for _, l := range r.datagrams {
		_ = l.conn.SetReadDeadline(time.Time{})
	}
	r.listen()
	r.poll()
	for _, f := range flows {
		f.moved.Store(false)
		f.rested = make(chan struct{})
		r.running.Go(func() { f.answer(timeout) })
	}
}

// takeOver takes over what an earlier process has released. Mostly, nothing was released.
func (b *Backend) takeOver() error {
	conn, err := meetPredecessor()
	if conn == nil || err != nil {
		return err
	}
	defer conn.Close()
	var taken inheritance
	if err := taken.receive(conn); err != nil {
		taken.drop()
		return err
	}
	if b.overlay != nil { // before the earlier process closes its own
		if err := b.overlay.arrive(taken.listeners()); err != nil {
			taken.drop()
			return err
		}
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		taken.drop()
		return err
	}
	return b.inherit(&taken)
}

// inheritance is the content of a hand-over.
type inheritance struct {
	items []*item
	fds   [][]int
}

func (h *inheritance) receive(conn *net.UnixConn) error {
	for {
		i, fds, err := receive(conn)
		if err != nil {
			return err
		}
		want := map[itemKind]int{itemListener: 1, itemConn: 2, itemFlow: 1}[i.Kind]
		if len(fds) != want {
			closeAll(fds)
			return fmt.Errorf("a %s with %d file descriptors", i.Kind, len(fds))
		}
		if i.Kind == itemEnd {
			return nil
		}
		h.items, h.fds = append(h.items, i), append(h.fds, fds)
	}
}

// listeners are those that are handed over.
func (h *inheritance) listeners() (list []backend.Listener) {
	for _, i := range h.items {
		if i.Kind == itemListener && !i.Frontend.IsValid() {
			list = append(list, backend.Listener{Family: i.Of.Family, Protocol: i.Of.Protocol, Outside: i.Class == plan.Outside, At: i.At})
		}
	}
	return list
}

func (h *inheritance) drop() {
	for _, fds := range h.fds {
		closeAll(fds)
	}
}

// inherit adds the content of a hand-over to the relay. Listeners come before flows.
func (b *Backend) inherit(h *inheritance) error {
	r := b.relay
	conns, flows := 0, 0
	var errs []error
	for n, i := range h.items {
		fds := h.fds[n]
		switch i.Kind {
		case itemListener:
			errs = append(errs, b.addListener(i.Of, i.Class, i.At, i.Frontend, fds[0]))
		case itemConn:
			conns++
			r.inheritConn(i, fds)
		case itemFlow:
			flows++
			errs = append(errs, r.inheritFlow(i, fds[0]))
		case itemVisits:
			for _, v := range i.Visits {
				r.loads.Visits.Learn(v.Port, v.Client, v.Endpoint, v.Timeout, time.Now().Add(-v.Idle))
			}
		}
	}
	b.log.Info("took over connections and flows of the previous process", "connections", conns, "flows", flows)
	return errors.Join(errs...)
}

func (r *relay) inheritConn(i *item, fds []int) {
	c := r.newConn(i.Of, i.Client, nil)
	c.choice = choice{i.Choice.Port, i.Choice.Frontend, i.Choice.Endpoint}
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, fd := range fds {
		c.ends[n] = end{fd: fd, open: true}
		c.from[n] = direction{pending: i.Pending[n], ended: i.Ended[n]}
	}
	r.mu.Lock()
	r.open++
	r.mu.Unlock()
	r.loads.Begin(c.port, c.endpoint)
	r.places.Take(&c.place, c, ledger.Owner{Service: c.port.Service, Client: ledger.ClientOf(c.client.Addr())})
	r.note(c) // there are no records yet, which it could be judged by
	for n := range c.from {
		c.move(n, 1)
	}
	c.attend()
}

func (r *relay) inheritFlow(i *item, fd int) error {
	s, err := newSocket(fd)
	if err != nil {
		return err
	}
	for _, l := range r.datagrams {
		if l.at != i.At || l.kind != i.Of {
			continue
		}
		f := &flow{
			choice: choice{i.Choice.Port, i.Choice.Frontend, i.Choice.Endpoint}, kind: i.Of, client: i.Client, tracked: i.Tracked,
			listener: l, socket: s, rested: make(chan struct{}),
		}
		f.sent.Store(i.Sent)
		r.loads.Begin(f.port, f.endpoint)
		r.carry(f) // there are no records yet, which it could be judged by
		return nil
	}
	return s.file.Close()
}

// listenOn opens the listener of a frontend on an address of the host, unless it was handed over.
func (b *Backend) listenOn(l *Listen) error {
	k, frontend := l.kind(), l.Frontend
	is := func(of plan.Kind, at, has netip.AddrPort) bool { return of == k && at == l.At && has == frontend }
	if slices.ContainsFunc(b.relay.streams, func(s *streamListener) bool { return is(s.kind, s.at, s.frontend) }) ||
		slices.ContainsFunc(b.relay.datagrams, func(d *datagramListener) bool { return is(d.kind, d.at, d.frontend) }) {
		return nil
	}
	fd, at, err := bindTo(plan.Kind{Family: state.FamilyOf(l.At.Addr()), Protocol: l.Protocol}, l.At)
	if err != nil {
		return fmt.Errorf("listen on %v for %v: %w; choose another address or port", l.At, frontend, err)
	}
	return b.addListener(k, plan.Inside, at, frontend, fd)
}

// takenPort is a port that another process had.
type takenPort struct {
	kind plan.Kind
	at   netip.AddrPort
	err  error
}

// checkTaken forgets ports that are free by now.
func (b *Backend) checkTaken() {
	b.relay.problemsMu.Lock()
	defer b.relay.problemsMu.Unlock()
	b.taken = slices.DeleteFunc(b.taken, func(t takenPort) bool {
		fd, err := b.relay.maker.socket(t.kind)
		if err != nil {
			return false
		}
		defer unix.Close(fd)
		return bind(fd, t.kind, t.at) == nil
	})
}

// listen opens the listeners of one kind that were not handed over. A port may become free until patience ends.
func (b *Backend) listen(k plan.Kind, addr netip.Addr, patience time.Time) error {
	for _, class := range []plan.Class{plan.Inside, plan.Outside} {
		if at := b.listeners[k]; at[class].Addr() == addr {
			continue
		}
		fd, at, err := listen(k, addr, class, patience)
		if err != nil {
			return err
		}
		b.own = true
		if want := preferredPorts[class]; at.Port() != want {
			taken := fmt.Errorf("another process has port %d of %v at %v, so the relay has port %d: find the process with ss -lnp 'sport = %d', and end it",
				want, k.Protocol, addr, at.Port(), want)
			b.log.Warn("a port of the relay is taken", "error", taken)
			b.taken = append(b.taken, takenPort{k, netip.AddrPortFrom(addr, want), taken})
		}
		if err := b.addListener(k, class, at, netip.AddrPort{}, fd); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) addListener(k plan.Kind, class plan.Class, at, frontend netip.AddrPort, fd int) (err error) {
	if k.Protocol == state.TCP {
		err = b.relay.addStreams(k, class, at, frontend, fd)
	} else {
		err = b.relay.addDatagrams(k, class, at, frontend, fd)
	}
	if err != nil {
		return fmt.Errorf("listener %v: %w", at, err)
	}
	if frontend.IsValid() {
		return nil
	}
	all := b.listeners[k]
	all[class] = at
	b.listeners[k] = all
	return nil
}
