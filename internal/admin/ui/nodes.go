package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/state"
)

// RelaySource is what the page of a relay shows. Its methods are called concurrently.
type RelaySource interface {
	// Status returns how the process is doing.
	Status() *view.Status
	// Nodes returns the nodes with a Version above after, in no order.
	Nodes(after uint64) []*Node
}

// Node is how the dataplanes of a node are doing that follow a relay. It is never modified.
type Node struct {
	// Version grows with each change of any node.
	Version uint64 `json:"-"`
	Name    string `json:"name"`
	// Client is what the dataplane calls itself that has come or reported last, Address where it connects from, and Clients how many there are.
	Client  string `json:"client,omitempty"`
	Address string `json:"address,omitempty"`
	Clients int    `json:"clients"`
	// Since is when the first of them came, Gone when the last one went.
	Since time.Time `json:"since"`
	Gone  time.Time `json:"gone,omitzero"`
	// Revision is the revision of the newest update that the node was sent, 0 for none. Applied is the revision that
	// its dataplane has applied, 0 for none.
	Revision state.Revision `json:"revision"`
	Applied  state.Revision `json:"applied"`
	// PendingSince is since when the node has had an update that it does not show.
	PendingSince time.Time `json:"pendingSince,omitzero"`
	// Took is how long the last update took, from when the relay had it for the node until the node reported it, in seconds.
	Took *float64 `json:"took,omitempty"`
	// Reported is when the node reported last.
	Reported time.Time `json:"reported,omitzero"`
	// Failed counts the Services that cannot be programmed, since FailedSince; Failures are some of them.
	Failed      int       `json:"failed,omitempty"`
	FailedSince time.Time `json:"failedSince,omitzero"`
	Failures    []Failure `json:"failures,omitempty"`
}

// Failure is why a Service cannot be programmed.
type Failure struct {
	Service string `json:"service"`
	Reason  string `json:"reason"`
}

// maxNodes is how many nodes an event has at most. The others come with the next ones.
const maxNodes = 1000

// RelayHandler returns what serves the page of a relay, until ctx ends: then it ends the streams of events.
func RelayHandler(ctx context.Context, source RelaySource) http.Handler {
	p := &relayPage{newServer(ctx), source}
	return p.handler(map[string]http.Handler{"status": p.answer(p.turns, p.status), "nodes": p.answer(p.turns, p.nodes)}, p.follow)
}

// relayPage is the page of a relay.
type relayPage struct {
	*server
	source RelaySource
}

func (p *relayPage) status(*http.Request) (any, error) {
	return &status{ofRelay, p.source.Status()}, nil
}

// nodeList is a part of the nodes, in order.
type nodeList struct {
	Items []*Node `json:"items"`
	// Next is where the next part begins, empty after the last one.
	Next string `json:"next,omitempty"`
}

// nodes returns the nodes that the query names by keys, or the first of those after another one.
func (p *relayPage) nodes(r *http.Request) (any, error) {
	limit, err := number(r, "limit", usualPart, maxPart)
	if err != nil {
		return nil, err
	}
	keys, after := r.Form["key"], r.Form.Get("after")
	if len(keys) > maxKeys {
		return nil, badRequest(fmt.Errorf("%d keys are too many; give %d at most", len(keys), maxKeys))
	}
	rows := slices.DeleteFunc(p.source.Nodes(0), func(n *Node) bool {
		return len(keys) > 0 && !slices.Contains(keys, n.Name) || len(keys) == 0 && n.Name <= after && after != ""
	})
	slices.SortFunc(rows, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	part := nodeList{Items: nonNil(rows)}
	if limit = max(limit, 1); len(keys) == 0 && len(rows) > limit {
		part.Items, part.Next = rows[:limit], rows[limit-1].Name
	}
	return part, nil
}

// relayEvent is what has changed since the one before.
type relayEvent struct {
	Status *status `json:"status,omitempty"`
	Set    []*Node `json:"set,omitempty"`
}

func (e *relayEvent) empty() bool { return e.Status == nil && len(e.Set) == 0 }

// relayFollower is what the stream of a relay's page has sent.
type relayFollower struct {
	*relayPage
	began   bool
	version uint64
	status  []byte
}

func (p *relayPage) follow() stream { return &relayFollower{relayPage: p} }

// next implements [stream].
func (f *relayFollower) next(context.Context) (message, bool) {
	e := &relayEvent{}
	status := &status{ofRelay, f.source.Status()}
	if text, err := json.Marshal(status); err == nil && !bytes.Equal(text, f.status) {
		e.Status, f.status = status, text
	}
	rows := f.source.Nodes(f.version)
	slices.SortFunc(rows, func(a, b *Node) int { return cmp.Compare(a.Version, b.Version) })
	if f.began {
		rows = rows[:min(len(rows), maxNodes)]
		e.Set = rows
	}
	f.began = true // before, the page asks for all rows
	if n := len(rows); n > 0 {
		f.version = rows[n-1].Version
	}
	return e, true
}
