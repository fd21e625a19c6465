package revlog

import (
	"log/slog"
	"sync"

	"github.com/switchyard-net/switchyard/model"
)

// Intake takes the objects of several sources, and knows when all of them are complete.
type Intake struct {
	// Mutex is held while the functions below are called, and by those who call Complete. Required.
	Mutex *sync.Mutex
	// Update takes objects of a source. Required.
	Update func(set []model.Object, deleted []model.Ref)
	// Completed is called when a source is complete, which may be the last one. Required.
	Completed func()
	// Logger gets the progress of sources, for debugging. Required.
	Logger *slog.Logger

	registered, incomplete int // sources
}

// Source registers a source and returns the sink that it delivers to. Sources are registered before any of them runs.
// name is for the log only.
func (in *Intake) Source(name string) model.Sink {
	in.Mutex.Lock()
	defer in.Mutex.Unlock()
	in.registered++
	in.incomplete++
	return &sink{in: in, name: name}
}

// Complete reports that there are sources, and that they have delivered all they have.
func (in *Intake) Complete() bool { return in.registered > 0 && in.incomplete == 0 }

// sink takes the objects of one source.
type sink struct {
	in       *Intake
	name     string
	complete bool // guarded by in.Mutex
}

// Update implements [model.Sink].
func (k *sink) Update(set []model.Object, deleted []model.Ref) {
	k.in.Mutex.Lock()
	defer k.in.Mutex.Unlock()
	k.in.Update(set, deleted)
}

// Complete implements [model.Sink].
func (k *sink) Complete() {
	in := k.in
	in.Mutex.Lock()
	defer in.Mutex.Unlock()
	if k.complete {
		return
	}
	k.complete = true
	in.incomplete--
	in.Logger.Debug("source synced", "source", k.name, "waitingFor", in.incomplete)
	in.Completed()
}
