package hostrelay

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
)

const (
	// maxDatagram is more than the longest datagram has.
	maxDatagram = 1 << 16
	// receiveBuffer is how many bytes of datagrams wait in the system, if it allows that.
	receiveBuffer = 4 << 20
	// streamDatagrams is how many datagrams a client has sent that does more than ask a question.
	streamDatagrams = 3
	// questionTimeout is how long a flow is kept at most whose client has sent fewer.
	questionTimeout = 10 * time.Second
	// maxFailures is how often in a row a socket may fail before it is given a rest, or up.
	maxFailures = 16
)

type flowKey struct {
	socket *socket
	client netip.AddrPort
}

// flow is the datagrams of one client to one frontend.
type flow struct {
	choice
	key      flowKey
	endpoint *net.UDPConn
	began    time.Time // when the relay began
	// used is when a datagram has come last, in nanoseconds since began.
	used atomic.Int64
	// sent is how many datagrams the client has sent, up to streamDatagrams. The relay's mu guards it.
	sent  int
	place ledger.Place[*flow]
}

// Used implements [ledger.Item].
func (f *flow) Used() time.Duration { return time.Duration(f.used.Load()) }

// touch notes that a datagram has come.
func (f *flow) touch() { f.used.Store(int64(time.Since(f.began))) }

// receive passes datagrams on to the endpoints of their flows, until the socket is closed.
func (r *Relay) receive(s *socket) {
	if !r.awaitState() {
		return
	}
	_ = s.udp.SetReadBuffer(receiveBuffer)
	b := make([]byte, maxDatagram)
	for failures := 0; ; {
		n, from, err := s.udp.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // an ICMP message about an answer
			if failures++; failures > maxFailures {
				time.Sleep(acceptPause)
			}
			continue
		}
		failures = 0
		key := flowKey{s, netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
		for range attempts {
			f := r.flowOf(key)
			if f == nil {
				break
			}
			// A datagram without room is lost, as on any network.
			if _, err := f.endpoint.Write(b[:n]); !errors.Is(err, net.ErrClosed) {
				break
			}
		}
	}
}

// attempts is how often an endpoint is looked for at most, when the one that was found leaves at that moment.
const attempts = 3

// flowOf returns the flow of a client, a new one if it has none. It returns nil if there is no endpoint for it.
func (r *Relay) flowOf(key flowKey) *flow {
	r.mu.Lock()
	f := r.flows[key]
	if f != nil {
		f.touch()
		f.sent = min(f.sent+1, streamDatagrams)
	}
	r.mu.Unlock()
	if f != nil {
		return f
	}
	for range attempts {
		c, ok := r.choose(&request{key: key.socket.key, client: key.client})
		if !ok {
			return nil
		}
		endpoint, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(c.endpoint))
		if err != nil {
			r.end(&c)
			return nil
		}
		f = &flow{choice: c, key: key, endpoint: endpoint, began: r.began, sent: 1}
		f.touch()
		if r.carry(f) {
			return f
		}
		endpoint.Close()
		r.end(&c)
	}
	return nil
}

// carry passes on the answers of a new flow, unless its endpoint or its frontend has gone since they were chosen.
func (r *Relay) carry(f *flow) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := f.key.socket; r.ctx.Err() != nil || r.sockets[s.key][s.at] != s || !r.serves(&f.choice) {
		return false
	}
	r.flows[f.key] = f
	of := r.ofService[f.port.Service]
	if of == nil {
		of = map[*flow]bool{}
		r.ofService[f.port.Service] = of
	}
	of[f] = true
	r.flowPlaces.Take(&f.place, f, ledger.Owner{Service: f.port.Service, Client: ledger.ClientOf(f.key.client.Addr())})
	if other, full := r.flowPlaces.MakeRoom(r.o.MaxUDPFlows, &f.place, time.Now()); full {
		r.endFlow(other)
	}
	r.running.Go(func() { r.answer(f) })
	return true
}

// endFlow ends a flow, if it has not ended. The caller holds mu.
func (r *Relay) endFlow(f *flow) {
	if r.flows[f.key] != f {
		return
	}
	delete(r.flows, f.key)
	of := r.ofService[f.port.Service]
	if delete(of, f); len(of) == 0 {
		delete(r.ofService, f.port.Service)
	}
	r.flowPlaces.Leave(&f.place)
	r.end(&f.choice)
	f.endpoint.Close()
}

// answer passes on what the endpoint sends, until the flow is idle for too long or has ended.
func (r *Relay) answer(f *flow) {
	b := make([]byte, maxDatagram)
	for failures := 0; failures <= maxFailures; {
		expires, ok := r.expires(f)
		if !ok {
			return
		}
		_ = f.endpoint.SetReadDeadline(expires)
		n, err := f.endpoint.Read(b)
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				failures++ // it has ended, or the endpoint has refused a datagram
			}
			continue
		}
		failures = 0
		f.touch()
		_, _ = f.key.socket.udp.WriteToUDPAddrPort(b[:n], f.key.client)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endFlow(f)
}

// expires returns when the flow ends if nothing more comes. ok is false if it has ended.
func (r *Relay) expires(f *flow) (at time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	timeout := r.o.UDPIdleTimeout
	if f.sent < streamDatagrams {
		timeout = min(timeout, questionTimeout)
	}
	if at = f.began.Add(f.Used()).Add(timeout); !time.Now().Before(at) {
		r.endFlow(f)
	}
	return at, r.flows[f.key] == f
}
