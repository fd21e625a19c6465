package protoconv

import (
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// The numbers of the fields that hold services and nodes.
const (
	fieldNextEndpoints = 2 // of NextItem
	fieldNode          = 2 // of WatchResponse
	fieldChanged       = 3 // of WatchResponse
)

// NextItem returns an item of the answer to Next that has a service.
func NextItem(e *Encoder, s *state.Service) *Raw {
	var b builder
	b.field(fieldNextEndpoints, e.service(s))
	return b.take()
}

// Parts splits an update into messages of type WatchResponse, each of about size bytes: one service more at most. node is sent
// along unless it is nil. Messages are made as they are asked for; u is not kept for that. at is the position, which the last of
// them has; the second value reports whether it is the last.
func Parts(e *Encoder, u *state.Update, node *state.Node, at Position, size int) iter.Seq2[*Raw, bool] {
	p := partition{encoder: e, full: u.Full, removed: u.Removed, triggers: u.Triggers, node: node, at: at, size: size}
	if u.Full {
		p.services = e.stretches(u.Changed)
	} else {
		for _, s := range u.Changed {
			p.services = append(p.services, stretch{alone: e.service(s)})
		}
	}
	return p.messages
}

// partition is an update that is to be sent in parts.
type partition struct {
	encoder  *Encoder
	full     bool
	services []stretch
	removed  []state.ServiceName
	triggers []time.Time
	node     *state.Node
	at       Position
	size     int // of a part
}

// messages yields the parts.
func (p *partition) messages(yield func(part *Raw, last bool) bool) {
	var b builder
	begin := func() {
		if p.full {
			b.merge(&localnetv1.WatchResponse{Full: true})
		}
	}
	begin()
	if p.node != nil {
		p.encoder.node(&b, p.node)
	}
	// room hands over what there is if it is enough for a part.
	room := func() bool {
		if b.size < p.size {
			return true
		}
		if !yield(b.take(), false) {
			return false
		}
		begin()
		return true
	}
	for _, s := range p.services {
		if s.sheet == nil {
			if !room() {
				return
			}
			b.field(fieldChanged, s.alone)
			continue
		}
		for i := s.from; i < s.to; {
			if !room() {
				return
			}
			end := s.sheet.cut(i, s.to, p.size-b.size)
			b.raw(s.sheet.bytes[s.sheet.start(i):s.sheet.ends[end-1]])
			i = end
		}
	}
	for m := range p.rest {
		if !room() {
			return
		}
		b.merge(m)
	}
	b.merge(&localnetv1.WatchResponse{Position: p.at.Message()})
	yield(b.take(), true)
}

// namesAtOnce is how many names or times are marshalled at once: a few KiB.
const namesAtOnce = 64

// rest yields the update without its services, in messages of a few KiB.
func (p *partition) rest(yield func(*localnetv1.WatchResponse) bool) {
	for names := range slices.Chunk(p.removed, namesAtOnce) {
		m := &localnetv1.WatchResponse{}
		for _, n := range names {
			m.Removed = append(m.Removed, ServiceName(n))
		}
		if !yield(m) {
			return
		}
	}
	for times := range slices.Chunk(p.triggers, namesAtOnce) {
		m := &localnetv1.WatchResponse{}
		for _, t := range times {
			if ts := timestamp(t); ts != nil {
				m.Triggers = append(m.Triggers, ts)
			}
		}
		if !yield(m) {
			return
		}
	}
}

// timestamp returns nil for times that are zero, or outside of the years 1 to 9999.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if ts := timestamppb.New(t); !t.IsZero() && ts.IsValid() {
		return ts
	}
	return nil
}
