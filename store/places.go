package store

import (
	"slices"

	"github.com/switchyard-net/switchyard/model"
)

// places has how many endpoints of each service are on a Node, by the name of the Node.
type places map[string]map[*service]int32

// count adds the endpoints of a slice of a service, by times.
func (p places) count(svc *service, s *model.EndpointSlice, by int32) {
	for i := range s.Endpoints {
		name := s.Endpoints[i].NodeName
		if name == "" {
			continue
		}
		services := p[name]
		if services == nil {
			services = make(map[*service]int32, 1)
			p[name] = services
		}
		if services[svc] += by; services[svc] == 0 {
			delete(services, svc)
			if len(services) == 0 {
				delete(p, name)
			}
		}
	}
}

// place makes the places of all endpoints, if the health of Nodes or the edge needs them.
func (o *objects) place() {
	if o.places != nil || !o.health.rule.Enabled && !o.edge.on {
		return
	}
	o.places = make(places)
	for _, ns := range o.namespaces {
		for _, svc := range ns.services {
			for _, s := range svc.slices {
				o.places.count(svc, s, 1)
			}
		}
	}
}

// count adds the endpoints of a slice of a service to their places, by times.
func (o *objects) count(svc *service, s *model.EndpointSlice, by int32) {
	if o.places != nil {
		o.places.count(svc, s, by)
	}
}

// marked returns a slice whose endpoints say what is known of their Nodes: s itself if they do.
func (o *objects) marked(s *model.EndpointSlice) *model.EndpointSlice {
	isRight := true
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		isRight = isRight && e.NodeUnready == o.health.isLast(e.NodeName) && e.NodeApart == o.edge.isApart(e.NodeName)
	}
	if isRight {
		return s
	}
	m := *s
	m.Endpoints = slices.Clone(s.Endpoints)
	for i := range m.Endpoints {
		e := &m.Endpoints[i]
		e.NodeUnready, e.NodeApart = o.health.isLast(e.NodeName), o.edge.isApart(e.NodeName)
	}
	return &m
}

// markNodes marks the services with endpoints on some Nodes, and these endpoints again.
func (o *objects) markNodes(names []string) {
	concerned := make(map[*service]struct{})
	for _, name := range names {
		for svc := range o.places[name] {
			concerned[svc] = struct{}{}
		}
	}
	for svc := range concerned {
		slicesOf := o.namespaces[svc.name.Namespace].slices
		for i, s := range svc.slices {
			svc.slices[i] = o.marked(s)
			slicesOf[s.Name] = svc.slices[i]
		}
		o.mark(svc)
	}
}
