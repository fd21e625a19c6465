package oracle

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// weightOf is the weight of each endpoint of a slice, and whether the annotation gives it. Without the annotation, it is 1, and also where the value
// is not a whole number from 0 to 65535. An annotation of Cilium does not count, as by default.
func weightOf(s *model.EndpointSlice) (weight int, given bool) {
	const most = 65535
	if s.Weight == "" || s.CiliumWeight || strings.Trim(s.Weight, "0123456789") != "" {
		return 1, false
	}
	for _, digit := range s.Weight {
		if weight = 10*weight + int(digit-'0'); weight > most {
			return 1, false
		}
	}
	return weight, true
}

// takers are the endpoints that may get new connections: those with a weight that is not 0.
func takers(eps []endpoint) []endpoint {
	return filter(eps, func(ep endpoint) bool { return ep.weight > 0 })
}

// annotation is the value of one of our annotations of a service, empty without it.
func annotation(s *model.Service, name string) string {
	for _, a := range s.Annotations {
		if a.Name == "switchyard.net/"+name {
			return a.Value
		}
	}
	return ""
}

// drawsOf is the value of the annotation of a service that asks for something other than random draws, empty without one. A bad value counts as absent.
func drawsOf(s *model.Service) string {
	switch value := annotation(s, "balance"); value {
	case "hash", "hash-connection", "least-connections":
		return value
	}
	return ""
}

// balanceOf is how the connections of a service are shared. Session affinity wins over the annotation.
func balanceOf(s *model.Service) state.Balance {
	switch value := drawsOf(s); {
	case s.Affinity > 0:
	case value == "hash":
		return state.HashClient
	case value == "hash-connection":
		return state.HashConnection
	case value == "least-connections":
		return state.LeastConnections
	}
	return state.Random
}

// answersPing: the addresses of a service answer echo requests if the annotation says so, and nothing else than "true" does.
func answersPing(s *model.Service) bool { return annotation(s, "ping") == "true" }

// pings reports whether a service that answers echo requests has a port at p's destination address. answers is set if one of these ports forwards
// connections of the client.
func (w *World) pings(p probe.Packet) (has, answers bool) {
	for _, s := range w.Services {
		for _, port := range s.Ports {
			p.Dst, p.Protocol = netip.AddrPortFrom(p.Dst.Addr(), port.Port), port.Protocol
			if c, ok := w.addressClaim(p); ok && c.service == s && answersPing(s) {
				has, answers = true, answers || w.Ask(p).Outcome == probe.Forward
			}
		}
	}
	return has, answers
}

// drainOf is the deadline of a service in seconds. It is a whole number of hours, minutes or seconds, and at most a day. Histories have no other values
// that count.
func drainOf(s *model.Service) uint32 {
	const day = 24 * 3600
	value := annotation(s, "drain-timeout")
	for unit, seconds := range map[string]int{"h": 3600, "m": 60, "s": 1} {
		number, found := strings.CutSuffix(value, unit)
		if n, err := strconv.Atoi(number); found && err == nil && n >= 0 && n*seconds <= day {
			return uint32(n * seconds)
		}
	}
	return 0
}
