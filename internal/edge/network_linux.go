package edge

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// claimRounds is how often claims are sent. After that, the network counts as one that drops them. claimTime is how long each round waits for answers.
	claimRounds, claimTime = 3, 200 * time.Millisecond
	// claimLook is how often a round looks for answers.
	claimLook = 2 * time.Millisecond
	// claimNodes is how many nodes are asked for each address. One answer is enough.
	claimNodes = 3
	// checkEvery is the time between two checks, and checkAgain if no node has answered.
	checkEvery, checkAgain = 5 * time.Minute, time.Minute
)

// network is what is known of the network between nodes: whether it takes packets from addresses of Services.
type network struct {
	// samples are addresses of Services for which this node sends answers, by Service: one of each family at most.
	samples map[state.ServiceName][]netip.Addr
	// next is when it is checked again, and dropped are addresses from which it takes no packets.
	next    map[state.Family]time.Time
	dropped map[state.Family]netip.Addr
}

func newNetwork() network {
	return network{samples: map[state.ServiceName][]netip.Addr{}, next: map[state.Family]time.Time{}, dropped: map[state.Family]netip.Addr{}}
}

// sample notes the addresses of a Service, nil if it has gone.
func (n *network) sample(name state.ServiceName, record *state.Service) {
	var addrs []netip.Addr
	if record != nil {
		for i := range record.Ports {
			addrs = sampled(addrs, &record.Ports[i])
		}
	}
	if len(addrs) == 0 {
		delete(n.samples, name)
		return
	}
	n.samples[name] = addrs
}

func sampled(addrs []netip.Addr, p *state.Port) []netip.Addr {
	if p.Edge == nil {
		return addrs
	}
	for _, f := range p.Frontends {
		known := func(a netip.Addr) bool { return state.FamilyOf(a) == state.FamilyOf(f.Addr) }
		if f.Kind != state.NodePort && f.Addr.IsValid() && p.Edge.Takes(f.Kind) && !slices.ContainsFunc(addrs, known) {
			addrs = append(addrs, f.Addr)
		}
	}
	return addrs
}

// claim is an address that this node sends packets from, and nodes that tell whether they arrive.
type claim struct {
	from netip.Addr
	own  netip.Addr // of this node, in the family
	to   []netip.AddrPort
	id   uint32 // of this node

	sockets [2]net.PacketConn // at from and at own
	sent    [2][]uint64       // numbers of packets
	heard   [2]bool
}

// claims returns what is to be checked now, nothing if that is not due. The caller holds the edge's mu.
func (e *Edge) claims(now time.Time) (list []*claim) {
	if e.settings.TrustNetwork || e.closed || e.node == nil {
		return nil
	}
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		c := &claim{from: e.network.one(f), own: firstOf(e.node.Addresses, f), id: state.PeerID(e.node.Name)}
		if !c.from.IsValid() {
			delete(e.network.dropped, f)
		}
		if !c.from.IsValid() || !c.own.IsValid() || now.Before(e.network.next[f]) {
			continue
		}
		for _, p := range e.peers.byID { // in any order
			if p.number == programs.Self || !p.takesPart {
				continue
			}
			for _, addr := range p.addrs {
				if state.FamilyOf(addr) == f && len(c.to) < claimNodes {
					c.to = append(c.to, netip.AddrPortFrom(addr, p.port))
				}
			}
		}
		if len(c.to) > 0 {
			list = append(list, c)
		}
	}
	return list
}

// one returns an address of a family, not valid if there is none.
func (n *network) one(f state.Family) netip.Addr {
	for _, addrs := range n.samples { // in any order
		for _, a := range addrs {
			if state.FamilyOf(a) == f {
				return a
			}
		}
	}
	return netip.Addr{}
}

// CheckNetwork returns an error if the network drops packets from addresses of Services, as answers to clients have them. Before the first Apply that has such an address, and from
// time to time, it asks other nodes that take part. Then it waits for an answer, 600 ms at most. Without other nodes, nothing is known and there is no error.
// No two calls may run at the same time.
func (e *Edge) CheckNetwork() error {
	e.mu.Lock()
	list := e.claims(time.Now())
	e.mu.Unlock()
	if len(list) > 0 {
		e.found(list, e.check(list))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.network.dropped) == 0 {
		return nil
	}
	return fmt.Errorf("edge: the network drops packets that this node sends from %v, so clients would get no answers: have it allow them (docs/edge.md has the settings), or "+
		"set edge.trustNetwork if clients get them all the same", slices.SortedFunc(maps.Values(e.network.dropped), netip.Addr.Compare))
}

// check sends claims until other nodes have heard all of them, or for long enough.
func (e *Edge) check(list []*claim) error {
	defer func() {
		for _, c := range list {
			for _, s := range c.sockets {
				if s != nil {
					_ = s.Close()
				}
			}
		}
	}()
	for _, c := range list {
		if err := e.ns.Do(c.open); err != nil {
			return fmt.Errorf("a socket to see whether the network takes packets from %v: %w", c.from, err)
		}
	}
	for range claimRounds {
		for i, c := range list {
			c.send(uint64(i * 2 * claimNodes))
		}
		for end := time.Now().Add(claimTime); time.Now().Before(end); time.Sleep(claimLook) {
			if e.heard(list) {
				return nil
			}
		}
	}
	return nil
}

// heard notes of which claims other nodes have told, and reports whether these are all.
func (e *Edge) heard(list []*claim) (all bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all = true
	for _, c := range list {
		for i, sent := range c.sent {
			c.heard[i] = c.heard[i] || !e.closed && slices.ContainsFunc(sent, func(nonce uint64) bool {
				var had uint64
				return e.maps.Maps["claims"].Lookup(uint32(nonce%programs.Claims), &had) == nil && had == nonce
			})
		}
		all = all && c.heard[0]
	}
	return all || e.closed
}

// found notes what a check has found, or why it could not be made.
func (e *Edge) found(list []*claim, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.settings.Logger.Warn("cannot see whether the network takes answers to clients", "error", err)
	}
	for _, c := range list {
		f := state.FamilyOf(c.own)
		e.network.next[f] = time.Now().Add(checkEvery)
		switch {
		case c.heard[0]:
			delete(e.network.dropped, f)
		case c.heard[1]:
			e.network.dropped[f] = c.from
		default: // no node answers anything, and nothing follows from that
			e.network.next[f] = time.Now().Add(checkAgain)
		}
	}
}

// open opens the sockets.
func (c *claim) open() (err error) {
	for i, addr := range []netip.Addr{c.from, c.own} {
		if c.sockets[i], err = transparent.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(addr, 0).String()); err != nil {
			return err
		}
	}
	return nil
}

// transparent makes sockets that send from an address of another machine.
var transparent = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) {
		err4, err6 := unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1), unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
		if err4 != nil && err6 != nil {
			err = fmt.Errorf("IP_TRANSPARENT: %w: give the process CAP_NET_ADMIN", errors.Join(err4, err6))
		}
	}), err)
}}

// send sends packets with new numbers, which are kept at places of the map from first on if other nodes hear of them.
func (c *claim) send(first uint64) {
	text := make([]byte, programs.ProbeSize)
	text[0], text[1] = programs.Version, programs.HopClaim
	binary.BigEndian.PutUint32(text[4:], c.id)
	for i, socket := range c.sockets {
		c.sent[i] = c.sent[i][:0]
		for j, to := range c.to {
			nonce := crand64()&^(programs.Claims-1) | (first + uint64(i*claimNodes+j))
			binary.NativeEndian.PutUint64(text[programs.ProbeSize-8:], nonce)
			_, _ = socket.WriteTo(text, net.UDPAddrFromAddrPort(to)) // an error is an answer that does not come
			c.sent[i] = append(c.sent[i], nonce)
		}
	}
}

// crand64 returns a number that nobody can guess.
func crand64() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}
