package minicluster

import (
	"fmt"
	"hash/fnv"
	"net/netip"
)

// hash turns a name into a number that stays the same from run to run.
func hash(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	// FNV's low bits are poor for names that differ only in the last letter.
	sum := h.Sum32()
	return sum ^ sum>>15
}

// addrAllocator hands out the addresses of a range.
type addrAllocator struct {
	prefix netip.Prefix
	// reserved is how many addresses at the start of the range are never handed out.
	reserved uint32
	used     map[netip.Addr]string
}

func newAddrAllocator(prefix netip.Prefix, reserved uint32) *addrAllocator {
	return &addrAllocator{prefix: prefix.Masked(), reserved: reserved, used: make(map[netip.Addr]string)}
}

// claim takes an address that owner asks for. It may lie outside the range: manifests that were exported from a cluster carry
// that cluster's addresses.
func (a *addrAllocator) claim(addr netip.Addr, owner string) error {
	if other, taken := a.used[addr]; taken && other != owner {
		return fmt.Errorf("address %v is taken by %s", addr, other)
	}
	a.used[addr] = owner
	return nil
}

// take hands out the address that owner's name leads to, or the next free one after it.
func (a *addrAllocator) take(owner string) (netip.Addr, error) {
	hostBits := min(a.prefix.Addr().BitLen()-a.prefix.Bits(), 16)
	// The last address is left out: it is the broadcast address in IPv4.
	count := uint32(1)<<hostBits - 1
	if count <= a.reserved {
		return netip.Addr{}, fmt.Errorf("range %v is too small", a.prefix)
	}
	count -= a.reserved
	start := hash(owner) % count
	for i := range count {
		addr := plus(a.prefix.Addr(), a.reserved+(start+i)%count)
		if _, taken := a.used[addr]; !taken {
			a.used[addr] = owner
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("range %v has no free address", a.prefix)
}

// plus adds n, which is less than 1<<16, to an address whose last 16 bits do not overflow by it.
func plus(addr netip.Addr, n uint32) netip.Addr {
	b := addr.AsSlice()
	last := uint32(b[len(b)-2])<<8 | uint32(b[len(b)-1])
	last += n
	b[len(b)-2], b[len(b)-1] = byte(last>>8), byte(last)
	sum, _ := netip.AddrFromSlice(b)
	return sum
}

// The default range of node ports: kube-apiserver's --service-node-port-range.
const (
	firstNodePort = 30000
	lastNodePort  = 32767
)

// portAllocator hands out node ports. A port number belongs to one owner, which may use it for several protocols.
type portAllocator struct {
	used map[uint16]string
}

func newPortAllocator() *portAllocator { return &portAllocator{used: make(map[uint16]string)} }

func (a *portAllocator) claim(port int32, owner string) error {
	if port < firstNodePort || port > lastNodePort {
		return fmt.Errorf("port %d is not in the range %d-%d", port, firstNodePort, lastNodePort)
	}
	if other, taken := a.used[uint16(port)]; taken && other != owner {
		return fmt.Errorf("port %d is taken by %s", port, other)
	}
	a.used[uint16(port)] = owner
	return nil
}

func (a *portAllocator) take(key, owner string) (int32, error) {
	const count = lastNodePort - firstNodePort + 1
	start := hash(key) % count
	for i := range uint32(count) {
		port := uint16(firstNodePort + (start+i)%count)
		if _, taken := a.used[port]; !taken {
			a.used[port] = owner
			return int32(port), nil
		}
	}
	return 0, fmt.Errorf("all node ports are taken")
}
