// Package least has endpoints with more connections get fewer of the new ones. It is a controller of shares, and pure. It learns from
// time to time how many connections each endpoint has. Then it moves a few slots from endpoints with many to endpoints with few.
//
// An endpoint's share is its weight, times a factor. With each count, the factor is multiplied by ((mean+1)/(n+1))^gain. So an endpoint with more
// connections than the mean loses some of its share with each count, until it has as many as the others. A factor that followed from the last count
// alone would stop halfway: the endpoint has few connections because it gets few. The fewer connections there are to go by, the more factors return to 1.
package least

import (
	"math"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// Slots is how many slots the endpoints of a route share.
	Slots = 256
	// MaxEndpoints is how many endpoints a route may have. Each needs a slot, and more of them could lose less than half of their shares. They
	// draw connections evenly.
	MaxEndpoints = Slots / 2

	// gain is the exponent of a step. Without connections, forget is the part of a factor's logarithm that goes with each step. Factors stay from leastFactor to mostFactor times their mean, so that no endpoint is without connections, and none
	// gets them all.
	gain, forget, leastFactor, mostFactor = 0.2, 0.1, 1. / 32, 4
)

// Endpoint is what connections are counted of.
type Endpoint struct {
	Protocol state.Protocol
	Addr     netip.AddrPort
}

// Counts is how many connections endpoints have.
type Counts map[Endpoint]int

// Asks reports whether a port asks for least connections. Session affinity wins.
func Asks(p *state.Port) bool { return p.Balance == state.LeastConnections && p.Affinity == 0 }

// Crowded reports whether a route of a port has too many endpoints.
func Crowded(p *state.Port, r *state.Route) bool { return Asks(p) && len(r.Endpoints) > MaxEndpoints }

// has reports whether a route of a port has shares of its own.
func has(p *state.Port, r *state.Route) bool {
	return Asks(p) && len(r.Endpoints) > 1 && len(r.Endpoints) <= MaxEndpoints
}

// Controller has the factors of endpoints. The zero value has none. It does not change, so that any goroutine may use it.
type Controller struct {
	routes map[routeID]*factors
	// even is set while all factors count as 1.
	even bool
}

// routeID is a route of a port, by its place among [state.Port.Routes].
type routeID struct {
	service  state.ServiceName
	port     string
	protocol state.Protocol
	family   state.Family
	route    int
}

// factors belong to the endpoints of a route, in their order.
type factors struct {
	endpoints []state.Endpoint // of the record
	of        []float32
}

func idOf(s *state.Service, p *state.Port, route int) routeID {
	return routeID{s.Name, p.Name, p.Protocol, p.Family, route}
}

// get returns the factor of an endpoint. It is 1 for one that was not there.
func (f *factors) get(addr netip.AddrPort) float64 {
	i, found := slices.BinarySearchFunc(f.endpoints, addr, func(e state.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	if !found {
		return 1
	}
	return float64(f.of[i])
}

// Shares returns a record with the shares of now in place of its weights. Each route that has shares of its own has [Slots] slots. An endpoint's weight is
// the number of its slots. The record is s itself if no route has. It shares memory with s where it can.
func (c *Controller) Shares(s *state.Service) *state.Service {
	shared := s
	for i := range s.Ports {
		port := &s.Ports[i]
		if !Asks(port) {
			continue
		}
		routes := port.Routes()
		if !slices.ContainsFunc(routes[:], func(r *state.Route) bool { return has(port, r) }) {
			continue
		}
		if shared == s {
			shared = s.WithPorts(slices.Clone(s.Ports))
		}
		now := shared.Ports[i].Routes()
		for j, r := range routes {
			if !has(port, r) {
				continue
			}
			if k := slices.IndexFunc(routes[:j], r.Equal); k >= 0 {
				*now[j] = *now[k]
				continue
			}
			c.share(idOf(s, port, j), now[j])
		}
	}
	return shared
}

// share replaces the weights of a route by its slots.
func (c *Controller) share(id routeID, r *state.Route) {
	weights := make([]float64, len(r.Endpoints), len(r.Endpoints)+1)
	f := c.routes[id]
	sum, scaled := 0., 0.
	for i, e := range r.Endpoints {
		w := float64(max(1, e.Weight))
		sum += w
		if weights[i] = w; f != nil && !c.even {
			weights[i] *= f.get(e.Addr)
		}
		scaled += weights[i]
	}
	if r.Refused > 0 { // next to the sum of the record's weights
		weights = append(weights, float64(r.Refused)*scaled/sum)
	}
	most := slices.Max(weights)
	whole := make([]uint32, len(weights))
	for i, w := range weights {
		whole[i] = max(1, uint32(math.Round(w/most*(1<<30))))
	}
	slots := apportion.Slots(whole, Slots)
	r.Endpoints = slices.Clone(r.Endpoints)
	for i := range r.Endpoints {
		r.Endpoints[i].Weight = uint16(slots[i])
	}
	if r.Refused > 0 {
		r.Refused = uint32(slots[len(r.Endpoints)])
	}
}

// Targets adds the endpoints of a record whose connections are to be counted.
func Targets(counts Counts, s *state.Service) {
	each(s, func(p *state.Port, _ int, r *state.Route) {
		for _, e := range r.Endpoints {
			counts[Endpoint{p.Protocol, e.Addr}] = 0
		}
	})
}

// each calls do for the routes of a record that have shares of their own, once for routes that are equal.
func each(s *state.Service, do func(p *state.Port, route int, r *state.Route)) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if !Asks(p) {
			continue
		}
		routes := p.Routes()
		for j, r := range routes {
			if has(p, r) && !slices.ContainsFunc(routes[:j], r.Equal) {
				do(p, j, r)
			}
		}
	}
}

// Step returns the controller after a count of connections. services are all that ask for least connections: others are forgotten. It takes time and memory
// in proportion to the number of their endpoints.
func (c *Controller) Step(services []*state.Service, counts Counts) *Controller {
	next := make(map[routeID]*factors, len(c.routes))
	for _, s := range services {
		each(s, func(p *state.Port, route int, r *state.Route) {
			id := idOf(s, p, route)
			next[id] = step(c.routes[id], p.Protocol, r, counts)
		})
	}
	return &Controller{routes: next}
}

// Even returns the controller with which all endpoints share by their weights alone. Its next Step begins where the last one has ended.
func (c *Controller) Even() *Controller { return &Controller{c.routes, true} }

func step(previous *factors, protocol state.Protocol, r *state.Route, counts Counts) *factors {
	n := len(r.Endpoints)
	next := &factors{endpoints: r.Endpoints, of: make([]float32, n)}
	// Connections count in relation to the weight.
	loads, connections, weights := make([]float64, n), 0., 0.
	for i, e := range r.Endpoints {
		has := float64(counts[Endpoint{protocol, e.Addr}])
		loads[i] = has / float64(max(1, e.Weight))
		connections += has
		weights += float64(max(1, e.Weight))
	}
	mean, each := connections/float64(n), weights/float64(n)
	all, sum, stays := make([]float64, n), 0., 1-forget/(mean+1)
	for i, e := range r.Endpoints {
		f := 1.
		if previous != nil {
			f = previous.get(e.Addr)
		}
		all[i] = math.Pow(f, stays) * math.Pow((mean+1)/(loads[i]*each+1), gain)
		sum += all[i]
	}
	for i := range all { // of the mean, so that they do not all grow
		next.of[i] = float32(min(max(all[i]*float64(n)/sum, leastFactor), mostFactor))
	}
	return next
}
