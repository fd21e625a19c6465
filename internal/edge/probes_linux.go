package edge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
)

// prober looks whether nodes are there that are to be asked for connections. A node that has died takes the packets of new flows with it, and one
// whose edge has been turned off does so as well. Owners of slots are not probed: shares say that they are there.
type prober struct {
	// sockets has one socket for each address of this node in bound.
	sockets map[netip.Addr]*net.UDPConn
	ticker  *time.Ticker
	stop    chan struct{}
}

const (
	probeEvery = time.Second
	// mostMissed is how many probes in a row a node must not answer until nobody asks it.
	mostMissed = 3
)

// bind opens a socket at each primary address of the node, and closes others. The caller holds the edge's mu.
func (p *prober) bind(e *Edge) error {
	if p.stop == nil {
		p.sockets, p.stop, p.ticker = map[netip.Addr]*net.UDPConn{}, make(chan struct{}), time.NewTicker(probeEvery)
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
		go e.hear(socket)
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
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		for _, p := range e.due() {
			_, _ = p.from.WriteToUDPAddrPort(p.text, p.to) // an error is an answer that does not come
		}
	}
}

// due is a probe that is to be sent.
type due struct {
	from *net.UDPConn
	to   netip.AddrPort
	text []byte
}

// due counts the probes that have not been answered, and returns the next ones.
func (e *Edge) due() (list []due) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	text := make([]byte, programs.ProbeSize)
	text[0], text[1] = programs.Version, programs.HopProbe
	binary.BigEndian.PutUint32(text[4:], state.PeerID(e.node.Name))
	for _, p := range e.peers.byID {
		was := p.probed
		p.probed = p.number != programs.Self && (e.ports.earlier[p.number] || p.took && !p.takesPart)
		if !p.probed || !was {
			p.missed = 0
		} else if p.missed < mostMissed {
			p.missed++
		}
		if err := e.peers.note(p); err != nil {
			e.settings.Logger.Warn("cannot change whether a node is asked for connections", "error", err)
		}
		if !p.probed {
			continue
		}
		for _, to := range p.addrs {
			if own := firstOf(e.node.Addresses, state.FamilyOf(to)); e.peers.heldNodes[p.number][family] == byte(state.FamilyOf(to)) && e.prober.sockets[own] != nil {
				list = append(list, due{e.prober.sockets[own], netip.AddrPortFrom(to, p.port), text})
			}
		}
	}
	return list
}

// hear takes the answers at a socket until that is closed.
func (e *Edge) hear(socket *net.UDPConn) {
	buf := make([]byte, 64)
	for {
		_, from, err := socket.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil { // other errors are ICMP messages about probes
			e.heard(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		}
	}
}

// heard has a node asked that has answered.
func (e *Edge) heard(from netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	for _, p := range e.peers.byID {
		for _, addr := range p.addrs {
			if netip.AddrPortFrom(addr, p.port) == from {
				p.missed = 0
				if err := e.peers.note(p); err != nil {
					e.settings.Logger.Warn("cannot change whether a node is asked for connections", "error", err)
				}
			}
		}
	}
}
