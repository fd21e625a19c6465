package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-net/switchyard/state"
)

// resets counts resets by Service. There are series only for Services that had any, as long as they exist, and not for more than maxResets.
type resets struct {
	packets *prometheus.CounterVec
	// services are those with a series.
	services map[state.ServiceName]bool
}

// maxResets is how many Services have series of their own. Anybody can make many that lose endpoints.
const maxResets = 1000

func newResets() resets { return resets{services: map[state.ServiceName]bool{}} }

func (r *resets) count(name state.ServiceName, packets uint64) {
	if name != (state.ServiceName{}) && !r.services[name] {
		if len(r.services) == maxResets {
			name = state.ServiceName{}
		} else {
			r.services[name] = true
		}
	}
	r.packets.WithLabelValues(name.Namespace, name.Name).Add(float64(packets))
}

// apply drops the series of Services that are gone.
func (r *resets) apply(u *state.Update) {
	for _, name := range u.Removed {
		r.drop(name)
	}
	if !u.Full || len(r.services) == 0 {
		return
	}
	there := make(map[state.ServiceName]bool, len(u.Changed))
	for _, s := range u.Changed {
		there[s.Name] = true
	}
	for name := range r.services {
		if !there[name] {
			r.drop(name)
		}
	}
}

func (r *resets) drop(name state.ServiceName) {
	if r.services[name] {
		delete(r.services, name)
		r.packets.DeleteLabelValues(name.Namespace, name.Name)
	}
}
