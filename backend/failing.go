package backend

import (
	"maps"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// failure is a service that could not be programmed.
type failure struct {
	record *state.Service // the latest; nil if it is to be removed
	err    error
}

// noteServices notes which services of an applied update failed, and when to try them again: as in targets, or else as in the update.
func (r *runner) noteServices(u *state.Update, failed map[state.ServiceName]error, targets map[state.ServiceName]*state.Service) {
	if len(r.failing)+len(r.unrepaired)+len(failed) == 0 {
		return
	}
	removed := u.Removed
	if u.Full {
		noted := make(map[state.ServiceName]bool)
		for _, name := range slices.Concat(slices.Collect(maps.Keys(r.failing)), slices.Collect(maps.Keys(r.unrepaired)), slices.Collect(maps.Keys(failed))) {
			noted[name] = true
		}
		removed = u.Gone(maps.Keys(noted))
	}
	for _, s := range u.Changed {
		record := s
		if target, ok := targets[s.Name]; ok {
			record = target
		}
		r.noteService(s.Name, record, failed[s.Name])
	}
	for _, name := range removed {
		r.noteService(name, nil, failed[name])
	}
	switch {
	case len(r.failing) == 0:
		r.retrying.reset()
	case r.retrying.at.IsZero():
		r.retrying.failed(nil, &r.RunOptions)
	}
}

func (r *runner) noteService(name state.ServiceName, record *state.Service, err error) {
	delete(r.unrepaired, name)
	previous, was := r.failing[name]
	if err == nil {
		if was {
			delete(r.failing, name)
			r.Logger.Info("service is programmed again", "service", name.String())
		}
		return
	}
	if !was || previous.err.Error() != err.Error() {
		r.Logger.Warn("cannot program service", "service", name.String(), "error", err)
	}
	r.failing[name] = failure{record, err}
}

// retry has the failing services applied again, but for those that are about to change.
func (r *runner) retry(now time.Time) {
	r.retrying.at = time.Time{} // until one of them fails again
	for _, name := range slices.SortedFunc(maps.Keys(r.failing), state.ServiceName.Compare) {
		r.queue.again(name, r.failing[name].record, now)
	}
}

// noteUnrepaired notes the services that a verification could not repair. The next one then comes after a pause that grows.
func (r *runner) noteUnrepaired(failed map[state.ServiceName]error) {
	was := r.unrepaired
	r.unrepaired = make(map[state.ServiceName]error)
	for name, err := range failed {
		if _, ok := r.failing[name]; ok {
			continue // is tried again by itself
		}
		if was[name] == nil || was[name].Error() != err.Error() {
			r.Logger.Warn("cannot repair service", "service", name.String(), "error", err)
		}
		r.unrepaired[name] = err
	}
	if len(r.unrepaired) == 0 {
		r.verifying.reset()
		return
	}
	r.verifying.failed(nil, &r.RunOptions)
	r.verifyAt = r.verifying.at
}
