package brain

import (
	"slices"
	"strconv"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// weight is the weight of the endpoints of a slice. It is 0 for a slice without the annotation, and noWeight for a slice that gets no new
// connections.
type weight int32

// noWeight is the annotation 0.
const noWeight weight = -1

// weightOf returns the weight that a slice gives its endpoints. An invalid value counts as absent: see [BadWeight].
func weightOf(cfg *Config, s *model.EndpointSlice) weight {
	w, _ := readWeight(cfg, s)
	return w
}

// BadWeight reports whether the weight annotation of a slice counts and is invalid.
func BadWeight(cfg *Config, s *model.EndpointSlice) bool {
	_, ok := readWeight(cfg, s)
	return !ok
}

func readWeight(cfg *Config, s *model.EndpointSlice) (w weight, ok bool) {
	if s.CiliumWeight && !cfg.accepts(ciliumDomain) {
		return 0, true
	}
	return parseWeight(s.Weight)
}

// parseWeight reads the value of a weight annotation, empty if there is none. An invalid value has weight 0.
func parseWeight(text string) (w weight, ok bool) {
	if text == "" {
		return 0, true
	}
	switch n, err := strconv.ParseUint(text, 10, 16); {
	case err != nil:
		return 0, false
	case n == 0:
		return noWeight, true
	default:
		return weight(n), true
	}
}

// isWeighted reports whether any slice gives its endpoints a weight. Then the endpoints of all others have 1.
func isWeighted(parts []part) bool {
	return slices.ContainsFunc(parts, func(p part) bool { return p.weight != 0 })
}

// among returns the weight of the endpoints of a part among others.
func (p *part) among(weighted bool) weight {
	if weighted && p.weight == 0 {
		return 1
	}
	return p.weight
}

// active returns the endpoints that may get new connections: those with a weight. It is c itself where nothing is weighted.
func (c candidates) active() candidates {
	drained := func(e candidate) bool { return e.weight == noWeight }
	if !slices.ContainsFunc(c, drained) {
		return c
	}
	return slices.DeleteFunc(slices.Clone(c), drained)
}

// even takes the weights out of endpoints that all have the same. The record is then as without weights.
func even(eps []state.Endpoint) {
	if len(eps) == 0 || eps[0].Weight == 0 {
		return
	}
	for _, e := range eps {
		if e.Weight != eps[0].Weight {
			return
		}
	}
	for i := range eps {
		eps[i].Weight = 0
	}
}
