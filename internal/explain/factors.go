package explain

import (
	"fmt"
	"strings"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/store"
)

// noZoneWeight is why an endpoint gets nothing by zone weights.
const noZoneWeight = "the weight of its kind of zone is 0: " + model.ZoneWeightsAnnotation

// shares names the annotations that multiply the weights of endpoints, and whether they have an effect.
func (v *view) shares(a *Answer, policy brain.Policy, reasons *brain.PortReasons, why *store.Explanation) {
	if weights := why.Settings.ZoneWeights; weights != (brain.ZoneWeights{}) {
		a.policy(model.ZoneWeightsAnnotation, weights.String(), zonesUse(weights, policy, reasons, why.Zone))
	}
	if length := why.Settings.SlowStart; length > 0 {
		text := fmt.Sprintf("the weight of an endpoint grows for %v after it has become ready, beginning with a tenth", length)
		a.policy(model.SlowStartAnnotation, length.String(), text)
	}
}

// zonesUse says what zone weights do.
func zonesUse(weights brain.ZoneWeights, policy brain.Policy, reasons *brain.PortReasons, zone string) string {
	const none = "it has no effect: "
	switch {
	case policy == brain.PolicyLocal:
		return none + "only endpoints on this node count"
	case reasons.ClusterTerminates:
		return none + "no endpoint is ready"
	case reasons.NodeHints == brain.HintsUsed:
		return none + "hints for nodes are in use"
	case zone == "":
		return none + "the zone of this node is not known"
	case reasons.Zones == brain.NoneForHere:
		return fmt.Sprintf("%sno ready endpoint is in zone %s", none, zone)
	case reasons.Zones != brain.HintsUsed:
		return none + "the zones of some ready endpoints are not known"
	case weights.Other == 0:
		return fmt.Sprintf("only endpoints in zone %s", zone)
	case weights.Same == 0:
		return fmt.Sprintf("only endpoints outside of zone %s, if there are any", zone)
	}
	return fmt.Sprintf("endpoints in zone %s have weight %d, and all others %d", zone, weights.Same, weights.Other)
}

// factorsText lists what is multiplied for the weight of an endpoint, such as "; zone weight 4, slow start 0.375 of 30s".
func factorsText(r *brain.EndpointReasons, policy brain.Policy, settings *brain.Settings) string {
	var factors []string
	if r.ZoneWeight > 0 && policy == brain.PolicyCluster {
		factors = append(factors, fmt.Sprintf("zone weight %d", r.ZoneWeight))
	}
	if r.SlowStart > 0 {
		factors = append(factors, fmt.Sprintf("slow start %v of %v", r.SlowStart, settings.SlowStart))
	}
	if len(factors) == 0 {
		return ""
	}
	if r.Slice.Weight != "" {
		factors = append([]string{fmt.Sprintf("weight %s of slice %s", r.Slice.Weight, r.Slice.Name)}, factors...)
	}
	return "; " + strings.Join(factors, ", ")
}
