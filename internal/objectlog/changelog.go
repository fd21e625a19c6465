package objectlog

import (
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// logged is a change of an object. At 48 bytes each, as many as are remembered are 3 MiB at most. A consumer that is further
// behind gets the full set.
type logged struct {
	revision Revision
	ref      model.Ref
}

// At implements [revlog.Entry].
func (l logged) At() state.Revision { return state.Revision(l.revision) }
