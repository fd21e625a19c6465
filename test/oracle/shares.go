package oracle

import (
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Ages remember since when endpoints are ready, which no object says. The zero Ages remember nothing.
type Ages struct {
	// Begun is when the proxy began. Weights change at multiples of an eighth of a slow start after it.
	Begun time.Time
	of    map[state.ServiceName]*ages
}

// ages are the ready endpoints of one service. The time is zero for endpoints that were ready before anybody asked, and for endpoints that are no longer new.
type ages struct {
	created   time.Time
	slowStart time.Duration
	since     map[netip.Addr]time.Time
}

// Observe takes down which endpoints are ready at a time. It has to see each state of the world.
func (a *Ages) Observe(w *World, now time.Time) {
	before := a.of
	a.of = make(map[state.ServiceName]*ages)
	for _, s := range w.Services {
		if !w.isOurs(s) || slowStartOf(s) == 0 {
			continue
		}
		old := before[s.Name]
		if old != nil && !old.created.Equal(s.Created) {
			old = nil // another service of that name
		}
		known := &ages{created: s.Created, slowStart: slowStartOf(s), since: make(map[netip.Addr]time.Time)}
		for _, f := range []state.Family{state.IPv4, state.IPv6} {
			for _, slice := range w.slicesOf(s.Name, f) {
				for _, ep := range slice.Endpoints {
					if !ep.Ready {
						continue
					}
					since := time.Time{}
					if old != nil {
						since = now
						if was, ready := old.since[ep.Addr]; ready {
							since = was
							if a.eighths(was, now, old.slowStart) == 8 {
								since = time.Time{} // also if the slow start is longer from now on
							}
						}
					}
					known.since[ep.Addr] = since
				}
			}
		}
		a.of[s.Name] = known
	}
}

// age is how many eighths of a slow start an endpoint has behind it. It is 8 for one that is not new.
func (w *World) age(s *model.Service, addr netip.Addr) int64 {
	if w.Ages == nil || w.Ages.of[s.Name] == nil {
		return 8
	}
	return w.Ages.eighths(w.Ages.of[s.Name].since[addr], w.Now, slowStartOf(s))
}

// eighths is the age of an endpoint, 8 if the time is zero.
func (a *Ages) eighths(since, now time.Time, slowStart time.Duration) int64 {
	if since.IsZero() {
		return 8
	}
	eighth := slowStart / 8
	multiples := func(t time.Time) int64 { return int64(t.Sub(a.Begun) / eighth) }
	first := multiples(since)
	if a.Begun.Add(time.Duration(first) * eighth).Before(since) {
		first++
	}
	return min(8, max(0, multiples(now)-first))
}

func annotationOf(s *model.Service, name string) string {
	for _, a := range s.Annotations {
		if a.Name == name {
			return a.Value
		}
	}
	return ""
}

// slowStartOf is the annotation of a service, 0 if it is absent or bad.
func slowStartOf(s *model.Service) time.Duration {
	d, err := time.ParseDuration(annotationOf(s, "switchyard.net/slow-start"))
	if err != nil || d < time.Second || d > time.Hour || d.Truncate(time.Second) != d {
		return 0
	}
	return d
}

// zoneWeightsOf is the annotation of a service, and whether it is there and good.
func zoneWeightsOf(s *model.Service) (same, other int64, ok bool) {
	value := annotationOf(s, "switchyard.net/zone-weights")
	first, second, _ := strings.Cut(value, ",")
	if strings.HasPrefix(first, "other=") {
		first, second = second, first
	}
	same, err1 := strconv.ParseInt(strings.TrimPrefix(first, "same="), 10, 64)
	other, err2 := strconv.ParseInt(strings.TrimPrefix(second, "other="), 10, 64)
	good := func(n int64) bool { return n >= 0 && n <= 65535 }
	ok = err1 == nil && err2 == nil && strings.HasPrefix(first, "same=") && strings.HasPrefix(second, "other=") && good(same) && good(other) && same+other > 0
	return same, other, ok
}

// mayHaveWeights reports whether the annotations of a service can give endpoints of one slice different weights.
func mayHaveWeights(s *model.Service) bool {
	_, _, zones := zoneWeightsOf(s)
	return zones || slowStartOf(s) > 0
}

// zoneUse is what zone weights do for policy Cluster among ready endpoints. They count where the zones of the node and of all ready endpoints are known. At
// least one of these has to be in the zone of the node. It is as with hints.
func (w *World) zoneUse(ready []endpoint) string {
	return useOfHints(ready, w.zone(), func(ep endpoint) []string {
		if ep.Zone == "" {
			return nil
		}
		return []string{ep.Zone}
	})
}

// byZone leaves out of ready endpoints those whose zone has weight 0, unless nothing is left then.
func (w *World) byZone(s *model.Service, ready []endpoint) []endpoint {
	same, other, _ := zoneWeightsOf(s)
	if w.zoneUse(ready) != HintsUsed {
		return ready
	}
	left := filter(ready, func(ep endpoint) bool { return ep.Zone == w.zone() && same > 0 || ep.Zone != w.zone() && other > 0 })
	if len(left) == 0 {
		return ready
	}
	return left
}

// shares sets the weights of chosen endpoints: the weight of the slice, times the weight of the zone, times the age. Policy Local does not know zones.
func (w *World) shares(s *model.Service, chosen []endpoint, ready []endpoint, local bool) []endpoint {
	if !mayHaveWeights(s) {
		return chosen
	}
	same, other, zones := zoneWeightsOf(s)
	zones = zones && !local && w.zoneUse(ready) == HintsUsed && !w.nodeHintsCount(ready)
	split := slices.ContainsFunc(chosen, func(ep endpoint) bool { return ep.Zone != w.zone() }) && slices.ContainsFunc(chosen, func(ep endpoint) bool { return ep.Zone == w.zone() })
	var products []*big.Int
	for _, ep := range chosen {
		product := big.NewInt(int64(ep.weight))
		times := func(n int64) { product.Mul(product, big.NewInt(n)) }
		switch {
		case !zones || !split:
		case ep.Zone == w.zone():
			times(same)
		default:
			times(other)
		}
		age := int64(8)
		if ep.Ready {
			age = w.age(s, ep.Addr)
		}
		times(max(8, 10*age)) // eightieths: a tenth, or the eighths of the age
		products = append(products, product)
	}
	return inSixteenBits(chosen, products)
}

// inSixteenBits sets the weights of endpoints to the ratio of products.
func inSixteenBits(eps []endpoint, products []*big.Int) []endpoint {
	divisor, largest := new(big.Int), new(big.Int)
	for _, p := range products {
		divisor.GCD(nil, nil, divisor, p)
		if p.Cmp(largest) > 0 {
			largest = p
		}
	}
	weighed := slices.Clone(eps)
	for i, p := range products {
		reduced, most := new(big.Int).Div(p, divisor), new(big.Int).Div(largest, divisor)
		if most.Cmp(big.NewInt(65535)) > 0 {
			// Round half up: (2 · 65535 · reduced + most) / (2 · most).
			reduced.Mul(reduced, big.NewInt(2*65535)).Add(reduced, most).Div(reduced, most.Mul(most, big.NewInt(2)))
		}
		weighed[i].weight = max(1, int(reduced.Int64()))
	}
	return weighed
}

// nodeHintsCount reports whether hints for nodes choose among ready endpoints.
func (w *World) nodeHintsCount(ready []endpoint) bool {
	return useOfHints(ready, w.NodeName, func(ep endpoint) []string { return ep.NodeHints }) == HintsUsed
}
