package node

import (
	"fmt"
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
		d.services = map[state.ServiceName]state.Features{}
	}
	for _, name := range a.Update.Removed {
		delete(d.services, name)
	}
	for _, s := range a.Update.Changed {
		delete(d.services, s.Name)
		if uses := s.Features(); uses != 0 && uses&^d.can() != 0 {
			d.services[s.Name] = uses &^ d.can()
		}
	}
	if len(d.services) > 0 || d.told != 0 {
		d.tell()
	}
}

// tell logs the features that have begun to be missing. The mutex is held.
func (d *degraded) tell() {
	counts := d.counts()
	for one := range state.AllFeatures.Each {
		switch n := counts[one]; {
		case n == 0:
			d.told &^= one
		case d.told&one == 0:
			d.told |= one
			d.log.Warn("dataplane lacks a feature that Services use, and serves them without; choose another mode, or remove their annotations",
				"mode", d.mode(), "feature", one.String(), "services", n)
		}
	}
}

// counts returns how many Services lack which feature. The mutex is held.
func (d *degraded) counts() map[state.Features]int {
	counts := map[state.Features]int{}
	for _, missing := range d.services {
		for one := range missing.Each {
			counts[one]++
		}
	}
	return counts
}

// of returns which features a Service is served without, nil if it has all that it uses.
func (d *degraded) of(name state.ServiceName) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if missing := d.services[name]; missing != 0 {
		return fmt.Errorf("the dataplane lacks %v, and serves the Service without; choose another mode, or remove the annotations", missing)
	}
	return nil
}

// byName returns how many Services lack which feature, for all features, by their names.
func (d *degraded) byName() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts, named := d.counts(), map[string]int{}
	for one := range state.AllFeatures.Each {
		named[one.String()] = counts[one]
	}
	return named
}
