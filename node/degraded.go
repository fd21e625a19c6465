package node

import (
	"log/slog"
	"sync"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// degraded knows the Services that use a feature which the dataplane cannot program. They are served without it. Its methods may be called
// concurrently.
type degraded struct {
	log *slog.Logger
	// can returns the features that the dataplane in use can program, and mode its mode.
	can  func() state.Features
	mode func() string

	mu       sync.Mutex // guards all below
	services map[state.ServiceName]state.Features
	counts   [8]int         // of services, by the index of a feature that they lack
	told     state.Features // that the log has, until no Service uses them
}

// attempted takes note of an update that the dataplane shows.
func (d *degraded) attempted(a backend.Attempt) {
	if a.Update == nil || a.Err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.Update.Full || d.services == nil {
		d.services, d.counts = map[state.ServiceName]state.Features{}, [8]int{}
	}
	for _, name := range a.Update.Removed {
		d.set(name, 0)
	}
	for _, s := range a.Update.Changed {
		missing := s.Features()
		if missing != 0 { // as for few Services
			missing &^= d.can()
		}
		d.set(s.Name, missing)
	}
	if len(d.services) > 0 || d.told != 0 {
		d.tell()
	}
}

// set notes the features that a Service lacks. The mutex is held.
func (d *degraded) set(name state.ServiceName, missing state.Features) {
	for one := range d.services[name].Each {
		d.counts[one.Index()]--
	}
	for one := range missing.Each {
		d.counts[one.Index()]++
	}
	if missing == 0 {
		delete(d.services, name)
	} else {
		d.services[name] = missing
	}
}

// tell logs the features that have begun to be missing. The mutex is held.
func (d *degraded) tell() {
	for one := range state.AllFeatures.Each {
		switch n := d.counts[one.Index()]; {
		case n == 0:
			d.told &^= one
		case d.told&one == 0:
			d.told |= one
			d.log.Warn("dataplane lacks a feature that Services use, and serves them without; choose another mode, or remove their annotations",
				"mode", d.mode(), "feature", one.String(), "services", n)
		}
	}
}

// of returns the features that a Service uses and the dataplane lacks.
func (d *degraded) of(name state.ServiceName) state.Features {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.services[name]
}

// byName returns the number of Services that lack each feature, by the name of the feature.
func (d *degraded) byName() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	named := map[string]int{}
	for one := range state.AllFeatures.Each {
		named[one.String()] = d.counts[one.Index()]
	}
	return named
}
