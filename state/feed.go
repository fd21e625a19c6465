package state

import (
	"context"
	"iter"
	"slices"
	"time"
)

// Revision numbers the states of a [Feed]. It grows by one with each published state. 0 stands for knowing nothing.
type Revision uint64

// Feed hands out the states of one node at the pace of their consumer. Changes that come while the consumer is busy are merged into its
// next update, so nothing is ever queued for it.
type Feed interface {
	// Next blocks until there is a state newer than after and returns how to get there from after. With after = 0, or an
	// after that the feed no longer remembers, the update is Full. It returns an error only if ctx ends or the feed is
	// closed for good. It may be called by several consumers at once.
	Next(ctx context.Context, after Revision) (*Update, error)
}

// Update leads from one state to a newer one. It is immutable, and its records are shared.
type Update struct {
	// Revision is the revision of the state after this update. A part of an update has the previous revision, up to the last part.
	Revision Revision
	// Full reports whether Changed is the whole state: services that are not in it do not exist.
	Full bool
	// Node is this node after the update, never nil.
	Node *Node
	// Changed are new and changed services, ordered by name. Where the update merges several revisions, a record may equal
	// the one that the consumer already has.
	Changed []*Service
	// Removed are services that no longer exist, ordered by name; always empty in a full update. It may name a service
	// that the consumer never saw.
	Removed []ServiceName
	// Triggers are the times in the cluster of the events that led to changes of endpoints in this update. Each service and revision
	// has one time, if it has any, and the times are in no order. The time from there until the update is applied is the programming
	// latency (kube-proxy's network_programming_duration_seconds). Empty in a full update.
	Triggers []time.Time
	// Refused has the new records that a dataplane has refused, ordered by name. Package backend sets it when it applies the update
	// again. Then Changed has the last good records of these services where it differs from the dataplane. A Feed leaves it empty.
	Refused []*Service
}

// Gone returns the services that the update removes: Removed, and for a full update the services of held that are not in Changed. held yields the
// services that the consumer has.
func (u *Update) Gone(held iter.Seq[ServiceName]) []ServiceName {
	if !u.Full {
		return u.Removed
	}
	exist := make(map[ServiceName]bool, len(u.Changed))
	for _, s := range u.Changed {
		exist[s.Name] = true
	}
	gone := slices.Clone(u.Removed)
	for name := range held {
		if !exist[name] {
			gone = append(gone, name)
		}
	}
	return gone
}
