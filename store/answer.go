package store

import (
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// answer holds the published records of one service for all nodes, one for each viewpoint. A nil answer is that of a service
// which is not routed. But for the records that it remembers it is immutable.
type answer struct {
	brain  *brain.Config
	object *model.Service
	slices []*model.EndpointSlice
	facts  *brain.Facts
	lost   []loss // what other services hold, wherever one looks from
	// common is the record for the zero viewpoint.
	common *state.Service

	mu       sync.Mutex // guards all below
	variants []variant  // the latest last
	former   []variant  // those of the answer before, whose records live on where they are equal
}

// variant is a record that differs from the common one, or may do so.
type variant struct {
	view   brain.Viewpoint
	record *state.Service
}

// maxVariants bounds the records that an answer remembers, so that a service with an endpoint on each of thousands of nodes
// does not take memory for each of them. It is enough for the zones of a cluster and the few nodes that ask at a time.
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
	isV := func(o variant) bool { return o.view == v }
	if i := slices.IndexFunc(a.variants, isV); i >= 0 {
		return a.variants[i].record
	}
	record := v.Compute(a.brain, a.object, a.slices)
	if len(a.lost) > 0 {
		record = without(record, a.lost)
	}
	if i := slices.IndexFunc(a.former, isV); i >= 0 && record.Equal(a.former[i].record) {
		record = a.former[i].record
	} else if record.Equal(a.common) {
		record = a.common
	}
	if len(a.variants) == maxVariants {
		a.variants = slices.Delete(a.variants, 0, 1)
	}
	a.variants = append(a.variants, variant{v, record})
	return record
}

// succeed makes the records of a former answer live on in a where they are equal, so that those who compare pointers see that
// they are. It is called before a is shared.
func (a *answer) succeed(former *answer) {
	former.mu.Lock()
	defer former.mu.Unlock()
	a.former = slices.Clone(former.variants)
}
