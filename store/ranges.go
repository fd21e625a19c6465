package store

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// maxRanges is how many ranges of ports, at all addresses together, a state has. A dataplane has up to 30 blocks of ports for each.
const maxRanges = 4096

// ranges arbitrates between ranges of ports, in the order of all claims ([bid.compare]). A claim gets its range if no earlier claim has got a port of it
// at the same address. Otherwise it loses the whole range. Single ports of other services within it do not count: they win in the dataplane.
//
// A change of any range looks at all that are in the state: at most maxRanges, and those that lost to them.
type ranges struct {
	claims []rangeClaim // in order
	lost   map[rangeClaim]rangeLoss
	dirty  bool
}

// rangeClaim is one service's claim on a range.
type rangeClaim struct {
	bid
	key state.FrontendKey
}

// rangeLoss is what a claim was lost to: another one, or all others if there are enough.
type rangeLoss struct {
	to   rangeClaim
	full bool
}

func (c rangeClaim) compare(o rangeClaim) int {
	return cmp.Or(c.bid.compare(o.bid), c.key.Addr.Compare(o.key.Addr), cmp.Compare(c.key.Protocol, o.key.Protocol), cmp.Compare(c.key.Port, o.key.Port),
		cmp.Compare(c.key.LastPort, o.key.LastPort))
}

func (r *ranges) add(c rangeClaim) {
	if i, found := slices.BinarySearchFunc(r.claims, c, rangeClaim.compare); !found {
		r.claims, r.dirty = slices.Insert(r.claims, i, c), true
	}
}

func (r *ranges) remove(c rangeClaim) {
	if i, found := slices.BinarySearchFunc(r.claims, c, rangeClaim.compare); found {
		r.claims, r.dirty = slices.Delete(r.claims, i, i+1), true
	}
}

// at is where ranges must not overlap.
type at struct {
	addr     netip.Addr
	protocol state.Protocol
}

// settle decides who gets which range after claims have changed, and returns the services for which that makes a difference.
func (r *ranges) settle() (moved []*service) {
	if !r.dirty {
		return nil
	}
	r.dirty = false
	lost, granted, n := map[rangeClaim]rangeLoss{}, map[at][]rangeClaim{}, 0
	for _, c := range r.claims {
		where := at{c.key.Addr, c.key.Protocol}
		others := granted[where] // sorted, without overlaps
		i, _ := slices.BinarySearchFunc(others, c.key.Port, func(o rangeClaim, port uint16) int { return cmp.Compare(o.key.LastPort, port) })
		switch {
		case i < len(others) && others[i].key.Port <= c.key.LastPort:
			lost[c] = rangeLoss{to: others[i]}
		case n == maxRanges:
			lost[c] = rangeLoss{full: true}
		default:
			granted[where] = slices.Insert(others, i, c)
			n++
		}
	}
	for c, l := range lost {
		if was, had := r.lost[c]; !had || was != l {
			moved = append(moved, c.service)
		}
	}
	for c := range r.lost {
		if _, still := lost[c]; !still {
			moved = append(moved, c.service)
		}
	}
	r.lost = lost
	slices.SortFunc(moved, func(a, b *service) int { return a.name.Compare(b.name) }) // the same change has the same order
	return slices.Compact(moved)
}

// loss returns how a service lost a range, if it did.
func (r *ranges) loss(svc *service, key state.FrontendKey, kind state.FrontendKind) (loss, bool) {
	l, isLost := r.lost[rangeClaim{bid{svc, kind}, key}]
	switch {
	case !isLost:
		return loss{}, false
	case l.full:
		return loss{claim: key, kind: kind, holder: svc, full: true}, true
	}
	return loss{claim: key, kind: kind, holder: l.to.service, to: l.to.key}, true
}

// rangeConflict is the problem of a service with ranges that it does not get. The list is not empty.
func rangeConflict(svc *service, lost []loss) Problem {
	first := lost[0]
	p := Problem{Service: svc.name, Reason: RangeConflict, Field: "metadata.annotations[" + model.PortRangesAnnotation + "]", Holder: first.holder.name,
		Note:   fmt.Sprintf("%v overlaps %v of another service, so the whole range is left out", first.claim, first.to),
		Remedy: "give one of the two ranges other ports, or one of the services another address"}
	if first.full {
		p.Reason, p.Holder = RangesFull, state.ServiceName{}
		p.Note = fmt.Sprintf("%v is left out: a node has at most %d ranges of ports, which older services take", first.claim, maxRanges)
		p.Remedy = "delete ranges of other services, or combine ranges that follow each other"
	}
	if more := len(lost) - 1; more > 0 {
		p.Note += fmt.Sprintf(" (%d more ranges are left out)", more)
	}
	return p
}

// refusedRanges is the problem of a service with addresses that get no ranges. The list is not empty.
func refusedRanges(svc *service, refused []brain.RangeRefusal) Problem {
	note := fmt.Sprintf("%v gets no range of ports, because it is %s", refused[0].Addr, refused[0].Is)
	if more := len(refused) - 1; more > 0 {
		note += fmt.Sprintf(" (%d more addresses get none)", more)
	}
	return Problem{Service: svc.name, Reason: RangeRefused, Field: "metadata.annotations[" + model.PortRangesAnnotation + "]", Note: note,
		Remedy: "give the service an address of its own"}
}

// withoutRanges lets the addresses that [brain.RefuseRanges] names have no ranges.
func (in *inputs) withoutRanges(refused []brain.RangeRefusal) {
	if len(refused) == 0 {
		return
	}
	cfg := *in.brain
	for _, r := range refused {
		cfg.NoRanges = append(cfg.NoRanges, r.Addr)
	}
	in.brain, in.noRanges = &cfg, refused
}
