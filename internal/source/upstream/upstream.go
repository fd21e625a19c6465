// Package upstream marks a process's connections to its API servers or relays, and knows their addresses.
//
// A Service may take the address of an API server or relay, by an externalIP or a NodePort. The proxy of this node
// could then never learn that the Service is gone. So dataplanes do not translate connections with the mark, and the
// store refuses externalIPs that are known upstream addresses.
package upstream

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Mark is the bit of a packet's mark by which dataplanes know connections of this process, unless it is the one for masquerading.
const Mark = 1 << 13

// otherMark replaces Mark where packets to masquerade have that. Bit 12 is the mark of the relay (backend.RelayMark).
const otherMark = 1 << 11

// MarkBeside returns the mark where masqueraded packets have another one.
func MarkBeside(masquerade uint32) uint32 {
	if masquerade == Mark {
		return otherMark
	}
	return Mark
}

// mostPeers limits the remembered addresses: the addresses of several API servers or relays, in both families.
const mostPeers = 32

// Peers are the addresses to which connections were attempted last. Its methods may be called concurrently. The zero value marks nothing.
type Peers struct {
	// Mark is the mark of the sockets. To set it takes CAP_NET_ADMIN, without which they have none. 0: they have none.
	Mark uint32

	mu      sync.Mutex // guards all below
	addrs   []netip.AddrPort
	changed chan struct{}
}

// Control is for [net.Dialer]: it marks the socket of a TCP connection and remembers the address.
func (p *Peers) Control(network, address string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	if addr, err := netip.ParseAddrPort(address); err == nil {
		p.note(netip.AddrPortFrom(addr.Addr().Unmap().WithZone(""), addr.Port()))
	}
	if p.Mark == 0 {
		return nil
	}
	return c.Control(func(fd uintptr) { setMark(fd, p.Mark) })
}

func (p *Peers) note(addr netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.addrs, addr); i >= 0 { // it becomes the newest
		p.addrs = append(slices.Delete(p.addrs, i, i+1), addr)
		return
	}
	p.addrs = append(p.addrs, addr)
	p.addrs = p.addrs[max(0, len(p.addrs)-mostPeers):]
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Peers returns the addresses, the newest last, and a channel that is closed when there are others.
func (p *Peers) Peers() (addrs []netip.AddrPort, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return slices.Clone(p.addrs), p.changed
}
