package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// The bounds of lists: Services in one part, Services that are asked for by name, and endpoints of one Service.
const (
	maxPart      = 1000
	usualPart    = 200
	maxKeys      = 100
	maxEndpoints = 1000
)

// list is a part of the Services, in order.
type list struct {
	Items []json.RawMessage `json:"items"`
	// Next is where the next part begins: after this Service, or of keys, at this one. It is empty after the last part.
	Next string `json:"next,omitempty"`
}

// step makes a part of a list, in a bounded time and of bounded size, for a client that may go.
type step struct {
	ctx   context.Context
	until time.Time
	// looked counts the Services that were looked at, and bytes counts the bytes of their rows.
	looked, bytes int
	list          list
}

func newStep(ctx context.Context) *step {
	return &step{ctx: ctx, until: time.Now().Add(stepTime), list: list{Items: []json.RawMessage{}}}
}

// full reports whether the rest is for another part. It is not before the first look, so that clients get on.
func (s *step) full() bool {
	return s.looked > 0 && (s.bytes >= stepBytes || time.Now().After(s.until))
}

// add adds a row, if there is one. The error is that the client has gone.
func (s *step) add(row *view.Service) error {
	s.looked++
	if err := s.ctx.Err(); err != nil || row == nil {
		return err
	}
	text, err := json.Marshal(row)
	s.list.Items, s.bytes = append(s.list.Items, text), s.bytes+len(text)
	return err
}

// services returns rows: those that the query names by keys, or the first of those that it selects after another one.
func (p *page) services(r *http.Request) (any, error) {
	v := p.source.View()
	if err := r.ParseForm(); err != nil {
		return nil, badRequest(err)
	}
	if keys := r.Form["key"]; len(keys) > 0 {
		return byKey(r.Context(), v, keys)
	}
	limit, err := number(r, "limit", usualPart, maxPart)
	if err != nil {
		return nil, err
	}
	selection := view.Selection{Namespace: r.Form.Get("namespace"), After: r.Form.Get("after"), Text: strings.ToLower(r.Form.Get("filter"))}
	if err := selection.Check(); err != nil {
		return nil, badRequest(err)
	}
	part := newStep(r.Context())
	last := ""
	for row := range v.Services(selection) {
		if len(part.list.Items) == max(limit, 1) || part.full() {
			part.list.Next = last
			break
		}
		if err := part.add(row); err != nil {
			return nil, err
		}
		last = row.Key()
	}
	return part.list, nil
}

// byKey returns the rows of Services that are there, each once.
func byKey(ctx context.Context, v *view.View, keys []string) (any, error) {
	if len(keys) > maxKeys {
		return nil, badRequest(fmt.Errorf("%d keys are too many; give %d at most", len(keys), maxKeys))
	}
	part := newStep(ctx)
	seen := make(map[state.ServiceName]bool, len(keys))
	for _, key := range keys {
		name, err := nameOf(key)
		if err != nil {
			return nil, err
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		if part.full() {
			part.list.Next = key
			break
		}
		if err := part.add(v.Service(name)); err != nil {
			return nil, err
		}
	}
	return part.list, nil
}

func nameOf(key string) (state.ServiceName, error) {
	namespace, name, ok := strings.Cut(key, "/")
	if !ok || namespace == "" || name == "" {
		return state.ServiceName{}, badRequest(fmt.Errorf("key %q is not NAMESPACE/NAME", key))
	}
	return state.ServiceName{Namespace: namespace, Name: name}, nil
}

// detail is all that a picture of one Service takes.
type detail struct {
	Service *view.Service `json:"service"`
	// Policies are the rules by which the ports choose endpoints, for each family.
	Policies  []portPolicy     `json:"policies"`
	Endpoints []*view.Endpoint `json:"endpoints"`
	// More reports whether there are more endpoints than are listed.
	More bool `json:"more,omitempty"`
	// Paths are how the connections of a lab went.
	Paths []Path `json:"paths,omitempty"`
	// Graph is how many connections there were, if they are counted. Comings are when endpoints came and went, as far as that is known.
	Graph   *Graph   `json:"graph,omitempty"`
	Comings *Comings `json:"comings,omitempty"`
}

// portPolicy is how one port in one family chooses among its endpoints. A policy is Unused if there is nothing that it would be for.
type portPolicy struct {
	Port     string `json:"port,omitempty"`
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	Internal string `json:"internal"`
	External string `json:"external"`
	// Inside is the outcome of connections from pods and processes of this node to the cluster IP. Outside is the
	// outcome of connections from clients outside of the cluster to other addresses.
	Inside  explain.Verdict `json:"inside"`
	Outside explain.Verdict `json:"outside"`
}

// policiesOf returns how the ports of a Service choose, in order.
func policiesOf(why *store.Explanation) []portPolicy {
	type key struct {
		name     string
		protocol state.Protocol
		family   state.Family
	}
	published := map[key]*state.Port{}
	if why.Published != nil {
		for i := range why.Published.Ports {
			p := &why.Published.Ports[i]
			published[key{p.Name, p.Protocol, p.Family}] = p
		}
	}
	policies := []portPolicy{}
	for i := range why.Ports {
		p := &why.Ports[i]
		policy := portPolicy{
			Port: p.Name, Protocol: p.Protocol.String(), Family: p.Family.String(), Internal: p.Internal.String(), External: p.External.String(),
			Inside: explain.NotServed, Outside: explain.NotServed,
		}
		if record := published[key{p.Name, p.Protocol, p.Family}]; record != nil {
			policy.Inside, policy.Outside = explain.VerdictOf(record.Internal.Inside.Verdict), explain.VerdictOf(record.External.Outside.Verdict)
		}
		policies = append(policies, policy)
	}
	slices.SortFunc(policies, func(a, b portPolicy) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Family, b.Family))
	})
	return policies
}

// service returns one Service with its endpoints.
func (p *page) service(r *http.Request) (any, error) {
	name, err := nameOf(r.FormValue("key"))
	if err != nil {
		return nil, err
	}
	v := p.source.View()
	why := v.Store.Explain(name)
	d := detail{Service: v.ServiceOf(why), Policies: policiesOf(why), Endpoints: []*view.Endpoint{}}
	if d.Service == nil {
		return nil, &apiError{http.StatusNotFound, fmt.Sprintf("there is no Service %v", name)}
	}
	for row := range v.EndpointsOf(name, why) {
		if d.More = len(d.Endpoints) == maxEndpoints; d.More {
			break
		}
		d.Endpoints = append(d.Endpoints, row)
	}
	if lab, ok := p.source.(Lab); ok {
		if round := lab.Round(); round != nil {
			d.Paths = round.Paths[name]
		}
	}
	d.Comings = p.source.Changes().comings.get(name, time.Now())
	if c, ok := p.source.(Counting); ok {
		if traffic := c.Lately(); traffic != nil {
			d.Graph = traffic.graph(name)
		}
	}
	return d, nil
}
