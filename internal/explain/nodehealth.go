package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/store"
)

// maxUnready bounds how many unready nodes an answer names.
const maxUnready = 8

// nodeHealth fills in the nodes whose endpoints come last, and whether that is so for none because too many nodes are not ready.
func (a *Answer) nodeHealth(reasons *brain.PortReasons, why *store.Explanation) {
	if h := why.NodeHealth; h.Ignored {
		a.Notes = append(a.Notes, fmt.Sprintf("no endpoint comes last because of its node: %d of %d nodes are not ready, which is more than nodeHealth.ignoreAbovePercent", h.NotReady, h.Nodes))
	}
	endpoints := map[string]int{}
	for i := range reasons.Endpoints {
		if r := &reasons.Endpoints[i]; r.Unusable == "" && r.Endpoint.NodeUnready {
			endpoints[r.Endpoint.NodeName]++
		}
	}
	if len(endpoints) == 0 {
		return
	}
	names := slices.Sorted(maps.Keys(endpoints))
	shown := names[:min(len(names), maxUnready)]
	var texts []string
	for _, name := range shown {
		texts = append(texts, fmt.Sprintf("%s %s: its %s last", name, conditionText(why.UnreadyNodes[name]), comes(endpoints[name])))
	}
	if more := len(names) - len(shown); more > 0 {
		texts = append(texts, fmt.Sprintf("so do the endpoints of %d more", more))
	}
	a.policy("nodeHealth", strings.Join(shown, ", "), strings.Join(texts, "; "))
}

// conditionText says what is wrong with a node.
func conditionText(c store.NodeCondition) string {
	if c.Health == model.NodeShuttingDown {
		return "is shutting down"
	}
	return "has not been ready since " + c.Since.UTC().Format(time.RFC3339)
}

func comes(endpoints int) string {
	if endpoints == 1 {
		return "endpoint comes"
	}
	return fmt.Sprintf("%d endpoints come", endpoints)
}
