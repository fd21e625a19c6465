package ui

import (
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Counting is the source of a page whose dataplane may count new connections.
type Counting interface {
	Source
	// Connections returns how many new connections there were to each Service since counting began, of a bounded number of Services. It is nil
	// if none are counted.
	Connections() map[state.ServiceName]uint64
}

// counts are connections that were counted until a time.
type counts struct {
	at          time.Time
	connections map[state.ServiceName]uint64
}

// since returns how many connections there were a second since earlier counts, of the Services that had any. It is nil if one of the two has not
// been counted.
func (c counts) since(earlier counts) map[string]float64 {
	if c.connections == nil || earlier.connections == nil {
		return nil
	}
	rates := map[string]float64{}
	for name, n := range c.connections {
		if was := earlier.connections[name]; n > was {
			rates[name.String()] = float64(n-was) / c.at.Sub(earlier.at).Seconds()
		}
	}
	return rates
}
