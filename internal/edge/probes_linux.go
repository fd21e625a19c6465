package edge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
)

// prober looks whether nodes are there that get packets from this one: those with shares, and those that are asked for connections. A node that has died takes
// new connections with it, and one whose process was killed does so as well.
type prober struct {
	// sockets has one socket for each address of this node in bound.
	sockets map[netip.Addr]*net.UDPConn
	ticker  *time.Ticker
	stop    chan struct{}

	// mu guards all below. An answer waits for nothing else: an Apply may hold the edge's mu for longer than probes take.
	mu sync.Mutex
	// asked are the IDs of the nodes at each address to which the last probes went. Several nodes may have one address.
	asked map[netip.AddrPort][]uint32
	// answered are those that have answered since then.
	answered map[uint32]bool
}

const (
	probeEvery = time.Second
	// hurry is how many times in probeEvery a node is probed that has missed mostMissed probes. Its connections wait for it.
	hurry = 4
	// mostMissed is how many probes in a row a node leaves unanswered until it counts as silent. As many answers in a row end that.
	mostMissed = 3
	// burst is how many probes are sent at once. All of them are sent within half of probeEvery, so that each has time for its answer.
	burst = 64
)

// probes is what a node has answered. The zero value is for a node that is not probed.
type probes struct {
	on bool
	// sent is set if a probe is on its way.
	sent bool
	// missed and answered are how many it has not answered and has answered in a row, up to mostMissed.
	missed, answered int
	// silent is set if it does not answer.
	silent bool
}

// note takes note of whether the last probe was answered, and whether the node is probed from now on. It reports whether the node has fallen silent, or answers again.
func (p *probes) note(answered, on bool) (changed bool) {
	was := *p
	switch p.on = on; {
	case !on:
		*p = probes{}
	case answered:
		p.missed, p.answered = 0, min(was.answered+1, mostMissed)
	case was.sent:
		p.missed, p.answered = min(was.missed+1, mostMissed), 0
	}
	switch p.sent = false; {
	case p.missed == mostMissed:
		p.silent = true
	case p.answered == mostMissed:
		p.silent = false
	}
	return p.silent != was.silent
}

// lost reports whether a node has missed mostMissed probes. Then it is asked for no connections.
func (p *probes) lost() bool { return p.on && p.missed == mostMissed }

// bind opens a socket at each primary address of the node, and closes others. The caller holds the edge's mu.
func (p *prober) bind(e *Edge) error {
	if p.stop == nil {
		p.sockets, p.stop, p.ticker = map[netip.Addr]*net.UDPConn{}, make(chan struct{}), time.NewTicker(probeEvery/hurry)
		go e.probe(p.ticker, p.stop)
	}
	wanted := map[netip.Addr]bool{}
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		if addr := firstOf(e.node.Addresses, f); addr.IsValid() {
			wanted[addr] = true
		}
	}
	var errs []error
	for addr, socket := range p.sockets {
		if !wanted[addr] {
			errs = append(errs, socket.Close())
			delete(p.sockets, addr)
		}
	}
	for addr := range wanted {
		if p.sockets[addr] != nil {
			continue
		}
		var socket *net.UDPConn
		err := e.ns.Do(func() (err error) {
			socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
			return err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("a socket for probes of other nodes at %v: %w", addr, err))
			continue
		}
		p.sockets[addr] = socket
		go p.hear(socket)
	}
	return errors.Join(errs...)
}

func (p *prober) close() error {
	if p.stop == nil {
		return nil
	}
	p.ticker.Stop()
	close(p.stop)
	var errs []error
	for _, socket := range p.sockets {
		errs = append(errs, socket.Close())
	}
	return errors.Join(errs...)
}

// probe sends probes until it is stopped.
func (e *Edge) probe(ticker *time.Ticker, stop <-chan struct{}) {
	var next time.Time
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		var list []due
		var text []byte
		if time.Now().Before(next) {
			list, text = e.again()
		} else {
			list, text = e.due()
			next = time.Now().Add(probeEvery - probeEvery/hurry/2) // half a tick early, as ticks are not precise
		}
		spread(list, func(d due) {
			_, _ = d.from.WriteToUDPAddrPort(text, d.to) // an error is an answer that does not come
		})
	}
}

// spread sends probes in small bursts.
func spread(list []due, send func(due)) {
	pause := probeEvery / 2 / time.Duration(len(list)/burst+1)
	for i, d := range list {
		if i > 0 && i%burst == 0 {
			time.Sleep(pause)
		}
		send(d)
	}
}

// due is a probe that is to be sent.
type due struct {
	from *net.UDPConn
	to   netip.AddrPort
}

// due counts the probes that have not been answered, and returns the next ones with their text.
func (e *Edge) due() (list []due, text []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil
	}
	answered := e.prober.heard()
	asked, changed := map[netip.AddrPort][]uint32{}, map[uint32]bool{}
	var silent []string
	for id, p := range e.peers.byID {
		ports := e.ports.shares[id]
		matters := ports > 0 || e.ports.earlier[p.number] || !p.takesPart
		if p.probes.note(answered[id], p.number != programs.Self && p.took && matters) {
			changed[id] = true
			if ports > 0 {
				e.tell(p, ports)
			}
		}
		if p.probes.silent && ports > 0 {
			silent = append(silent, p.name)
		}
		e.note(p)
		if !p.probes.on {
			continue
		}
		if d, ok := e.probeTo(p); ok {
			list, asked[d.to], p.probes.sent = append(list, d), append(asked[d.to], id), true
		}
	}
	e.prober.asks(asked)
	if len(changed) > 0 {
		e.ports.revisit(changed, time.Now())
	}
	slices.Sort(silent)
	e.silent.Store(&silent)
	return list, e.probeText()
}

// again returns more probes of lost nodes, and at most burst of them. With its first answer, such a node is asked for connections again. It gets new ones later. If its
// address has changed since the last round, the answer is known in the next one.
func (e *Edge) again() (list []due, text []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil
	}
	for id, p := range e.peers.byID {
		if !p.probes.lost() {
			continue
		}
		if e.prober.hasAnswered(id) {
			p.probes.missed = 0
			e.note(p)
		} else if d, ok := e.probeTo(p); ok && len(list) < burst {
			list = append(list, d)
		}
	}
	return list, e.probeText()
}

// note shows the programs whether a node is asked for connections.
func (e *Edge) note(p *peer) {
	if err := e.peers.note(p); err != nil {
		e.settings.Logger.Warn("cannot change whether a node is asked for connections", "error", err)
	}
}

// probeTo returns the probe of a node. Without an address of the right family, there is none.
func (e *Edge) probeTo(p *peer) (d due, ok bool) {
	for _, addr := range p.addrs {
		own := firstOf(e.node.Addresses, state.FamilyOf(addr))
		if socket := e.prober.sockets[own]; socket != nil && e.peers.heldNodes[p.number][family] == byte(state.FamilyOf(addr)) {
			return due{socket, netip.AddrPortFrom(addr, p.port)}, true
		}
	}
	return due{}, false
}

// probeText returns the text of probes.
func (e *Edge) probeText() []byte {
	text := make([]byte, programs.ProbeSize)
	text[0], text[1] = programs.Version, programs.HopProbe
	binary.BigEndian.PutUint32(text[4:], state.PeerID(e.node.Name))
	return text
}

// tell logs that a node with shares in so many ports has fallen silent, or answers again.
func (e *Edge) tell(p *peer, ports int) {
	if p.probes.silent {
		e.settings.Logger.Warn("a node does not answer: nftables serves new connections of the ports that have endpoints there", "node", p.name, "udpPort", p.port, "ports", ports)
		return
	}
	e.settings.Logger.Info("a node answers again, and gets its share of connections", "node", p.name, "ports", ports)
}

// Silent returns the names of nodes with shares that do not answer, sorted. Netfilter serves new connections of their ports. It waits for nothing. The caller must not
// modify the list.
func (e *Edge) Silent() []string {
	if names := e.silent.Load(); names != nil {
		return *names
	}
	return nil
}

// hear takes the answers at a socket until that is closed.
func (p *prober) hear(socket *net.UDPConn) {
	buf := make([]byte, 64)
	for {
		_, from, err := socket.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // an ICMP message about a probe
			continue
		}
		p.mu.Lock()
		for _, id := range p.asked[netip.AddrPortFrom(from.Addr().Unmap(), from.Port())] {
			p.answered[id] = true
		}
		p.mu.Unlock()
	}
}

// heard returns the nodes that have answered since the last call.
func (p *prober) heard() (answered map[uint32]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answered, p.answered = p.answered, map[uint32]bool{}
	return answered
}

// hasAnswered reports whether a node has answered since the last call of heard.
func (p *prober) hasAnswered(id uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answered[id]
}

// asks has answers from these nodes counted.
func (p *prober) asks(asked map[netip.AddrPort][]uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = asked
}
