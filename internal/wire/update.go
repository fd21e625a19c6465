package wire

import (
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// The numbers of the fields that hold services.
const (
	fieldNextEndpoints = 2 // of NextItem
	fieldChanged       = 3 // of WatchResponse
)

// NextItem returns an item of the answer to Next that has a service.
func NextItem(e *Encoder, s *state.Service) *Raw {
	var b builder
	b.field(fieldNextEndpoints, e.service(s))
	return b.take()
}

// Parts splits an update into messages of type WatchResponse, each of about size bytes: one service more at most. node is sent
// along unless it is nil. Messages are made as they are asked for. at is the position, which the last of
// them has; the second value says that it is the last.
func Parts(e *Encoder, u *state.Update, node *state.Node, at Position, size int) iter.Seq2[*Raw, bool] {
	return func(yield func(part *Raw, last bool) bool) {
		var b builder
		begin := func() {
			if u.Full {
				b.merge(&localnetv1.WatchResponse{Full: true})
			}
		}
		begin()
		if node != nil {
			b.merge(&localnetv1.WatchResponse{Node: Node(node)})
		}
		// room hands over what there is if it is enough for a part.
		room := func() bool {
			if b.size < size {
				return true
			}
			if !yield(b.take(), false) {
				return false
			}
			begin()
			return true
		}
		for _, s := range u.Changed {
			if !room() {
				return
			}
			b.field(fieldChanged, e.service(s))
		}
		for names := range slices.Chunk(u.Removed, namesAtOnce) {
			if !room() {
				return
			}
			m := &localnetv1.WatchResponse{}
			for _, n := range names {
				m.Removed = append(m.Removed, ServiceName(n))
			}
			b.merge(m)
		}
		for times := range slices.Chunk(u.Triggers, namesAtOnce) {
			if !room() {
				return
			}
			m := &localnetv1.WatchResponse{}
			for _, t := range times {
				if ts := timestamp(t); ts != nil {
					m.Triggers = append(m.Triggers, ts)
				}
			}
			b.merge(m)
		}
		b.merge(&localnetv1.WatchResponse{Position: at.Message()})
		yield(b.take(), true)
	}
}

// namesAtOnce is how many names or times are marshalled at once: a few KiB.
const namesAtOnce = 64

// timestamp returns nil for times that are zero, or outside of the years 1 to 9999.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if ts := timestamppb.New(t); !t.IsZero() && ts.IsValid() {
		return ts
	}
	return nil
}
