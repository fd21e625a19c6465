package view

import (
	"strconv"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Traffic is one reading of the counts of new connections.
type Traffic struct {
	At time.Time
	// Elapsed is how long ago the reading before it was, 0 for the first one.
	Elapsed time.Duration
	// Ports are in order of their Services and ports, and a bounded number.
	Ports []PortTraffic
	// LeftOut is how many selected ports are left out.
	LeftOut int
}

// PortTraffic is the counts of a port of a Service, in all families.
type PortTraffic struct {
	Namespace, Service string
	// Port is its name, or its number if it has none.
	Port string
	Counts
	Endpoints Endpoints
}

// Counts are new connections since the port was programmed.
type Counts struct {
	// Connections are all of them, wherever they went. Without an answer, each attempt of a client counts.
	Connections uint64 `json:"connections"`
	// Rejects and Drops are parts of Connections. Rejects counts connections without an endpoint. Drops counts
	// connections that the traffic policy or the source ranges dropped.
	Rejects uint64 `json:"rejects"`
	Drops   uint64 `json:"drops"`
}

// AddEndpoints gives rows, which are in order of their Services, the endpoints of their ports.
func (v *View) AddEndpoints(rows []PortTraffic) {
	var service *Service
	for i := range rows {
		p := &rows[i]
		if i == 0 || p.Namespace != rows[i-1].Namespace || p.Service != rows[i-1].Service {
			service = v.Service(state.ServiceName{Namespace: p.Namespace, Name: p.Service})
		}
		if service == nil {
			continue // it is gone by now
		}
		for _, port := range service.Ports {
			if port.Name == p.Port || port.Name == "" && strconv.Itoa(int(port.Port)) == p.Port {
				p.Endpoints = port.Endpoints
			}
		}
	}
}
