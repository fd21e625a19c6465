package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Edge is the slot of a connection that the edge of a node hands over.
type Edge struct {
	// Slot is the slot of the connection, from 0 on, and Slots is how many there are.
	Slot  int `json:"slot"`
	Slots int `json:"slots"`
	// Node has the slot. Earlier are nodes that had it before, the last one first.
	Node    string   `json:"node"`
	Earlier []string `json:"earlier,omitempty"`
}

func (e *Edge) text() string {
	text := fmt.Sprintf("slot %d of %d, %s", e.Slot, e.Slots, nodeText(e.Node))
	if len(e.Earlier) > 0 {
		text += " (before: " + strings.Join(e.Earlier, ", ") + ")"
	}
	return text + fmt.Sprintf("; answers go from %s directly to the client", e.Node)
}

// usual is what an answer says if the connection is not handed over.
type usual struct {
	source, wayBack string
	masqueraded     []bool // of Endpoints
}

// edgePolicy is the name of the policy that says whether a connection is handed over.
const edgePolicy = "edge"

// HandsOver reports whether the connection is handed over by the state. The edge of the node may not do so.
func (a *Answer) HandsOver() bool { return a.usual != nil }

// handedOver has the server see the client, and answer it directly.
func (a *Answer) handedOver(c Connection) {
	a.usual = &usual{source: a.Source, wayBack: a.WayBack}
	for i := range a.Endpoints {
		e := &a.Endpoints[i]
		a.usual.masqueraded = append(a.usual.masqueraded, e.Masqueraded)
		e.Masqueraded = false
	}
	a.Source = ownAddress(c)
	a.WayBack = fmt.Sprintf("the node of the server sends its answers to the client directly, as coming from %v: a network that drops them there loses them", c.Dst)
}

// HandOver adds the slot of a connection that is handed over. It is nil if the client's port is not known, which the slot depends on.
func (a *Answer) HandOver(e *Edge) {
	if a.Edge = e; e == nil {
		a.Notes = append(a.Notes, "the client's address and port choose the node: ask from IP:PORT for it")
	}
}

// Keep has the connection go the usual way, through the dataplane of this node, for a reason.
func (a *Answer) Keep(why string) {
	p := a.policyOf(edgePolicy)
	p.Value, p.Text = "Left", "the connection is not handed over now: "+why
	for i, masqueraded := range a.usual.masqueraded {
		a.Endpoints[i].Masqueraded = masqueraded
	}
	a.Source, a.WayBack, a.usual = a.usual.source, a.usual.wayBack, nil
}

// edge fills in to which nodes the connection of a client outside is handed over, or why to none. It says nothing if the edge is off. It reports
// whether the connection is handed over.
func (v *view) edge(a *Answer, c Connection, h held, reasons *brain.PortReasons) (handsOver bool) {
	if c.Class != Outside || h.frontend.Kind == state.ClusterIP || reasons.Edge == brain.EdgeDisabled {
		return false
	}
	e, why := h.port.Edge, reasons.Edge
	if e != nil && !e.Takes(h.frontend.Kind) {
		why = brain.EdgeNoFrontend
	}
	switch {
	case why != "":
		a.policy(edgePolicy, string(why), edgeText(why, reasons.EdgeNode))
	case e != nil && len(e.Shares) > 0:
		handsOver = true
		a.policy(edgePolicy, "Used", fmt.Sprintf("the connection is handed over to %s, whose answers go to the client directly: %s", oneOf(len(e.Shares), "node"), v.sharesText(e)))
	}
	return handsOver
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
