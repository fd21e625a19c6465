package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// edge fills in to which nodes the connection of a client outside is handed over, or why to none. It says nothing if the edge is off.
func (v *view) edge(a *Answer, c Connection, h held, reasons *brain.PortReasons) {
	if c.Class != Outside || h.frontend.Kind == state.ClusterIP || reasons.Edge == brain.EdgeDisabled {
		return
	}
	e, why := h.port.Edge, reasons.Edge
	if e != nil && !e.Takes(h.frontend.Kind) {
		why = brain.EdgeNoFrontend
	}
	switch {
	case why != "":
		a.policy("edge", string(why), edgeText(why, reasons.EdgeNode))
	case e != nil && len(e.Shares) > 0:
		a.policy("edge", "Used", fmt.Sprintf("the connection is handed over to %s, whose answers go to the client directly: %s", oneOf(len(e.Shares), "node"), v.sharesText(e)))
	}
}

// sharesText names the nodes that connections are handed over to, with their shares.
func (v *view) sharesText(e *state.Edge) string {
	total := uint64(0)
	for _, s := range e.Shares {
		total += uint64(s.Weight)
	}
	var texts []string
	for _, s := range e.Shares[:min(len(e.Shares), maxNamed)] {
		name := fmt.Sprintf("%08x", s.Node)
		if i := slices.IndexFunc(v.node.Peers, func(p state.Peer) bool { return p.ID == s.Node }); i >= 0 {
			name = v.node.Peers[i].Name
		}
		texts = append(texts, fmt.Sprintf("%s has %d of %d", nodeText(name), s.Weight, total))
	}
	if more := len(e.Shares) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}

// edgeText is why a connection is not handed over to another node, in words.
func edgeText(why brain.EdgeReason, node string) string {
	switch why {
	case brain.EdgeOptedOut:
		return fmt.Sprintf(`the Service has the annotation %s: "false"`, model.EdgeAnnotation)
	case brain.EdgeNotAsked:
		return fmt.Sprintf(`only Services with the annotation %s: "true" are taken`, model.EdgeAnnotation)
	case brain.EdgeNoFrontend:
		return "connections to frontends of this kind are not handed over"
	case brain.EdgePolicyLocal:
		return "externalTrafficPolicy Local keeps the client's address without it"
	case brain.EdgeProtocol:
		return "only connections of TCP and UDP are handed over"
	case brain.EdgeRange:
		return "connections to ranges of ports are not handed over"
	case brain.EdgeAffinity:
		return "with sessionAffinity, a client would lose its endpoint with a change of shares"
	case brain.EdgeBalance:
		return "endpoints are not drawn at random"
	case brain.EdgeEjection:
		return "each node decides for itself which endpoints are silent"
	case brain.EdgeDeadline:
		return "each node counts the deadline of its own connections only"
	case brain.EdgeNoEndpoints:
		return "no endpoint gets connections"
	case brain.EdgeNoNode:
		return "an endpoint is on no known node"
	case brain.EdgeNodeApart:
		return fmt.Sprintf("%s has endpoints and does not take part", nodeText(node))
	case brain.EdgeTooLarge:
		return "the endpoints of the Service are on more nodes than a record has room for"
	}
	return string(why)
}
