package oracle

import (
	"strings"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
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

// hashOf is the value of the annotation of a service that asks for a hash, empty without one. A bad value counts as absent.
func hashOf(s *model.Service) string {
	for _, a := range s.Annotations {
		if a.Name == "switchyard.net/balance" && (a.Value == "hash" || a.Value == "hash-connection") {
			return a.Value
		}
	}
	return ""
}

// balanceOf is how the connections of a service are shared. Session affinity wins over the annotation.
func balanceOf(s *model.Service) state.Balance {
	switch hash := hashOf(s); {
	case s.Affinity > 0:
	case hash == "hash":
		return state.HashClient
	case hash == "hash-connection":
		return state.HashConnection
	}
	return state.Random
}
