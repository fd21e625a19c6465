package ledger

import (
	"container/heap"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Room has a place for each connection, with its owner. When there are too many connections, one of the largest owner has to end. This is
// the namespace with the most connections, in it the Service with the most, and of the Service the client with the most. The least recently
// used connection of that client ends. So no owner can take another owner's places, with one client or with many, at any Service. As long
// as there is room, an owner may have any number.
//
// Every method costs the logarithm of the number of namespaces, Services and clients. The methods may be called concurrently. The zero
// value is not valid: see NewRoom.
type Room[T Item] struct {
	mu  sync.Mutex // guards all below, and the places
	all *holder[T]
	// holders are keyed by their owners: a namespace, a namespace with a Service, or both with a client.
	holders map[Owner]*holder[T]
	note    Note
}

// Item is what has a place.
type Item interface {
	comparable
	// Used returns when it was used last, as the time since some moment. It must not wait for anything.
	Used() time.Duration
}

// Owner is whose something is.
type Owner struct {
	Service state.ServiceName
	Client  netip.Prefix
}

// ClientOf returns the client of an address. It is an IPv4 address, or the first 64 bits of an IPv6 address, because a host can take any
// address of its /64.
func ClientOf(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	client, _ := addr.Prefix(bits) // bits are within the address
	return client
}

// Place is the place of an item. The zero value is none. It must not be copied, and belongs to the room until the item has left.
type Place[T Item] struct {
	of   *holder[T] // a client, nil if it is not taken
	item T
	// used is when the item was used last, as far as was looked. The places of a client are a ring in that order, which begins with the client's own.
	used           time.Duration
	earlier, later *Place[T]
}

// link puts a place before another one of a ring.
func (p *Place[T]) link(before *Place[T]) {
	p.earlier, p.later = before.earlier, before
	p.earlier.later, before.earlier = p, p
}

func (p *Place[T]) unlink() { p.earlier.later, p.later.earlier = p.later, p.earlier }

// Note describes the items that had to leave.
type Note struct {
	// Ended is the number of such items, and At is when the last one left.
	Ended uint64
	At    time.Time
	// Heaviest is the owner of the last one, and Held is how many items that Service had.
	Heaviest Owner
	Held     int
}

// Amount is how much of a kind a relay carries.
type Amount struct {
	// Open is how many there are, and Most how many there may be.
	Open, Most int
	// Ended is how many had to make room for others since the start.
	Ended uint64
}

// CrowdedFor is how long a lack of room remains a problem after the last item had to leave.
const CrowdedFor = time.Minute

// Problem returns an error, with its remedy, if an item had to leave in the last minute before now. what names the
// items, most is their limit, and field is the option that sets the limit.
func (n *Note) Problem(what, field string, most int, now time.Time) error {
	if n.Ended == 0 || now.Sub(n.At) >= CrowdedFor {
		return nil
	}
	return fmt.Errorf("the relay has no room for more than %d %s (%s): service %v had the most (%d), and of its clients %v; %d have ended to make room since the start; "+
		"find out what holds so many, or raise the limit of open files (LimitNOFILE=) and %[3]s", most, what, field, n.Heaviest.Service, n.Held, n.Heaviest.Client, n.Ended)
}

// Problems returns the problems of a relay, by the notes of its connections and flows.
func Problems(conns Note, mostConns int, flows Note, mostFlows int, now time.Time) (problems []error) {
	for _, err := range []error{
		conns.Problem("TCP connections", "userspace.maxConnections", mostConns, now), flows.Problem("UDP flows", "userspace.maxUDPFlows", mostFlows, now),
	} {
		if err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

// NewRoom returns an empty one.
func NewRoom[T Item]() *Room[T] { return &Room[T]{all: &holder[T]{}, holders: map[Owner]*holder[T]{}} }

// Take gives an item a place.
func (r *Room[T]) Take(p *Place[T], item T, o Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	client := r.holders[o]
	if client == nil {
		namespace := r.part(r.all, Owner{Service: state.ServiceName{Namespace: o.Service.Namespace}})
		client = r.part(r.part(namespace, Owner{Service: o.Service}), o)
		client.items = &Place[T]{}
		client.items.earlier, client.items.later = client.items, client.items
	}
	p.of, p.item, p.used = client, item, item.Used()
	p.link(client.items)
	r.count(client, 1)
}

// part returns a part of a holder, a new one if there is none.
func (r *Room[T]) part(h *holder[T], key Owner) *holder[T] {
	p := r.holders[key]
	if p == nil {
		p = &holder[T]{key: key, within: h}
		r.holders[key] = p
		heap.Push(&h.heaviest, p)
	}
	return p
}

// count adds n to what a holder has, and to all that it is in. Those that have nothing are forgotten.
func (r *Room[T]) count(h *holder[T], n int) {
	for ; h != nil; h = h.within {
		h.held += n
		switch in := h.within; {
		case in == nil:
		case h.held == 0:
			heap.Remove(&in.heaviest, h.at)
			delete(r.holders, h.key)
		default:
			heap.Fix(&in.heaviest, h.at)
		}
	}
}

// Leave gives a place back. It does nothing if the item had to go, or has left.
func (r *Room[T]) Leave(p *Place[T]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.of != nil {
		r.leave(p)
	}
}

func (r *Room[T]) leave(p *Place[T]) {
	p.unlink()
	r.count(p.of, -1)
	p.of = nil
}

// Len is how many have a place.
func (r *Room[T]) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.held
}

// Amount returns how many have a place, of so many that may.
func (r *Room[T]) Amount(most int) Amount {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Amount{Open: r.all.held, Most: most, Ended: r.note.Ended}
}

// looked is how many items of a client are looked at for the one that was used least recently. Those that were used since they were looked at last are the
// last ones then.
const looked = 16

// MakeRoom takes a place away, if more than most are taken. Among owners with equally many places, the owner of newest loses one; newest may
// be nil. The item is the caller's to end.
func (r *Room[T]) MakeRoom(most int, newest *Place[T], now time.Time) (item T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all.held <= max(most, 0) {
		return item, false
	}
	var own *holder[T]
	if newest != nil {
		own = newest.of
	}
	from := r.all
	for len(from.heaviest) > 0 {
		from = from.most(own)
	}
	p := from.leastUsed(newest)
	r.note = Note{Ended: r.note.Ended + 1, At: now, Held: from.within.held, Heaviest: from.key}
	r.leave(p)
	return p.item, true
}

// Note describes the items that had to leave.
func (r *Room[T]) Note() Note {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.note
}

// holder is a namespace, a Service, a client of a Service, or all.
type holder[T Item] struct {
	key    Owner
	within *holder[T] // nil for all
	held   int
	// heaviest is a heap of the parts, and at the place in the heap of within.
	heaviest ranks[T]
	at       int
	items    *Place[T] // the ring of a client
}

// most returns the part that holds the most: that which has client, if it is one of several.
func (h *holder[T]) most(client *holder[T]) *holder[T] {
	top := h.heaviest[0]
	for c := client; c != nil; c = c.within {
		if c.within == h && c.held == top.held {
			return c
		}
	}
	return top
}

// leastUsed returns the place of a client whose item was used least recently, of the first ones. It is not newest, unless there is no other.
func (h *holder[T]) leastUsed(newest *Place[T]) (least *Place[T]) {
	var used time.Duration
	next := h.items.later
	for n := 0; n < looked && next != h.items; n++ {
		p := next
		next = p.later
		now := p.item.Used()
		if least == nil || least == newest || p != newest && now < used {
			least, used = p, now
		}
		if now > p.used {
			p.used = now
			p.unlink()
			p.link(h.items)
		}
	}
	return least
}

// ranks implements [heap.Interface].
type ranks[T Item] []*holder[T]

func (r ranks[T]) Len() int           { return len(r) }
func (r ranks[T]) Less(i, j int) bool { return r[i].held > r[j].held }
func (r ranks[T]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].at, r[j].at = i, j
}

func (r *ranks[T]) Push(x any) {
	h := x.(*holder[T])
	h.at = len(*r)
	*r = append(*r, h)
}

func (r *ranks[T]) Pop() any {
	last := len(*r) - 1
	h := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return h
}
