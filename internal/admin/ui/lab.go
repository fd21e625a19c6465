package ui

import (
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Lab is the source of a page of a lab, which connects to its Services round by round.
type Lab interface {
	Source
	// Round returns the newest round, nil before the first one. It is never modified.
	Round() *Round
}

// Round is how the connections of a lab went, each of which was made once or several times.
type Round struct {
	Ended time.Time
	Paths map[state.ServiceName][]Path
}

// Path is how one client of a lab connects to one frontend.
type Path struct {
	Client   string `json:"client"`
	Frontend string `json:"frontend"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	// Outside reports whether the client is outside of the cluster, and connects to an address that is for such.
	Outside bool `json:"outside,omitempty"`
	// Outcome is what most of the connections came to.
	Outcome     string `json:"outcome"`
	Connections int    `json:"connections"`
	// Endpoints counts the answers, by the endpoint's address and port.
	Endpoints map[string]int `json:"endpoints,omitempty"`
	// Source is whose address the endpoints saw, empty if none did.
	Source string `json:"source,omitempty"`
	// Took is the median time until the outcome, in seconds.
	Took float64 `json:"took"`
	// Faults are what was not as Kubernetes' rules demand.
	Faults []string `json:"faults,omitempty"`
}

// flow sums up the paths of one Service.
type flow struct {
	Paths       int `json:"paths"`
	Connections int `json:"connections"`
	// Faulty counts the paths that were not as they must be, and Fault is the first fault.
	Faulty int    `json:"faulty,omitempty"`
	Fault  string `json:"fault,omitempty"`
}

// roundEvent is what an event has of a round.
type roundEvent struct {
	Ended time.Time `json:"ended"`
	// Services are by NAMESPACE/NAME.
	Services map[string]flow `json:"services"`
}

// event sums up a round.
func (r *Round) event() *roundEvent {
	e := &roundEvent{r.Ended, make(map[string]flow, len(r.Paths))}
	for name, paths := range r.Paths {
		sum := flow{Paths: len(paths)}
		for i := range paths {
			p := &paths[i]
			sum.Connections += p.Connections
			if len(p.Faults) == 0 {
				continue
			}
			if sum.Faulty++; sum.Fault == "" {
				sum.Fault = p.Client + " to " + p.Address + ": " + p.Faults[0]
			}
		}
		e.Services[name.String()] = sum
	}
	return e
}
