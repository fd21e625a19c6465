package store

import (
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// overview is one state of the cluster. The first node that needs the whole state arranges it for all nodes that do,
// which are thousands after a relay restart. Most services look the same from most nodes, so a node's state is a copy
// of a common list with a few records replaced.
type overview struct {
	answers revlog.Map[state.ServiceName, *answer]

	arranged sync.Once // the fields below are immutable afterwards
	list     []*answer
	common   []*state.Service // their records for the zero viewpoint
	// Indexes of the services that look different from a node or from a zone, and of those whose source ranges may contain a
	// node's addresses.
	byNode, byZone map[string][]int32
	guarded        []int32
}

func (o *overview) arrange() {
	o.list, o.common = make([]*answer, 0, o.answers.Len()), make([]*state.Service, 0, o.answers.Len())
	o.byNode, o.byZone = make(map[string][]int32), make(map[string][]int32)
	for a := range o.answers.Values() {
		i := int32(len(o.list))
		o.list = append(o.list, a)
		o.common = append(o.common, a.at(brain.Viewpoint{}))
		for _, n := range a.facts.Nodes {
			o.byNode[n] = append(o.byNode[n], i)
		}
		for _, z := range a.facts.Zones {
			o.byZone[z] = append(o.byZone[z], i)
		}
		if a.facts.Guarded() {
			o.guarded = append(o.guarded, i)
		}
	}
}

// records returns all records as a node sees them, ordered by name, in a list of the caller's own.
func (o *overview) records(name string, node *model.Node) []*state.Service {
	o.arranged.Do(o.arrange)
	records := slices.Clone(o.common)
	replace := func(indexes []int32) {
		for _, i := range indexes {
			records[i] = o.list[i].at(o.list[i].view(name, node))
		}
	}
	replace(o.byNode[name])
	if node != nil {
		replace(o.byZone[node.Zone])
		replace(o.guarded)
	}
	return records
}
