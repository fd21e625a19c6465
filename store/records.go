package store

import (
	"slices"
	"sync"
	"weak"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// answer holds the published records of one service for all nodes, one for each viewpoint. A nil answer means that the
// service is not routed. An answer is immutable, except for the records that it remembers.
type answer struct {
	brain  *brain.Config
	object *model.Service
	slices []*model.EndpointSlice
	facts  *brain.Facts
	lost   []loss // claims of other services, the same from every viewpoint
	// common is the record for the zero viewpoint.
	common *state.Service

	mu       sync.Mutex // guards all below
	variants []variant  // the latest last
	previous []variant  // records of the previous answer, which are reused where they are equal
}

// variant is a record that differs from the common one, or may do so.
type variant struct {
	view   brain.Viewpoint
	record weak.Pointer[state.Service]
	// kept is the record, unless only a single node needs it. Such a record is needed once, and is freed with its last
	// user.
	kept *state.Service
}

// maxVariants limits the records that an answer remembers, so that a service with endpoints on thousands of nodes does
// not take memory for each node. It is enough for the zones of a cluster and the few nodes that ask at a time.
const maxVariants = 16

// view is the viewpoint from which a node sees the service.
func (a *answer) view(name string, node *model.Node) brain.Viewpoint {
	if a == nil {
		return brain.Viewpoint{}
	}
	return a.facts.View(name, node)
}

// at returns the record for a viewpoint: the same pointer each time, as long as it is among the latest that were asked for.
func (a *answer) at(v brain.Viewpoint) *state.Service {
	if a == nil {
		return nil
	}
	if v == (brain.Viewpoint{}) {
		return a.common
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if record := find(a.variants, v); record != nil {
		return record
	}
	record := v.Compute(a.brain, a.object, a.slices)
	if len(a.lost) > 0 {
		record = without(record, a.lost)
	}
	if previous := find(a.previous, v); previous != nil && record.Equal(previous) {
		record = previous
	} else if record.Equal(a.common) {
		record = a.common
	}
	a.variants = slices.DeleteFunc(a.variants, func(o variant) bool { return o.record.Value() == nil })
	if len(a.variants) == maxVariants {
		a.variants = slices.Delete(a.variants, 0, 1)
	}
	made := variant{view: v, record: weak.Make(record)}
	if v.Node == "" {
		made.kept = record
	}
	a.variants = append(a.variants, made)
	return record
}

// find returns the record for a viewpoint, nil if it is not among variants or gone.
func find(variants []variant, v brain.Viewpoint) *state.Service {
	for _, o := range variants {
		if o.view == v {
			return o.record.Value()
		}
	}
	return nil
}

// succeed reuses the records of a previous answer in a where they are equal, so that callers can compare pointers. It
// is called before a is shared.
func (a *answer) succeed(previous *answer) {
	previous.mu.Lock()
	defer previous.mu.Unlock()
	a.previous = slices.Clone(previous.variants)
}
