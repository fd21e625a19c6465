package brain_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// check returns which of package state's promises about a record does not hold. A nil record holds all.
func check(rec *state.Service) error {
	if rec == nil {
		return nil
	}
	if len(rec.Ports) == 0 {
		return errors.New("no ports")
	}
	if !ascending(rec.Ports, func(a, b state.Port) int { return a.Compare(&b) }) {
		return errors.New("ports are not in order or not distinct")
	}
	if hc := rec.HealthCheck; hc.Port == 0 && hc != (state.HealthCheck{}) {
		return fmt.Errorf("health check counts without a port: %+v", hc)
	}
	type key struct {
		protocol state.Protocol
		family   state.Family
		addr     netip.Addr
		port     uint16
	}
	seen := map[key]bool{}
	for i := range rec.Ports {
		p := &rec.Ports[i]
		if err := checkPort(p); err != nil {
			return fmt.Errorf("port %s/%v/%v: %w", p.Name, p.Protocol, p.Family, err)
		}
		for _, f := range p.Frontends {
			k := key{p.Protocol, p.Family, f.Addr, f.Port}
			if seen[k] {
				return fmt.Errorf("frontend %+v occurs twice", f)
			}
			seen[k] = true
		}
	}
	return nil
}

func checkPort(p *state.Port) error {
	if p.Family != state.IPv4 && p.Family != state.IPv6 {
		return errors.New("unknown family")
	}
	if p.Protocol != state.TCP && p.Protocol != state.UDP && p.Protocol != state.SCTP {
		return errors.New("unknown protocol")
	}
	if p.Affinity < 0 || p.Affinity%time.Second != 0 {
		return fmt.Errorf("affinity %v", p.Affinity)
	}
	if len(p.Frontends) == 0 || !ascending(p.Frontends, state.Frontend.Compare) {
		return errors.New("frontends are missing, not in order or not distinct")
	}
	var internal, external bool
	for _, f := range p.Frontends {
		if f.Kind == state.ClusterIP {
			internal = true
		} else {
			external = true
		}
		if err := checkFrontend(p.Family, f); err != nil {
			return fmt.Errorf("frontend %+v: %w", f, err)
		}
		if (f.LastPort != 0) != isRange(p) {
			return errors.New("ranges and single ports")
		}
	}
	if err := checkTraffic(p, &p.Internal, internal); err != nil {
		return fmt.Errorf("internal: %w", err)
	}
	if err := checkTraffic(p, &p.External, external); err != nil {
		return fmt.Errorf("external: %w", err)
	}
	if err := checkEdge(p); err != nil {
		return fmt.Errorf("edge: %w", err)
	}
	return checkLingering(p)
}

func checkEdge(p *state.Port) error {
	e := p.Edge
	switch {
	case e == nil:
		return nil
	case p.Protocol == state.SCTP || p.Affinity > 0 || p.Balance != state.Random || p.Ejection || p.DrainSeconds > 0 || isRange(p):
		return errors.New("the port cannot have one")
	case !e.TakesOneOf(p.Frontends):
		return errors.New("it takes no frontend")
	case e.Local.Verdict != state.Forward && e.Local.Verdict != state.Drop || (e.Local.Verdict == state.Forward) != (len(e.Local.Endpoints) > 0):
		return fmt.Errorf("verdict %v with %d endpoints", e.Local.Verdict, len(e.Local.Endpoints))
	case slices.ContainsFunc(e.Local.Endpoints, func(e state.Endpoint) bool { return !e.Local }):
		return errors.New("an endpoint is not local")
	case !ascending(e.Shares, state.EdgeShare.Compare) || slices.ContainsFunc(e.Shares, func(s state.EdgeShare) bool { return s.Weight == 0 }):
		return errors.New("shares are not in order, not distinct or 0")
	}
	return checkEndpoints(p, e.Local.Endpoints)
}

func checkFrontend(family state.Family, f state.Frontend) error {
	switch {
	case f.Kind < state.ClusterIP || f.Kind > state.NodePort:
		return errors.New("unknown kind")
	case f.Port == 0:
		return errors.New("port 0")
	case f.LastPort != 0 && (f.LastPort <= f.Port || f.Kind == state.NodePort):
		return errors.New("no range, or one of node ports")
	case f.Kind == state.NodePort && f.Addr.IsValid():
		return errors.New("a node port with an address")
	case f.Kind != state.NodePort && !proper(family, f.Addr):
		return errors.New("not an address of the port's family")
	case f.Kind != state.LoadBalancer && f.Restricted:
		return errors.New("restricted, but not of a load balancer")
	case !f.Restricted && len(f.Sources) > 0:
		return errors.New("sources, but not restricted")
	case !ascending(f.Sources, netip.Prefix.Compare):
		return errors.New("sources are not in order or not distinct")
	}
	for _, s := range f.Sources {
		if !s.IsValid() || s != s.Masked() || !proper(family, s.Addr()) {
			return fmt.Errorf("source %v is not a masked range of the family", s)
		}
	}
	return nil
}

func checkTraffic(p *state.Port, t *state.Traffic, used bool) error {
	if !used && !t.Equal(&state.Traffic{}) {
		return fmt.Errorf("there is no frontend for %+v", t)
	}
	for _, r := range []state.Route{t.Inside, t.Outside} {
		if used != (r.Verdict != state.Unused) || r.Verdict > state.Drop {
			return fmt.Errorf("verdict %v", r.Verdict)
		}
		if (r.Verdict == state.Forward) != (len(r.Endpoints) > 0) {
			return fmt.Errorf("verdict %v with %d endpoints", r.Verdict, len(r.Endpoints))
		}
		if err := checkEndpoints(p, r.Endpoints); err != nil {
			return err
		}
	}
	return nil
}

func isRange(p *state.Port) bool { return p.Frontends[0].LastPort != 0 }

func checkEndpoints(p *state.Port, eps []state.Endpoint) error {
	if !ascending(eps, state.Endpoint.Compare) {
		return errors.New("endpoints are not in order or not distinct")
	}
	if slices.ContainsFunc(eps, func(e state.Endpoint) bool { return model.Special(e.Addr.Addr()) != "" }) {
		return errors.New("an endpoint has an address that no endpoint can have")
	}
	for _, e := range eps {
		if (e.Addr.Port() == 0) != isRange(p) || !proper(p.Family, e.Addr.Addr()) {
			return fmt.Errorf("endpoint %v is not one of the family", e.Addr)
		}
	}
	return nil
}

func checkLingering(p *state.Port) error {
	if p.Protocol == state.SCTP && len(p.Lingering) > 0 {
		return errors.New("lingering endpoints of SCTP")
	}
	for _, r := range []state.Route{p.Internal.Inside, p.Internal.Outside, p.External.Inside, p.External.Outside} {
		for _, e := range p.Lingering {
			if slices.ContainsFunc(r.Endpoints, func(o state.Endpoint) bool { return o.Addr == e.Addr }) {
				return fmt.Errorf("endpoint %v lingers and is in a route", e.Addr)
			}
		}
	}
	return checkEndpoints(p, p.Lingering)
}

// proper reports whether ip is one that a record of the family may hold.
func proper(family state.Family, ip netip.Addr) bool {
	return state.FamilyOf(ip) == family && !ip.Is4In6() && ip.Zone() == ""
}

// ascending reports whether s is in order, without equals.
func ascending[T any](s []T, compare func(a, b T) int) bool {
	for i := 1; i < len(s); i++ {
		if compare(s[i-1], s[i]) >= 0 {
			return false
		}
	}
	return true
}
