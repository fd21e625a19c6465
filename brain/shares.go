package brain

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// ZoneWeights are the weights of endpoints in the zone of the node and in other zones. They multiply the weights of slices. The zero value stands
// for a Service without the annotation.
type ZoneWeights struct{ Same, Other uint16 }

func (z ZoneWeights) String() string { return fmt.Sprintf("same=%d,other=%d", z.Same, z.Other) }

// wantZoneWeights completes the sentence "the value is not ...".
const wantZoneWeights = `two weights such as "same=4,other=1", which are whole numbers from 0 to 65535 and not both 0`

func readZoneWeights(s *Settings, value string) (want string) {
	var z ZoneWeights
	weights := map[string]*uint16{"same": &z.Same, "other": &z.Other}
	for item := range strings.SplitSeq(value, ",") {
		key, text, _ := strings.Cut(strings.TrimSpace(item), "=")
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || weights[key] == nil {
			return wantZoneWeights
		}
		*weights[key] = uint16(n)
		delete(weights, key)
	}
	if len(weights) > 0 || z == (ZoneWeights{}) {
		return wantZoneWeights
	}
	s.ZoneWeights = z
	return ""
}

// minSlowStart and maxSlowStart bound the time in which an endpoint gets to its full weight.
const minSlowStart, maxSlowStart = time.Second, time.Hour

func readSlowStart(s *Settings, value string) (want string) {
	d, err := time.ParseDuration(value)
	if err != nil || d < minSlowStart || d > maxSlowStart || d%time.Second != 0 {
		return "a duration in whole seconds from 1s to 1h"
	}
	s.SlowStart = d
	return ""
}

// SlowStartOf returns the time in which new endpoints of a service get to their full weight. It is 0 if the service does not ask for it or is not
// routed.
func SlowStartOf(cfg *Config, svc *model.Service) time.Duration {
	if skips(cfg, svc) != "" || len(svc.Annotations) == 0 {
		return 0
	}
	return SettingsOf(cfg, svc).SlowStart
}

// SlowStartSteps is the number of steps in which the weight of a new endpoint grows.
const SlowStartSteps = 8

// Young is an endpoint that has been ready for less than the slow start of its service.
type Young struct {
	Addr netip.Addr
	// Age has been reached, of [SlowStartSteps].
	Age uint8
}

// factorUnit is the factor of an endpoint that is not young. It makes all factors whole numbers.
const factorUnit = 80

// factor is what multiplies the weight of the endpoint, of factorUnit: the age, and at least a tenth.
func (y Young) factor() uint64 { return max(factorUnit/10, uint64(y.Age)*factorUnit/SlowStartSteps) }

// Factor is what multiplies the weight of the endpoint: the age as a part of the slow start, and at least 0.1.
func (y Young) Factor() float64 { return float64(y.factor()) / factorUnit }

// shares multiply the weights of slices. The zero value multiplies nothing.
type shares struct {
	zones ZoneWeights // the zero value where they do not count
	young []Young     // sorted by address
}

func (s *Settings) shares(cfg *Config) shares {
	if s.SlowStart == 0 {
		return shares{zones: s.ZoneWeights}
	}
	return shares{s.ZoneWeights, cfg.Young}
}

// multiplies reports whether the annotations of a service may give different weights to endpoints of a slice.
func (s *Settings) multiplies() bool { return s.SlowStart > 0 || s.ZoneWeights != ZoneWeights{} }

// best returns which ready endpoints policy Cluster takes, and what multiplies their weights. Endpoints on unready Nodes come last. Hints for nodes win
// over zone weights, which replace hints for zones. As hints, zone weights count only where the zones of the node and of all ready endpoints are known.
func (sh shares) best(c candidates) (selection, shares) {
	among := c.ready()
	t, zones := c.tally(among), sh.zones
	sh.zones = ZoneWeights{}
	switch {
	case t.use(nodeHinted, nodeHere) == HintsUsed:
		return among.with(nodeHere), sh
	case zones == ZoneWeights{}:
		if t.use(zoneHinted, zoneHere) == HintsUsed {
			return among.with(zoneHere), sh
		}
	case t.use(zoned, near) != HintsUsed || t.all&near != 0: // they are all in other zones, or all in this one
	case zones.Other == 0:
		return among.with(near), sh
	case zones.Same == 0:
		return selection{among.mask | near, among.want}, sh
	default:
		sh.zones = zones
	}
	return among, sh
}

// ofLocal returns what multiplies the weights of endpoints for policy Local: they are all in the zone of the node.
func (sh shares) ofLocal() shares { return shares{young: sh.young} }

// weigh sets the weights of eps, which are the candidates that s selects.
func (sh shares) weigh(eps []state.Endpoint, c candidates, s selection) {
	if len(sh.young) == 0 && sh.zones == (ZoneWeights{}) {
		return
	}
	weights, young := make([]uint64, 0, len(eps)), sh.young
	for _, e := range c {
		if s.misses(e.is) != 0 {
			continue
		}
		for len(young) > 0 && young[0].Addr.Less(e.addr.Addr()) {
			young = young[1:]
		}
		w := uint64(max(1, e.weight)) * sh.zones.of(e.is)
		if len(young) > 0 && young[0].Addr == e.addr.Addr() {
			w *= young[0].factor()
		} else {
			w *= factorUnit
		}
		weights = append(weights, w)
	}
	scale(eps, weights)
}

// of returns the weight of an endpoint with these traits, 1 if zone weights do not count.
func (z ZoneWeights) of(is traits) uint64 {
	switch {
	case z == ZoneWeights{}:
		return 1
	case is&near != 0:
		return uint64(z.Same)
	}
	return uint64(z.Other)
}

// scale gives endpoints weights of 16 bits in the ratio of weights, which are positive and below 2^40. It reduces them to lowest terms, so that a route
// depends on its own endpoints only. If they have no room then, they are rounded to parts of the largest
// weight, which is 65,535. No weight is less than 1.
func scale(eps []state.Endpoint, weights []uint64) {
	const most = 1<<16 - 1
	var divisor, largest uint64
	for _, w := range weights {
		divisor, largest = gcd(divisor, w), max(largest, w)
	}
	for i, w := range weights {
		w /= divisor
		if of := largest / divisor; of > most {
			w = max(1, (w*most+of/2)/of)
		}
		eps[i].Weight = uint16(w)
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
