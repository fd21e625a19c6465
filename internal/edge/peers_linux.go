package edge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge/plan"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
)

// node is struct node of tables.h, with the offsets of two fields.
type node [28]byte

const family, answers = 6, 7

// inside is struct inside of tables.h.
type inside [20]byte

// peers are the nodes of the cluster, as the maps have them.
type peers struct {
	nodes, ids, addresses, insides *ebpf.Map
	settings                       *Settings

	// byID are the nodes with a number, by their IDs.
	byID map[uint32]*peer
	// free are numbers of nodes that have gone, in the order in which they became free. Numbers from next on were never used.
	free []plan.Number
	next int
	// owned counts the frontends that Services have at each address.
	owned map[netip.Addr]int

	heldAddresses map[netip.Addr]uint32
	heldInside    map[netip.Prefix]bool
	heldNodes     map[plan.Number]node
}

type peer struct {
	name   string
	number plan.Number
	// port is where it takes packets. A node that no longer takes part keeps it.
	port uint16
	// takesPart is set if it serves shares, and reachable if this node has an address of one of its families.
	takesPart, reachable bool
	// took is set if it has taken part, now or before.
	took   bool
	probes probes
	// addrs are its primary addresses.
	addrs []netip.Addr
}

func newPeers(c *ebpf.Collection, s *Settings) *peers {
	return &peers{
		nodes: c.Maps["nodes"], ids: c.Maps["ids"], addresses: c.Maps["addresses"], insides: c.Maps["inside"], settings: s,
		byID: map[uint32]*peer{}, next: programs.Self + 1, owned: map[netip.Addr]int{},
		heldAddresses: map[netip.Addr]uint32{}, heldInside: map[netip.Prefix]bool{}, heldNodes: map[plan.Number]node{},
	}
}

// cluster is what the maps are to have.
type cluster struct {
	addresses map[netip.Addr]uint32
	inside    map[netip.Prefix]bool
	present   map[uint32]bool // IDs
}

// extend adds what the maps lack of a node's peers. Peers that have gone stay there until shrink.
func (p *peers) extend(n *state.Node) (c *cluster, err error) {
	c = &cluster{addresses: map[netip.Addr]uint32{}, inside: map[netip.Prefix]bool{}, present: map[uint32]bool{}}
	serving := addressesOf(n, p.settings.NodePortAddresses)
	own := state.Peer{ID: state.PeerID(n.Name), Name: n.Name, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs}
	list := slices.DeleteFunc(slices.Clone(n.Peers), func(o state.Peer) bool {
		if o.Name == n.Name {
			own.Port = o.Port
		}
		return o.Name == n.Name
	})
	if n.LocalDetector != nil {
		for _, prefix := range n.LocalDetector.ClusterCIDRs {
			c.inside[prefix] = true
		}
	}
	for i := range list {
		c.add(&list[i], func(netip.Addr) uint32 { return programs.AddressNodePorts })
	}
	c.add(&own, func(addr netip.Addr) (flags uint32) { // last: an address that another node has, too, is this node's
		if flags = programs.AddressSelf; serving[addr] {
			flags |= programs.AddressNodePorts
		}
		return flags
	})
	if err := errors.Join(p.putInside(c), p.putAddresses(c)); err != nil {
		return c, err
	}
	seen := map[uint32]int{own.ID: 1}
	for i := range list {
		seen[list[i].ID]++
	}
	if err := p.number(&own, &own, c); err != nil {
		return c, err
	}
	for i := range list {
		if seen[list[i].ID] > 1 { // none of them takes part
			if e := p.byID[list[i].ID]; e != nil && list[i].ID != own.ID {
				e.takesPart = false
			}
			continue
		}
		if err := p.number(&list[i], &own, c); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *cluster) add(o *state.Peer, flags func(netip.Addr) uint32) {
	for _, addr := range o.Addresses {
		c.addresses[addr] = flags(addr)
		c.inside[netip.PrefixFrom(addr, addr.BitLen())] = true
	}
	for _, prefix := range o.PodCIDRs {
		c.inside[prefix] = true
	}
}

func (p *peers) putInside(c *cluster) error {
	for prefix := range c.inside {
		if p.heldInside[prefix] {
			continue
		}
		if err := p.insides.Put(insideOf(prefix), uint32(1)); errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("the nodes and pods of the cluster have more than %d ranges of addresses: set edge.mode off: %w", p.insides.MaxEntries(), err)
		} else if err != nil {
			return fmt.Errorf("adding the range %v of the cluster: %w", prefix, err)
		}
		p.heldInside[prefix] = true
	}
	return nil
}

func (p *peers) putAddresses(c *cluster) error {
	for addr, flags := range c.addresses {
		c.addresses[addr] = p.flagged(addr, flags)
		if err := p.putAddress(addr, c.addresses[addr]); err != nil {
			return err
		}
	}
	return nil
}

func (p *peers) flagged(addr netip.Addr, flags uint32) uint32 {
	if flags &^= programs.AddressOwned; p.owned[addr] > 0 {
		flags |= programs.AddressOwned
	}
	return flags
}

func (p *peers) putAddress(addr netip.Addr, flags uint32) error {
	if had, held := p.heldAddresses[addr]; held && had == flags {
		return nil
	}
	if err := p.addresses.Put(addr.As16(), flags); errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("the nodes of the cluster have more than %d addresses: set edge.mode off: %w", p.addresses.MaxEntries(), err)
	} else if err != nil {
		return fmt.Errorf("adding the address %v of a node: %w", addr, err)
	}
	p.heldAddresses[addr] = flags
	return nil
}

// own counts frontends that Services have at an address, and no longer have if by is negative.
func (p *peers) own(addr netip.Addr, by int) error {
	if p.owned[addr] += by; p.owned[addr] == 0 {
		delete(p.owned, addr)
	}
	if flags, held := p.heldAddresses[addr]; held {
		return p.putAddress(addr, p.flagged(addr, flags))
	}
	return nil
}

// number gives a peer a number, unless it has one, and writes its node.
func (p *peers) number(o, own *state.Peer, c *cluster) error {
	e := p.byID[o.ID]
	switch {
	case e != nil:
	case o == own:
		e = &peer{number: programs.Self}
	default:
		e = &peer{}
		var ok bool
		if e.number, ok = p.take(); !ok {
			return fmt.Errorf("the cluster has more than %d nodes: set edge.mode off", programs.MaxNodes)
		}
	}
	c.present[o.ID] = true
	e.name = o.Name
	switch e.takesPart = o.Port != 0; {
	case e.takesPart:
		e.port, e.took = o.Port, true
	case e.port == 0:
		e.port = p.settings.Port // it may hand packets over, and gets those back that nobody knows
	case !e.probes.on: // it still has connections, and is there as far as anybody knows
		e.probes = probes{on: true}
	}
	n := nodeOf(o, own, e)
	e.reachable = n[family] != 0
	p.byID[o.ID] = e
	if had, held := p.heldNodes[e.number]; held && had == n {
		return nil
	}
	if err := errors.Join(p.nodes.Put(uint32(e.number), n), p.ids.Put(o.ID, uint32(e.number))); err != nil {
		return fmt.Errorf("adding node %s: %w", o.Name, err)
	}
	p.heldNodes[e.number] = n
	return nil
}

func (p *peers) take() (plan.Number, bool) {
	if p.next < programs.MaxNodes {
		p.next++
		return plan.Number(p.next - 1), true
	}
	if len(p.free) == 0 {
		return 0, false
	}
	number := p.free[0]
	p.free = p.free[1:]
	return number, true
}

// shrink removes what the maps have too much, once no table has it. It returns the numbers of nodes that have left the cluster.
func (p *peers) shrink(c *cluster) (gone []plan.Number, err error) {
	var errs []error
	for addr := range p.heldAddresses {
		if _, stays := c.addresses[addr]; !stays {
			errs = append(errs, remove(p.addresses, addr.As16()))
			delete(p.heldAddresses, addr)
		}
	}
	for prefix := range p.heldInside {
		if !c.inside[prefix] {
			errs = append(errs, remove(p.insides, insideOf(prefix)))
			delete(p.heldInside, prefix)
		}
	}
	for id, e := range p.byID {
		if c.present[id] {
			continue
		}
		errs = append(errs, remove(p.ids, id), p.nodes.Put(uint32(e.number), node{}))
		delete(p.byID, id)
		delete(p.heldNodes, e.number)
		if e.number != programs.Self {
			gone = append(gone, e.number)
		}
	}
	slices.Sort(gone)
	return gone, errors.Join(errs...)
}

// answers reports whether the node can be asked for connections.
func (e *peer) answers() bool {
	if e.probes.on {
		return !e.probes.lost()
	}
	return e.takesPart
}

// note writes whether a node can be asked.
func (p *peers) note(e *peer) error {
	n := p.heldNodes[e.number]
	if n[answers] = 0; e.answers() {
		n[answers] = 1
	}
	if n == p.heldNodes[e.number] {
		return nil
	}
	if err := p.nodes.Put(uint32(e.number), n); err != nil {
		return fmt.Errorf("changing node %s: %w", e.name, err)
	}
	p.heldNodes[e.number] = n
	return nil
}

// release has numbers used again that no slot has.
func (p *peers) release(numbers []plan.Number) { p.free = append(p.free, numbers...) }

func remove(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing from the map %v: %w", m, err)
	}
	return nil
}

// numbers returns the numbers of the nodes of shares, or which of them cannot serve.
func (p *peers) numbers(shares []state.EdgeShare) ([]plan.Number, error) {
	if len(shares) > plan.MaxShares {
		return nil, fmt.Errorf("%d nodes have endpoints, at most %d can", len(shares), plan.MaxShares)
	}
	list := make([]plan.Number, len(shares))
	for i, s := range shares {
		e := p.byID[s.Node]
		switch {
		case e == nil:
			return nil, fmt.Errorf("node with the ID %#x is not known: wait until its Node arrives here", s.Node)
		case !e.takesPart:
			return nil, fmt.Errorf("node %s takes no part in the edge: turn the edge on there", e.name)
		case !e.reachable:
			return nil, fmt.Errorf("node %s has no address of a family that this node has: give both nodes addresses of one family", e.name)
		}
		list[i] = e.number
	}
	return list, nil
}

// silent returns the name of a node of shares that does not answer probes, empty if all do.
func (p *peers) silent(shares []state.EdgeShare) string {
	for _, s := range shares {
		if e := p.byID[s.Node]; e != nil && e.probes.silent {
			return e.name
		}
	}
	return ""
}

// nameOf returns the name of the node with a number.
func (p *peers) nameOf(n plan.Number) string {
	for _, e := range p.byID {
		if e.number == n {
			return e.name
		}
	}
	return ""
}

// nodeOf returns a peer as it is in the map of nodes. Two nodes use the family of the other's first address if both have it, else another one that both have.
func nodeOf(o, own *state.Peer, e *peer) (n node) {
	v4, v6 := firstOf(o.Addresses, state.IPv4), firstOf(o.Addresses, state.IPv6)
	binary.NativeEndian.PutUint32(n[:], o.ID)
	binary.BigEndian.PutUint16(n[4:], e.port)
	for i := len(o.Addresses) - 1; i >= 0; i-- {
		if f := state.FamilyOf(o.Addresses[i]); firstOf(own.Addresses, f).IsValid() {
			n[family] = byte(f)
		}
	}
	e.addrs = e.addrs[:0:0]
	for _, addr := range []netip.Addr{v4, v6} {
		if addr.IsValid() {
			e.addrs = append(e.addrs, addr)
		}
	}
	if e.answers() {
		n[answers] = 1
	}
	if v4.IsValid() {
		copy(n[8:], v4.AsSlice())
	}
	if v6.IsValid() {
		copy(n[12:], v6.AsSlice())
	}
	return n
}

// firstOf returns the first address of a family, the zero Addr if there is none.
func firstOf(addrs []netip.Addr, f state.Family) netip.Addr {
	for _, a := range addrs {
		if state.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// insideOf returns the key of a range of addresses, IPv4 mapped into IPv6.
func insideOf(prefix netip.Prefix) (key inside) {
	prefix = prefix.Masked()
	addr := prefix.Addr().As16()
	binary.NativeEndian.PutUint32(key[:], uint32(prefix.Bits()+128-prefix.Addr().BitLen()))
	copy(key[4:], addr[:])
	return key
}
