package state

import "slices"

// Without returns the record without the frontends that are taken, and without ports and traffic to which none leads then. It is s itself
// if none of its frontends is taken.
func (s *Service) Without(taken map[FrontendKey]bool) *Service {
	return s.dropFrontends(func(p *Port, f *Frontend) bool { return taken[p.Key(f)] })
}

// dropFrontends is Without for the frontends that drop selects.
func (s *Service) dropFrontends(drop func(*Port, *Frontend) bool) *Service {
	isTaken := func(p *Port) func(Frontend) bool {
		return func(f Frontend) bool { return drop(p, &f) }
	}
	if !slices.ContainsFunc(s.Ports, func(p Port) bool { return slices.ContainsFunc(p.Frontends, isTaken(&p)) }) {
		return s
	}
	var left []Port
	for _, p := range s.Ports {
		p.Frontends = slices.DeleteFunc(slices.Clone(p.Frontends), isTaken(&p))
		if len(p.Frontends) > 0 {
			p.dropUnusedTraffic()
			left = append(left, p)
		}
	}
	return s.WithPorts(left)
}

// dropUnusedTraffic clears the traffic of p to which no frontend leads. The endpoints of a UDP port that were only
// there keep the flows that they have. The endpoints of a TCP port with a deadline keep their connections until then. Both linger.
func (p *Port) dropUnusedTraffic() {
	isClusterIP := func(f Frontend) bool { return f.Kind == ClusterIP }
	isOther := func(f Frontend) bool { return f.Kind != ClusterIP }
	var stranded []Endpoint
	if !slices.ContainsFunc(p.Frontends, isClusterIP) {
		stranded = append(stranded, endpointsOf(&p.Internal)...)
		p.Internal = Traffic{}
	}
	if !slices.ContainsFunc(p.Frontends, isOther) {
		stranded = append(stranded, endpointsOf(&p.External)...)
		p.External = Traffic{}
	}
	if !p.Edge.TakesOneOf(p.Frontends) {
		p.Edge = nil
	}
	if p.Protocol != UDP && p.DrainSeconds == 0 {
		return
	}
	routed := append(endpointsOf(&p.Internal), endpointsOf(&p.External)...)
	slices.SortFunc(routed, Endpoint.Compare)
	lingering := append(slices.Clone(p.Lingering), stranded...)
	lingering = slices.DeleteFunc(lingering, func(e Endpoint) bool {
		_, is := slices.BinarySearchFunc(routed, e, Endpoint.Compare)
		return is
	})
	slices.SortFunc(lingering, Endpoint.Compare)
	p.Lingering = slices.Compact(lingering)
}

// endpointsOf returns the endpoints of both routes, without weights, which belong to a route.
func endpointsOf(t *Traffic) []Endpoint {
	return unweighted(slices.Concat(t.Inside.Endpoints, t.Outside.Endpoints))
}
